"""Replicas of a compacted topic that were away while compaction removed deletions: nothing that was deleted comes back.

A replica that has a key's old value, and lacks the tombstone, would show that value once it leads. One that has a transaction's
records, and lacks the marker, would hold its last stable offset back for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Cluster
from penstock.errors import ErrorCode
from penstock.pyx.record.rawbatch import RawBatch, records, split
from penstock.pyx.wire.connection import WireConnection
from support.dataplane import fetch, fetched
from support.patience import until
from support.scraping import scrape_at

TOPIC = "compacted"
VERSION = 12
ALL = {1, 2, 3}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "1",
    "min.insync.replicas": "1",
}
FAST = {
    "zookeeper.session.timeout.ms": 2000,
    "replica.lag.time.max.ms": 2000,
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 1000,
    "penstock.http.listen": "127.0.0.1:0",
    "producer.id.expiration.ms": 1000,
}


class World:
    """A cluster with a compacted topic of one partition, whose keys are written and deleted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        topic = NewTopic(TOPIC, 1, 3, config=COMPACTED)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # It lives until it is answered.
        admin.create_topics([topic])[TOPIC].result(60)
        self.until_in_sync(ALL)

    def until_in_sync(self, brokers: set[int]) -> None:
        until(lambda: self.cluster.isr(TOPIC, 0) == brokers, f"{brokers} to be in sync")

    @property
    def leader(self) -> int:
        return self.cluster.leader(TOPIC, 0)

    def away(self, *, leader: bool = False) -> int:
        """Kill the leader, or a follower; answers which broker that is."""
        gone = self.leader if leader else min(self.cluster.isr(TOPIC, 0) - {self.leader})
        self.cluster.kill(gone, expire=True)
        until(lambda: self.leader not in {-1, gone} and gone not in self.cluster.isr(TOPIC, 0), f"{gone} to be out")
        return gone

    def back(self, number: int) -> None:
        """Start a broker, and wait until it is in sync."""
        self.cluster.start(number)
        until(lambda: number in self.cluster.isr(TOPIC, 0), f"{number} to be in sync")

    def has_led(self, number: int) -> None:
        """Kill all brokers but one, which leads then."""
        for other in self.cluster.running - {number}:
            self.cluster.kill(other, expire=True)
        until(lambda: self.leader == number, f"{number} to lead")

    def put(self, key: bytes, value: bytes | None) -> None:
        """A record that all in sync have."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all", "message.timeout.ms": 60_000})
        failed: list[object] = []
        producer.produce(TOPIC, value, key, partition=0, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(60) == 0 and failed == [None]

    def raws(self) -> list[RawBatch]:
        """All batches that the leader has, once it has heard that it leads: the state says so before."""
        found: list[RawBatch] = []
        with WireConnection(self.cluster.brokers[self.leader].bootstrap) as wire:

            def serves() -> bool:
                code = fetched(wire.ask(fetch(TOPIC, 0, VERSION), VERSION)).error_code
                return bool(code != ErrorCode.NOT_LEADER_OR_FOLLOWER)

            until(serves, "the leader to take its role")
            while True:
                one = fetched(wire.ask(fetch(TOPIC, found[-1].next_offset if found else 0, VERSION), VERSION))
                assert one.error_code == 0
                if not one.records:
                    return found
                found += split(bytes(one.records))

    def found(self, key: bytes) -> list[bytes | None]:
        """The values of a key, a tombstone too, as the leader has them."""
        every = [record for raw in self.raws() if not raw.is_control for record in records(raw)]
        return [record.value for record in every if record.key == key]

    def compact_until_gone(self, what: str) -> None:
        """Write, so that segments are sealed and compacted, until the leader has nothing of the key `k`, or no marker."""

        def is_gone() -> bool:
            self.put(b"filler", b"1")
            time.sleep(0.2)
            raws = self.raws()
            if any(raw.is_control and raw.record_count for raw in raws):
                return False
            return not any(record.key == b"k" for raw in raws if not raw.is_control for record in records(raw))

        until(is_gone, what)

    def begun_again(self, number: int) -> float:
        """How often a broker has begun a copy again, since its start."""
        return scrape_at(f"http://{self.cluster.brokers[number].http}")("penstock_copies_begun_again_total")


@pytest.fixture
def penstock_broker_properties() -> Mapping[str, object]:
    return FAST


@pytest.fixture
def world(penstock_cluster: Cluster) -> World:
    return World(penstock_cluster)


def test_a_deleted_key_stays_deleted_when_a_replica_that_was_away_leads(world: World) -> None:
    world.put(b"k", b"old")
    away = world.away()
    world.put(b"k", None)
    world.compact_until_gone("the tombstone to be gone")
    world.back(away)
    world.has_led(away)
    assert world.found(b"k") == []
    assert world.begun_again(away) == 1
    world.put(b"k", b"new")
    assert world.found(b"k") == [b"new"]


def test_a_transaction_whose_marker_is_gone_is_not_open_in_a_replica_that_was_away(world: World) -> None:
    producer = Producer({"bootstrap.servers": world.cluster.bootstrap, "transactional.id": "t", "acks": "all"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, b"aborted", b"k", partition=0)
    assert producer.flush(60) == 0
    until(lambda: world.found(b"k") == [b"aborted"], "the record of the transaction")
    away = world.away()
    producer.abort_transaction(60)
    world.compact_until_gone("the marker to be gone")
    world.back(away)
    world.has_led(away)
    world.put(b"last", b"1")
    assert b"last" in committed(world)
    assert world.found(b"k") == []


def committed(world: World) -> set[bytes]:
    """The keys that a consumer of committed records finds."""
    consumer = Consumer(
        {"bootstrap.servers": world.cluster.bootstrap, "group.id": "none", "enable.auto.commit": False,
         "isolation.level": "read_committed"}
    )  # fmt: skip
    keys: set[bytes] = set()

    def finds_last() -> bool:
        for message in consumer.consume(100, 1):
            key = message.key()
            assert message.error() is None and isinstance(key, bytes)
            keys.add(key)
        return b"last" in keys

    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        until(finds_last, "the last record to be committed")
    finally:
        consumer.close()
    return keys


def test_a_log_that_was_copied_without_tombstones_leads_a_third_replica(world: World) -> None:
    """The third one comes back to a leader that never had the tombstone itself."""
    world.put(b"k", b"old")
    first = world.away()
    second = world.away()
    third = world.leader
    world.put(b"k", None)
    world.compact_until_gone("the tombstone to be gone")
    world.back(first)
    world.cluster.kill(third, expire=True)
    until(lambda: world.leader == first, "the copy to lead")
    # What it was told is on its disk: it is killed and leads again.
    world.cluster.kill(first, expire=True)
    world.cluster.start(first)
    until(lambda: world.leader == first, "the copy to lead again")
    world.back(second)
    world.has_led(second)
    assert world.found(b"k") == []
    assert world.begun_again(second) == 1


def test_a_replica_that_missed_no_deletion_is_not_copied_again(world: World) -> None:
    world.put(b"k", b"old")
    world.put(b"k", None)
    world.compact_until_gone("the tombstone to be gone")
    for leader in (False, True):
        away = world.away(leader=leader)
        world.put(b"k", b"new")
        world.back(away)
        assert world.begun_again(away) == 0
    assert world.found(b"k") == [b"new"] or world.found(b"k") == [b"new", b"new"]
