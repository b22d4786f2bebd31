"""The rows of a table and of its rejects' table, counted in the data files that delta-rs names."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import numpy
import pyarrow.parquet
from deltalake.exceptions import DeltaError

from penstock.pipeline.etl.changenotes import Place
from penstock.pipeline.etl.errors import EtlError, refused_as, words_of
from penstock.pipeline.etl.ledger import WITHOUT_PLAN_ID, NightCommit, TopicPartition
from penstock.pipeline.etl.localstorage import LocalStorage
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import LOG, THREADS, newest_state, version

POSITION = ["topic", "partition", "offset"]
NOWHERE: Place = ("", "", -1)
"""Where an owner's own row is, which has no position in a topic."""
FAILURES = (DeltaError, pyarrow.ArrowException, OSError)
UNREADABLE = "the rejects' table `{}` can't be read"


class NightRanges:
    """Which night a row belongs to, by the offsets of the ranges that the nights took."""

    def __init__(self, nights: Iterable[NightCommit]) -> None:
        spans: dict[TopicPartition, list[tuple[int, int, str]]] = {}
        for night in nights:
            for tp, part in night.partitions.items():
                if part.start < part.end:
                    spans.setdefault(tp, []).append((part.start, part.end, night.night))
        self._starts, self._ends, self._names = {}, {}, {}
        for tp, of_it in spans.items():
            starts, ends, names = zip(*sorted(of_it), strict=True)
            self._starts[tp], self._ends[tp], self._names[tp] = numpy.array(starts), numpy.array(ends), names

    def count(self, tp: TopicPartition, offsets: Any) -> Counter[Place]:
        """How many of these offsets (a numpy array) of a partition are each night's; those of none are night ""'s."""
        if tp not in self._starts:
            return Counter({("", *tp): len(offsets)})
        index = numpy.searchsorted(self._starts[tp], offsets, side="right") - 1
        index[offsets >= self._ends[tp][index]] = -1
        counts = numpy.bincount(index + 1)
        return Counter({(("", *self._names[tp])[number], *tp): int(counts[number]) for number in numpy.flatnonzero(counts)})


def rows_by_night(table: Storage, nights: Iterable[NightCommit]) -> Counter[Place]:
    """Rows by the night, topic and partition that they came from, counted in the table's current data files. Raises
    EtlError."""
    counts: Counter[Place] = Counter()
    if not table.names(LOG):
        return counts
    ranges = NightRanges(nights)
    with refused_as(f"the rows of the table `{table}` can't be counted", *FAILURES):
        with delta_table(table) as log:
            fragments = log.to_pyarrow_dataset().get_fragments()
            files = [fragment.path for fragment in fragments]
        for name in files:
            counts.update(_rows_of(table, name, ranges))
    return counts


def count_file(table: Storage, name: str, ranges: NightRanges) -> Counter[Place]:
    """The rows of one data file likewise, be it in the table still or not. Raises FileNotFoundError, EtlError."""
    try:
        return _rows_of(table, name, ranges)
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise EtlError(f"the rows of `{table}/{name}` can't be counted: {words_of(error)}") from None


def _rows_of(table: Storage, name: str, ranges: NightRanges) -> Counter[Place]:
    counts: Counter[Place] = Counter()
    with table.file(name) as data, pyarrow.parquet.ParquetFile(data) as file:
        if not set(POSITION) <= set(file.schema_arrow.names):
            return Counter({NOWHERE: file.metadata.num_rows})
        for batch in file.iter_batches(columns=POSITION, use_threads=THREADS):
            of_batch = pyarrow.Table.from_batches([batch])
            placed = of_batch.drop_null()
            counts[NOWHERE] += of_batch.num_rows - placed.num_rows
            for group in placed.group_by(["topic", "partition"]).aggregate([("offset", "list")]).to_batches():
                for row in range(group.num_rows):
                    tp = group["topic"][row].as_py(), group["partition"][row].as_py()
                    counts.update(ranges.count(tp, group["offset_list"][row].values.to_numpy(zero_copy_only=False)))
    return +counts


def reject_counts(rejects: Storage) -> dict[tuple[int, str], int]:
    """The rows that the rejects' table holds of each run, with the id of its plan, as its log counts them: a file of which the
    log has no count adds none. Raises EtlError."""
    if version(rejects) < 0:  # the folder may be there before the first commit is
        return {}
    with refused_as(UNREADABLE.format(rejects), *FAILURES), delta_table(rejects) as table:
        files = pyarrow.table(table.get_add_actions(flatten=True)).to_pylist()
    counts: Counter[tuple[int, str]] = Counter()
    for file in files:
        counts[int(file["partition.run"]), file.get("partition.plan", WITHOUT_PLAN_ID)] += file["num_records"] or 0
    return dict(counts)


def rejects_partitioned_by(rejects: Storage) -> list[str]:
    """The columns that the rejects' table is partitioned by; none when there is no table yet. Raises EtlError."""
    if version(rejects) < 0:
        return []
    with refused_as(UNREADABLE.format(rejects), *FAILURES), delta_table(rejects) as table:
        return list(table.metadata().partition_columns)


@contextmanager
def delta_table(table: Storage) -> Iterator[deltalake.DeltaTable]:
    """The table as delta-rs sees it. Of one that isn't in a folder it sees a copy of the log alone, since it would ask for the
    place with settings and credentials of its own: its files are named relative to the table, and can't be opened by it."""
    if isinstance(table, LocalStorage):
        yield deltalake.DeltaTable(table.folder)
        return
    names = table.names(LOG)
    checkpoint, commits = newest_state(names)
    with tempfile.TemporaryDirectory(prefix="penstock-log-") as copy:
        (Path(copy) / LOG).mkdir()
        for name in (*checkpoint, *commits):
            (Path(copy) / LOG / name).write_bytes(table.read_commit(f"{LOG}/{name}"))
        yield deltalake.DeltaTable(copy)
