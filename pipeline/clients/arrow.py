"""Polled columns as Arrow's record batches. Keys, values and offsets are not copied."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.pipeline.clients.partitionbuffer import PolledColumns
from penstock.pyx.record.columns import Column

HEADER = pa.struct([("name", pa.large_binary()), ("value", pa.large_binary())])
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("key", pa.large_binary()),
        pa.field("value", pa.large_binary()),
        pa.field("headers", pa.large_list(HEADER), nullable=False),
    ]
)


def record_batch(polled: PolledColumns) -> pa.RecordBatch:
    """The records from the position on. A record without a time has a null there; names of headers are bytes, as in the log."""
    columns = polled.columns
    count = len(columns)
    headers = columns.header_columns()
    of_headers = pa.StructArray.from_arrays([_binary(headers.names), _binary(headers.values)], fields=list(HEADER))
    times = [_validity(columns.timestamps < 0), pa.py_buffer(columns.timestamps)]
    arrays = [
        pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([polled.topic], pa.string())),
        pa.array(np.full(count, polled.partition, np.int32)),
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(columns.offsets)]),
        pa.Array.from_buffers(SCHEMA.field("timestamp").type, count, times),
        _binary(Column(columns.key_data, columns.key_starts, columns.key_null)),
        _binary(Column(columns.value_data, columns.value_starts, columns.value_null)),
        pa.Array.from_buffers(pa.large_list(HEADER), count, [None, pa.py_buffer(headers.starts)], children=[of_headers]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA).slice(polled.first)


def _binary(column: Column) -> pa.Array:
    buffers = [_validity(column.null), pa.py_buffer(column.starts), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.large_binary(), len(column.null), buffers)


def _validity(null: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's bitmap of the items that are there; None where all are."""
    return pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
