"""The rows of a table and of its rejects' table, counted in the data files that delta-rs names."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deltalake
import pyarrow.parquet
from deltalake.exceptions import DeltaError

from penstock.pipeline.etl.errors import EtlError, words_of
from penstock.pipeline.etl.ledger import WITHOUT_PLAN_ID, TopicPartition
from penstock.pipeline.etl.localstorage import LocalStorage
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import LOG, THREADS, newest_state

UNREADABLE = "the rejects' table `{}` can't be read"


def rows_by_partition(table: Storage) -> dict[TopicPartition, int]:
    """Rows by the topic and partition that they came from, counted in the table's current data files. Raises EtlError."""
    if not table.names(LOG):
        return {}
    counts: Counter[TopicPartition] = Counter()
    with _failures_as_words(f"the rows of the table `{table}` can't be counted"):
        with delta_table(table) as log:
            fragments = log.to_pyarrow_dataset().get_fragments()
            files = [fragment.path for fragment in fragments]
        for name in files:
            with table.file(name) as data, pyarrow.parquet.ParquetFile(data) as file:
                for batch in file.iter_batches(columns=["topic", "partition"], use_threads=THREADS):
                    _count_rows(batch, counts)
    return dict(counts)


@contextmanager
def _failures_as_words(what: str) -> Iterator[None]:
    """Turn what delta-rs and Arrow raise inside into an EtlError with its first line."""
    try:
        yield
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise EtlError(f"{what}: {words_of(error)}") from None


def _count_rows(batch: pyarrow.RecordBatch, counts: Counter[TopicPartition]) -> None:
    grouped = pyarrow.Table.from_batches([batch]).group_by(["topic", "partition"]).aggregate([([], "count_all")])
    for row in grouped.to_pylist():
        counts[row["topic"], row["partition"]] += row["count_all"]


def reject_counts(rejects: Storage) -> dict[tuple[int, str], int]:
    """The rows that the rejects' table holds of each run, with the id of its plan, as its log counts them: a file of which the
    log has no count adds none. Raises EtlError."""
    if not rejects.names(LOG):
        return {}
    with _failures_as_words(UNREADABLE.format(rejects)), delta_table(rejects) as table:
        files = pyarrow.table(table.get_add_actions(flatten=True)).to_pylist()
    counts: Counter[tuple[int, str]] = Counter()
    for file in files:
        counts[int(file["partition.run"]), file.get("partition.plan", WITHOUT_PLAN_ID)] += file["num_records"] or 0
    return dict(counts)


def rejects_partitioned_by(rejects: Storage) -> list[str]:
    """The columns that the rejects' table is partitioned by; none when there is no table yet. Raises EtlError."""
    if not rejects.names(LOG):
        return []
    with _failures_as_words(UNREADABLE.format(rejects)), delta_table(rejects) as table:
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
