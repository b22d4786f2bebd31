"""Records to send, as columns: out of lists, or some rows of others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.pipeline.clients.producerrecord import Headers
from penstock.pyx.record.builder import BatchBuilder, pack_headers
from penstock.pyx.record.rawbatch import RawBatch, Record, records

OPENED_BYTES = 1 << 20  # of columns that become records


class Columns(Protocol):
    """Records as columns, as `penstock.pyx.record.columns.Columns` has them.

    They may have `header_data` and `header_starts`, too: each record's headers as they stand in a record behind their
    count. Without them records have no headers.
    """

    @property
    def timestamps(self) -> npt.NDArray[np.int64]: ...
    @property
    def key_data(self) -> npt.NDArray[np.uint8]: ...
    @property
    def key_starts(self) -> npt.NDArray[np.int64]: ...
    @property
    def key_null(self) -> npt.NDArray[np.bool_]: ...
    @property
    def value_data(self) -> npt.NDArray[np.uint8]: ...
    @property
    def value_starts(self) -> npt.NDArray[np.int64]: ...
    @property
    def value_null(self) -> npt.NDArray[np.bool_]: ...


class Lists:
    """Lists of keys and values as columns."""

    def __init__(
        self,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None] | None,
        timestamps: Sequence[int] | npt.NDArray[np.int64] | None,
        headers: Sequence[Headers] | None,
    ) -> None:
        given = [len(column) for column in (keys, values, timestamps, headers) if column is not None]
        if not given or len(set(given)) != 1:
            raise ValueError("`keys`, `values`, `timestamps` and `headers` must have one length")
        count = given[0]
        if timestamps is None:
            timestamps = np.full(count, time.time_ns() // 1_000_000, np.int64)
        self.timestamps: npt.NDArray[np.int64] = np.ascontiguousarray(timestamps, np.int64)
        self.key_data, self.key_starts, self.key_null = _column(keys, count)
        self.value_data, self.value_starts, self.value_null = _column(values, count)
        if headers is not None:
            self.header_data, self.header_starts, _ = _column([pack_headers(one) for one in headers], count)


def headers_of(columns: Columns) -> tuple[npt.NDArray[np.uint8] | None, npt.NDArray[np.int64] | None]:
    """The headers of columns that have them."""
    return getattr(columns, "header_data", None), getattr(columns, "header_starts", None)


def append_columns(builder: BatchBuilder, columns: Columns, first: int = 0, at_most: int = -1) -> int:
    """Add records of columns from `first` on, so many at most; gives how many there was room for."""
    header_data, header_starts = headers_of(columns)
    return builder.append_columns(
        timestamps=columns.timestamps.data,
        key_data=columns.key_data.data,
        key_starts=columns.key_starts.data,
        key_null=columns.key_null.data,
        value_data=columns.value_data.data,
        value_starts=columns.value_starts.data,
        value_null=columns.value_null.data,
        header_data=None if header_data is None else header_data.data,
        header_starts=None if header_starts is None else header_starts.data,
        first=first,
        at_most=at_most,
    )


def records_of(columns: Columns) -> Iterator[Record]:
    """Columns as records, one by one."""
    first = 0
    while first < len(columns.timestamps):
        builder = BatchBuilder(max_bytes=OPENED_BYTES)
        first += append_columns(builder, columns, first)
        yield from records(RawBatch(builder.build()))


def _column(
    items: Sequence[bytes | None] | None, count: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    starts = np.zeros(count + 1, np.int64)
    if items is None:
        return np.zeros(0, np.uint8), starts, np.ones(count, np.bool_)
    null = np.fromiter((item is None for item in items), np.bool_, count)
    present: Sequence[bytes] = [item or b"" for item in items]
    np.cumsum(np.fromiter(map(len, present), np.int64, count), out=starts[1:])
    return np.frombuffer(b"".join(present), np.uint8), starts, null


class Taken:
    """Some rows of columns."""

    def __init__(self, columns: Columns, rows: npt.NDArray[np.int64]) -> None:
        self.timestamps: npt.NDArray[np.int64] = np.ascontiguousarray(columns.timestamps[rows])
        self.key_null: npt.NDArray[np.bool_] = columns.key_null[rows]
        self.value_null: npt.NDArray[np.bool_] = columns.value_null[rows]
        self.key_data, self.key_starts = _take(columns.key_data, columns.key_starts, rows)
        self.value_data, self.value_starts = _take(columns.value_data, columns.value_starts, rows)
        header_data, header_starts = headers_of(columns)
        if header_data is not None and header_starts is not None:
            self.header_data, self.header_starts = _take(header_data, header_starts, rows)


def _take(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    lengths = starts[rows + 1] - starts[rows]
    taken = np.zeros(rows.size + 1, np.int64)
    np.cumsum(lengths, out=taken[1:])
    places = np.arange(taken[-1]) + np.repeat(starts[rows] - taken[:-1], lengths)
    return data[places], taken
