"""Stored batches converted down, against what Kafka's own classes build from the same records."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pyx.record import convert
from penstock.pyx.record.codec import decompress
from penstock.pyx.record.rawbatch import BatchError, RawBatch, marker, records, split
from support.logs import batch
from support.messagesets import LOG_APPEND_TIME, unpack, unwrap

GOLDEN = Path(__file__).parents[2] / "golden" / "records_java.hex"
LINES = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
JAVA = {name: bytes.fromhex(text) for name, text in LINES}


def plain(data: bytes, magic: int) -> bytes:
    """The messages as they lie, those of a wrapper inflated."""
    (wrapper, *more) = unpack(data, magic)
    if wrapper.attributes & 7 == 0:
        return data
    assert not more
    assert wrapper.value is not None
    value = wrapper.value
    if magic == 0 and wrapper.attributes & 7 == 3:
        return b"".join(b"%r" % (one,) for one in unwrap(data, magic))  # a header that only old readers like
    return decompress(wrapper.attributes & 7, value)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize(("old", "new"), [(1, 2), (0, 2), (0, 1)])
def test_the_bytes_are_those_of_kafka(codec: str, old: int, new: int) -> None:
    expected = JAVA[f"v{old}-{codec}"]
    made = convert.down(JAVA[f"v{new}-{codec}"], old)
    assert plain(made, old) == plain(expected, old)
    assert [(raw.base_offset, raw.attributes, raw.max_timestamp) for raw in split(made)] == [
        (raw.base_offset, raw.attributes, raw.max_timestamp) for raw in split(expected)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("kind", ["holes", "appendtime", "transactional"])
@pytest.mark.parametrize("magic", [0, 1])
def test_holes_append_times_and_transactions(codec: str, kind: str, magic: int) -> None:
    data = JAVA[f"v2-{codec}-{kind}"]
    expected = records(RawBatch(data))
    found = unwrap(convert.down(data, magic), magic)
    assert [one.offset for one in found] == [record.offset for record in expected]
    if magic == 1:
        assert [one.timestamp_ms for one in found] == [record.timestamp_ms for record in expected]
        stamped = {raw.attributes & LOG_APPEND_TIME for raw in split(convert.down(data, magic))}
        assert stamped == {LOG_APPEND_TIME if kind == "appendtime" else 0}


def test_markers_and_what_lies_below_are_left_out() -> None:
    data = marker(True, 1, 0, 0, 5) + batch(3) + marker(False, 1, 0, 0, 5)
    assert [one.offset for one in unwrap(convert.down(data, 0), 0)] == [0, 1, 2]
    assert convert.down(data, 1, 3) == b""
    assert convert.down(marker(True, 1, 0, 0, 5), 1) == b""


def test_a_batch_that_is_cut_off_is_left_out() -> None:
    data = batch(3)
    assert convert.down(data + data[:-1], 0) == convert.down(data, 0)
    assert convert.down(data[:-1], 0) == convert.down(b"", 0) == b""


def test_what_cannot_be_converted() -> None:
    corrupt = bytearray(batch(3))
    corrupt[61] = 0x7F
    too_much = batch(1, size=67 << 20, codec=1)
    for data, code in ((corrupt, 2), (batch(1, codec=4), 76), (too_much, 10)):
        with pytest.raises(BatchError) as caught:
            convert.down(data, 0)
        assert caught.value.code == code
    with pytest.raises(ValueError, match="magic"):
        convert.down(batch(1), 2)
