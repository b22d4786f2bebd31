"""Polled records as Arrow's record batches: the same that `poll` gives, whatever they lack."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipeline.clients.arrow import SCHEMA, record_batch
from penstock.pipeline.clients.partitionbuffer import PolledColumns
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.columns import decode
from penstock.pyx.record.rawbatch import RawBatch, records

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
HEADERS: list[Sequence[tuple[str, bytes | None]]] = [(), [("a", b"1"), ("ü", None), ("a", b"")], [("\udcff", b"x")]]


def built(count: int) -> RawBatch:
    builder = BatchBuilder(3)
    for i in range(count):
        key, value = None if i % 3 == 0 else b"k" * (i % 4), None if i % 5 == 0 else b"v%d" % i
        builder.append(key, value, -1 if i % 7 == 0 else 1_700_000_000_000 + i, HEADERS[i % 3])
    return RawBatch(builder.build())


def rows(raw: RawBatch, first: int) -> list[dict[str, Any]]:
    return [
        {
            "topic": "t",
            "partition": 3,
            "offset": one.offset,
            "timestamp": None if one.timestamp_ms < 0 else EPOCH + datetime.timedelta(milliseconds=one.timestamp_ms),
            "key": one.key,
            "value": one.value,
            "headers": [{"name": name.encode("utf-8", "surrogateescape"), "value": value} for name, value in one.headers],
        }
        for one in records(raw)[first:]
    ]


@pytest.mark.parametrize(("count", "first"), [(1, 0), (100, 0), (100, 13), (100, 99)])
def test_a_batch_has_the_records_from_the_position_on(count: int, first: int) -> None:
    raw = built(count)
    batch = record_batch(PolledColumns("t", 3, decode([raw]), first))
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert batch.to_pylist() == rows(raw, first)


def test_batches_outlive_the_columns_and_make_one_table() -> None:
    raws = [built(20), built(30)]
    batches = [record_batch(PolledColumns("t", 3, decode([raw]), 0)) for raw in raws]
    batches.append(record_batch(PolledColumns("u", 0, decode([raws[0]]), 19)))
    table = pa.Table.from_batches(batches)
    assert table.num_rows == 51
    assert table.slice(0, 50).to_pylist() == rows(raws[0], 0) + rows(raws[1], 0)
    assert table.column("topic").to_pylist()[-2:] == ["t", "u"]


def test_keys_and_values_are_not_copied() -> None:
    columns = decode([built(100)])
    batch = record_batch(PolledColumns("t", 3, columns, 0))
    for name, data in (("key", columns.key_data), ("value", columns.value_data)):
        assert batch.column(name).buffers()[2].address == data.ctypes.data
