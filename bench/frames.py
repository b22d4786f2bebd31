"""Ready-made requests in files, for the load programs: built once, so that a client costs next to nothing."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import wire
from penstock.pyx.batch import BatchBuilder
from penstock.pyx.wire.codec import Message
from penstock.pyx.wire.frame import encode_request

CLIENT_ID = "bench"
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
RECORD_OVERHEAD = 12  # about what a record takes besides key and value
_WORDS = ("arrival", "departure", "delayed", "cancelled", "on_time", "boarding", "EWR", "JFK", "LGA", "carrier", "gate")


@dataclass(frozen=True)
class Frames:
    """A file of requests. `value_bytes` and `records` are those of one request, before compression."""

    path: Path
    count: int
    value_bytes: int
    records: int
    batch_bytes: int
    error_at: int


def values(size: int, count: int, like_events: bool) -> list[bytes]:
    """Values that differ from each other: random letters, or events in JSON that compress about three to one."""
    chance = random.Random(size)
    if not like_events:
        return [bytes(chance.choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=size)) for _ in range(count)]
    return [_event(chance, size) for _ in range(count)]


def _event(chance: random.Random, size: int) -> bytes:
    text = f'{{"id":"{chance.randbytes(8).hex()}","time":{chance.randrange(10**12)}'
    while len(text) < size:
        text += f',"{chance.choice(_WORDS)}":"{chance.choice(_WORDS)}-{chance.randrange(10**6)}"'
    return text[: size - 1].encode() + b"}"


def batch(records: Iterable[bytes], codec: str = "none", keys: Sequence[bytes] | None = None) -> bytes:
    """One batch of magic 2, as a producer without a producer id sends it."""
    builder = BatchBuilder(codec=CODECS[codec], max_bytes=1 << 30)
    now_ms = int(time.time() * 1000)
    for number, value in enumerate(records):
        builder.append(keys[number] if keys else None, value, now_ms)
    return builder.build()


def write(path: Path, requests: Iterable[tuple[Message, int]]) -> int:
    """Write requests (message, version) with their sizes in front; how many they were."""
    count = 0
    with path.open("wb") as file:
        for message, version in requests:
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
) -> Frames:
    """Produce requests of one batch for each partition in turn. `batch_bytes` is its size before compression.

    With weights a partition has that many requests, in an order that mixes them all.
    """
    records = max(1, batch_bytes // (record_bytes + RECORD_OVERHEAD))
    bodies = []
    for number in range(payloads):
        chosen = values(record_bytes, min(records, 4096), codec != "none")
        keys = [f"key-{number}-{record}".encode() for record in range(records)] if keyed else None
        bodies.append(batch((chosen[record % len(chosen)] for record in range(records)), codec, keys))
    turns = [partition for partition in range(partitions) for _ in range(weights[partition] if weights else 1)]
    if weights:
        random.Random(1).shuffle(turns)
    requests = [
        (wire.produce_request(topic, {partition: body}), wire.PRODUCE_VERSION) for body in bodies for partition in turns
    ]
    count = write(path, requests)
    return Frames(path, count, records * record_bytes, records, len(bodies[0]), error_at(topic))


_MARK = 0x0123456789ABCDEF


def fetch(path: Path, topic: str, max_bytes: int = 1 << 20) -> int:
    """A Fetch request for the topic's first partition; where its offset stands behind the size."""
    write(path, [(wire.fetch_request(topic, 0, _MARK, max_bytes), wire.FETCH_VERSION)])
    return path.read_bytes().index(struct.pack(">q", _MARK)) - 4
