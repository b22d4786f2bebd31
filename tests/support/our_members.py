"""Our consumers as members of groups, in either protocol."""

from __future__ import annotations

from typing import Any

from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.consumer import Consumer, ConsumerRecord
from penstock.pipeline.clients.producer import Producer
from support.asking import Serving
from support.patience import until

COMMON: dict[str, Any] = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
CLASSIC: dict[str, Any] = {**COMMON, "heartbeat.interval.ms": 100, "session.timeout.ms": 6000}
NEWER: dict[str, Any] = {**COMMON, "group.protocol": "consumer"}
QUICK_BROKER: dict[str, object] = {
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.assignment.interval.ms": 0,
}
"""Properties of a broker that has its members of the newer protocol heartbeat often."""


class Member:
    """A consumer that has subscribed, with what it was told and what it has read."""

    def __init__(self, broker: Serving, topic: str, group: str, given: dict[str, Any] = CLASSIC, **more: Any) -> None:
        self.consumer = Consumer(broker.bootstrap, **{**given, "group.id": group, **more})
        self.records: list[ConsumerRecord] = []
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.consumer.subscribe([topic], on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost)

    def _assigned(self, tps: list[TopicPartition]) -> None:
        self.told.append(("+", tps))

    def _revoked(self, tps: list[TopicPartition]) -> None:
        self.consumer.commit()
        self.told.append(("-", tps))

    def _lost(self, tps: list[TopicPartition]) -> None:
        self.told.append(("lost", tps))

    def poll(self) -> None:
        """Poll once, and keep what comes."""
        self.records += self.consumer.poll(0.05)

    @property
    def partitions(self) -> list[int]:
        """The partitions that it has now, of its one topic."""
        return [number for _, number in self.consumer.assignment()]

    def leave(self) -> None:
        """Commit and close."""
        if self.consumer.assignment():
            self.consumer.commit()
        self.consumer.close()


def settle(members: list[Member], counts: list[int]) -> None:
    """Poll until members have so many partitions, whichever has how many."""

    def settled() -> bool:
        for member in members:
            member.poll()
        return sorted(len(member.partitions) for member in members) == counts

    until(settled, f"shares {counts}", lambda: str([member.partitions for member in members]))


def settle_each(counts: list[int], *consumers: Consumer) -> None:
    """Poll until consumers have so many partitions, in this order."""

    def settled() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        return [len(consumer.assignment()) for consumer in consumers] == counts

    until(settled, f"shares {counts}", lambda: str([consumer.assignment() for consumer in consumers]))


def fill(broker: Serving, topic: str, partitions: int, values: range) -> None:
    """Send each of these numbers to each partition."""
    with Producer(broker.bootstrap) as producer:
        for i in values:
            for partition in range(partitions):
                producer.send(topic, None, b"%d" % i, partition=partition)
