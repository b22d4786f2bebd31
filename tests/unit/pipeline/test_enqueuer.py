"""A record on its way into a producer's queue: what is checked, which partition it gets, what its batch keeps of it."""

from __future__ import annotations

import math
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.delivery import Batch, Delivery
from penstock.pipeline.clients.partitioner import PartitionChoice, partition_for
from penstock.pipeline.clients.producer import Producer
from penstock.pyx.producer.enqueuer import Enqueuer, TopicPartitions
from penstock.pyx.producer.recordqueue import Line, RecordQueue
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, Record, records
from support.flaky_broker import QUICK, Flaky, InThread

PARTITIONS = 5
RECORD_BYTES = 1000
HOUR_MS = 3_600_000


class Lock:
    """Counts how often it is taken and not given back."""

    held = 0

    def acquire(self) -> bool:
        self.held += 1
        return True

    def release(self) -> None:
        self.held -= 1


class World:
    """A queue whose batches stay open; a topic of five partitions is looked up when it is asked for."""

    def __init__(self, kind: str = "murmur2_random", **given: Any) -> None:
        self.lock, self.asked, self.expires_at = Lock(), list[str](), math.inf
        self.queue: RecordQueue[Batch] = RecordQueue(
            self, self.lock, None, batch_bytes=1 << 20, batch_records=1 << 20, memory_limit=1 << 30, queue_limit=1 << 20
        )
        self.topics = dict[str, TopicPartitions]()
        options: dict[str, Any] = {"key_serializer": None, "value_serializer": None, "give_id": None, "watching": None}
        choice = PartitionChoice(kind, False, 1 << 20)
        self.enqueuer = Enqueuer(
            self.queue, choice, Delivery, self.topics, self.look_up, block_s=0, record_bytes=RECORD_BYTES, **options | given
        )

    def look_up(self, topic: str, block_until: float) -> TopicPartitions:
        self.asked.append(topic)
        found = self.topics[topic] = TopicPartitions(PARTITIONS, range(PARTITIONS), self.expires_at)
        return found

    def reserve(self, size: int, block_until: float) -> None:
        raise AssertionError("there is room")

    def open_batch(self, line: Line[Batch]) -> Batch:
        batch = line.open = Batch(line.tp, BatchBuilder(), 0, 0, lambda done, timeout_s: None)
        return batch

    def close_batch(self, line: Line[Batch]) -> None:
        line.open = None

    def drop_batch(self, line: Line[Batch]) -> None:
        line.open = None

    def send(self, key: Any = None, value: Any = None, partition: Any = None, **given: Any) -> Delivery:
        fields: dict[str, Any] = {"timestamp_ms": 7, "headers": (), "on_delivery": None}
        sent = self.enqueuer.enqueue("t", key, value, partition=partition, **fields | given)
        assert isinstance(sent, Delivery) and self.lock.held == 0
        return sent

    def batch(self, partition: int) -> Batch:
        batch = self.queue.lines["t", partition].open
        assert batch is not None
        return batch

    def stored(self, partition: int) -> list[Record]:
        return records(RawBatch(self.batch(partition).builder.build()))


def test_send_calls_no_python_code_for_a_record_but_its_own() -> None:
    calls = Counter[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    with InThread(Flaky()) as broker, Producer(f"127.0.0.1:{broker.port}", **QUICK, linger_ms=HOUR_MS) as producer:
        producer.partitions_for("t")
        sys.setprofile(note)
        try:
            for number in range(1000):
                producer.send("t", b"%d" % number, b"value", headers=[("h", b"x")])
                producer.send("t", None, b"value", 1)
        finally:
            sys.setprofile(None)
        producer.flush(60)
        assert sum(batch.record_count for log in broker.log.values() for batch in log) == 2000
    assert [name for name, count in calls.items() if count >= 1000] == ["Producer.send"]


def test_records_stand_in_the_batch_of_their_partition_in_their_order() -> None:
    world = World()
    sent = [world.send(b"k%d" % i, b"v%d" % i, partition=i % 2, headers=[("h", None)] * (i % 3)) for i in range(6)]
    for partition in (0, 1):
        expected = [
            Record(place, 7, b"k%d" % i, b"v%d" % i, (("h", None),) * (i % 3)) for place, i in enumerate(range(partition, 6, 2))
        ]
        assert world.stored(partition) == expected
    assert [(one.metadata().partition, one._index) for one in sent] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert (world.queue.queued, world.asked) == (6, ["t"])


def test_a_key_chooses_the_partition_and_records_without_one_share_the_sticky_one() -> None:
    world = World()
    assert [world.send(b"%d" % i).metadata().partition for i in range(50)] == [
        partition_for(b"%d" % i, PARTITIONS) for i in range(50)
    ]
    assert len({world.send().metadata().partition for _ in range(50)}) == 1


@pytest.mark.parametrize("partition", [-1, 5, 1 << 70, -1 << 70])
def test_a_partition_that_the_topic_lacks_is_refused(partition: int) -> None:
    world = World()
    with pytest.raises(KafkaError, match=r"`t` partition .*: it has 5") as refused:
        world.send(partition=partition)
    assert (refused.value.code, world.queue.queued) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)


def test_a_size_counts_key_value_and_headers() -> None:
    world = World()
    headers = [("näme", b"xy"), ("n", None)]
    world.send(b"k", bytes(RECORD_BYTES - 32 - 1 - 12 - 7), headers=headers)
    assert world.queue.memory_bytes == RECORD_BYTES
    with pytest.raises(KafkaError, match="a record of 1001 bytes for `t`") as refused:
        world.send(b"k", bytes(RECORD_BYTES - 32 - 1 - 12 - 7 + 1), headers=headers)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


class Text(bytes):
    """Bytes of a class of one's own."""


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab"), memoryview(b"ab"), Text(b"ab")])
def test_what_is_bytes_is_sent_as_bytes(value: Any) -> None:
    world = World()
    world.send(value, value, partition=0)
    assert [(record.key, record.value) for record in world.stored(0)] == [(b"ab", b"ab")]


def test_what_is_not_bytes_wants_a_serializer_and_a_send_many_has_used_it() -> None:
    world = World(key_serializer=str.encode)
    world.send("k", None, partition=0)
    with pytest.raises(TypeError, match="a record's value is bytes or None, not str"):
        world.send("k", "v", partition=0)
    world.send(b"done", None, partition=0, bulk=type("Bulk", (), {"_unfinished": 0})())
    assert [record.key for record in world.stored(0)] == [b"k", b"done"]


@pytest.mark.parametrize("bad", [{"timestamp_ms": -5}, {"headers": [("h", 7)]}, {"headers": [(7, b"")]}, {"headers": None}])
def test_a_bad_record_is_refused_and_the_next_one_goes(bad: dict[str, Any]) -> None:
    world = World()
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            world.send(None, b"v", partition=0, **bad)
        assert (world.lock.held, world.queue.queued) == (0, 0)
    assert world.send(None, b"v", partition=0)._index == 0
    assert world.queue.queued == 1


def test_partitions_are_looked_up_again_once_they_are_old() -> None:
    world = World()
    world.expires_at = 0.0
    world.send(partition=0)
    world.expires_at = math.inf
    world.send(partition=0)
    world.send(partition=0)
    assert world.asked == ["t", "t"]
    assert len(world.stored(0)) == 3


def test_a_batch_keeps_those_records_alone_that_somebody_hears_of() -> None:
    world = World()
    world.send(partition=0)
    heard = world.send(partition=0, on_delivery=lambda error, metadata: None)
    assert world.batch(0).heard == [heard]


def test_headers_that_can_be_walked_once_are_kept() -> None:
    world = World()
    pairs = [("a", b"1"), ("b", None)]
    for headers in (iter(pairs), zip(["a", "b"], [b"1", None], strict=True), {"a": b"1", "b": None}.items(), pairs):
        world.send(b"k", headers=headers, partition=0)
    assert [record.headers for record in world.stored(0)] == [tuple(pairs)] * 4
    with pytest.raises(TypeError, match="pairs of a name"):
        world.send(b"k", headers=5)


def test_a_timestamp_of_seconds_is_no_timestamp() -> None:
    with pytest.raises(TypeError, match="float"):
        World().send(b"k", timestamp_ms=1.5)
