"""Record batches of magic 2, and messages of magic 0 and 1: cut, checked, opened; markers made and read.

Source: KIP-98 for the format, KIP-32 for timestamps, KIP-82 for record headers; KIP-31 and KAFKA-3160 for messages.
"""

from typing import Any, Literal, NamedTuple, TypeVar

from typing_extensions import Buffer

_T = TypeVar("_T", bound=tuple[Any, ...])

HEADER_SIZE: int
"""Bytes of a batch before its records: 61."""

class BatchError(ValueError):
    """A batch is wrong. `code` is Kafka's error code, `offset` its base offset (-1 where there is none)."""

    code: int
    offset: int
    def __init__(self, text: str, code: int = 2, offset: int = -1) -> None: ...

class Record(NamedTuple):
    """One record. `timestamp_ms` is -1 where the format has none (magic 0)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

class RawBatch:
    """A batch as bytes somewhere in a buffer that it keeps alive; the buffer protocol gives exactly those bytes.

    The owner of a writable buffer must not change it while a RawBatch refers to it. For magic 0 and 1 (one message, or a
    wrapper of several) only `base_offset`, `size_in_bytes`, `magic`, `codec`, `crc` and `max_timestamp` are true;
    a wrapper's `base_offset` is then the offset of its last message.
    """

    def __init__(self, buffer: Buffer) -> None:
        """Take the batch at the start of `buffer`. Raises BatchError when it isn't there whole."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """The offset after the batch, which may be past its last record where it was compacted."""

    @property
    def last_offset_delta(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def codec(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def is_log_append_time(self) -> bool: ...
    @property
    def size_in_bytes(self) -> int: ...
    @property
    def payload(self) -> memoryview:
        """What follows the header of 61 bytes: the records as they are, compressed or not. No copy."""

    def check(self, *, max_bytes: int = 0, client: bool = False) -> None:
        """Check the CRC and what the header says; records aren't built, and a compressed payload isn't opened.

        `client` asks for what a producer must keep besides: dense offsets, no control batch, no unused bits, a producer
        id with epoch and sequence. `max_bytes` 0 is no limit. Raises BatchError.
        """

def split(buffer: Buffer) -> list[RawBatch]:
    """Give the batches that lie one after the other in `buffer`, without copying or checking them.

    A last batch that is cut off is left out, as a fetch may cut it. Raises BatchError on bytes that can't be a batch.
    """

def records(raw: RawBatch, limit_bytes: int = ...) -> list[Record]:
    """Open a batch: all of its records, inflated to at most `limit_bytes` (256 MiB).

    For control data and plain consumers; `columns.decode` is the way for many records. Bytes of header names that aren't
    UTF-8 come as surrogate escapes, and go back the same way. The CRC isn't checked: `RawBatch.check` does that.
    Raises BatchError when anything inside is wrong; nothing is given then.
    """

def records_as(raw: RawBatch, kind: type[_T], before: tuple[Any, ...], first_offset: int, limit_bytes: int = ...) -> list[_T]:
    """Open a batch as `records` does, into named tuples of another kind, without records below `first_offset`.

    The fields of `kind` are those of `before`, which each record gets, then those of Record. `before` holds text, bytes and
    numbers only. Raises TypeError when `kind` has another number of fields, BatchError as `records` does.
    """

def count_records(raw: RawBatch, limit_bytes: int = ...) -> int:
    """Count the records of a batch or message exactly; a wrapper is opened for it, without objects. Raises BatchError."""

def marker(commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int) -> bytes:
    """Build the control batch that ends a transaction in a partition."""

def marker_type(raw: RawBatch) -> Literal["commit", "abort"]:
    """Say which marker a control batch is. Raises BatchError when it is none."""
