"""How many records a batch holds, and how many of them lie in some ranges of offsets.

Headers are taken at their word where that is enough; a batch is opened only where it isn't.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.pipeline.stages.ranges import Range
from penstock.pyx.record.rawbatch import BatchError, RawBatch, count_records, records


def records_of(batch: RawBatch) -> int:
    """The header's count, no more than it has offsets; a compressed message set of magic 0 or 1 says none and is opened (1
    if it can't be).
    """
    if batch.magic >= 2:
        return max(0, min(batch.record_count, batch.last_offset - batch.base_offset + 1))
    try:
        return count_records(batch)
    except BatchError:
        return 1


def records_within(batch: RawBatch, held: int, ranges: Sequence[Range]) -> int:
    """How many of the records that a batch holds lie in some ranges (which don't overlap). One that can't be opened though it
    has to be counts whole as soon as some of its offsets do.
    """
    first, last = batch.base_offset, batch.last_offset
    if is_wrapper(batch):
        try:
            return _count(batch, ranges)
        except BatchError:
            pass  # of such a one only the last offset is known
    overlaps = [(max(first, low), min(last, high)) for low, high in ranges if low <= last and first <= high]
    covered = sum(high - low + 1 for low, high in overlaps)
    if covered in (0, last - first + 1):
        return held if covered else 0
    if held == last - first + 1:
        return covered
    try:
        return _count(batch, overlaps)
    except BatchError:
        return held


def is_wrapper(batch: RawBatch) -> bool:
    """Whether it is a message of magic 0 or 1 with others in it; its `base_offset` then is that of the last one."""
    return batch.magic < 2 and batch.codec != 0


def _count(batch: RawBatch, ranges: Sequence[Range]) -> int:
    offsets = [record.offset for record in records(batch)]
    return sum(any(low <= offset <= high for low, high in ranges) for offset in offsets)
