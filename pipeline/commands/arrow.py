"""Records as Arrow columns in a Parquet or Arrow file: no record becomes a Python object on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.pipeline.clients.consumer import PolledColumns

SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
    ]
)
ROWS_MIN = 100_000  # of a written piece: small ones make slow files


class Table:
    """A file that grows piece by piece. It appears under its name when it is whole. Raises OSError."""

    def __init__(self, path: Path) -> None:
        if path.suffix not in (".parquet", ".arrow"):
            raise click.BadParameter(f"`{path}` ends neither with .parquet nor with .arrow", param_hint="--columns")
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        make: Any = pq.ParquetWriter if path.suffix == ".parquet" else pa.ipc.new_file
        with self._naming_itself():
            self._file = make(str(self._partial), SCHEMA)
        self._pieces: list[Any] = []
        self._rows = 0

    @contextlib.contextmanager
    def _naming_itself(self) -> Iterator[None]:
        """An error says which file it is about: Arrow gives only a number and words of its own."""
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise

    def append(self, found: PolledColumns, rows: int) -> None:
        """Take so many rows, at least one, from `found.first` on."""
        columns, begin, end = found.columns, found.first, found.first + rows
        timestamps = columns.timestamps[begin:end]
        self._pieces.append(
            pa.record_batch(
                [
                    pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [found.topic]),
                    pa.array(np.full(rows, found.partition, np.int32)),
                    pa.array(columns.offsets[begin:end]),
                    pa.array(timestamps, mask=timestamps < 0).cast(SCHEMA.field("timestamp").type),
                    _binary(columns.key_data, columns.key_starts, columns.key_null, begin, end),
                    _binary(columns.value_data, columns.value_starts, columns.value_null, begin, end),
                ],
                schema=SCHEMA,
            )
        )
        self._rows += rows
        if self._rows >= ROWS_MIN:
            self._write()

    def _write(self) -> None:
        if self._pieces:
            with self._naming_itself():
                self._file.write_table(pa.Table.from_batches(self._pieces).unify_dictionaries().combine_chunks())
        self._pieces.clear()
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._write()
        with self._naming_itself():
            self._file.close()
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)


def _binary(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    null: npt.NDArray[np.bool_],
    begin: int,
    end: int,
) -> Any:
    """Rows of a byte column; the bytes are copied once, since the columns' own memory goes with them."""
    first, last = int(starts[begin]), int(starts[end])
    offsets = pa.py_buffer((starts[begin : end + 1] - first).tobytes())
    valid = pa.py_buffer(np.packbits(~null[begin:end], bitorder="little").tobytes())
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), end - begin, [valid, offsets, pa.py_buffer(data[first:last].tobytes())]
    )
