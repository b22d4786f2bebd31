"""What the table says of its own loads, read without a JVM from Delta's log.

Each night's commit carries, beside its rows, one `domainMetadata` action (domain `penstock.etl.night.DATE`)
with the night's ranges and counts, and a `txn` action with the run number. Delta keeps the newest of each
in every checkpoint, so both outlive the clean-up of old log files, which commit infos do not.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import deltalake
import pyarrow.parquet
from deltalake.exceptions import DeltaError

from penstock.pipeline.etl.errors import EtlError, words_of
from penstock.pipeline.etl.localstorage import LocalStorage
from penstock.pipeline.etl.storage import Storage

DOMAIN_PREFIX = "penstock.etl.night."
RUN_APP_ID = "penstock.etl"
LOG = "_delta_log"
FORMAT = 1
WITHOUT_PLAN_ID = "none"
"""What stands for the id of plans that were written before plans had one."""

THREADS = False
"""Arrow's threads may hang or abort the process at its end, once they have read for it (apache/arrow#34314 and #50482)."""

TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class Range:
    """A partition's part of a night: offsets from start up to (not with) end, and what was found in them."""

    start: int
    end: int
    records: int
    rows: int
    rejects: int


@dataclass(frozen=True)
class NightCommit:
    """A committed night. `missing` says what had not arrived when it was loaded with `--incomplete mark`, `topic_id`
    (hexadecimal) which topic of that name it is of; empty where that is not noted. `nights` are the nights before it
    that were loaded with it (`--covering`), `plan` is the id of the plan that it carried out. `epochs` are the leader epochs
    under which the ends of its ranges were seen, where they are noted."""

    night: str
    run: int
    partitions: dict[TopicPartition, Range]
    missing: tuple[str, ...] = field(default=())
    topic_id: str = ""
    nights: tuple[str, ...] = field(default=())
    plan: str = WITHOUT_PLAN_ID
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Data records read (control and aborted records are none)."""
        return sum(part.records for part in self.partitions.values())

    @property
    def rows(self) -> int:
        """Rows added to the table."""
        return sum(part.rows for part in self.partitions.values())

    @property
    def rejects(self) -> int:
        """Records that went to the rejects' table."""
        return sum(part.rejects for part in self.partitions.values())

    def to_json(self) -> str:
        """The text that stands in the commit."""
        ranges = [
            [topic, partition, part.start, part.end, part.records, part.rows, part.rejects]
            for (topic, partition), part in sorted(self.partitions.items())
        ]
        document = {
            "format": FORMAT,
            "night": self.night,
            "run": self.run,
            "ranges": ranges,
            "missing": list(self.missing),
            "topic_id": self.topic_id,
            "nights": list(self.nights),
            "plan": self.plan,
            "epochs": epochs_to_json(self.epochs),
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> NightCommit:
        """Read what `to_json` wrote. Raises EtlError when it is not that."""
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise EtlError(
                    f"the table's ledger has format {document['format']}, this version reads {FORMAT}: another one wrote it"
                )
            partitions = {
                (str(topic), int(partition)): Range(*map(int, rest)) for topic, partition, *rest in document["ranges"]
            }
            topic_id, nights = str(document.get("topic_id", "")), tuple(map(str, document.get("nights", ())))
            night, run, missing = str(document["night"]), int(document["run"]), tuple(document["missing"])
            epochs = epochs_from_json(document.get("epochs", ()))
            return cls(night, run, partitions, missing, topic_id, nights, str(document.get("plan", WITHOUT_PLAN_ID)), epochs)
        except (ValueError, KeyError, TypeError) as error:
            raise EtlError(f"a night in the table's ledger can't be read ({words_of(error)}): {text[:200]}") from None


def epochs_to_json(epochs: Mapping[TopicPartition, int]) -> list[list[str | int]]:
    """Leader epochs as they stand in a ledger and in a plan."""
    return [[topic, partition, epoch] for (topic, partition), epoch in sorted(epochs.items())]


def epochs_from_json(entries: Iterable[Any]) -> dict[TopicPartition, int]:
    """Read what `epochs_to_json` gave. Raises ValueError or TypeError for what is not that."""
    return {(str(topic), int(partition)): int(epoch) for topic, partition, epoch in entries}


@dataclass(frozen=True)
class Status:
    """What the table holds: its nights in order, the last run's number, and where the next night starts. `schema` is the
    table's, as Delta's log has it in JSON; empty when there is no table."""

    nights: list[NightCommit]
    run: int
    schema: str = ""

    def night(self, night: str) -> NightCommit | None:
        """The commit that a night is in."""
        return next((commit for commit in self.nights if night == commit.night or night in commit.nights), None)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Per partition, the offset behind the last one that any night took."""
        ends: dict[TopicPartition, int] = {}
        for commit in self.nights:
            for partition, part in commit.partitions.items():
                ends[partition] = max(ends.get(partition, 0), part.end)
        return ends

    @property
    def epochs(self) -> dict[TopicPartition, int]:
        """Per partition the leader epoch under which `ends` was seen, where it is noted."""
        ends = self.ends
        return {
            tp: epoch
            for commit in self.nights
            for tp, epoch in commit.epochs.items()
            if tp in commit.partitions and commit.partitions[tp].end == ends[tp]
        }

    @property
    def topic_id(self) -> str:
        """Which topic the table is loaded from; empty where that is not noted."""
        return next((commit.topic_id for commit in reversed(self.nights) if commit.topic_id), "")


def status(table: Storage) -> Status:
    """The table's nights and run number; an empty status when there is no table yet. Raises EtlError."""
    try:
        return _status(table)
    except (ValueError, KeyError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        raise EtlError(f"the log of the table `{table}` can't be read: {words_of(error)}") from None


def _status(table: Storage) -> Status:
    nights: dict[str, NightCommit] = {}
    run, schema = 0, ""
    for action in _ledger_actions(table):
        domain, txn, metadata = action.get("domainMetadata"), action.get("txn"), action.get("metaData")
        if domain is not None and domain["domain"].startswith(DOMAIN_PREFIX):
            nights.pop(domain["domain"], None)
            if not domain["removed"]:
                nights[domain["domain"]] = NightCommit.from_json(domain["configuration"])
        elif txn is not None and txn["appId"] == RUN_APP_ID:
            run = int(txn["version"])
        elif metadata is not None:
            schema = metadata["schemaString"]
    return Status(sorted(nights.values(), key=lambda commit: commit.night), run, schema)


def committed(table: Storage) -> list[NightCommit]:
    """The committed nights in order of their dates; none when there is no table. Raises EtlError."""
    return status(table).nights


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
    with _reading_rejects(rejects) as table:
        files = pyarrow.table(table.get_add_actions(flatten=True)).to_pylist()
    counts: Counter[tuple[int, str]] = Counter()
    for file in files:
        counts[int(file["partition.run"]), file.get("partition.plan", WITHOUT_PLAN_ID)] += file["num_records"] or 0
    return dict(counts)


def rejects_partitioned_by(rejects: Storage) -> list[str]:
    """The columns that the rejects' table is partitioned by; none when there is no table yet. Raises EtlError."""
    if not rejects.names(LOG):
        return []
    with _reading_rejects(rejects) as table:
        return list(table.metadata().partition_columns)


@contextmanager
def _reading_rejects(rejects: Storage) -> Iterator[deltalake.DeltaTable]:
    with _failures_as_words(f"the rejects' table `{rejects}` can't be read"), delta_table(rejects) as table:
        yield table


@contextmanager
def delta_table(table: Storage) -> Iterator[deltalake.DeltaTable]:
    """The table as delta-rs sees it. Of one that isn't in a folder it sees a copy of the log alone, since it would ask for the
    place with settings and credentials of its own: its files are named relative to the table, and can't be opened by it."""
    if isinstance(table, LocalStorage):
        yield deltalake.DeltaTable(table.folder)
        return
    names = table.names(LOG)
    checkpoint, commits = _newest_state(names)
    with tempfile.TemporaryDirectory(prefix="penstock-log-") as copy:
        (Path(copy) / LOG).mkdir()
        for name in (*checkpoint, *commits):
            (Path(copy) / LOG / name).write_bytes(table.read_commit(f"{LOG}/{name}"))
        yield deltalake.DeltaTable(copy)


def _ledger_actions(table: Storage) -> Iterator[dict[str, Any]]:
    """The actions that make up the ledger, oldest first: those of the newest whole checkpoint, then each
    later commit's."""
    checkpoint, commits = _newest_state(table.names(LOG))
    for name in checkpoint:
        with table.file(f"{LOG}/{name}") as file:
            yield from _checkpoint_actions(file)
    for name in commits:
        for line in table.read_commit(f"{LOG}/{name}").splitlines():
            # Most lines are files' statistics: only the few that matter are parsed.
            if line.startswith((b'{"domainMetadata"', b'{"txn"', b'{"metaData"')):
                yield json.loads(line)


def _newest_state(names: list[str]) -> tuple[list[str], list[str]]:
    """The files of the newest whole checkpoint, and those of the commits behind it, in order."""
    version, checkpoint = _newest_checkpoint(names)
    commits = [match for match in (re.fullmatch(r"(\d{20})\.json", name) for name in names) if match is not None]
    return checkpoint, [match[0] for match in commits if int(match[1]) > version]


def _newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """The version and the files of the newest checkpoint whose parts are all there; (-1, []) when there is
    none."""
    found: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        match = re.fullmatch(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.parquet", name)
        if match is None:
            continue
        version = int(match[1])
        if match[3] is None:
            found[version] = [name]
        else:
            of_set = parts.setdefault((version, int(match[3])), [])
            of_set.append(name)
            if len(of_set) == int(match[3]):
                found[version] = of_set
    if not found:
        return -1, []
    newest = max(found)
    return newest, found[newest]


def _checkpoint_actions(data: BinaryIO) -> Iterator[dict[str, Any]]:
    with pyarrow.parquet.ParquetFile(data) as file:
        wanted = [name for name in ("domainMetadata", "txn", "metaData") if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=wanted, use_threads=THREADS):
            for row in batch.to_pylist():
                for name in wanted:
                    if row[name] is not None:
                        yield {name: row[name]}
