"""A night's plan: the ranges that it takes, written down before anything is read."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from penstock import failpoints
from penstock.pipeline.etl.errors import EtlError, Refused, words_of
from penstock.pipeline.etl.ledger import (
    WITHOUT_PLAN_ID,
    LogEnd,
    NightCommit,
    Range,
    Status,
    TopicPartition,
    epochs_from_json,
    epochs_to_json,
)
from penstock.pipeline.etl.storage import SIDE_FOLDER, Storage

BEFORE_PLAN = failpoints.declare("etl.before_plan", "the cut is known, nothing is written")
PLAN_ASIDE = failpoints.declare("etl.plan_aside", "the plan is in its temporary file")
AFTER_PLAN = failpoints.declare("etl.after_plan", "the plan is persisted, nothing is read")


FOLDER = f"{SIDE_FOLDER}/plans"


@dataclass(frozen=True)
class CorruptBatch:
    """A batch that Spark can't read: its offsets from start up to (not with) end, and the records that its header claims.

    `behind` is the offset behind the last record before it: a client that is asked for what lies between the two (control
    records, perhaps) meets the batch.
    """

    topic: str
    partition: int
    behind: int
    start: int
    end: int
    records: int


@dataclass(frozen=True)
class Plan:
    """What a run will load: per partition from start up to (not with) end.

    `run` is the number that the commit will have, one above the table's when the plan was made: a plan is
    pending exactly until the table's run number reaches it. `corrupt` batches are left out and go to the rejects.
    `topic_id` (hexadecimal) says which topic of that name the ranges are of, `nights` which nights before this one
    are loaded with it, `epochs` what the logs had right below the ends. `id` tells plans of one run apart, which two
    machines may make; the rejects carry it. `decided` are sentences about what a person decided for it. A plan that
    `takes_back` nights reads nothing: what they hold becomes part of `night`.
    A reload with `without_deleted` leaves out the records whose rows an owner has deleted.
    """

    night: str
    run: int
    ranges: dict[TopicPartition, tuple[int, int]]
    reload: bool = False
    missing: tuple[str, ...] = field(default=())
    corrupt: tuple[CorruptBatch, ...] = field(default=())
    topic_id: str = ""
    nights: tuple[str, ...] = field(default=())
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    epochs: Mapping[TopicPartition, LogEnd] = field(default_factory=dict)
    decided: tuple[str, ...] = field(default=())
    takes_back: tuple[str, ...] = field(default=())
    without_deleted: bool = False

    def pieces(self, tp: TopicPartition) -> list[tuple[int, int]]:
        """What of a partition can be read: its range without the corrupt batches, in order."""
        start, end = self.ranges[tp]
        corrupt = sorted((batch.behind, batch.end) for batch in self.corrupt if (batch.topic, batch.partition) == tp)
        pieces = []
        for low, high in corrupt:
            pieces.append((start, low))
            start = min(high, end)
        return [(low, high) for low, high in [*pieces, (start, end)] if low < high]

    @property
    def topic(self) -> str:
        """The topic that it reads."""
        return next((topic for topic, _ in self.ranges), "")

    @property
    def offsets(self) -> int:
        """Offsets spanned; the records in them are fewer where there are control or aborted records."""
        return sum(end - start for start, end in self.ranges.values())

    @property
    def readable(self) -> int:
        """Offsets that are not of corrupt batches."""
        return sum(end - start for tp in self.ranges for start, end in self.pieces(tp))

    def document(self) -> dict[str, Any]:
        """The plan as it stands in its file."""
        ranges = [[topic, partition, *span] for (topic, partition), span in sorted(self.ranges.items())]
        return {
            "night": self.night,
            "run": self.run,
            "reload": self.reload,
            "ranges": ranges,
            "missing": list(self.missing),
            "rotten": [list(astuple(batch)) for batch in self.corrupt],
            "topic_id": self.topic_id,
            "nights": list(self.nights),
            "id": self.id,
            "epochs": epochs_to_json(self.epochs),
            "decided": list(self.decided),
            "takes_back": list(self.takes_back),
            "without_deleted": self.without_deleted,
        }


def name(run: int) -> str:
    """The name of a run's plan beside its table."""
    return f"{FOLDER}/run-{run:08d}.json"


def persist(table: Storage, plan: Plan) -> None:
    """Write the plan down, durably. Raises Refused when there is one of its run already."""
    failpoints.failpoint(BEFORE_PLAN)
    _sweep(table, plan.run)
    try:
        table.create(name(plan.run), _bytes(plan), lambda: failpoints.failpoint(PLAN_ASIDE))
    except FileExistsError:
        raise Refused(
            f"another process has planned run {plan.run} meanwhile (`{table}/{name(plan.run)}`); run it again"
        ) from None
    failpoints.failpoint(AFTER_PLAN)


def replace(table: Storage, plan: Plan) -> None:
    """Write a plan down once more, with what was found out while it was carried out. Raises Refused when the plan that
    is there is another one."""
    before = load(table, plan.run)
    if before is None or before.id != plan.id:
        raise Refused(f"the plan of run {plan.run} was replaced by another process; run it again")
    table.replace(name(plan.run), _bytes(plan), lambda: failpoints.failpoint(PLAN_ASIDE))


def _bytes(plan: Plan) -> bytes:
    return (json.dumps(plan.document(), indent=1) + "\n").encode()


def _sweep(table: Storage, run: int) -> None:
    """Remove what killed processes left of plans of earlier runs; a file of this run may be another machine's."""
    for left in table.names(FOLDER):
        number = re.fullmatch(r"\.run-(\d+)\.json\..*tmp", left)
        if number is not None and int(number[1]) < run:
            table.remove(f"{FOLDER}/{left}")


def load(table: Storage, run: int) -> Plan | None:
    """The plan of a run. Raises EtlError when its file is there but can't be read."""
    path = f"{table}/{name(run)}"
    try:
        text = table.read(name(run)).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise EtlError(f"the plan `{path}` can't be read ({error}); remove it to plan the night again") from None
    try:
        document = json.loads(text)
        ranges = {(str(topic), int(part)): (int(start), int(end)) for topic, part, start, end in document["ranges"]}
        missing = tuple(map(str, document["missing"]))
        corrupt = tuple(CorruptBatch(str(topic), *map(int, rest)) for topic, *rest in document.get("rotten", ()))
        night, run_of_it, topic_id = str(document["night"]), int(document["run"]), str(document.get("topic_id", ""))
        nights = tuple(map(str, document.get("nights", ())))
        own_id = str(document.get("id", WITHOUT_PLAN_ID))
        epochs = epochs_from_json(document.get("epochs", ()))
        decided, takes_back = (tuple(map(str, document.get(name, ()))) for name in ("decided", "takes_back"))
        plan = Plan(
            night, run_of_it, ranges, bool(document["reload"]), missing, corrupt, topic_id, nights, own_id, epochs, decided,
            takes_back, bool(document.get("without_deleted", False)),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise EtlError(f"the plan `{path}` can't be read ({words_of(error)}); remove it to plan the night again") from None
    if plan.run != run:
        raise EtlError(f"the plan `{path}` is of run {plan.run}, not {run}; remove it to plan the night again")
    return plan


def pending(table: Storage, status: Status) -> Plan | None:
    """The plan that was written down but never committed, if there is one; it agrees with the table.

    Raises Refused when the table has moved under it.
    """
    plan = load(table, status.run + 1)
    if plan is None:
        return None
    if plan.reload or plan.takes_back:
        commit = joined(plan, status) if plan.takes_back else status.night(plan.night)
        expected = {} if commit is None else {tp: (part.start, part.end) for tp, part in commit.partitions.items()}
        agrees = plan.ranges == expected
    else:
        ends = status.ends
        agrees = not ends or {tp: start for tp, (start, _) in plan.ranges.items()} == ends
    if not agrees:
        where = f"{table}/{name(plan.run)}"
        raise Refused(f"the plan `{where}` of night {plan.night} does not continue what the table holds; remove it")
    return plan


def joined(plan: Plan, status: Status) -> NightCommit | None:
    """What a plan that takes nights back commits: they, and what the table has of the plan's night, as one; None if the table
    lacks some of them."""
    commits = [commit for commit in status.nights if commit.night in (plan.night, *plan.takes_back)]
    if not commits or not {commit.night for commit in commits} >= set(plan.takes_back):
        return None
    partitions: dict[TopicPartition, Range] = {}
    for commit in commits:
        for tp, part in commit.partitions.items():
            partitions[tp] = partitions[tp].joined(part) if tp in partitions else part
    runs = tuple(run for commit in commits for run in commit.runs)
    kept = -1 if any(commit.kept < 0 for commit in commits) else sum(commit.kept for commit in commits)
    return NightCommit(
        plan.night, plan.run, partitions, plan.missing, plan.topic_id, plan.nights, plan.id, plan.epochs, plan.decided, runs,
        kept=kept,
    )  # fmt: skip


def check_committed(table: Storage, commit: NightCommit) -> None:
    """Compare a committed night with the plan of its run. Raises Refused with the first difference."""
    plan = load(table, commit.run)
    if plan is None:
        return
    if plan.night != commit.night:
        raise Refused(f"run {commit.run} was planned for night {plan.night}, the table has it as night {commit.night}")
    for tp in sorted(set(plan.ranges) | set(commit.partitions)):
        part = commit.partitions.get(tp)
        done = None if part is None else (part.start, part.end)
        if plan.ranges.get(tp) != done:
            raise Refused(
                f"night {commit.night}: the plan `{table}/{name(commit.run)}` says {_words(plan.ranges.get(tp))} for"
                f" {tp[0]}-{tp[1]}, the table committed {_words(done)}; nothing was changed: `--reload` loads what the table"
                " committed again"
            )


def _words(span: tuple[int, int] | None) -> str:
    """A range as messages name it."""
    return "nothing" if span is None else f"offsets from {span[0]} up to (not with) {span[1]}"
