"""Record batches of magic 2 made by hand, byte by byte: right ones and poisons, which hold what no client can read.

An encoder of the tests' own, so that nothing of the product judges itself.
"""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import cramjam
import lz4.frame

from penstock.pyx.record.crc import crc32c

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def unsigned(value: int, size: int = 0) -> bytes:
    """A varint of as few bytes as will do, or of `size` bytes: overlong, but the same number."""
    made = bytearray()
    while value >= 0x80 or len(made) < size - 1:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(made) + bytes([value])


def varint(value: int, size: int = 0) -> bytes:
    """Zigzag, of 32 or 64 bits."""
    return unsigned(value << 1 if value >= 0 else (-value << 1) - 1, size)


def sized(data: bytes | None) -> bytes:
    """Bytes with their length in front; -1 for null."""
    return varint(-1) if data is None else varint(len(data)) + data


def framed(body: bytes, length: int | None = None) -> bytes:
    """A record's body with its length in front, or with another."""
    return varint(len(body) if length is None else length) + body


def record(
    offset_delta: int,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    timestamp_delta: int = 0,
    attributes: int = 0,
) -> bytes:
    """A whole record as a producer writes it."""
    return framed(
        bytes([attributes])
        + varint(timestamp_delta)
        + varint(offset_delta)
        + sized(key)
        + sized(value)
        + varint(len(headers))
        + b"".join(sized(name) + sized(content) for name, content in headers)
    )


def plain(count: int) -> bytes:
    """Records as they ought to be."""
    return b"".join(record(i, value=b"value %d" % i) for i in range(count))


def batch(
    payload: bytes,
    count: int,
    *,
    codec: int = NONE,
    last_delta: int | None = None,
    base_ms: int | None = None,
    max_ms: int | None = None,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch around a payload that is taken as it is; the checksum is right."""
    base_ms = int(time.time() * 1000) if base_ms is None else base_ms
    body = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        count - 1 if last_delta is None else last_delta,
        base_ms,
        base_ms if max_ms is None else max_ms,
        *producer,
        count,
    )
    body += payload
    head = struct.pack(">ib", -1, 2) + struct.pack(">I", crc32c(body))
    return struct.pack(">qi", 0, len(head) + len(body)) + head + body


def packed(codec: int, data: bytes) -> bytes:
    """One frame, as each codec's own library writes it; snappy as Java's does."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return gzip.compress(data)
    if codec == SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(data))
        return XERIAL + struct.pack(">i", len(block)) + block
    # Java's lz4 reads no blocks that lean on the ones before.
    return bytes(lz4.frame.compress(data, block_linked=False) if codec == LZ4 else cramjam.zstd.compress(data))


class Poison(NamedTuple):
    """What no broker may take. `kafka` is what Kafka 4.4.0 answers to it where it differs: 0 takes it."""

    name: str
    data: bytes
    code: int = 87
    kafka: int | None = None


def body(*parts: bytes) -> bytes:
    """A record of these parts; its length fits."""
    return framed(b"".join(parts))


ZERO = b"\0"
HEAD = ZERO * 3  # attributes, timestamp delta, offset delta
KEYED = HEAD + sized(b"k")
VALUED = KEYED + sized(b"v")
# By name: records as they lie in a batch, and the count in its header. No client reads what they say.
CORRUPT_RECORDS: dict[str, tuple[bytes, int]] = {
    "fewer counted": (plain(3), 2),
    "more counted": (plain(3), 4),
    "a byte behind the records": (plain(3) + ZERO, 3),
    "no records": (b"", 3),
    "key of 2^31-1": (body(HEAD, varint(2**31 - 1), b"kkk", sized(b"v"), ZERO), 1),
    "key longer than the record": (body(HEAD, varint(9), b"kkk", sized(b"v"), ZERO), 1),
    "value of 2^31-1": (body(KEYED, varint(2**31 - 1), b"vvv", ZERO), 1),
    "2^31-1 headers": (body(VALUED, varint(2**31 - 1)), 1),
    "a header too many": (body(VALUED, varint(2), sized(b"h"), sized(b"x")), 1),
    "negative headers": (body(VALUED, varint(-1)), 1),
    "a header without key": (body(VALUED, varint(1), varint(-1), sized(b"h")), 1),
    "header key too long": (body(VALUED, varint(1), varint(99), b"h" * 5), 1),
    "varint of 6 bytes": (body(HEAD, varint(1, 6), b"k", sized(b"v"), ZERO), 1),
    "varlong of 11 bytes": (body(ZERO, varint(0, 11), ZERO, sized(b"k"), sized(b"v"), ZERO), 1),
}
# Kafka takes these, some of them only compressed, where it skips what it doesn't need; not all clients read them.
LOOSE_RECORDS: dict[str, tuple[bytes, int]] = {
    "record length -1": (framed(record(0)[1:], -1), 1),
    "record length too small": (framed(record(0)[1:], 4), 1),
    "key length -2": (body(HEAD, varint(-2), sized(b"v"), ZERO), 1),
    "header value length -2": (body(VALUED, varint(1), sized(b"h"), varint(-2)), 1),
    "attributes ff": (record(0, attributes=0xFF), 1),
    "offset deltas 0, 0, 0": (record(0) * 3, 3),
    "offset deltas 2, 1, 0": (record(2) + record(1) + record(0), 3),
    "offset deltas 5, 6, 7": (record(5) + record(6) + record(7), 3),
    "varint beyond 32 bits": (body(HEAD, b"\x82\x80\x80\x80\x70", b"k", sized(b"v"), ZERO), 1),
}
# Right, if unusual.
STRANGE_RECORDS: dict[str, tuple[bytes, int]] = {
    "overlong varints": (
        body(ZERO, varint(0, 10), varint(0, 5), varint(1, 5), b"k", varint(1, 2), b"v", varint(0, 5)),
        1,
    ),
    "overlong length": (varint(len(record(0)) - 1, 5) + record(0)[1:], 1),
    "nothing but nulls": (record(0, key=None, value=None), 1),
    "headers": (record(0, headers=[(b"", b""), (b"h", None), (b"n\xc3\xa4", b"x" * 300)]), 1),
    "large numbers": (
        b"".join(record(i, key=b"k" * 9000, value=b"v" * (i % 300), timestamp_delta=i * i) for i in range(80)),
        80,
    ),
}


def corrupt(codec: int) -> Iterator[Poison]:
    """What Kafka refuses, too. Of a payload that can't be inflated it says UNKNOWN_SERVER_ERROR, which tells a producer
    nothing: ours is INVALID_RECORD, like that of everything else that comes no better when it is sent again."""
    for name, (payload, count) in CORRUPT_RECORDS.items():
        yield Poison(name, batch(packed(codec, payload), count, codec=codec))
    yield Poison("2^31-1 records", batch(packed(codec, plain(3)), 2**31 - 1, codec=codec))
    yield Poison("last offset delta 2^31-1", batch(packed(codec, plain(3)), 3, codec=codec, last_delta=2**31 - 1))
    yield Poison("checksum", batch(packed(codec, plain(3)), 3, codec=codec)[:-1] + b"?", 2)
    yield Poison("cut off", batch(packed(codec, plain(3)), 3, codec=codec)[:-1])
    if codec:
        whole = packed(codec, plain(50))
        yield Poison("garbage", batch(b"\xde\xad\xbe\xef" * 10, 3, codec=codec), kafka=-1)
        yield Poison("an empty payload", batch(b"", 3, codec=codec), kafka=87 if codec == ZSTD else -1)
        yield Poison("half a payload", batch(whole[: len(whole) // 2], 50, codec=codec), kafka=-1)
        yield Poison("a payload without its end", batch(whole[:-4], 50, codec=codec), kafka=-1)


def loose(codec: int) -> Iterator[Poison]:
    """What Kafka takes, or some of it, though not every client reads it."""
    for name, (payload, count) in LOOSE_RECORDS.items():
        yield Poison(name, batch(packed(codec, payload), count, codec=codec), kafka=0)
    if codec in (GZIP, LZ4):
        yield Poison("bytes behind the payload", batch(packed(codec, plain(3)) + b"\1\2\3" * 8, 3, codec=codec), kafka=0)


def in_pieces(codec: int) -> Iterator[tuple[str, bytes, int]]:
    """Name, payload and count: one after the other what each alone is a payload. Kafka reads all but lz4's, librdkafka
    the first of gzip and none of the others' but zstd's; Java reads no lz4 blocks that lean on each other."""
    first, second = record(0), b"".join(record(i, value=b"v" * 70_000) for i in range(1, 4))
    yield "two", packed(codec, first) + packed(codec, second), 4
    yield "an empty one behind", packed(codec, first + second) + packed(codec, b""), 4
    if codec == LZ4:
        yield "linked blocks", bytes(lz4.frame.compress(first + second, block_linked=True)), 4


class Decoded(NamedTuple):
    """One record as `decoded` finds it."""

    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


class _Corrupt(Exception):
    pass


class _Payload:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise _Corrupt
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, bits: int) -> int:
        raw = 0
        for place in range((bits + 6) // 7):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if raw >> bits:
                    raise _Corrupt
                return raw >> 1 ^ -(raw & 1)
        raise _Corrupt

    def sized(self) -> bytes | None:
        length = self.number(32)
        return None if length == -1 else self.take(length)

    def record(self, number: int) -> Decoded:
        size = self.number(32)
        inner = _Payload(self.take(size))
        if inner.take(1)[0] >= 0x80:
            raise _Corrupt
        timestamp_delta = inner.number(64)
        if inner.number(32) != number:
            raise _Corrupt
        key, value = inner.sized(), inner.sized()
        count = inner.number(32)
        if not 0 <= count <= len(inner.data) - inner.at:
            raise _Corrupt
        headers = []
        for _ in range(count):
            name = inner.sized()
            if name is None:
                raise _Corrupt
            headers.append((name, inner.sized()))
        if inner.at != len(inner.data):
            raise _Corrupt
        return Decoded(timestamp_delta, key, value, tuple(headers))


def decoded(payload: bytes, count: int) -> list[Decoded] | None:
    """The records of an inflated payload, byte by byte as the format says; None for what isn't exactly so many."""
    reader = _Payload(payload)
    try:
        found = [reader.record(number) for number in range(count)]
    except _Corrupt:
        return None
    return found if reader.at == len(payload) else None
