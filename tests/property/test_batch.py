"""Batches: what is built is read back, also by aiokafka; what is bent is refused and never crashes a reader."""

from __future__ import annotations

import contextlib
from typing import TypeAlias

from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.columns import decode
from penstock.pyx.record.rawbatch import BatchError, RawBatch, marker_type, records, split

Given: TypeAlias = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]

MAYBE_BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), MAYBE_BYTES), max_size=4)
RECORDS = st.lists(st.tuples(MAYBE_BYTES, MAYBE_BYTES, st.integers(-1, 2**62), HEADERS), min_size=1, max_size=30)
# Bytes of the header that steer a reader, and any other.
PLACES = st.one_of(st.integers(8, 23), st.integers(57, 75), st.integers(0, 10_000))


def build(given_records: list[Given], codec: int) -> bytes:
    builder = BatchBuilder(codec)
    for record in given_records:
        assert builder.append(*record)
    return builder.build(7, 1, 5)


@given(RECORDS, st.integers(0, 4))
def test_round_trip(given_records: list[Given], codec: int) -> None:
    data = build(given_records, codec)
    raw = RawBatch(data)
    raw.check(client=True)
    assert raw.max_timestamp == max(record[2] for record in given_records)
    found = [(r.key, r.value, r.timestamp_ms, list(r.headers)) for r in records(raw)]
    assert found == given_records
    theirs = MemoryRecords(data).next_batch()
    assert theirs is not None
    assert theirs.validate_crc()
    assert [(r.key, r.value, r.timestamp, r.headers) for r in theirs] == given_records


@given(RECORDS, st.integers(0, 4), st.data())
def test_bent_batches_never_crash_a_reader(given_records: list[Given], codec: int, data: st.DataObject) -> None:
    bent = bytearray(build(given_records, codec) * 2)
    for _ in range(data.draw(st.integers(1, 5))):
        bent[data.draw(PLACES) % len(bent)] = data.draw(st.integers(0, 255))
    try:
        batches = split(bent)
    except BatchError:
        return
    for raw in batches:
        assert 0 < raw.size_in_bytes <= len(bent)
        for reader in (RawBatch.check, records, marker_type, lambda one: decode([one], 1 << 20)):
            try:
                reader(raw)
            except BatchError as refused:
                assert refused.code in (2, 10, 76, 87)


@given(st.binary(max_size=200))
def test_noise(noise: bytes) -> None:
    with contextlib.suppress(BatchError):
        assert sum(len(raw) for raw in split(noise)) <= len(noise)
