"""Groups and transactions in a cluster of processes: what a coordinator has answered is what the next one answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from penstock.broker.coordination.statelog import java_hash_partition
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.patience import until
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka

PARTITIONS = 4
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
PROTOCOLS = ("classic", "consumer")


@pytest.fixture
def world(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three brokers."""
    with cluster(
        zookeeper, tmp_path, offsets_topic_num_partitions=PARTITIONS, transaction_state_log_num_partitions=PARTITIONS
    ) as made:
        yield made


def home(name: str) -> int:
    """The partition of a coordinator's topic in which a name is kept."""
    return java_hash_partition(name, PARTITIONS)


def coordinator(world: ClusterProcesses, name: str, topic: str = OFFSETS, *, among: set[int] | None = None) -> int:
    """The broker that coordinates a name, once one does and all others that live are in sync with it."""
    live = among or {1, 2, 3}
    return world.until_led(topic, by=live, isr=live, partition=home(name))


def member(world: ClusterProcesses, group: str, protocol: str, **properties: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": world.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.fast.interval.ms": 100,
            **({"session.timeout.ms": 10_000} if protocol == "classic" else {}),
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
    )


def fill(world: ClusterProcesses, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": world.bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(WAIT_S) == 0


def committed(world: ClusterProcesses, group: str, topic: str, protocol: str = "classic") -> int:
    """The position of a group, as whoever coordinates it says."""
    consumer = member(world, group, protocol)
    try:
        while True:
            try:
                (where,) = consumer.committed([TopicPartition(topic, 0)], WAIT_S)
                return int(where.offset)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_positions_that_were_answered_outlive_the_coordinator(world: ClusterProcesses, protocol: str) -> None:
    group = f"g-{protocol}"
    world.create("t", min_insync_replicas="2")
    fill(world, "t", 400)
    reader = member(world, group, protocol)
    reader.subscribe(["t"])
    answered = asked = -1
    seen: list[int] = []

    def read(count: int) -> None:
        """Read, and commit each record's position until that is answered."""
        nonlocal answered, asked
        wanted = len(seen) + count

        def goes_on() -> bool:
            nonlocal answered, asked
            message = reader.poll(0.5)
            if message is not None and message.error() is None:
                offset = message.offset()
                assert offset is not None
                seen.append(offset)
                asked = max(asked, offset + 1)
                try:
                    reader.commit(offsets=[TopicPartition("t", 0, offset + 1)], asynchronous=False)
                    answered = offset + 1
                except KafkaException:
                    pass  # It may have been stored or not.
            return len(seen) >= wanted

        until(goes_on, f"{count} records more", lambda: f"{len(seen)} are read\n{world.log_text()}")

    try:
        read(50)
        for _ in range(2):
            first = coordinator(world, group)
            world.brokers[first].kill()
            others = {1, 2, 3} - {first}
            coordinator(world, group, among=others)
            assert answered <= committed(world, group, "t") <= asked
            read(50)
            assert answered <= committed(world, group, "t") <= asked
            world.brokers[first].start()
            world.until_known({1, 2, 3})
    finally:
        reader.close()
    assert set(range(max(seen) + 1)) == set(seen)
