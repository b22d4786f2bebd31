"""Columns against `records`, which reads the same batches one object at a time; and batches with records left out."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.codec import compress
from penstock.pyx.record.columns import decode, keep
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import BatchError, RawBatch, marker, records, split
from support.rows import rows

GOLDEN = Path(__file__).parents[2] / "golden" / "records_java.hex"
LINES = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
JAVA = {name: bytes.fromhex(text) for name, text in LINES if name != "v0-lz4"}


def built(codec: int = 0, count: int = 10, headers: bool = False) -> RawBatch:
    builder = BatchBuilder(codec)
    for i in range(count):
        named = [("id", b"%d" % i), ("id", None if i == 3 else b"last-%d" % i)] if headers and i % 2 else []
        builder.append(b"k%d" % i, b"v%d" % i, 1000 - i, named)
    return RawBatch(builder.build())


def with_payload(raw: RawBatch, payload: bytes) -> RawBatch:
    """The header of `raw` before another payload, length and checksum put right."""
    out = bytearray(bytes(raw)[:61] + payload)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return RawBatch(out)


@pytest.mark.parametrize("name", JAVA)
def test_batches_of_java(name: str) -> None:
    batches = split(JAVA[name])
    expected = [] if name.startswith("marker") else [record for raw in batches for record in records(raw)]
    assert rows(decode(batches)) == expected


def test_many_batches_of_all_kinds_at_once() -> None:
    batches = [raw for data in JAVA.values() for raw in split(data)]
    columns = decode(batches)
    expected = [(n, record) for n, raw in enumerate(batches) if not raw.is_control for record in records(raw)]
    assert list(columns.batch_index) == [n for n, _ in expected]
    assert rows(columns) == [record for _, record in expected]
    assert columns.key_starts[-1] == len(columns.key_data)
    assert columns.value_starts[-1] == len(columns.value_data)


def test_types_and_shapes() -> None:
    columns = decode([built()])
    assert columns.offsets.dtype == columns.timestamps.dtype == columns.key_starts.dtype == np.int64
    assert columns.key_data.dtype == columns.value_data.dtype == np.uint8
    assert columns.key_null.dtype == columns.value_null.dtype == np.bool_
    assert columns.batch_index.dtype == np.int32
    assert (len(columns.offsets), len(columns.key_starts), len(columns.value_null)) == (10, 11, 10)


def test_arrays_outlive_their_columns() -> None:
    keys = decode([built()]).key_data
    decode([built(4, 1000)])
    assert bytes(keys[:4]) == b"k0k1"


def test_nothing_in() -> None:
    columns = decode([])
    assert columns.header_columns().starts.tolist() == [0]
    assert len(columns) == 0
    assert list(columns.key_starts) == [0]
    assert len(decode([RawBatch(marker(True, 1, 0, 0, 0))])) == 0


def test_record_numbers_are_checked() -> None:
    columns = decode([built()])
    assert columns.key(-1) == b"k9"
    for i in (10, -11):
        with pytest.raises(IndexError):
            columns.key(i)
        with pytest.raises(IndexError):
            columns.value(i)
        with pytest.raises(IndexError):
            columns.headers(i)


def test_header_column_takes_the_last_of_a_name() -> None:
    ids = decode([built(headers=True)]).header_column("id")
    found = [None if null else bytes(ids.data[a:b]) for null, a, b in zip(ids.null, ids.starts, ids.starts[1:], strict=False)]
    assert found == [None, b"last-1", None, None, None, b"last-5", None, b"last-7", None, b"last-9"]
    assert decode([built(headers=True)]).header_column("other").null.all()


@pytest.mark.parametrize("codec", range(5))
def test_corrupt_batches_are_named_and_give_nothing(codec: int) -> None:
    good = built(codec)
    plain = bytes(built(0).payload)
    cases = {
        "too few records": plain[: len(plain) // 2],
        "too many": plain + plain,
        "a byte after the last": plain + b"\x00",
        "negative length": b"\x01" + plain[1:],
        "negative header count": plain[:-1] + b"\x01",
        "key beyond the record": plain[:4] + b"\x7e" + plain[5:],
        "key length below null": plain[:4] + b"\x03" + plain[5:],
        "endless varint": b"\xff" * 20 + plain,
        "nothing": b"",
    }
    for name, payload in cases.items():
        corrupt = bytearray(bytes(with_payload(good, compress(codec, payload))))
        struct.pack_into(">q", corrupt, 0, 4_200)
        raw = RawBatch(corrupt)
        with pytest.raises(BatchError, match="4200"):
            decode([good, raw, good])
        with pytest.raises(BatchError):
            records(raw)
        with pytest.raises(BatchError):
            keep(raw, np.arange(10) % 2 == 0)
            pytest.fail(name)


@pytest.mark.parametrize("codec", range(1, 5))
def test_payloads_that_do_not_inflate(codec: int) -> None:
    raw = with_payload(built(codec), b"\x00not compressed at all")
    with pytest.raises(BatchError, match="inflate") as caught:
        decode([raw])
    assert caught.value.code == 2


@pytest.mark.parametrize("codec", range(5))
def test_the_limit_counts_all_batches_together(codec: int) -> None:
    size = len(built(0).payload)
    assert len(decode([built(codec)] * 2, limit_bytes=2 * size)) == 20
    with pytest.raises(BatchError, match="limit"):
        decode([built(codec)] * 2, limit_bytes=2 * size - 1)


@pytest.mark.parametrize("codec", range(5))
def test_keep(codec: int) -> None:
    raw = built(codec, headers=True)
    mask = np.array([False, True] * 5)
    kept = RawBatch(keep(raw, mask))
    kept.check(client=True)
    assert kept.codec == codec
    assert kept.max_timestamp == 999
    before = [record for record, wanted in zip(records(raw), mask, strict=True) if wanted]
    assert records(kept) == [record._replace(offset=n) for n, record in enumerate(before)]
    assert keep(raw, np.ones(10, bool)) == bytes(raw)


def test_keep_takes_the_records_own_timestamps() -> None:
    raw = RawBatch(JAVA["v2-zstd-appendtime"])
    kept = RawBatch(keep(raw, np.arange(60) != 0))
    assert not kept.is_log_append_time
    assert kept.max_timestamp == 1_700_000_000_570
    holes = RawBatch(keep(RawBatch(JAVA["v2-lz4-holes"]), np.arange(60) != 0))
    holes.check(client=True)
    assert holes.record_count == 59


def test_keep_refuses() -> None:
    with pytest.raises(ValueError, match="10 booleans"):
        keep(built(), np.ones(9, bool))
    with pytest.raises(ValueError, match="10 booleans"):
        keep(built(), np.ones(10, np.int64))
    with pytest.raises(ValueError, match="without records"):
        keep(built(), np.zeros(10, bool))
    with pytest.raises(BatchError, match="control"):
        keep(RawBatch(marker(True, 1, 0, 0, 0)), np.ones(1, bool))
    with pytest.raises(BatchError, match="magic"):
        keep(RawBatch(JAVA["v1-none"]), np.ones(1, bool))
