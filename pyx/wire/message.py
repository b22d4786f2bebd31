"""What the generated messages are made of: bounded reading and appending of Kafka's primitive types.

A length or count that came over the wire is compared with what is left of the input before anything is made
from it, so a few hostile bytes can't ask for memory. The compact classes are for flexible versions (KIP-482):
lengths are unsigned varints plus one, and every struct ends in tagged fields.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

Bytes = bytes | memoryview
"""Contents of `bytes` and `records` fields: a decoded message holds slices of its input, not copies."""

NIL_UUID = bytes(16)
LONGEST_STRING = 32767
ANY_NUMBER = 1 << 62

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_WIDTHS = {code: struct.calcsize(">" + code) for code in ("?", "b", "h", "i", "q", "H", "I", "d")}

T = TypeVar("T")


class WireError(ValueError):
    """Bytes that aren't the message they should be, or a message that its version can't carry."""


class Reader:
    """Reads one message from the front of a buffer. struct.error and IndexError mean a cut input."""

    __slots__ = ("data", "elements", "end", "pos")

    def __init__(self, data: bytes | bytearray | memoryview, elements: int = ANY_NUMBER) -> None:
        self.data = memoryview(data)
        self.pos = 0
        self.end = len(self.data)
        self.elements = elements  # How many array elements and tagged fields may still come.

    def spend(self, count: int) -> None:
        """Take elements from those that may come: each costs many times the byte that it may have on the wire."""
        self.elements -= count
        if self.elements < 0:
            raise WireError("more array elements than are accepted")

    def fixed(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The fixed-size values of `layout`."""
        pos = self.pos
        self.pos = pos + layout.size
        return layout.unpack_from(self.data, pos)

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, as a slice."""
        pos = self.pos
        if size < 0 or size > self.end - pos:
            raise WireError(f"length {size} with {self.end - pos} bytes left")
        self.pos = pos + size
        return self.data[pos : pos + size]

    def string_length(self) -> int:
        """-1 is null."""
        return int(self.fixed(_INT16)[0])

    def bytes_length(self) -> int:
        """-1 is null."""
        return int(self.fixed(_INT32)[0])

    def array_length(self) -> int:
        """-1 is null."""
        return int(self.fixed(_INT32)[0])

    def nullable_string(self) -> str | None:
        size = self.string_length()
        if size == -1:
            return None
        if size > LONGEST_STRING:
            raise WireError(f"string of {size} bytes")
        return str(self.take(size), "utf-8")

    def string(self) -> str:
        return not_null(self.nullable_string())

    def nullable_bytes(self) -> memoryview | None:
        size = self.bytes_length()
        return None if size == -1 else self.take(size)

    def bytes(self) -> memoryview:
        return not_null(self.nullable_bytes())

    def nullable_array(self) -> int | None:
        """The number of elements that follow, each of which has at least one byte."""
        count = self.array_length()
        if count == -1:
            return None
        if count < 0 or count > self.end - self.pos:
            raise WireError(f"{count} array elements with {self.end - self.pos} bytes left")
        self.spend(count)
        return count

    def array(self) -> int:
        return not_null(self.nullable_array())

    def numbers(self, code: str, count: int) -> list[Any]:
        """An array's `count` elements of one fixed size, given as a struct letter."""
        if count == 0:
            return []
        return list(struct.unpack(f">{count}{code}", self.take(count * _WIDTHS[code])))

    def present(self) -> bool:
        """Whether a nullable struct follows."""
        marker = self.fixed(_INT8)[0]
        if marker not in (-1, 1):
            raise WireError(f"presence marker {marker}")
        return bool(marker == 1)

    def tagged_present(self) -> bool:
        """Whether a nullable struct in a tagged field follows; its marker is a varint of 0 or 1."""
        marker = self.fixed(_INT8)[0]
        if marker not in (0, 1):
            raise WireError(f"presence marker {marker}")
        return bool(marker == 1)

    def tags(self) -> Iterable[int]:
        """The tagged fields; see CompactReader."""
        return ()

    def skip_tags(self) -> None:
        """Passes over tagged fields, none of which is known."""

    def finish(self) -> None:
        if self.pos != self.end:
            raise WireError(f"{self.end - self.pos} bytes after the message")


class CompactReader(Reader):
    """Flexible versions."""

    __slots__ = ()

    def varint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        byte = self.data[self.pos]
        self.pos += 1
        if byte < 0x80:
            return byte
        value = byte & 0x7F
        for shift in (7, 14, 21, 28):
            byte = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise WireError("varint of more than 32 bits")

    def string_length(self) -> int:
        return self.varint() - 1

    bytes_length = string_length
    array_length = string_length

    def tags(self) -> Iterable[int]:
        count = self.varint()
        return self._each_tag(count) if count else ()

    def _each_tag(self, count: int) -> Iterator[int]:
        """Yields tag by tag; the caller reads the ones that it knows, the others are passed over."""
        self.spend(count)
        last = -1
        for _ in range(count):
            tag = self.varint()
            size = self.varint()
            if tag <= last:
                raise WireError(f"tag {tag} after tag {last}")
            last = tag
            start = self.pos
            if size > self.end - start:
                raise WireError(f"tagged field of {size} bytes with {self.end - start} left")
            yield tag
            if self.pos == start:
                self.pos = start + size
            elif self.pos != start + size:
                raise WireError(f"tagged field {tag} has {self.pos - start} bytes, not {size}")

    def skip_tags(self) -> None:
        if self.data[self.pos] == 0:  # nearly always
            self.pos += 1
            return
        for _ in self.tags():
            pass


class Writer(bytearray):
    """A message in the making; fixed-size values are appended packed."""

    __slots__ = ()

    def string_length(self, size: int) -> None:
        self.extend(_INT16.pack(size))

    def bytes_length(self, size: int) -> None:
        self.extend(_INT32.pack(size))

    def array_length(self, size: int) -> None:
        self.extend(_INT32.pack(size))

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.string_length(-1)
        else:
            self.string(value)

    def string(self, value: str) -> None:
        encoded = value.encode()
        if len(encoded) > LONGEST_STRING:
            raise WireError(f"string of {len(encoded)} bytes")
        self.string_length(len(encoded))
        self.extend(encoded)

    def nullable_bytes(self, value: Bytes | None) -> None:
        if value is None:
            self.bytes_length(-1)
        else:
            self.bytes(value)

    def bytes(self, value: Bytes) -> None:
        self.bytes_length(len(value))
        self.extend(value)

    def array(self, elements: Sequence[object] | None) -> None:
        self.array_length(-1 if elements is None else len(elements))

    def numbers(self, code: str, elements: Sequence[int | float]) -> None:
        self.extend(struct.pack(f">{len(elements)}{code}", *elements))

    def present(self, value: object) -> None:
        self.extend(b"\xff" if value is None else b"\x01")

    def tagged_present(self, value: object) -> None:
        self.append(0 if value is None else 1)

    def tags(self, fields: "Sequence[tuple[int, Writer]]" = ()) -> None:
        """Ends a struct of a flexible version; `fields` are (tag, content) in order of tags."""


class CompactWriter(Writer):
    """Flexible versions."""

    __slots__ = ()

    def varint(self, value: int) -> None:
        while value > 0x7F:
            self.append(value & 0x7F | 0x80)
            value >>= 7
        self.append(value)

    def string_length(self, size: int) -> None:
        self.varint(size + 1)

    bytes_length = string_length
    array_length = string_length

    def tags(self, fields: Sequence[tuple[int, Writer]] = ()) -> None:
        self.varint(len(fields))
        for tag, content in fields:
            self.varint(tag)
            self.varint(len(content))
            self.extend(content)


def not_null(value: T | None) -> T:
    """The value; WireError if it's null where the version has no null."""
    if value is None:
        raise WireError("null where the version has none")
    return value


class Struct:
    """Base of everything generated: equality, repr and the two methods that the generator fills in."""

    __slots__: tuple[str, ...] = ()

    if TYPE_CHECKING:  # the generator writes both into every class

        @classmethod
        def _read(cls, r: Reader, version: int) -> Self: ...

        def _write(self, w: Writer, version: int) -> None: ...

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable values aren't keys; typeshed types the attribute as a method

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__slots__)
        shown = (f"{name}={bytes(v) if isinstance(v, memoryview) else v!r}" for name, v in values)
        return f"{type(self).__qualname__}({', '.join(shown)})"


class Encoded(Struct):
    """Stands for a struct whose bytes are known already, in the version that is written (`Message.encode_struct`)."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def _write(self, w: Writer, version: int) -> None:
        w += self.data


class Message(Struct):
    """A whole request, response or record."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    """-1 for records, which aren't asked for by key."""
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int]
    """First version with compact lengths and tagged fields; above MAX_VERSION if there is none."""

    def encode(self, version: int) -> bytes:
        """The message alone, without header. WireError if the version is unknown or can't carry a value."""
        self._check_version(version)
        w = CompactWriter() if version >= self.FLEXIBLE_FROM else Writer()
        try:
            self._write(w, version)
        except (struct.error, UnicodeEncodeError) as error:
            raise WireError(f"{type(self).__name__} v{version}: {error}") from error
        return bytes(w)

    @classmethod
    def encode_struct(cls, part: Struct, version: int) -> bytes:
        """A struct of this message alone, for `Encoded`. WireError as in `encode`."""
        w = CompactWriter() if version >= cls.FLEXIBLE_FROM else Writer()
        try:
            part._write(w, version)
        except (struct.error, UnicodeEncodeError) as error:
            raise WireError(f"{type(part).__name__} v{version}: {error}") from error
        return bytes(w)

    @classmethod
    def decode(
        cls,
        data: bytes | bytearray | memoryview,
        version: int,
        *,
        trailing: bool = False,
        elements_max: int = ANY_NUMBER,
    ) -> Self:
        """The message that is the whole of `data`, which lives as long as any bytes field of the result.

        WireError if the version is unknown, the bytes are malformed, there are more than `elements_max` array
        elements in all, or something follows the message; what follows is passed over with `trailing` (group
        members' metadata, to which newer versions append).
        """
        cls._check_version(version)
        r = (CompactReader if version >= cls.FLEXIBLE_FROM else Reader)(data, elements_max)
        try:
            message = cls._read(r, version)
            if not trailing:
                r.finish()
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise WireError(f"{cls.__name__} v{version}: malformed at byte {r.pos}: {error}") from error
        return message

    @classmethod
    def _check_version(cls, version: int) -> None:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise WireError(f"{cls.__name__} v{version}: known are v{cls.MIN_VERSION}-{cls.MAX_VERSION}")
