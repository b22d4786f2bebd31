"""Which records of some batches go on: batches are opened, ids looked up, repeats left out, batches rebuilt if need be.

Everything here is work for a thread of its own: nothing waits, and the GIL is released around what costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.dedupe.ids import IdSource
from penstock.dedupe.opening import join, open_batches
from penstock.pipeline.batches import prepare
from penstock.pyx.record.columns import Column, keep
from penstock.pyx.record.rawbatch import BatchError, RawBatch
from penstock.pyx.rocks import IdStore


@dataclass
class Sifted:
    """What some input batches came to.

    `batches` go on, untouched where nothing was dropped. `ids` are those of all records read (their union with
    what the store has is what it must have afterwards). `rotten` batches could not be opened.
    """

    batches: list[RawBatch]
    ids: Column
    rotten: list[RawBatch] = field(default_factory=list)
    read: int = 0
    written: int = 0
    dropped: int = 0
    without_id: int = 0


def sift(batches: Sequence[RawBatch], position: int, store: IdStore, source: IdSource, max_batch_bytes: int) -> Sifted:
    """Sift batches of one input partition; records below `position` were read before and are left out uncounted.

    The store is read, not written. Raises RocksError, and OperatorNeeded for a record that no output batch can hold.
    """
    rotten: list[RawBatch] = []
    sound: list[RawBatch] = []
    counts: list[int] = []
    columns: list[Column] = []
    for group, records in open_batches(_modern(batches, position, max_batch_bytes, rotten), rotten):
        sound += group
        counts += np.bincount(records.batch_index, minlength=len(group)).tolist()
        columns.append(join([source.column(records)]))
    ids = join(columns)
    fresh = store.unseen(ids.data, ids.starts, ids.null)
    read, written = len(fresh), int(np.count_nonzero(fresh))
    kept: list[RawBatch] = []
    start = 0
    for batch, count in zip(sound, counts, strict=True):
        mask = fresh[start : start + count]
        start += count
        if mask.all():
            kept.append(batch)
        elif mask.any():
            kept.append(RawBatch(keep(batch, mask)))
    going = prepare(kept, 0, max_batch_bytes).batches
    return Sifted(going, ids, rotten, read, written, read - written, int(np.count_nonzero(ids.null)))


def _modern(batches: Sequence[RawBatch], position: int, max_batch_bytes: int, rotten: list[RawBatch]) -> list[RawBatch]:
    """The batches, those of magic 0 or 1 and one that begins below the position rebuilt."""
    modern: list[RawBatch] = []
    for batch in batches:
        if batch.magic == 2 and batch.base_offset >= position:
            modern.append(batch)
            continue
        try:
            modern += prepare([batch], position, max_batch_bytes).batches
        except BatchError:
            rotten.append(batch)
    return modern
