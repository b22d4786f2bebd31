"""The topic of records whose id belongs into another partition: where murmur2 says, the worker of that partition reads them.

A record leaves its input partition and enters the right one of the stage's own topic in one transaction. Not in the input
itself: other readers of the aggregate would see it twice. The topic belongs to one stage, by its name and by a mark: the first
record of each partition names the stage's group and input. A topic of that name without the mark is somebody else's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.hints import quoted
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages.batches import prepare
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.columns import keep
from penstock.pyx.record.rawbatch import BatchError, RawBatch, records

MARK = "penstock.stage"  # the header by which a record says whose its topic is
MARK_BYTES = 1024  # and more than such a batch ever has


def configs(max_batch_bytes: int, retention_bytes: int) -> dict[str, str]:
    """What a stage's topic of moved records is made with."""
    return {
        "retention.ms": "-1",  # by time it would go by the events' own timestamps
        "retention.bytes": str(retention_bytes),
        "max.message.bytes": str(max_batch_bytes),
    }


def mark(owner: str) -> RawBatch:
    """The first record of each partition; `owner` names the stage's group and input."""
    builder = BatchBuilder(0, max_bytes=MARK_BYTES)
    builder.append(None, None, time.time_ns() // 1_000_000, [(MARK, owner.encode())])
    return RawBatch(builder.build())


def owner_of(batch: RawBatch) -> str:
    """Whose a topic is by a batch of it; empty for one that is no mark."""
    if batch.magic < 2 or batch.record_count != 1 or batch.is_control or batch.size_in_bytes > MARK_BYTES:
        return ""
    try:
        (record,) = records(batch)
    except (BatchError, ValueError):
        return ""
    owners = [value for name, value in record.headers if name == MARK and record.key is record.value is None]
    return (owners[0] or b"").decode(errors="replace") if owners else ""


async def unmarked(admin: Admin, topic: str, partitions: int, owner: str) -> list[TopicPartition]:
    """The partitions of a topic that lack the mark because nothing was ever written there. Raises OperatorNeeded for one that
    has something else, KafkaError."""
    tps = [(topic, number) for number in range(partitions)]
    starts = await admin.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(tps, LATEST))
    found = []
    for tp in tps:
        if ends[tp].offset == 0:
            found.append(tp)
        elif starts[tp].offset == 0:  # else retention has removed it, with records that this stage moved
            first = await admin.batch_at(tp, 0)
            if first is None or owner_of(first) != owner:
                raise OperatorNeeded(
                    f"`{topic}` isn't this stage's: its first record in partition {tp[1]} doesn't name {owner}. If nothing "
                    f"needs it, `penstock topics delete {quoted(topic)}` makes room, and the stage goes on by itself"
                )
    return found


def by_home(
    batches: Sequence[RawBatch],
    counts: Sequence[int],
    moving: npt.NDArray[np.bool_],
    homes: npt.NDArray[np.int32],
    max_batch_bytes: int,
) -> dict[int, list[RawBatch]]:
    """The records that move, as batches by the partition that each belongs into.

    `moving` and `homes` have an item for each record, `counts` says how many of them each batch has. Raises OperatorNeeded
    for a record that no batch can hold.
    """
    found: dict[int, list[RawBatch]] = {}
    start = 0
    for batch, count in zip(batches, counts, strict=True):
        mask, there = moving[start : start + count], homes[start : start + count]
        start += count
        for home in np.unique(there[mask]).tolist():
            found.setdefault(home, []).append(RawBatch(keep(batch, mask & (there == home), append_time=True)))
    return {home: prepare(moved, 0, max_batch_bytes).batches for home, moved in found.items()}
