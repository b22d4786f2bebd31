"""Batches of magic 2, built from records. Source: KIP-98, KIP-82."""

from collections.abc import Sequence

from typing_extensions import Buffer

class BatchBuilder:
    """Collects records and builds one batch of magic 2 from them.

    `level` -1 is the codec's default. `max_bytes` bounds the size before compression; the first record is always taken,
    so that no record can get stuck (a caller with a limit compares `size_in_bytes` or the result with it). `any_time`: `append`
    takes what times a log has, which brokers took from whoever sent them.
    """

    codec: int
    level: int
    max_bytes: int
    any_time: bool

    def __init__(self, codec: int = 0, level: int = -1, max_bytes: int = ..., any_time: bool = False) -> None:
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

        Raises ValueError for a timestamp below -1 (unless it takes `any_time`), BatchError (MESSAGE_TOO_LARGE) for a record
        of 2 GiB.
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
        header_data: Buffer | None = None,
        header_starts: Buffer | None = None,
        first: int = 0,
        at_most: int = -1,
    ) -> int:
        """Take records from columns shaped as `columns.Columns` has them, from record `first` on; of them `at_most` so many,
        unless it is below 0.

        Gives how many were taken: less than what is left means full. A column left out is null in every record.
        Raises ValueError when the arrays don't fit each other, or what should be headers is none.
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

def pack_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Give headers as they stand in a record behind their count, as `header_data` has them."""
