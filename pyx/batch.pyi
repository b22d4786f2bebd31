"""Record batches of magic 2 (and messages of magic 0 and 1, to be read): checked, split, built.

Source: KIP-98 for the format, KIP-32 for timestamps, KIP-82 for record headers.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from typing_extensions import Buffer

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

    Whoever owns a writable buffer must not change it while a RawBatch looks at it. For magic 0 and 1 (one message, or a
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
    UTF-8 come as surrogate escapes, and go back the same way. The CRC isn't looked at: `RawBatch.check` does that.
    Raises BatchError when anything inside is wrong; nothing is given then.
    """

def marker(
    commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """Build the control batch that ends a transaction in a partition."""

def marker_type(raw: RawBatch) -> Literal["commit", "abort"]:
    """Say which marker a control batch is. Raises BatchError when it is none."""

class BatchBuilder:
    """Collects records and builds one batch of magic 2 from them.

    `level` -1 is the codec's default. `max_bytes` bounds the size before compression; the first record is always taken,
    so that no record can get stuck (who has a limit compares `size_in_bytes` or the result with it).
    """

    codec: int
    level: int
    max_bytes: int

    def __init__(self, codec: int = 0, level: int = -1, max_bytes: int = ...) -> None:
        """`max_bytes` is 1 MiB unless given. Raises ValueError for an unknown codec id."""

    @property
    def count(self) -> int: ...
    @property
    def size_in_bytes(self) -> int:
        """Size of the batch so far with its header, before compression."""

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> bool:
        """Take a record. False: the batch is full and the record was not taken.

        Raises ValueError for a timestamp below -1, BatchError (MESSAGE_TOO_LARGE) for a record of 2 GiB.
        """

    def append_columns(
        self,
        *,
        timestamps: Buffer,
        key_data: Buffer | None = None,
        key_starts: Buffer | None = None,
        key_null: Buffer | None = None,
        value_data: Buffer | None = None,
        value_starts: Buffer | None = None,
        value_null: Buffer | None = None,
        first: int = 0,
    ) -> int:
        """Take records from columns shaped as `columns.Columns` has them, from record `first` on; no headers.

        Gives how many were taken: less than what is left means full. A column left out is null in every record.
        Raises ValueError when the arrays don't fit each other.
        """

    def build(
        self,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytes:
        """Give the batch, base offset 0 and leader epoch -1, as producers send it. Raises ValueError when empty.

        The records stay: building again with another sequence is allowed.
        """

    def clear(self) -> None:
        """Forget the records, keep the memory."""
