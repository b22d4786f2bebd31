"""Codecs against the libraries of other makers, and against input that lies."""

from __future__ import annotations

import gzip
import random
import struct

import cramjam
import pytest

from penstock.pyx.record.codec import CODEC_IDS, CodecError, compress, decompress

GZIP, SNAPPY, LZ4, ZSTD = (CODEC_IDS[name] for name in ("gzip", "snappy", "lz4", "zstd"))
PAYLOADS = [
    b"",
    b"a",
    random.Random(1).randbytes(1000),
    b"hello world " * 20_000,
    random.Random(2).randbytes(100_000) + bytes(200_000),
]
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
@pytest.mark.parametrize("codec", range(5))
def test_round_trip_within_an_exact_limit(codec: int, payload: bytes) -> None:
    packed = compress(codec, payload)
    assert decompress(codec, packed, len(payload)) == payload
    if payload:
        with pytest.raises(CodecError, match="limit"):
            decompress(codec, packed, len(payload) - 1)


@pytest.mark.parametrize("level", [-1, 1, 9, 99])
@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_levels_outside_of_the_range_are_brought_into_it(codec: int, level: int) -> None:
    assert decompress(codec, compress(codec, PAYLOADS[3], level)) == PAYLOADS[3]


@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
def test_others_read_ours_and_we_read_theirs(payload: bytes) -> None:
    assert gzip.decompress(compress(GZIP, payload)) == payload
    assert bytes(cramjam.lz4.decompress(compress(LZ4, payload))) == payload
    assert bytes(cramjam.zstd.decompress(compress(ZSTD, payload))) == payload
    assert decompress(GZIP, gzip.compress(payload)) == payload
    assert decompress(LZ4, bytes(cramjam.lz4.compress(payload))) == payload
    assert decompress(ZSTD, bytes(cramjam.zstd.compress(payload))) == payload
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(payload))) == payload


def test_snappy_is_written_in_chunks_of_java() -> None:
    packed = compress(SNAPPY, PAYLOADS[4])
    assert packed.startswith(XERIAL)
    at, sizes = len(XERIAL), []
    while at < len(packed):
        (length,) = struct.unpack_from(">i", packed, at)
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(packed[at + 4 : at + 4 + length]))))
        at += 4 + length
    assert sum(sizes) == len(PAYLOADS[4])
    assert max(sizes) == 32 * 1024


def test_streams_that_follow_one_another() -> None:
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        assert decompress(codec, compress(codec, b"one ") + compress(codec, b"two")) == b"one two"


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_every_cut_is_refused(codec: int) -> None:
    packed = compress(codec, b"some text, some more text, and the same text again" * 3)
    # A xerial header without chunks is an empty stream, not a cut one.
    lengths = [n for n in range(len(packed)) if not (codec == SNAPPY and n == len(XERIAL))]
    for length in lengths:
        with pytest.raises(CodecError):
            decompress(codec, packed[:length])


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_bomb_stops_at_the_limit(codec: int) -> None:
    packed = compress(codec, bytes(20_000_000))
    assert len(packed) < 1_000_000
    with pytest.raises(CodecError, match="limit"):
        decompress(codec, packed, 100_000)


def test_a_length_without_bytes_is_not_believed() -> None:
    claims_a_gibibyte = b"\x80\x80\x80\x80\x04" + b"\x00a"
    with pytest.raises(CodecError, match="takes"):
        decompress(SNAPPY, claims_a_gibibyte)
    for length in (-1, 2**31 - 1, 5):
        with pytest.raises(CodecError, match="takes"):
            decompress(SNAPPY, XERIAL + struct.pack(">i", length) + b"\x00")


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_unknown_codecs(codec: int) -> None:
    for call in (compress, decompress):
        with pytest.raises(CodecError, match="unknown"):
            call(codec, b"abc")
