"""What columns hold, row by row."""

from __future__ import annotations

from penstock.pyx.record.columns import Columns
from penstock.pyx.record.rawbatch import Record


def rows(columns: Columns) -> list[Record]:
    """As the records that they were made of."""
    return [
        Record(
            int(columns.offsets[i]),
            int(columns.timestamps[i]),
            columns.key(i),
            columns.value(i),
            columns.headers(i),
        )
        for i in range(len(columns))
    ]
