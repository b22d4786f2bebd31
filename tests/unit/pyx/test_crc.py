"""CRC32C against its published check values, and the ways to count it against each other."""

from __future__ import annotations

import random

import pytest

from penstock.pyx.record.crc import WAYS, crc32c, crc32c_combine

# Lengths around the word, around the two block sizes of the three-stream loop (3 x 256 and 3 x 8192 bytes), and around
# what folding takes at once (256 and 64 bytes).
LENGTHS = [0, 1, 7, 8, 9, 767, 768, 769, 1000, 24_575, 24_576, 24_577, 100_003]
LENGTHS += [255, 256, 257, 263, 319, 320, 321, 511, 512, 513, 575, 576, 577, 4096, 65_536 + 63]


def noise(length: int) -> bytes:
    return random.Random(length).randbytes(length)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # these four: RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert [crc32c(data, way=way) for way in WAYS] == [expected] * len(WAYS)


@pytest.mark.parametrize("length", LENGTHS)
def test_all_ways_pieces_and_joins_agree(length: int) -> None:
    data = noise(length)
    whole = crc32c(data, way="tables")
    assert crc32c(data) == whole
    for cut in {0, length // 3, length - length // 5, length}:
        a, b = data[:cut], data[cut:]
        for way in WAYS:
            assert crc32c(b, crc32c(a, way=way), way=way) == whole
        assert crc32c_combine(crc32c(a), crc32c(b), len(b)) == whole


def test_join_over_more_bytes_than_memory_holds() -> None:
    # Joining with 2^40 zero bytes in one step and in two.
    crc = crc32c(b"penstock")
    half = crc32c_combine(crc, 0, 1 << 39)
    assert crc32c_combine(half, 0, 1 << 39) == crc32c_combine(crc, 0, 1 << 40)


def test_any_buffer_is_taken() -> None:
    data = noise(100)
    assert crc32c(memoryview(bytearray(b"x" + data))[1:]) == crc32c(data)
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]  # that is the point


def test_ways_are_named() -> None:
    assert WAYS[-1] == "tables"
    with pytest.raises(ValueError, match="abacus"):
        crc32c(b"", way="abacus")
