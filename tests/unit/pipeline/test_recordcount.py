"""How many records of a batch lie in some offsets, whatever its format and whatever compaction took out."""

from __future__ import annotations

import pytest

from penstock.pipeline.stages.recordcount import records_of, records_within
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch
from support.messagesets import GZIP, Message, wrap


def wrapper(magic: int) -> RawBatch:
    """Messages at offsets 10 to 19: a wrapper has the last one's; those of magic 1 are numbered from 0."""
    inside = [Message(at + (10 if magic == 0 else 0), None, b"v", 1) for at in range(10)]
    return RawBatch(wrap(magic, inside, GZIP, 19))


@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_are_counted_by_what_they_hold(magic: int) -> None:
    batch = wrapper(magic)
    held = records_of(batch)
    assert held == 10
    assert records_within(batch, held, [(0, 14)]) == 5
    assert records_within(batch, held, [(0, 11), (18, 40)]) == 4
    assert records_within(batch, held, [(0, 9)]) == records_within(batch, held, [(20, 40)]) == 0
    assert records_within(batch, held, [(0, 40)]) == 10


def test_dense_batches_are_counted_without_opening_them() -> None:
    builder = BatchBuilder(0)
    for _ in range(10):
        builder.append(None, b"v" * 10, 1)
    data = bytearray(builder.build())
    data[-30:] = bytes(30)
    batch = RawBatch(bytes(data))
    assert records_within(batch, records_of(batch), [(4, 6), (9, 20)]) == 4
