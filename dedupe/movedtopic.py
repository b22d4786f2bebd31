"""The topic of records whose id belongs into another partition: where murmur2 says, the worker of that partition reads them.

A record leaves its input partition and enters the right one of `INPUT.moved` in one transaction. Not in the input itself:
other readers of the aggregate would see it twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.pipeline.stages.batches import prepare
from penstock.pyx.record.columns import keep
from penstock.pyx.record.rawbatch import RawBatch


def configs(max_batch_bytes: int, retention_bytes: int) -> dict[str, str]:
    """What a stage's topic of moved records is made with."""
    return {
        "retention.ms": "-1",  # by time it would go by the events' own timestamps
        "retention.bytes": str(retention_bytes),
        "max.message.bytes": str(max_batch_bytes),
    }


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
