"""Codecs refuse or round-trip, whatever comes."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from penstock.pyx.record.codec import CodecError, compress, decompress

CODECS = st.integers(0, 4)
PAYLOADS = st.one_of(
    st.binary(max_size=4000),
    st.builds(lambda part, n: part * n, st.binary(max_size=50), st.integers(0, 3000)),
)
LIMIT_BYTES = 1 << 16


@given(CODECS, PAYLOADS, st.integers(-1, 22))
def test_round_trip(codec: int, payload: bytes, level: int) -> None:
    assert decompress(codec, compress(codec, payload, level), len(payload)) == payload


@given(st.integers(1, 4), PAYLOADS, st.data())
def test_bent_input_is_refused_or_stays_within_the_limit(codec: int, payload: bytes, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, payload))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        assert len(decompress(codec, packed, LIMIT_BYTES)) <= LIMIT_BYTES


@given(st.integers(1, 4), st.binary(max_size=300))
def test_noise(codec: int, noise: bytes) -> None:
    with contextlib.suppress(CodecError):
        assert len(decompress(codec, noise, LIMIT_BYTES)) <= LIMIT_BYTES
