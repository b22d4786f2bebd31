"""Fixtures of Apache Kafka: `apache_kafka` and `second_kafka`, nodes for the session of each test process, and `kafka_as`; and
`zookeeper`, a server for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from support.kafka_jars import ApacheKafka
from support.patience import until

if TYPE_CHECKING:
    from support.zookeeper import ZooKeeper

# Nobody kills these nodes: a busy machine is no reason for their controller to fence them.
SESSION = {"broker_session_timeout_ms": "60000"}
# One for each partition of the internal topics, which is chosen by their hash.
NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A running node: `.bootstrap` is its address. Don't stop it; a test that stops one makes its own."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"), **SESSION)
    load_coordinators(kafka.bootstrap)
    yield kafka
    kafka.stop()


@pytest.fixture(scope="session")
def second_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Another one, for what is between two clusters."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("second"), **SESSION)
    load_coordinators(kafka.bootstrap)
    yield kafka
    kafka.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A running ZooKeeper: a test takes a chroot of its own, and doesn't stop it."""
    from support.zookeeper import ZooKeeper  # here, since tests without it need not have kazoo

    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper") / "server").start()
    yield server
    server.kill()


@pytest.fixture
def kafka_as(request: pytest.FixtureRequest) -> Callable[[str], dict[str, ApacheKafka]]:
    """A function that gives nodes by what they are: for `source`, `target` or `both`; none for `ours`."""

    def nodes(role: str) -> dict[str, ApacheKafka]:
        if role == "both":  # one cluster can't have a topic twice
            return {"source": request.getfixturevalue("apache_kafka"), "target": request.getfixturevalue("second_kafka")}
        return {} if role == "ours" else {role: request.getfixturevalue("apache_kafka")}

    return nodes


def load_coordinators(bootstrap: str) -> None:
    """Make the internal topics and wait until their coordinators serve: clients give a commit up that meets them earlier."""
    for name in NAMES:
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name}).init_transactions()
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name})
        until(partial(_commits, consumer), f"a commit of the group {name}")
        consumer.close()


def _commits(consumer: Consumer) -> bool:
    try:
        consumer.commit(offsets=[TopicPartition("__consumer_offsets", 0, 0)], asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR):
            raise
        return False
    return True
