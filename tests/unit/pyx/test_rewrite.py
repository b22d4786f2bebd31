"""A rewritten header against the plain way: change the fields, compute the checksum over everything."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import HEADER_SIZE, BatchError, RawBatch, marker, records
from penstock.pyx.record.rewrite import rewrite_header

GOLDEN = Path(__file__).parents[2] / "golden" / "records_java.hex"
LINES = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
JAVA = {name: bytes.fromhex(text) for name, text in LINES}
BATCHES = [name for name in JAVA if name.startswith("v2")]


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_equals_the_plain_way(name: str, transactional: bool) -> None:
    raw = RawBatch(JAVA[name])
    plain = bytearray(JAVA[name])
    struct.pack_into(">i", plain, 12, -1)
    struct.pack_into(">h", plain, 21, raw.codec | (0x10 if transactional else 0))
    struct.pack_into(">qhi", plain, 43, 2**40 + 7, 12, 2**31 - 1)
    struct.pack_into(">I", plain, 17, crc32c(plain[21:]))
    assert rewrite_header(raw, 2**40 + 7, 12, 2**31 - 1, transactional) == plain[:HEADER_SIZE]


def test_only_the_stamp_of_the_log_is_lost() -> None:
    raw = RawBatch(JAVA["v2-snappy-appendtime"])
    sent = RawBatch(rewrite_header(raw, 1, 0, 0) + bytes(raw.payload))
    sent.check(client=True)
    plain = RawBatch(JAVA["v2-snappy"])
    assert records(sent) == records(plain)
    assert sent.max_timestamp == raw.max_timestamp


@pytest.mark.parametrize("byte", [62, 100, -1])
def test_what_went_bad_on_the_way_is_still_found_out(byte: int) -> None:
    bad = bytearray(JAVA["v2-lz4"])
    bad[byte] ^= 0x40
    raw = RawBatch(bad)
    with pytest.raises(BatchError, match="checksum"):
        RawBatch(rewrite_header(raw, 1, 0, 0) + bytes(raw.payload)).check()


def test_control_batches_and_old_messages_are_refused() -> None:
    with pytest.raises(BatchError, match="control"):
        rewrite_header(RawBatch(marker(True, 1, 0, 0, 0)), 1, 0, 0)
    with pytest.raises(BatchError, match="magic"):
        rewrite_header(RawBatch(JAVA["v1-none"]), 1, 0, 0)
