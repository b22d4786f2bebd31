"""Our Python clients and confluent-kafka, on our broker: what a record costs the process that they are in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.programs import ProgramError
from penstock.bench.sides import CONFLUENT, PENSTOCK
from penstock.bench.world import World, confluent
from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.clients.producerrecord import QueuedBatch
from penstock.pipeline.clients.queuehandler import QueueHandler
from penstock.pyx.wire.requests import delete_topic

RECORD_BYTES = 100
BATCH_BYTES = 131_072
POLLED = 10_000  # records of a poll at most
PIECE = 10_000  # records that are given to a producer as columns at a time
# Both sides' producers; all else is the client's default.
SENDING: dict[str, Any] = {"compression.type": "lz4", "linger.ms": 10, "batch.size": BATCH_BYTES}
SPREAD = 100  # partitions
STATISTICS_MS = 500  # how often confluent-kafka says how many requests it has sent
LIMIT_S = 600.0


def each_us(count: int, work: Callable[[], object]) -> Sample:
    """CPU of this process, all threads, and the rate."""
    started, spent = time.monotonic(), time.process_time_ns()
    work()
    spent_us = (time.process_time_ns() - spent) / 1e3
    return {"cpu_us_per_record": spent_us / count, "records_per_s": count / (time.monotonic() - started)}


@dataclass
class Consume(Case):
    """A topic of one partition is read from its beginning; value, key and offset of each record are touched."""

    name: str
    title: str
    columns: bool = False
    records: int = 1_000_000
    sides: tuple[str, ...] = (PENSTOCK, CONFLUENT)
    _filled: ClassVar[dict[int, tuple[str, int]]] = {}  # topic and records, by world

    def run(self, world: World, side: str) -> Sample:
        topic, count = self._topic(world)
        bootstrap = world.broker(PENSTOCK).bootstrap
        if side == CONFLUENT:
            return self._by_confluent(bootstrap, topic, count)
        with Consumer(bootstrap, **{"auto.offset.reset": "earliest", "max.poll.records": POLLED}) as consumer:
            consumer.assign([(topic, 0)])
            consumer.position((topic, 0))
            return each_us(count, lambda: (columns if self.columns else records)(consumer, count))

    def _topic(self, world: World) -> tuple[str, int]:
        if id(world) not in self._filled:
            broker = world.broker(PENSTOCK)
            topic = world.topic(broker, "clients", 1)
            load = frames.produce(
                world.path("clients"), topic, 1, batch_bytes=BATCH_BYTES, record_bytes=RECORD_BYTES, codec="lz4", keyed=True
            )
            count = max(1, world.scaled(self.records) // load.records)
            world.requests(broker, load, in_flight=4, requests=count)
            self._filled[id(world)] = topic, count * load.records
        return self._filled[id(world)]

    def _by_confluent(self, bootstrap: str, topic: str, count: int) -> Sample:
        package = confluent()
        consumer = package.Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
        try:
            consumer.assign([package.TopicPartition(topic, 0, 0)])
            return each_us(count, lambda: confluent_records(consumer, count))
        finally:
            consumer.close()


def records(consumer: Consumer, count: int) -> int:
    """Read so many as records."""
    touched, left = 0, count
    while left > 0:
        polled = consumer.poll(LIMIT_S)
        for record in polled:
            touched += len(record.value or b"") + len(record.key or b"") + record.offset
        left -= _some(len(polled))
    return touched


def columns(consumer: Consumer, count: int) -> int:
    """Read so many as columns."""
    touched, left = 0, count
    while left > 0:
        polled = consumer.poll_columns(LIMIT_S)
        for _, _, got, first in polled:
            touched += int(np.diff(got.value_starts).sum() + np.diff(got.key_starts).sum() + got.offsets.sum())
            left -= len(got) - first
        _some(len(polled))
    return touched


def confluent_records(consumer: Any, count: int) -> int:
    """Read so many by confluent-kafka's `consume`."""
    touched, left = 0, count
    while left > 0:
        polled = consumer.consume(POLLED, 1.0)
        for message in polled:
            touched += len(message.value()) + len(message.key()) + message.offset()
        left -= len(polled)
    return touched


def _some(count: int) -> int:
    if not count:
        raise ProgramError(f"nothing came for {LIMIT_S:g} s")
    return count


class Requests(QueueHandler):
    """Counts the requests of a producer of ours."""

    def __init__(self) -> None:
        self.count = 0

    def before_request(self, batches: Sequence[QueuedBatch]) -> None:
        self.count += 1


@dataclass
class Spread(Case):
    """Records of 100 bytes over 100 partitions in turn, a few in each batch, until all are acknowledged."""

    name: str = "client-produce-spread"
    title: str = "our producer and confluent-kafka's, one record a call, 100 B, 100 partitions in turn, linger.ms=5"
    records: int = 300_000
    sides: tuple[str, ...] = (PENSTOCK, CONFLUENT)
    _topics: dict[str, str] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        self._topics[side] = world.topic(world.broker(PENSTOCK), self.name, SPREAD)

    def run(self, world: World, side: str) -> Sample:
        bootstrap, topic = world.broker(PENSTOCK).bootstrap, self._topics[side]
        count = max(1, world.scaled(self.records) // SPREAD) * SPREAD
        value = frames.letters(RECORD_BYTES, 1)[0]
        work = self._by_confluent if side == CONFLUENT else self._by_ours
        requests = 0

        def send() -> None:
            nonlocal requests
            requests = work(bootstrap, topic, value, count)

        sample = each_us(count, send)
        return {**sample, "requests_per_s": requests * sample["records_per_s"] / count}

    def _by_ours(self, bootstrap: str, topic: str, value: bytes, count: int) -> int:
        counter = Requests()
        with Producer(bootstrap, linger_ms=5, handler=counter) as producer:
            for number in range(count):
                producer.send(topic, value=value, partition=number % SPREAD)
            producer.flush(LIMIT_S)
        return counter.count

    def _by_confluent(self, bootstrap: str, topic: str, value: bytes, count: int) -> int:
        requests: list[int] = []

        def note(text: str) -> None:
            brokers = json.loads(text)["brokers"].values()
            requests.append(sum(broker["req"].get("Produce", 0) for broker in brokers))

        settings = {"linger.ms": 5, "enable.idempotence": True, "statistics.interval.ms": STATISTICS_MS, "stats_cb": note}
        producer = confluent().Producer({"bootstrap.servers": bootstrap, **settings})
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value=value, partition=number % SPREAD)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
        if producer.flush(LIMIT_S):
            raise ProgramError("confluent-kafka did not get all records acknowledged")
        requests.clear()
        while not requests:
            producer.poll(1)
        return requests[-1]

    def finish(self, world: World, side: str) -> None:
        if side in self._topics:
            delete_topic(world.broker(PENSTOCK).bootstrap, self._topics.pop(side))


@dataclass
class Produce(Case):
    """Records of 100 bytes without keys, until all are acknowledged."""

    name: str
    title: str
    columns: bool = False
    records: int = 1_000_000
    sides: tuple[str, ...] = (PENSTOCK, CONFLUENT)
    _topics: dict[str, str] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        self._topics[side] = world.topic(world.broker(PENSTOCK), self.name, 1)

    def run(self, world: World, side: str) -> Sample:
        bootstrap, topic = world.broker(PENSTOCK).bootstrap, self._topics[side]
        count = max(1, world.scaled(self.records) // PIECE) * PIECE
        values = frames.letters(RECORD_BYTES, PIECE)
        if side == CONFLUENT:
            producer = confluent().Producer({"bootstrap.servers": bootstrap, **SENDING})
            return each_us(count, lambda: send_by_confluent(producer, topic, values, count))
        with Producer(bootstrap, **SENDING) as ours:
            send = send_columns if self.columns else send_records
            return each_us(count, lambda: send(ours, topic, values, count))

    def finish(self, world: World, side: str) -> None:
        if side in self._topics:
            delete_topic(world.broker(PENSTOCK).bootstrap, self._topics.pop(side))


def send_records(producer: Producer, topic: str, values: list[bytes], count: int) -> None:
    """One by one."""
    for number in range(count):
        producer.send(topic, value=values[number % PIECE])
    producer.flush(LIMIT_S)


class Values:
    """Values as the columns that a producer takes."""

    def __init__(self, values: list[bytes]) -> None:
        nothing = np.zeros(len(values) + 1, dtype=np.int64)
        self.timestamps = np.full(len(values), time.time_ns() // 1_000_000, dtype=np.int64)
        self.key_data, self.key_starts = np.zeros(0, dtype=np.uint8), nothing
        self.key_null = np.ones(len(values), dtype=np.bool_)
        self.value_data = np.frombuffer(b"".join(values), dtype=np.uint8)
        self.value_starts = np.concatenate(([0], np.cumsum([len(value) for value in values]))).astype(np.int64)
        self.value_null = np.zeros(len(values), dtype=np.bool_)


def send_columns(producer: Producer, topic: str, values: list[bytes], count: int) -> None:
    """Some thousands at a time."""
    columns = Values(values)
    for _ in range(count // PIECE):
        producer.send_many(topic, columns=columns)
    producer.flush(LIMIT_S)


def send_by_confluent(producer: Any, topic: str, values: list[bytes], count: int) -> None:
    """One by one; what is full is waited for, as its own examples do."""
    for number in range(count):
        try:
            producer.produce(topic, value=values[number % PIECE])
        except BufferError:
            producer.poll(0.1)
            producer.produce(topic, value=values[number % PIECE])
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(LIMIT_S):
        raise ProgramError("confluent-kafka did not get all records acknowledged")


CASES: list[Case] = [
    Spread(),
    Consume("client-consume-columns", "our consumer's columns beside confluent-kafka's consume(), 100 B", columns=True),
    Consume("client-consume-records", "our consumer's records beside confluent-kafka's consume(), 100 B"),
    Produce("client-produce-columns", "our producer, columns in, beside confluent-kafka's produce(), 100 B, lz4", columns=True),
    Produce("client-produce-records", "our producer, one record a call, beside confluent-kafka's produce(), 100 B, lz4"),
]
