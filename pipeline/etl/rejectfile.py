"""A run's rejects as one Parquet file of their table.

Spark has written the rejects next to the rows, in files with the columns of the main table. They are few, and another job of
Spark's would compile code for them that the night has no other use for: it cost as much as a tenth of the night's records. So
Arrow copies them, piece by piece, into a file that the rejects' table then takes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from penstock import failpoints
from penstock.pipeline.etl.declared import POSITION_COLUMNS
from penstock.pipeline.etl.errors import refused_as
from penstock.pipeline.etl.events import REJECT
from penstock.pipeline.etl.plan import CorruptBatch, Plan
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import THREADS

FILE_WRITTEN = failpoints.declare("etl.reject_file_written", "the file of rejects is written, and not part of their table")

SCHEMA = pyarrow.schema(
    {
        "night": pyarrow.string(),
        "topic": pyarrow.string(),
        "partition": pyarrow.int32(),
        "offset": pyarrow.int64(),
        "timestamp": pyarrow.timestamp("us", "UTC"),
        "reason": pyarrow.string(),
        "key": pyarrow.binary(),
        "value": pyarrow.binary(),
    }
)
"""The columns of a file: those of the rejects' table without the ones that it is partitioned by."""
FOUND = pyarrow.schema([SCHEMA.field(name) for name in SCHEMA.names if name != "night"])  # what is known before the night is
FAILURES = (pyarrow.ArrowException, OSError)
PIECE_ROWS = 1000
PIECE_BYTES = 8 << 20  # a record may have megabytes
GROUP_BYTES = 64 << 20


@dataclass(frozen=True)
class RejectFile:
    """A file of the rejects' table, by its path below the table's folder."""

    path: str
    size: int
    rows: int


def of_batches(batches: Iterable[tuple[CorruptBatch, bytes | None]]) -> pyarrow.Table:
    """A reject for each batch that can't be read, at its first offset, with the batch's bytes as the value."""
    rows = [
        {
            "topic": batch.topic,
            "partition": batch.partition,
            "offset": batch.start,
            "reason": f"a batch of {batch.records} records that can't be read",
            "value": data,
        }
        for batch, data in batches
    ]
    return pyarrow.Table.from_pylist(rows, FOUND)


def of_files(table: Storage, names: Iterable[str]) -> Iterator[pyarrow.Table]:
    """The rejects in the files that Spark wrote next to the rows. Raises EtlError."""
    for name in names:
        refused = refused_as(f"the rejects in `{table}/{name}` can't be read", *FAILURES)
        # An older type of times, which an owner may have chosen for Spark, has nanoseconds.
        with refused, table.file(name) as data, _opened(data) as file:
            for batch in _pieces(file):
                own = dict(zip(batch.column(REJECT).type.names, batch.column(REJECT).flatten(), strict=True))
                columns = [own[field.name] if field.name in own else batch.column(field.name) for field in FOUND]
                yield pyarrow.table(columns, FOUND.names).cast(FOUND)


def _opened(data: Any) -> Any:
    # An older type of times, which an owner may have chosen for Spark, has nanoseconds.
    return pyarrow.parquet.ParquetFile(
        data, coerce_int96_timestamp_unit="us", read_dictionary=[f"{REJECT}.key", f"{REJECT}.value"]
    )


def _pieces(file: Any) -> Iterator[pyarrow.RecordBatch]:
    """What a Parquet file has of rejects, in pieces whose keys and values make PIECE_BYTES at most, unless one alone is larger.

    A value that many records have stands in the file once: it is counted, and decoded, for each of them."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        rows = max(1, min(PIECE_ROWS, PIECE_BYTES * group.num_rows // max(group.total_byte_size, 1)))
        for batch in file.iter_batches(rows, [number], [*POSITION_COLUMNS, REJECT], use_threads=THREADS):
            reject = batch.column(REJECT)
            sizes = numpy.cumsum(_lengths(reject.field("key")) + _lengths(reject.field("value")))
            start, before = 0, 0
            while start < len(batch):
                end = max(start + 1, int(numpy.searchsorted(sizes, before + PIECE_BYTES, "right")))
                yield batch.slice(start, end - start)
                start, before = end, int(sizes[end - 1])


def _lengths(column: pyarrow.DictionaryArray) -> Any:
    """The bytes of each value; 0 where there is none."""
    lengths = pyarrow.compute.binary_length(column.dictionary).take(column.indices)
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(numpy.int64)


def write(place: Storage, plan: Plan, found: Iterable[pyarrow.Table]) -> RejectFile:
    """Write a plan's rejects (tables with the columns of FOUND) to a new file, which is no part of the table yet. Raises
    EtlError."""
    path = f"run={plan.run}/plan={plan.id}/part-{uuid.uuid4()}.snappy.parquet"
    rows = 0
    with refused_as(f"the rejects can't be written to `{place}/{path}`", *FAILURES), place.written(path) as data:
        with pyarrow.parquet.ParquetWriter(data, SCHEMA, compression="snappy", store_schema=False) as file:
            for group in _groups(found):
                night = pyarrow.array([plan.night] * len(group), SCHEMA.field("night").type)
                file.write_table(group.add_column(0, SCHEMA.field("night"), night))
                rows += len(group)
        size = data.tell()
    failpoints.failpoint(FILE_WRITTEN)
    return RejectFile(path, size, rows)


def _groups(found: Iterable[pyarrow.Table]) -> Iterator[pyarrow.Table]:
    """The same rows in tables that are large enough for a row group each, and not larger than memory allows."""
    pieces: list[pyarrow.Table] = []
    size = 0
    for piece in found:
        pieces.append(piece)
        size += piece.nbytes
        if size >= GROUP_BYTES:
            yield pyarrow.concat_tables(pieces)
            pieces, size = [], 0
    if pieces:
        yield pyarrow.concat_tables(pieces)
