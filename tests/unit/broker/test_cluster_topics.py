"""Topics of a cluster as one of its brokers changes them, before and after a controller has shown what it did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import LiveBroker, PartitionMetadata, UpdateMetadata
from penstock.broker.configs.brokerconfig import load
from penstock.broker.replication.topics import ClusterTopics
from penstock.broker.store.base import Create, Delete, Store, paths
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
        for path in (paths.TOPICS, paths.TOPIC_CONFIGS, paths.DELETE_TOPICS):
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
