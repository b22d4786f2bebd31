"""Requests that are wrong in one place: made from the wire tables by an encoder of their own, which knows where lengths stand.

Every value is small (numbers 1, texts of one letter, arrays of one element), so a whole request asks for little.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from penstock.pyx.wire import codegen, schema

FIXED = {
    "bool": b"\x01", "int8": b"\x01", "int16": b"\x00\x01", "int32": b"\x00\x00\x00\x01", "int64": b"\x00" * 7 + b"\x01",
    "uint16": b"\x00\x01", "uint32": b"\x00\x00\x00\x01", "float64": struct.pack(">d", 1.0), "uuid": b"\x00" * 15 + b"\x09",
}  # fmt: skip
TEXT = b"s"
# What a length is replaced by: in an int16 or int32, and in a varint (of which the last two never end or are too long).
WRONG_LENGTHS = {2: (0, -1, -2, 0x7FFF), 4: (0, -1, -2, 0x7FFF, 0x7FFFFFFF, -0x80000000)}
WRONG_VARINTS = (
    b"\x00", b"\x01", b"\x7f", b"\xff\x7f", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff" * 5, b"\xff" * 10,
)  # fmt: skip


class Encoder:
    """The bytes of a message, and (position, size) of each length in them."""

    def __init__(self, message: schema.Message, version: int) -> None:
        self.data = bytearray()
        self.lengths: list[tuple[int, int]] = []
        self._message = message
        self._version = version
        self._flexible = version >= message.flexible_from

    def struct(self, one: schema.Struct, *, full: bool) -> None:
        """A struct's fields, then its tagged fields; full: with one element in each array and every nullable."""
        present = [item for item in one.fields if self._version in item.versions]
        for item in present:
            if item.tag is None:
                self._field(item, full=full)
        if self._flexible:
            tagged = sorted((item for item in present if item.tag is not None), key=lambda item: item.tag or 0)
            self._length(len(tagged) if full else 0, 1)
            for item in tagged if full else ():
                inner = Encoder(self._message, self._version)
                inner._field(item, full=True)
                self._length(item.tag or 0, 1)
                self._length(len(inner.data), 1)
                self.data += inner.data

    def _field(self, item: schema.Field, *, full: bool) -> None:
        if item.array:
            self._length((1 if full else 0) + (1 if self._flexible else 0), 4)
            if full:
                self._one(item, full=full)
        else:
            self._one(item, full=full)

    def _one(self, item: schema.Field, *, full: bool) -> None:
        if item.is_struct:
            # A struct that may be null has a byte in front in versions that can say so.
            if not item.array and item.nullable_at(self._version):
                self.data += b"\x01"
            self.struct(self._message.structs[item.type], full=full)
        elif item.type in FIXED:
            self.data += FIXED[item.type]
        else:
            self._length(len(TEXT) + (1 if self._flexible else 0), 2 if item.type == "string" else 4)
            self.data += TEXT

    def _length(self, value: int, size: int) -> None:
        written = _varint(value) if self._flexible else value.to_bytes(size, "big")
        self.lengths.append((len(self.data), len(written)))
        self.data += written


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


@cache
def requests() -> dict[int, schema.Message]:
    """The request of each API."""
    folder = Path(codegen.__file__).with_name("apis")
    messages = [message for path in sorted(folder.glob("*.api")) for message in schema.parse(path)]
    return {message.key: message for message in messages if message.kind == "request"}


def header(message: schema.Message, version: int) -> bytes:
    """A request header: correlation id 7, client id `x`."""
    tags = b"\x00" if version >= message.flexible_from else b""
    return struct.pack(">hhih", message.key, version, 7, 1) + b"x" + tags


def framed(body: bytes) -> bytes:
    """A frame with its size in front."""
    return struct.pack(">i", len(body)) + body


def hostile(key: int, version: int, every: int) -> Iterator[bytes]:
    """Frames of one API and version: whole ones, cut at each `every`-th byte, and with each length made wrong."""
    message = requests()[key]
    head = header(message, version)
    for full in (False, True):
        encoder = Encoder(message, version)
        encoder.struct(message.root, full=full)
        body = bytes(encoder.data)
        yield framed(head + body)
        yield framed(head + body + b"\xff" * 9)
        for cut in range(0, len(head) + len(body), every):
            yield framed((head + body)[:cut])
        for position, size in encoder.lengths:
            for wrong in _wrong(size):
                yield framed(head + body[:position] + wrong + body[position + size :])


def _wrong(size: int) -> Iterator[bytes]:
    if size == 1:
        yield from WRONG_VARINTS
    for value in WRONG_LENGTHS.get(size, ()):
        yield value.to_bytes(size, "big", signed=True)


def strangers() -> Iterator[bytes]:
    """What is no request at all."""
    for size in (0, -1, -(1 << 31), (1 << 31) - 1, 104_857_601):
        yield struct.pack(">i", size)
    yield struct.pack(">i", 104_857_600) + b"x" * 10
    yield framed(struct.pack(">hhih", 9999, 0, 1, -1))
    yield framed(struct.pack(">hhih", -1, 0, 1, -1))
    yield framed(struct.pack(">hhih", 3, -1, 1, -1))
    yield framed(struct.pack(">hhih", 3, 99, 1, -1))
    yield framed(struct.pack(">hhih", 18, 99, 1, -1) + b"\x00" * 3)
    yield framed(struct.pack(">hhih", 3, 0, 1, 32_767) + b"x")
    yield framed(struct.pack(">hhih", 3, 0, 1, -2))
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64
