"""The independent check: the table's files against the data set itself, by none of our own counters."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake

from penstock.pipeline.demo import flights
from penstock.pipeline.etl.table import THREADS


@dataclass
class Verdict:
    """What the table holds compared with the data set's days."""

    expected: int
    rows: int
    missing: int
    twice: int
    foreign: int
    by_origin: dict[str, int]

    @property
    def exact(self) -> bool:
        """Each event of the data set is in the table exactly once, and nothing else."""
        return self.rows == self.expected and not (self.missing or self.twice or self.foreign)


def count_values(table: Path, column: str) -> Counter[Any]:
    """How many rows of the table's current files have each value of a column."""
    values = Counter[Any]()
    for batch in deltalake.DeltaTable(table).to_pyarrow_dataset().to_batches(columns=[column], use_threads=THREADS):
        values.update(batch.column(column).to_pylist())
    return values


def compare(table: Path, first: datetime.date, last: datetime.date) -> Verdict:
    """Read every id from the table's current files and compare with the data set's ids of first..last."""
    ids = count_values(table, "id")
    expected: set[str] = set()
    for row in flights.rows():
        day = datetime.date(int(row["year"]), int(row["month"]), int(row["day"]))
        if first <= day <= last:
            expected.add(flights.flight_id(row))
    return Verdict(
        expected=len(expected),
        rows=ids.total(),
        missing=len(expected - ids.keys()),
        twice=sum(1 for times in ids.values() if times > 1),
        foreign=len(ids.keys() - expected),
        by_origin=dict(Counter(name.rsplit("/", 1)[1] for name in ids.elements())),
    )
