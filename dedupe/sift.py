"""Which records of some batches go on: batches are opened, ids looked up, repeats left out, batches rebuilt if need be.

Everything here is work for a thread of its own: nothing waits, and the GIL is released around what costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.dedupe.ids import IdSource
from penstock.pyx.batch import BatchError, RawBatch
from penstock.pyx.columns import Column, Columns, decode, keep
from penstock.pyx.rocks import IdStore


@dataclass
class Sifted:
    """What some input batches came to.

    `batches` go on, untouched where nothing was dropped. `ids` are those of all records read (their union with
    what the store has is what it must have afterwards). `rotten` batches could not be opened.
    """

    batches: list[RawBatch] = field(default_factory=list)
    ids: Column | None = None
    rotten: list[RawBatch] = field(default_factory=list)
    read: int = 0
    written: int = 0
    dropped: int = 0
    without_id: int = 0


def _open(batches: Sequence[RawBatch]) -> tuple[Columns, list[RawBatch], list[RawBatch]]:
    """All sound batches as columns, the sound ones and the rotten ones. One at a time only if the whole fails."""
    try:
        return decode(batches), list(batches), []
    except BatchError:
        sound: list[RawBatch] = []
        rotten: list[RawBatch] = []
        for batch in batches:
            try:
                decode([batch])
                sound.append(batch)
            except BatchError:
                rotten.append(batch)
        return decode(sound), sound, rotten


def sift(batches: Sequence[RawBatch], store: IdStore, source: IdSource) -> Sifted:
    """Sift batches of one input partition. The store is read, not written. Raises RocksError."""
    columns, sound, rotten = _open(batches)
    ids = source.column(columns)
    fresh = store.unseen(ids.data, ids.starts, ids.null)
    sifted = Sifted(ids=ids, rotten=rotten, read=len(columns), without_id=int(np.count_nonzero(ids.null)))
    sifted.written = int(np.count_nonzero(fresh))
    sifted.dropped = sifted.read - sifted.written
    ends = np.searchsorted(columns.batch_index, np.arange(len(sound)), side="right")
    start = 0
    for batch, end in zip(sound, ends.tolist(), strict=True):
        mask: NDArray[np.bool_] = fresh[start:end]
        if mask.all():
            sifted.batches.append(batch)
        elif mask.any():
            sifted.batches.append(RawBatch(keep(batch, mask)))
        start = end
    return sifted
