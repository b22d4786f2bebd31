"""The rewritten header's checksum equals the plain recomputation; a wrong one stays wrong."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.record.rewrite import rewrite_header

PRODUCERS = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.booleans())


def build(payload: bytes, codec: int, stamped: bool) -> bytearray:
    builder = BatchBuilder(codec)
    builder.append(None, payload, 1)
    out = bytearray(builder.build(3, 4, 5, stamped))
    if stamped:
        out[22] |= 0x08
        struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return out


@given(st.binary(max_size=3000), st.integers(0, 4), st.booleans(), PRODUCERS)
def test_equals_the_plain_way(payload: bytes, codec: int, stamped: bool, producer: tuple[int, int, int, bool]) -> None:
    raw = RawBatch(build(payload, codec, stamped))
    sent = RawBatch(rewrite_header(raw, *producer) + bytes(raw.payload))
    sent.check(client=True)
    assert (sent.producer_id, sent.producer_epoch, sent.base_sequence, sent.is_transactional) == producer
    assert sent.attributes & 0x08 == 0
    assert sent.crc == crc32c(bytes(sent)[21:])


@given(st.binary(min_size=1, max_size=3000), st.integers(0, 4), PRODUCERS, st.data())
def test_a_wrong_checksum_stays_wrong(
    payload: bytes, codec: int, producer: tuple[int, int, int, bool], data: st.DataObject
) -> None:
    batch = build(payload, codec, False)
    batch[data.draw(st.integers(61, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    raw = RawBatch(batch)
    sent = rewrite_header(raw, *producer) + bytes(raw.payload)
    wrong_by = raw.crc ^ crc32c(bytes(raw)[21:])
    assert wrong_by != 0
    assert RawBatch(sent).crc ^ crc32c(sent[21:]) == wrong_by
