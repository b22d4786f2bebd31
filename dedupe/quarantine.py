"""What doesn't go on is kept aside: rotten batches as files, records without an id in a topic.

Rotten batches are right by header and CRC, but can't be opened. Records without an id go to `penstock.quarantine`, in the
transaction that moves the position over them: as they are, with headers that say where each came from and why. What an
operator decides about a position stands there, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.dedupe.repair import missing_topic
from penstock.durable import replace_file
from penstock.pipeline.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.client import TopicPartition
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.columns import Columns
from penstock.pyx.record.rawbatch import RawBatch

TOPIC = "penstock.quarantine"
ZSTD = 4
BATCH_BYTES = 512 << 10  # a batch of the topic is built when it has so much
HEADERS_BYTES = 64 << 10  # what the topic takes beyond a record as it came, for headers of ours
MAX_BATCH_BYTES = 1 << 20  # at least


async def make_topic(admin: Admin, max_batch_bytes: int) -> tuple[int, int]:
    """Make the quarantine topic if it is not there, for records of batches of so many bytes; its partitions and the bytes
    that it allows a batch. Raises KafkaError.
    """
    room = max(max_batch_bytes, MAX_BATCH_BYTES) + HEADERS_BYTES
    configs = {"retention.ms": "-1", "max.message.bytes": str(room)}
    await admin.create_topics({TOPIC: 1}, configs=configs, exist_ok=True)
    cluster = await admin.metadata([TOPIC], refresh=True)
    if TOPIC not in cluster.topics:
        raise missing_topic(TOPIC)
    limit = (await admin.describe_configs(TOPIC_RESOURCE, TOPIC))["max.message.bytes"]
    return len(cluster.topics[TOPIC].partitions), int(limit or 0)


def decision(tp: TopicPartition, offset: int, what: str, because: str) -> RawBatch:
    """What an operator decided about a partition and why, as a batch for the quarantine topic."""
    builder = BatchBuilder()
    builder.append(None, what.encode(), time.time_ns() // 1_000_000, _came(tp, offset, because))
    return RawBatch(builder.build())


def _came(tp: TopicPartition, offset: int, reason: str) -> list[tuple[str, bytes | None]]:
    """Headers that say where something came from and why it is here."""
    words = {"topic": tp[0], "partition": str(tp[1]), "offset": str(offset), "reason": reason}
    return [(name, text.encode()) for name, text in words.items()]


def keep_aside(folder: Path, topic: str, partition: int, batch: RawBatch) -> Path:
    """Write a batch's bytes to `folder/TOPIC-PARTITION-OFFSET.batch`, durably; the same batch is the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{topic}-{partition}-{batch.base_offset:020}.batch"
    replace_file(path, memoryview(batch))
    return path


def aside(records: Columns, chosen: npt.NDArray[np.int64], tp: TopicPartition, reason: str) -> Iterator[RawBatch]:
    """The chosen records as batches for the quarantine topic, one of more than `BATCH_BYTES` alone.

    Each is made into objects: right for the rare record that is wrong.
    """
    builder = BatchBuilder(ZSTD, max_bytes=BATCH_BYTES)
    for i in chosen.tolist():
        headers = [*records.headers(i), *_came(tp, int(records.offsets[i]), reason)]
        record = records.key(i), records.value(i), int(records.timestamps[i]), headers
        if not builder.append(*record):
            yield RawBatch(builder.build())
            builder = BatchBuilder(ZSTD, max_bytes=BATCH_BYTES)
            builder.append(*record)
    if builder.count:
        yield RawBatch(builder.build())
