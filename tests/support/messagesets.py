"""Message sets of magic 0 and 1 in plain Python: what the C code is compared with."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import lz4.frame
import xxhash

from penstock.pyx.record.codec import compress, decompress

GZIP, SNAPPY, LZ4 = 1, 2, 3
LOG_APPEND_TIME = 8


class Message(NamedTuple):
    """A message, or with a codec in its attributes a wrapper."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = -1
    attributes: int = 0


def field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def pack(magic: int, message: Message) -> bytes:
    """One message."""
    body = struct.pack(">bb", magic, message.attributes)
    if magic == 1:
        body += struct.pack(">q", message.timestamp_ms)
    body += field(message.key) + field(message.value)
    return struct.pack(">qiI", message.offset, 4 + len(body), zlib.crc32(body)) + body


def pack_set(magic: int, messages: Sequence[Message]) -> bytes:
    return b"".join(pack(magic, message) for message in messages)


def historical_lz4(frame: bytes) -> bytes:
    """With the header checksum of KAFKA-3160: over the frame's magic number, too."""
    at = 4 + 2 + (8 if frame[4] & 8 else 0)
    return frame[:at] + bytes([xxhash.xxh32(frame[:at]).intdigest() >> 8 & 0xFF]) + frame[at + 1 :]


def wrap(
    magic: int, messages: Sequence[Message], codec: int, offset: int, *, attributes: int = 0, timestamp_ms: int = -1
) -> bytes:
    """One wrapper around messages as they are: their offsets are the caller's business."""
    value = compress(codec, pack_set(magic, messages))
    if codec == LZ4:
        value = lz4.frame.compress(pack_set(magic, messages), block_linked=False)
        value = historical_lz4(value) if magic == 0 else value
    return pack(magic, Message(offset, None, value, timestamp_ms, codec | attributes))


def unpack(data: bytes, magic: int) -> list[Message]:
    """The messages of a set, CRCs checked."""
    found = []
    at = 0
    while at < len(data):
        offset, size, crc, its_magic, attributes = struct.unpack_from(">qiIbb", data, at)
        body = data[at + 16 : at + 12 + size]
        assert (zlib.crc32(body), its_magic, len(body)) == (crc, magic, size - 4)
        place = 2
        timestamp = -1
        if magic == 1:
            (timestamp,) = struct.unpack_from(">q", body, place)
            place += 8
        fields: list[bytes | None] = []
        for _ in range(2):
            (length,) = struct.unpack_from(">i", body, place)
            fields.append(None if length < 0 else body[place + 4 : place + 4 + length])
            place += 4 + max(length, 0)
        assert place == len(body)
        found.append(Message(offset, fields[0], fields[1], timestamp, attributes))
        at += 12 + size
    return found


def unwrap(data: bytes, magic: int) -> list[Message]:
    """The plain messages of a set with absolute offsets, wrappers opened as Kafka's own readers do."""
    found = []
    for message in unpack(data, magic):
        codec = message.attributes & 7
        if codec == 0:
            found.append(message)
            continue
        assert message.value is not None
        value = message.value
        if codec == LZ4 and magic == 0:
            at = 4 + 2 + (8 if value[4] & 8 else 0)
            assert historical_lz4(value) == value
            value = value[:at] + bytes([xxhash.xxh32(value[4:at]).intdigest() >> 8 & 0xFF]) + value[at + 1 :]
        inner = unpack(decompress(codec, value), magic)
        shift = message.offset - inner[-1].offset if magic == 1 else 0
        stamp = message.timestamp_ms if message.attributes & LOG_APPEND_TIME else None
        for one in inner:
            timestamp = one.timestamp_ms if stamp is None else stamp
            found.append(one._replace(offset=one.offset + shift, timestamp_ms=timestamp))
    return found
