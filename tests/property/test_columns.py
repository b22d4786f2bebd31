"""Columns hold what `records` reads; `keep` leaves out what the mask says and no more; both ways to build agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.columns import decode, keep
from penstock.pyx.record.rawbatch import RawBatch, records
from support.rows import rows

MAYBE_BYTES = st.none() | st.binary(max_size=60)
HEADERS = st.lists(st.tuples(st.sampled_from(["id", "näh", ""]), MAYBE_BYTES), max_size=3)
RECORDS = st.lists(st.tuples(MAYBE_BYTES, MAYBE_BYTES, st.integers(-1, 2**62), HEADERS), min_size=1, max_size=20)
Given = list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]


def build(given_records: Given, codec: int) -> RawBatch:
    builder = BatchBuilder(codec)
    for record in given_records:
        assert builder.append(*record)
    return RawBatch(builder.build())


@given(st.lists(st.tuples(RECORDS, st.integers(0, 4)), max_size=4))
def test_columns_hold_what_records_reads(given_batches: list[tuple[Given, int]]) -> None:
    batches = [build(*one) for one in given_batches]
    columns = decode(batches)
    expected = [(n, record) for n, raw in enumerate(batches) for record in records(raw)]
    assert rows(columns) == [record for _, record in expected]
    assert columns.batch_index.tolist() == [n for n, _ in expected]
    ids = columns.header_column("id")
    for i, (_, record) in enumerate(expected):
        value = None if ids.null[i] else bytes(ids.data[ids.starts[i] : ids.starts[i + 1]])
        assert value == dict(record.headers).get("id")


@given(RECORDS, st.integers(0, 4), st.data())
def test_keep(given_records: Given, codec: int, data: st.DataObject) -> None:
    raw = build(given_records, codec)
    count = raw.record_count
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any)))
    kept = RawBatch(keep(raw, mask))
    kept.check(client=True)
    wanted = [record for record, yes in zip(records(raw), mask, strict=True) if yes]
    assert records(kept) == [record._replace(offset=n) for n, record in enumerate(wanted)]
    assert kept.max_timestamp == max(record.timestamp_ms for record in wanted)


@given(RECORDS, st.integers(0, 4))
def test_columns_build_what_records_build(given_records: Given, codec: int) -> None:
    bare: Given = [(key, value, timestamp, []) for key, value, timestamp, _ in given_records]
    raw = build(bare, codec)
    columns = decode([raw])
    builder = BatchBuilder(codec)
    taken = builder.append_columns(
        timestamps=columns.timestamps.data,
        key_data=columns.key_data.data,
        key_starts=columns.key_starts.data,
        key_null=columns.key_null.data,
        value_data=columns.value_data.data,
        value_starts=columns.value_starts.data,
        value_null=columns.value_null.data,
    )
    assert taken == len(bare)
    assert builder.build() == bytes(raw)
