"""The notes of nights, as the table's commits carry them.

Each night's commit has, beside its rows, one `domainMetadata` action (domain `penstock.etl.night.DATE`)
with the night's ranges and counts, one with what others have changed (changenotes.py), and a `txn` action with the run number.
Delta keeps the newest of each domain in every checkpoint, so they outlive the clean-up of old log files, which commit infos do
not. It forgets a `txn` once an owner has set `delta.setTransactionRetentionDuration`: the run number is read from the domains,
and the `txn` lets two commits of one run meet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.pipeline.clients.fetcher import BatchMark
from penstock.pipeline.etl.changenotes import ChangeNotes
from penstock.pipeline.etl.errors import EtlError, words_of

DOMAIN_PREFIX = "penstock.etl.night."
RUN_APP_ID = "penstock.etl"
TOPIC_PROPERTY = "penstock.etl.topic"
"""The table's property that names the topic which the table is loaded from."""
FORMAT = 1
WITHOUT_PLAN_ID = "none"
"""What stands for the id of plans that were written before plans had one."""

TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class Range:
    """A partition's part of a night: offsets from start up to (not with) end, and what was found in them."""

    start: int
    end: int
    records: int
    rows: int
    rejects: int

    @property
    def deleted(self) -> int:
        """Records whose rows an owner had deleted, and that a reload has left out."""
        return self.records - self.rows - self.rejects

    def joined(self, later: Range) -> Range:
        """This part and the one that goes on where it ends, as one."""
        counts = self.records + later.records, self.rows + later.rows, self.rejects + later.rejects
        return Range(self.start, later.end, *counts)


class LogEnd(NamedTuple):
    """What a log had right below an offset: the leader epoch under which that was its last stable offset, and the mark of the
    batch there (None: not noted, or of a format before 2)."""

    leader_epoch: int
    last_batch: BatchMark | None = None


@dataclass(frozen=True)
class NightCommit:
    """A committed night. `missing` says what had not arrived when it was loaded with `--incomplete mark`, `topic_id`
    (hexadecimal) which topic of that name it is of; empty where that is not noted. `nights` are the nights before it
    that were loaded with it (`--covering`), `plan` is the id of this try of the run's plan. `epochs` are what the
    logs had right below the ends of its ranges, where that is noted. `decided` are sentences about what a person decided
    for it, `joined` are the runs, each with the id of its try, that loaded its rows before `run` made one commit of them.
    `later` are the rows whose records have timestamps of later days than the night; None where nobody counted them. `kept` are
    the rows of the rejects' table that are this night's; -1 where that is not noted."""

    night: str
    run: int
    partitions: dict[TopicPartition, Range]
    missing: tuple[str, ...] = field(default=())
    topic_id: str = ""
    nights: tuple[str, ...] = field(default=())
    plan: str = WITHOUT_PLAN_ID
    epochs: Mapping[TopicPartition, LogEnd] = field(default_factory=dict)
    decided: tuple[str, ...] = field(default=())
    joined: tuple[tuple[int, str], ...] = field(default=())
    later: int | None = None
    kept: int = -1

    @property
    def runs(self) -> list[tuple[int, str]]:
        """The runs, each with the id of its try, whose rejects are this night's."""
        return [*self.joined, (self.run, self.plan)]

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
            "decided": list(self.decided),
            "joined": [list(run) for run in self.joined],
            "later": self.later,
            "kept": self.kept,
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
            decided = tuple(map(str, document.get("decided", ())))
            joined = tuple((int(number), str(plan_id)) for number, plan_id in document.get("joined", ()))
            plan, later = str(document.get("plan", WITHOUT_PLAN_ID)), document.get("later")
            later, kept = None if later is None else int(later), int(document.get("kept", -1))
            return cls(night, run, partitions, missing, topic_id, nights, plan, epochs, decided, joined, later, kept)
        except (ValueError, KeyError, TypeError) as error:
            raise EtlError(f"a night in the table's ledger can't be read ({words_of(error)}): {text[:200]}") from None


def epochs_to_json(epochs: Mapping[TopicPartition, LogEnd]) -> list[list[str | int]]:
    """Ends of logs as they stand in a ledger and in a plan."""
    return [[*tp, end.leader_epoch, *(end.last_batch or ())] for tp, end in sorted(epochs.items())]


def epochs_from_json(entries: Iterable[Any]) -> dict[TopicPartition, LogEnd]:
    """Read what `epochs_to_json` gave. Raises ValueError or TypeError for what is not that."""
    found = {}
    for topic, partition, epoch, *mark in entries:
        found[str(topic), int(partition)] = LogEnd(int(epoch), BatchMark(*map(int, mark)) if mark else None)
    return found


@dataclass(frozen=True)
class Status:
    """What the table holds: its nights in order, the last run's number, and where the next night starts. `schema` is the
    table's, as Delta's log has it in JSON, `id` the table's own, `named_topic` the topic that its metadata names; each is empty
    when there is no table, or none of it. `notes` are those about what others have changed."""

    nights: list[NightCommit]
    run: int
    schema: str = ""
    id: str = ""
    named_topic: str = ""
    notes: ChangeNotes = field(default=ChangeNotes())

    @property
    def topic(self) -> str:
        """The topic that the table is loaded from: that which its metadata names, or (an earlier version named none) that of
        its nights; empty where there are no nights."""
        return self.named_topic or next((topic for topic, _ in self.ends), "")

    def night(self, night: str) -> NightCommit | None:
        """The commit that a night is in."""
        return next((commit for commit in self.nights if night == commit.night or night in commit.nights), None)

    def completed_by(self, commit: NightCommit) -> NightCommit:
        """The commit with which all of a night is in the table: itself, or the first complete one after it, which has what was
        missing; itself also where that hasn't come yet."""
        later = (each for each in self.nights if each.night >= commit.night and not each.missing)
        return next(later, commit)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Per partition, the offset behind the last one that any night took."""
        ends: dict[TopicPartition, int] = {}
        for commit in self.nights:
            for partition, part in commit.partitions.items():
                ends[partition] = max(ends.get(partition, 0), part.end)
        return ends

    @property
    def epochs(self) -> dict[TopicPartition, LogEnd]:
        """Per partition what the log had right below `ends`, where it is noted."""
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
