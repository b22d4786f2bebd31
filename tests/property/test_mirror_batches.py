"""Prepared batches hold exactly the records from the position on, in order, each small enough for the target."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.stages.batches import is_forwardable, prepare
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.codec import compress
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import BatchError, RawBatch, Record, records, split
from penstock.pyx.record.rewrite import rewrite_header

NOW_MS = 1_700_000_000_000
CRC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, MAX_TIMESTAMP_AT, COUNT_AT = 17, 21, 23, 35, 57
LOG_APPEND_TIME = 8


def batch(base_offset: int, values: list[bytes], codec: int = 0, hole: int = 0, appended_ms: int = 0) -> RawBatch:
    """A batch as a log holds it; `hole` offsets at its end were compacted away, `appended_ms` is its append time."""
    builder = BatchBuilder(codec)
    for i, value in enumerate(values):
        assert builder.append(b"k%d" % (base_offset + i), value, NOW_MS + i, [("h", value[:3])])
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">i", data, LAST_DELTA_AT, len(values) - 1 + hole)
    if appended_ms:
        struct.pack_into(">h", data, ATTRIBUTES_AT, codec | LOG_APPEND_TIME)
        struct.pack_into(">q", data, MAX_TIMESTAMP_AT, appended_ms)
    struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[ATTRIBUTES_AT:])))
    return RawBatch(bytes(data))


def contents(found: list[Record]) -> list[tuple[object, ...]]:
    return [(record.timestamp_ms, record.key, record.value, record.headers) for record in found]


def sent(each: RawBatch) -> bytes:
    """A prepared batch as it goes out: its header is written again, which clears the bit of LogAppendTime."""
    return rewrite_header(each, 1, 0, 0) + bytes(each.payload)


@pytest.mark.parametrize("far_ms", [-2, -(1 << 62), (1 << 63) - 1])
def test_records_of_any_time_are_rebuilt(far_ms: int) -> None:
    """Brokers take a time before 1970: no client gives one, but somebody may."""
    builder = BatchBuilder(4, any_time=True)
    for i in range(4):
        assert builder.append(b"k", bytes(200), (far_ms, 0)[i % 2])
    data = RawBatch(builder.build())
    made = prepare([data], 1, 120).batches
    assert [record for one in made for record in contents(records(one))] == contents(records(data)[1:])


batches_of_values = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=60), min_size=1, max_size=12),
        st.integers(0, 4),
        st.sampled_from([0, 0, 0, 3]),
        st.sampled_from([0, 0, NOW_MS + 5000]),
    ),
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(batches_of_values, st.integers(0, 60), st.integers(250, 1000))
def test_records_in_and_out(shapes: list[tuple[list[bytes], int, int, int]], position: int, most: int) -> None:
    source: list[RawBatch] = []
    offset = 0
    for values, codec, hole, appended_ms in shapes:
        source.append(batch(offset, values, codec, hole, appended_ms))
        offset = source[-1].last_offset + 1
    prepared = prepare(source, position, most)
    wanted = [record for each in source for record in records(each) if record.offset >= position]
    found = [record for each in prepared.batches for record in records(RawBatch(sent(each)))]
    assert contents(found) == contents(wanted)
    untouched = {bytes(each) for each in source if each.base_offset >= position and is_forwardable(each, most)}
    rebuilt = 0
    for each in prepared.batches:
        assert each.size_in_bytes <= most and is_forwardable(each, most)
        each.check(max_bytes=most)
        rebuilt += bytes(each) not in untouched
    assert rebuilt == prepared.rebuilt


def test_a_record_larger_than_the_target_takes() -> None:
    source = [batch(0, [b"x" * 10]), batch(1, [b"y" * 10, b"z" * 900, b"y"])]
    with pytest.raises(OperatorNeeded, match=r"the record at offset 2 takes 9\d\d bytes"):
        prepare(source, 0, 500)


def test_a_batch_that_has_to_be_opened_and_can_not_be() -> None:
    data = bytearray(bytes(batch(0, [b"x" * 10] * 3, codec=4, hole=1)))
    data[70] ^= 0xFF
    with pytest.raises(BatchError):
        prepare([RawBatch(bytes(data))], 0, 1000)


def message(offset: int, magic: int, key: bytes, value: bytes, attributes: int = 0) -> bytes:
    """A message of the formats before record batches (KIP-32): CRC32, magic, attributes[, timestamp], key, value."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", NOW_MS) if magic else b"")
    body += struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("gzip", [False, True])
def test_older_formats_are_rebuilt(magic: int, gzip: bool) -> None:
    first = 0 if magic and gzip else 5  # inner offsets are relative in magic 1
    inner = b"".join(message(first + i, magic, b"k%d" % i, b"value") for i in range(3))
    data = message(7, magic, b"", compress(1, inner), attributes=1) if gzip else inner
    prepared = prepare(split(data), 6, 1000)
    found = [record for each in prepared.batches for record in records(each)]
    assert [(record.key, record.value) for record in found] == [(b"k1", b"value"), (b"k2", b"value")]
    assert all(record.timestamp_ms == (NOW_MS if magic else -1) for record in found)
    assert prepared.rebuilt == len(prepared.batches)
    assert all(each.magic == 2 and is_forwardable(each, 1000) for each in prepared.batches)


def test_append_times_of_a_target_that_has_its_own_are_not_copied() -> None:
    stamped = batch(0, [b"x", b"y"], codec=3, appended_ms=NOW_MS + 9000)
    assert prepare([stamped], 0, 1000, append_time=True) == ([stamped], 0)
    prepared = prepare([stamped], 0, 1000)
    assert prepared.rebuilt == 1 and prepared.batches[0].codec == 3
    assert [record.timestamp_ms for record in records(prepared.batches[0])] == [NOW_MS + 9000] * 2
