"""The coordinators' topics and their number of partitions: what is stored of a name is found again, whatever it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.broker.logs.folder import STORE
from penstock.broker.store.base import paths
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import CreatePartitionsRequest
from support.asking import create
from support.harness import BrokerProcess, WireConnection

Make = Callable[..., BrokerProcess]
WAIT_S = 120.0
GROUPS = [f"group-{number}" for number in range(6)]


def committed(broker: BrokerProcess, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition("t", 0)], WAIT_S)
    consumer.close()
    return int(found.offset)


def commit(broker: BrokerProcess, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    consumer.close()


def commit_in_transaction(broker: BrokerProcess, group: str, offset: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"of-{group}"})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition("t", 0, offset)], consumer.consumer_group_metadata(), WAIT_S)
    producer.commit_transaction(WAIT_S)
    consumer.close()


def fill(broker: BrokerProcess, offset: int) -> None:
    for group in GROUPS[::2]:
        commit(broker, group, offset)
    for group in GROUPS[1::2]:
        commit_in_transaction(broker, group, offset)


def grow(data: Path, topic: str, count: int) -> None:
    """Give a topic more partitions, in the folder of a broker that is stopped."""

    async def work() -> None:
        store = await EmbeddedStore.open(data / STORE)
        node = json.loads((await store.get(paths.topic(topic)))[0])
        state, _ = await store.get(paths.partition_state(topic, 0))
        for index in range(len(node["partitions"]), count):
            node["partitions"][str(index)] = node["partitions"]["0"]
            await store.create(paths.partition_state(topic, index), state, parents=True)
        await store.set(paths.topic(topic), json.dumps(node).encode())
        await store.close()

    asyncio.run(work())


@pytest.mark.parametrize("topic", [GROUP_OFFSETS, TRANSACTION_STATE])
def test_nobody_makes_them_grow(make_broker: Make, topic: str) -> None:
    broker = make_broker()
    create(broker, "t")
    fill(broker, 3)
    asked = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=9, assignments=None)], timeout_ms=60_000
    )
    with WireConnection(broker.bootstrap) as wire:
        (result,) = wire.ask(asked, 3).results
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert topic in (result.error_message or "")
    broker.restart()
    assert [committed(broker, group) for group in GROUPS] == [3] * len(GROUPS)


def test_a_folder_whose_topics_have_grown_keeps_its_positions(make_broker: Make) -> None:
    """Kafka lets them grow, and so did older brokers."""
    broker = make_broker(**{"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1})
    create(broker, "t")
    fill(broker, 3)
    assert broker.stop() == 0
    grow(broker.data, GROUP_OFFSETS, 50)
    grow(broker.data, TRANSACTION_STATE, 50)
    for offset in (3, 4, 5):  # what is written after a start is found at the next one
        broker.start()
        assert [committed(broker, group) for group in GROUPS] == [offset] * len(GROUPS), broker.log_text()
        fill(broker, offset + 1)
        assert [committed(broker, group) for group in GROUPS] == [offset + 1] * len(GROUPS)
        assert broker.stop() == 0
