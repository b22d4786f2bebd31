"""Records as numpy columns, for stages that work on many records at once, and batches with records left out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.pyx.record.rawbatch import RawBatch

class Column(NamedTuple):
    """Byte strings: the i-th is `data[starts[i]:starts[i + 1]]`, or null where `null[i]`."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    null: NDArray[np.bool_]

class HeaderColumns(NamedTuple):
    """Headers of records: those of record i are `names` and `values` from `starts[i]` to `starts[i + 1]`."""

    starts: NDArray[np.int64]
    names: Column
    values: Column

class Columns:
    """n records in the order of their batches; `batch_index` says which of the given batches each came in.

    `starts` arrays have n + 1 items; a null key or value has no bytes and its `null` set. Timestamps are milliseconds.
    `header_data` has each record's headers as they stand in a record behind their count.
    The arrays share memory with the object; they live as long as any of them is used.
    """

    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    key_data: NDArray[np.uint8]
    key_starts: NDArray[np.int64]
    key_null: NDArray[np.bool_]
    value_data: NDArray[np.uint8]
    value_starts: NDArray[np.int64]
    value_null: NDArray[np.bool_]
    header_data: NDArray[np.uint8]
    header_starts: NDArray[np.int64]
    batch_index: NDArray[np.int32]
    def __len__(self) -> int: ...
    def key(self, i: int) -> bytes | None:
        """Give the key of record i. Raises IndexError."""

    def value(self, i: int) -> bytes | None:
        """Give the value of record i. Raises IndexError."""

    def headers(self, i: int) -> tuple[tuple[str, bytes | None], ...]:
        """Give the headers of record i, in their order. Raises IndexError."""

    def header_columns(self) -> HeaderColumns:
        """Give all headers of all records."""

    def header_column(self, name: str) -> Column:
        """Give the last header called `name` of each record; null where a record has none (or a null one)."""

def decode(batches: Sequence[RawBatch], limit_bytes: int = ...) -> Columns:
    """Open batches; together they may inflate to at most `limit_bytes` (256 MiB).

    Of tiny records the columns take more memory than their bytes: some 50 bytes a record besides them.

    Control batches give no rows. Checksums aren't checked: `RawBatch.check` does that. Raises BatchError, which names
    the batch by its offset, when anything in any of them is wrong: then nothing is given. The GIL is released.
    """

def keep(raw: RawBatch, mask: Buffer | NDArray[np.bool_], limit_bytes: int = ..., append_time: bool = False) -> bytes:
    """Give the batch with only those records whose mask is true (one boolean a record).

    All kept: the very bytes of `raw`. Otherwise a new batch with the same codec at its default level, dense offsets from
    0, each record's own timestamp, the largest of them in the header, no producer. With `append_time` the records of a
    LogAppendTime batch get the time that its readers see instead, also if all are kept. Raises ValueError when the mask has
    another length or keeps nothing, BatchError when the batch is corrupt, a control batch or older than magic 2.
    """
