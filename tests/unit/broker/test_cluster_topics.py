"""Topics of a cluster as one of its brokers changes them, before and after a controller has shown what it did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import BEING_DELETED, LiveBroker, PartitionMetadata, UpdateMetadata
from penstock.broker.configs.brokerconfig import load
from penstock.broker.configs.confignodes import OVERTAKEN, config_json
from penstock.broker.replication.topics import ClusterTopics
from penstock.broker.store.base import Create, Delete, Set, Store, paths
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.values import Fields, to_json
from penstock.broker.uuids import new_uuid, uuid_bytes, uuid_text
from penstock.errors import ErrorCode, KafkaError
from support.onloop import on_loop
from support.store_homes import WAIT_S

BROKERS = (LiveBroker(1, ()),)


@asynccontextmanager
async def topics_of(folder: Path) -> AsyncIterator[tuple[ClusterTopics, Store]]:
    """The topics of a broker that opens no logs, and the store. Nobody is the controller but the test."""
    store = await EmbeddedStore.open(folder / "metadata.db")
    try:
        for path in (paths.TOPICS, paths.TOPIC_CONFIGS, paths.DELETE_TOPICS, paths.DELETED, paths.CHANGES):
            await store.create(path, parents=True)
        no_logs = cast(Any, None)
        topics = ClusterTopics(1, load(), store, no_logs, no_logs, no_logs, no_logs)
        await tell(topics)
        async with asyncio.timeout(WAIT_S):
            yield topics, store
    finally:
        await store.close()


async def tell(topics: ClusterTopics, *partitions: PartitionMetadata) -> None:
    """The controller's picture of these."""
    picture = UpdateMetadata(1, 1, 1, 1, BROKERS, partitions)
    topics.take(picture, await topics.prepare(picture))


async def stored(store: Store, name: str, partitions: int = 1) -> bytes:
    """Wait until the store has a topic with so many partitions; its id."""
    while True:
        if await store.exists(paths.topic(name)) is not None:
            node = Fields.read(paths.topic(name), (await store.get(paths.topic(name)))[0])
            if len(node.table("partitions")) == partitions:
                return uuid_bytes(node.text("topic_id"))
        await asyncio.sleep(0.01)


async def led(topics: ClusterTopics, store: Store, name: str, partitions: int = 1) -> None:
    """The controller has elected leaders for a topic's partitions, and says so."""
    topic_id = await stored(store, name, partitions)
    state = LeaderAndIsr(1, 0, (1,))
    await tell(topics, *(PartitionMetadata((name, index), topic_id, (1,), state) for index in range(partitions)))


def refused(task: asyncio.Task[Any]) -> int:
    """The error code of a change that has ended."""
    error = task.exception()
    assert isinstance(error, KafkaError)
    return error.code


@on_loop
async def test_a_creation_that_is_not_shown_holds_up_no_other_change(tmp_path: Path) -> None:
    async with topics_of(tmp_path) as (topics, store):
        first = asyncio.create_task(topics.create("a.b", 1, {}))
        await stored(store, "a.b")
        second = asyncio.create_task(topics.create("c", 1, {}))
        await led(topics, store, "c")
        assert (await second).name == "c" and not first.done()
        growing = asyncio.create_task(topics.add_partitions("c", 2))
        await stored(store, "c", 2)
        third = asyncio.create_task(topics.create("d", 1, {}))
        await led(topics, store, "d")
        await third
        with pytest.raises(KafkaError) as collides:
            await topics.create("a_b", 1, {})
        assert collides.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        with pytest.raises(KafkaError) as again:
            await topics.create("a.b", 1, {})
        assert again.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert not first.done() and not growing.done()
        await led(topics, store, "a.b")
        await led(topics, store, "c", 2)
        await asyncio.gather(first, growing)


@on_loop
async def test_a_creation_ends_when_its_topic_is_deleted(tmp_path: Path) -> None:
    async with topics_of(tmp_path) as (topics, store):
        creating = asyncio.create_task(topics.create("t", 1, {}))
        await stored(store, "t")
        await store.delete(paths.topic("t"))
        await asyncio.wait([creating])
        assert refused(creating) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_loop
async def test_a_growth_ends_when_its_topic_is_made_again(tmp_path: Path) -> None:
    async with topics_of(tmp_path) as (topics, store):
        creating = asyncio.create_task(topics.create("t", 1, {}))
        await led(topics, store, "t")
        await creating
        changing = asyncio.create_task(topics.add_partitions("t", 2))
        await stored(store, "t", 2)
        node = Fields.read(paths.topic("t"), (await store.get(paths.topic("t")))[0])
        again = to_json(version=3, topic_id=uuid_text(new_uuid()), partitions=node.table("partitions"))
        await store.multi([Delete(paths.topic("t")), Create(paths.topic("t"), again)])
        await asyncio.wait([changing])
        assert refused(changing) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_loop
async def test_a_topic_that_no_cluster_can_store_is_refused_for_good(tmp_path: Path) -> None:
    async with topics_of(tmp_path) as (topics, store):
        bounded = await EmbeddedStore.begin(cast(EmbeddedStore, store).shared, is_bounded=True)
        topics._store = bounded
        with pytest.raises(KafkaError, match="more than ZooKeeper takes in one step") as refusal:
            await topics.create("t", 60_000, {})
        assert refusal.value.code == ErrorCode.POLICY_VIOLATION
        await bounded.close()


async def make_again(topics: ClusterTopics, store: Store, name: str, *, shown: bool = True) -> None:
    """The controller deletes a topic, and somebody makes another one of its name: its nodes have the versions that the former
    one's had."""
    _, deletions = await store.get(paths.DELETED)
    await store.multi(
        [
            Set(paths.DELETED, b"", deletions.version),
            Delete(paths.topic(name), recursive=True),
            Delete(paths.topic_config(name)),
        ]
    )
    node = to_json(version=3, topic_id=uuid_text(new_uuid()), partitions={"0": [1]}, adding_replicas={}, removing_replicas={})
    await store.multi([Create(paths.topic_config(name), config_json({})), Create(paths.topic(name), node)])
    if shown:
        await led(topics, store, name)


@on_loop
async def test_configs_of_a_topic_are_not_written_to_a_later_one_of_its_name(tmp_path: Path) -> None:
    async with topics_of(tmp_path) as (topics, store):
        topics.logs = cast(Any, SimpleNamespace(reconfigure=lambda topic: []))
        creating = asyncio.create_task(topics.create("t", 1, {"retention.ms": "1000"}))
        await led(topics, store, "t")
        await creating
        own = await topics.own_configs("t")
        await make_again(topics, store, "t")
        with pytest.raises(OVERTAKEN):
            await topics.alter_configs("t", {**own.texts, "max.message.bytes": "2000"}, own)
        assert (await topics.own_configs("t")).texts == {}


@on_loop
async def test_a_growth_does_not_hit_a_later_topic_of_the_name(tmp_path: Path) -> None:
    async with topics_of(tmp_path) as (topics, store):
        creating = asyncio.create_task(topics.create("t", 1, {}))
        await led(topics, store, "t")
        topic = await creating
        guard, version = await topics._until_as_stored(topic)
        await make_again(topics, store, "t", shown=False)
        assert not await topics._store_grown(topic, 2, guard, version, [[1]])
        assert await stored(store, "t") != topic.topic_id
        with pytest.raises(KafkaError) as gone:
            await topics.add_partitions("t", 2)
        assert gone.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_loop
async def test_a_picture_of_a_topic_that_is_gone_hides_no_later_one(tmp_path: Path) -> None:
    """A controller that was elected by what a lagging server showed tells of the former topic."""
    async with topics_of(tmp_path) as (topics, store):
        forgotten: list[str] = []
        topics.deleted = forgotten.append
        creating = asyncio.create_task(topics.create("t", 1, {}))
        await led(topics, store, "t")
        topic = await creating
        for leader in (1, BEING_DELETED):
            await tell(topics, PartitionMetadata(("t", 0), new_uuid(), (1,), LeaderAndIsr(leader, 0, (1,))))
            assert topics.get("t") is topic and not forgotten
        await tell(topics, PartitionMetadata(("u", 0), new_uuid(), (1,), LeaderAndIsr(1, 0, (1,))))
        await make_again(topics, store, "t")
        assert forgotten == ["t"] and topics.known("t").topic_id != topic.topic_id


@on_loop
async def test_who_leads_by_the_store_is_shown_until_the_controller_says_more(tmp_path: Path) -> None:
    async with topics_of(tmp_path) as (topics, store):
        creating = asyncio.create_task(topics.create("t", 1, {}))
        await led(topics, store, "t")
        topic = await creating
        moved = LeaderAndIsr(2, 3, (1, 2), topic_id=topic.topic_id)
        for state in (replace(moved, topic_id=new_uuid()), moved, replace(moved, leader=1, leader_epoch=2)):
            topics.show_leaders({("t", 0): state})
        (shown,) = topics.known("t").partitions
        assert (shown.leader, shown.leader_epoch, shown.isr) == (2, 3, [1, 2])
        await led(topics, store, "t")
        assert topics.known("t").partitions[0].leader == 1
