"""Ready-made requests in files, for the load programs: built once, so that a client costs next to nothing."""

from __future__ import annotations

import functools
import itertools
import random
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.pipeline.demo import flights
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire import requests
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.message import Message

CLIENT_ID = "bench"
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
RECORD_OVERHEAD = 12  # about what a record takes besides key and value
EVENTS = 0  # in place of a record's size
EVENT_BYTES = 300  # of an event, about


@dataclass(frozen=True)
class Frames:
    """A file of requests. `value_bytes` and `records` are those of one request (on average), before compression."""

    path: Path
    count: int
    value_bytes: int
    records: int
    batch_bytes: int
    error_at: int


def letters(size: int, count: int) -> list[bytes]:
    """Values that differ from each other: random letters."""
    chance = random.Random(size)
    return [bytes(chance.choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=size)) for _ in range(count)]


def doubled(size: int, count: int) -> list[bytes]:
    """Values of letters, each half of one written twice: lz4 makes half of them."""
    return [value * 2 for value in letters(size // 2, count)]


@functools.cache
def events() -> list[bytes]:
    """Events that `make demo` collects, those of a month and an airport: JSON of 300 bytes, of which lz4 makes a third."""
    days = flights.events(flights.ORIGINS[0], flights.FIRST_DAY.replace(day=31))
    return [event.value for day in days.values() for event in day]


def batch(records: Iterable[bytes], codec: str = "none", keys: Sequence[bytes] | None = None) -> bytes:
    """One batch of magic 2, as a producer without a producer id sends it."""
    builder = BatchBuilder(codec=CODECS[codec], max_bytes=1 << 30)
    now_ms = int(time.time() * 1000)
    for number, value in enumerate(records):
        builder.append(keys[number] if keys else None, value, now_ms)
    return builder.build()


def write(path: Path, asked: Iterable[tuple[Message, int]]) -> int:
    """Write requests (message, version) with their sizes in front; how many they were."""
    count = 0
    with path.open("wb") as file:
        for message, version in asked:
            frame = encode_request(message, version, 1, CLIENT_ID)
            file.write(struct.pack(">i", len(frame)) + frame)
            count += 1
    return count


def error_at(topic: str) -> int:
    """Where the error code is in an answer to Produce that names one topic and one partition."""
    correlation_id, topic_count, partition_count, index = 4, 4, 4, 4
    return correlation_id + topic_count + 2 + len(topic) + partition_count + index


def produce(
    path: Path,
    topic: str,
    partitions: int,
    *,
    batch_bytes: int,
    record_bytes: int,
    codec: str = "none",
    keyed: bool = False,
    payloads: int = 4,
    weights: Sequence[int] | None = None,
    values: Callable[[int, int], list[bytes]] = letters,
    acks: int = 1,
) -> Frames:
    """Produce requests of one batch for each partition in turn. `batch_bytes` is its size before compression. The records
    are random letters, or what `values` makes of their size and number; `record_bytes=EVENTS` makes them events.

    With weights a partition has that many requests, in an order that mixes them all.
    """
    if record_bytes == EVENTS:
        records = max(1, batch_bytes // (EVENT_BYTES + RECORD_OVERHEAD))
        chosen = events()
    else:
        records = max(1, batch_bytes // (record_bytes + RECORD_OVERHEAD))
        chosen = values(record_bytes, min(records, 4096))
    endless = itertools.cycle(chosen)
    value_bytes = 0
    bodies = []
    for number in range(payloads):
        batch_values = list(itertools.islice(endless, records))
        value_bytes += sum(map(len, batch_values))
        keys = [f"key-{number}-{record}".encode() for record in range(records)] if keyed else None
        bodies.append(batch(batch_values, codec, keys))
    turns = [partition for partition in range(partitions) for _ in range(weights[partition] if weights else 1)]
    if weights:
        random.Random(1).shuffle(turns)
    produces = [
        (requests.produce_request(topic, {partition: body}, acks), requests.PRODUCE_VERSION)
        for body in bodies
        for partition in turns
    ]
    count = write(path, produces)
    return Frames(path, count, value_bytes // payloads, records, len(bodies[0]), error_at(topic))


_MARK = 0x0123456789ABCDEF


def fetch(path: Path, topic: str, max_bytes: int = 1 << 20) -> int:
    """A Fetch request for the topic's first partition; where its offset stands behind the size."""
    write(path, [(requests.fetch_request(topic, 0, _MARK, max_bytes), requests.FETCH_VERSION)])
    return path.read_bytes().index(struct.pack(">q", _MARK)) - 4
