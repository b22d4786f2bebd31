"""A coordinator that can't read its partition when it is elected, for a reason that passes: it reads it again."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Cluster
from penstock.broker.coordination import shell, statelog
from penstock.broker.topic import GROUP_OFFSETS
from support.moving_cluster import PROPERTIES
from support.patience import until

WAIT_S = 60.0


def test_positions_are_served_once_the_descriptors_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    read, failures = statelog.read_batches, list[int]()

    def read_or_fail(*given: Any) -> Any:
        if failures and len(failures) <= 2:
            failures.append(1)
            raise OSError(errno.EMFILE, "Too many open files")
        return read(*given)

    monkeypatch.setattr(statelog, "read_batches", read_or_fail)
    monkeypatch.setattr(shell, "READ_AGAIN_S", 0.2)
    with Cluster(properties=PROPERTIES) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(WAIT_S)
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
        try:
            consumer.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
            until(lambda: cluster.isr(GROUP_OFFSETS, 0) == {1, 2, 3}, "the positions on all brokers")
            failures.append(0)
            cluster.kill(cluster.leader(GROUP_OFFSETS, 0), expire=True)
            until(lambda: position(consumer) == 7, "the position from the next coordinator")
        finally:
            consumer.close()
    assert len(failures) == 3, "the next coordinator could read at once"


def position(consumer: Consumer) -> int:
    """Of the group in the topic; -1 while no coordinator says."""
    try:
        (where,) = consumer.committed([TopicPartition("t", 0)], 5)
    except KafkaException:
        return -1
    return int(where.offset)
