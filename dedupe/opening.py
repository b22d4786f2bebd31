"""Batches opened a few at a time, so that what they inflate to stays bounded; those that can't be opened set aside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from penstock.pyx.record.columns import Column, Columns, decode
from penstock.pyx.record.rawbatch import BatchError, RawBatch

GROUP_BYTES = 2 << 20  # opened together, compressed


def open_batches(batches: Sequence[RawBatch], corrupt: list[RawBatch]) -> Iterator[tuple[list[RawBatch], Columns]]:
    """The batches in their order, group by group, each group with its records.

    A batch that can't be opened (or inflates to more than `decode` allows) is appended to `corrupt`, in order too.
    """
    group: list[RawBatch] = []
    size = 0
    for batch in batches:
        if group and size + batch.size_in_bytes > GROUP_BYTES:
            yield from _open(group, corrupt)
            group, size = [], 0
        group.append(batch)
        size += batch.size_in_bytes
    if group:
        yield from _open(group, corrupt)


def _open(group: list[RawBatch], corrupt: list[RawBatch]) -> Iterator[tuple[list[RawBatch], Columns]]:
    try:
        columns = decode(group)
    except BatchError:
        if len(group) == 1:
            corrupt += group
            return
        # One of them is corrupt, or they are too much together: halves say which.
        middle = len(group) // 2
        yield from _open(group[:middle], corrupt)
        yield from _open(group[middle:], corrupt)
        return
    yield group, columns


def join(parts: Sequence[Column]) -> Column:
    """Columns one behind the other as one column; it shares nothing with the records that the parts came from."""
    starts = [np.zeros(1, dtype=np.int64)]
    end = 0
    for part in parts:
        starts.append(part.starts[1:] + (end - int(part.starts[0])))
        end = int(starts[-1][-1]) if len(part.null) else end
    data = [part.data[int(part.starts[0]) : int(part.starts[-1])] for part in parts]
    return Column(
        np.concatenate([np.empty(0, dtype=np.uint8), *data]),
        np.concatenate(starts),
        np.concatenate([np.empty(0, dtype=np.bool_), *(part.null for part in parts)]),
    )
