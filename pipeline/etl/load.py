"""The load of nights, in the order that makes each of them happen exactly once.

Per night: plan (persisted), rows written to files that nobody sees yet, rejects committed to their own
table under the run number, the one commit of the main table that decides, then the ready marker. A process
that dies anywhere in between is followed by one that finds the plan and goes through the same steps with
the same run number.

One asyncio loop does all of it in this order. It awaits the clusters; what blocks - Spark, Delta, files - runs in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fcntl
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock import failpoints, log
from penstock.config import Config
from penstock.errors import KafkaError, os_error_text
from penstock.hints import quoted
from penstock.pipeline import job
from penstock.pipeline.etl import declared, events, fitting, places, plan, ready, rejects, session, table
from penstock.pipeline.etl.changes import are_deleted, deleted_rows
from penstock.pipeline.etl.clusterview import SHORT_TIMEOUTS
from penstock.pipeline.etl.cut import Clock, Cut, Goals
from penstock.pipeline.etl.engine import Engine
from penstock.pipeline.etl.errors import EtlError, Incomplete, Refused
from penstock.pipeline.etl.ledger import NightCommit, Status, TopicPartition
from penstock.pipeline.etl.night import (
    COVERED_MAX,
    NIGHTS_MAX,
    YESTERDAY,
    Consent,
    Night,
    WhenIncomplete,
    between,
    parse_night,
    time_zone,
)
from penstock.pipeline.etl.rowcounts import reject_counts
from penstock.pipeline.etl.run import Run
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.tablenotes import TableNote
from penstock.pipeline.options import Timeouts

TABLE_NOTED = failpoints.declare("etl.table_noted", "the night is committed, and the aggregate notes its run")
REJECTS_CLEANED = failpoints.declare("etl.rejects_cleaned", "rejects of runs that don't count are removed")

# What the rejects' table takes of a night's batches that can't be opened; the others are there without their bytes.
CORRUPT_BYTES_KEPT = 64 << 20

NO_CONSENT = Consent()
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
SAID_EVERY_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """What a call did with a night: `loaded`, `reloaded`, or `already` there; or `joined` to it what was taken back."""

    commit: NightCommit
    did: Literal["loaded", "reloaded", "already", "joined"]
    seconds: float


class NotYet(Exception):
    """The night has not all arrived, and may be waited for: another call looks again, for the same goals."""


class Wait:
    """The wait for a night: what has to come through, until when, and what was said of it last."""

    def __init__(self, night: Night, goals: Goals, seconds: float) -> None:
        self.night = night
        self.goals = goals
        self.deadline = time.monotonic() + seconds
        self.pause_s = FIRST_PAUSE_S
        self.said, self.say_again = "", 0.0


class Load:
    """Loads nights of one configuration; Spark is started when it is first needed, or while a night is waited for."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        incomplete: WhenIncomplete,
        wait_seconds: float,
        on_step: Callable[[str], None] = lambda words: None,
        spark: Any = None,
        engine: Engine | None = None,
        ahead: bool = True,
        timeouts: Timeouts = SHORT_TIMEOUTS,
        name: str = "",
    ) -> None:
        """`config` has the table's properties under the plain keys, `name` is what the file calls it. `on_step` is told in few
        words what is going on. A given `spark` is used and left running, a given `engine` is shared with other tables; `ahead`
        starts it while the night is waited for. `timeouts`: those of each question to a cluster.

        Raises ConfigError.
        """
        self._config = config
        self._table = places.at(config["penstock.etl.table"], config)
        self._rejects = places.at(places.rejects(config), config)
        self._keys = job.key_of(name, "")
        self._declared = declared.parse(
            config["penstock.etl.schema"], config["penstock.etl.event.day"], config["penstock.etl.record.columns"], self._keys
        )
        self._zone = time_zone(config["penstock.etl.time.zone"])
        self._name = name
        self._clock = clock
        self._incomplete = incomplete
        self._wait_seconds = wait_seconds
        self._on_step = on_step
        self._cut = Cut(config, clock, self._zone, timeouts)
        self._engine = engine or Engine(config, str(self._zone), on_step, spark)
        self._shares_engine = engine is not None
        self._ahead = ahead
        self._validated = False
        self.newest: Night | None = None
        """The newest night that the table has, as far as it was seen."""
        self.waits = False
        """Whether a night is over and waited for."""
        self._begun: tuple[Night, bool, int] | None = None
        self._wait: Wait | None = None
        self._log = log.get(__name__)

    async def close(self) -> None:
        """Close the connections, and stop Spark unless it is shared."""
        await self._cut.close()
        if not self._shares_engine:
            await asyncio.to_thread(self._engine.stop)

    def check_begun(self, night: Night) -> None:
        """See that a night is not in the future. Raises Refused."""
        today = datetime.datetime.now(self._zone).date()
        if night.date > today:
            raise Refused(f"night {night} has not begun: it is {today} in {self._zone}")

    def over_in_s(self, night: Night) -> float:
        """How long a night still goes on, where the wall clock says when it is over; else and after its end 0."""
        return self._cut.over_in_ms(self._cut.goals(night)) / 1000

    async def next_night(self, first: Night) -> tuple[Night, bool]:
        """The night that the table takes next, `first` if it has none yet, and whether that is a reload that was begun.

        Raises EtlError.
        """
        with _failures_as_words():
            status = await asyncio.to_thread(table.status, self._table)
            self._see(status)
            pending = await asyncio.to_thread(plan.pending, self._table, status)
            self._check_ahead(status, pending)
            if pending is not None:
                return parse_night(pending.night), pending.reload
            return (parse_night(status.nights[-1].night).next if status.nights else first), False

    async def night(
        self,
        night: Night,
        *,
        reload: bool = False,
        consent: Consent = NO_CONSENT,
        at_once: bool = False,
    ) -> Outcome:
        """Load a night, or see that it is loaded.

        Raises Refused, Incomplete or EtlError; the table is as it was then, unless the text says that the night is loaded. With
        `at_once` it raises NotYet where it would wait.
        """
        began = time.monotonic()
        with _failures_as_words(), _lock(self._table):
            status, pending = await asyncio.to_thread(self._begin, night, reload)
            self._see(status)
            commit = status.night(str(night))
            if not reload:
                self._check_ahead(status, pending)
            did: Literal["loaded", "reloaded", "already"] = "already"
            if commit is None or reload:
                waits = False
                try:
                    made = await self._plan(night, status, pending, reload, consent, at_once)
                except NotYet:
                    waits = self.waits
                    raise
                finally:
                    self.waits = waits
                commit, did = await self._run_around_rot(made), "reloaded" if made.reload else "loaded"
                await self._note(commit)
            elif consent.accept_table or consent.from_earliest or commit.decided:
                # The word of a person may not have been noted after the commit.
                await self._note(max(status.nights, key=lambda each: each.run))
            await asyncio.to_thread(self._finish, commit)
            self.newest = max(parse_night(commit.night), self.newest or parse_night(commit.night))
            return Outcome(commit, did, time.monotonic() - began)

    def _see(self, status: Status) -> None:
        self.newest = parse_night(status.nights[-1].night) if status.nights else None

    async def take_back(self) -> Outcome | None:
        """Take back the nights that the table has and that are not over: their rows become part of the night before them, and
        the nights can be loaded once they are over. None: there are no such nights.

        Raises Refused or EtlError.
        """
        began = time.monotonic()
        with _failures_as_words(), _lock(self._table):
            status = await asyncio.to_thread(table.status, self._table)
            pending = await asyncio.to_thread(plan.pending, self._table, status)
            if pending is None or not pending.takes_back:
                # A clock that is behind would take back nights that are over.
                await self._cut.clock_ahead_ms()
                if pending is not None and (pending.reload or not self._is_ahead(pending.night)):
                    raise self._unfinished(pending)
                if pending is not None:
                    await asyncio.to_thread(self._table.remove, plan.name(pending.run))
                made = self._take_back_plan(status)
                if made is None:
                    if status.nights:
                        await asyncio.to_thread(self._finish, status.nights[-1])
                    return None
                await asyncio.to_thread(plan.persist, self._table, made)
            else:
                made = pending
            self._begun = parse_night(made.night), True, status.run
            commit = plan.joined(made, status)
            assert commit is not None  # the plan agrees with the table
            with session.failures_as_words(f"night {made.night}"):
                spark = await asyncio.to_thread(self._started)
                run = await asyncio.to_thread(Run, spark, self._table, self._rejects, made, self._declared)
                await asyncio.to_thread(run.join, commit)
            await self._note(commit)
            await asyncio.to_thread(self._finish, commit)
            self._see(await asyncio.to_thread(table.status, self._table))
            return Outcome(commit, "joined", time.monotonic() - began)

    def left(self) -> str:
        """What an interrupt left of the night that was loaded then; said once Spark is gone."""
        if self._begun is None:
            return "no night was begun; run it again"
        night, reload, run = self._begun
        try:
            status = table.status(self._table)
        except EtlError:
            return f"whether night {night} is loaded can't be read; run it again"
        if status.run > run or (status.night(str(night)) is not None and not reload):
            return f"night {night} is loaded; run it again to finish"
        return f"night {night} isn't loaded{' again' if reload else ''}; run it again"

    # The plan

    def _is_ahead(self, night: str) -> bool:
        """Whether a night isn't over by this machine's clock; where the records say when one is, whether it hasn't begun."""
        date = parse_night(night)
        if self._clock == "wall":
            return self._cut.over_in_ms(self._cut.goals(date)) > 0
        return date.date > datetime.datetime.now(self._zone).date()

    def _check_ahead(self, status: Status, pending: plan.Plan | None) -> None:
        """See that the table has no night, and no plan of one, that isn't over: until its end no run would load what arrives.

        Raises Refused.
        """
        if pending is not None and pending.takes_back:
            raise Refused(
                f"the nights {', '.join(pending.takes_back)} are being taken back (run {pending.run})\n"
                f"hint: {self._command('--take-back')} finishes that"
            )
        known = [(commit.night, commit.run) for commit in status.nights] + ([(pending.night, pending.run)] if pending else [])
        ahead = [f"{night} (run {run})" for night, run in known if self._is_ahead(night)]
        if ahead:
            now = datetime.datetime.now(self._zone).isoformat(" ", "seconds")
            raise Refused(
                f"night {', '.join(ahead)} is in `{self._table}` or planned for it, and is not over: by this machine's clock it"
                f" is {now}, and then or now that was wrong; nothing is loaded until this is settled\n"
                f"hint: if this clock is right, {self._command('--take-back')} lets the rows count for the night before"
            )

    def _command(self, *words: object) -> str:
        """A command line of `penstock etl` for this table, as messages name it."""
        table = ["--table", self._name] if len(job.table_names(self._config)) > 1 else []  # no other takes a person's word
        return "`" + " ".join(map(quoted, ["penstock", "etl", "--config", "FILE", *table, *words])) + "`"

    def _unfinished(self, pending: plan.Plan) -> Refused:
        words = (
            ("--take-back",) if pending.takes_back else ("--night", pending.night, *(("--reload",) if pending.reload else ()))
        )
        return Refused(
            f"night {pending.night} was begun (run {pending.run}) and not finished: that comes first\n"
            f"hint: {self._command(*words)}"
        )

    def _take_back_plan(self, status: Status) -> plan.Plan | None:
        """The plan that takes back the nights that aren't over, or None."""
        ahead = [commit for commit in status.nights if self._is_ahead(commit.night)]
        if not ahead:
            return None
        names = tuple(commit.night for commit in ahead)
        decided = f"took back {', '.join(names)}, loaded before their end"
        before = next((commit for commit in reversed(status.nights) if commit.night < names[0]), None)
        if before is None:
            # The table has no night yet that is over: the last one that is gets the rows, and can't be called complete.
            last = parse_night(YESTERDAY, self._zone)
            missing = (f"it was loaded as night {names[0]}, by a clock that was ahead", *ahead[-1].missing)
            before = NightCommit(str(last), 0, {}, missing)
        found = plan.Plan(
            before.night, status.run + 1, {}, missing=before.missing, topic_id=status.topic_id, nights=before.nights,
            epochs=status.epochs, decided=(*before.decided, decided), takes_back=names,
        )  # fmt: skip
        commit = plan.joined(found, status)
        assert commit is not None
        return replace(found, ranges={tp: (part.start, part.end) for tp, part in commit.partitions.items()})

    def _begin(self, night: Night, reload: bool) -> tuple[Status, plan.Plan | None]:
        """The table as it is, and the plan of its next run that a process which died has left. Raises Refused where what was
        declared, or the commit of this night, doesn't fit them."""
        status = table.status(self._table)
        self._begun = night, reload, status.run
        fitting.check_fits(self._declared, status.schema, str(self._table))
        if status.topic not in ("", self._cut.topic):
            raise Refused(
                f"the table `{self._table}` is loaded from `{status.topic}`, and the file's table from `{self._cut.topic}`\n"
                f"hint: set `{self._keys}topic={status.topic}`, with `topics` or dedupe's topics to match, or"
                f" `{self._keys}table` to another place"
            )
        rejects.check_owner(self._rejects, self._table, f"{self._keys}rejects")
        kept = sum(commit.rejects for commit in status.nights)
        if kept and not self._rejects.names(table.LOG):
            self._log.warning(
                "the table's nights have %d rejects, and no table of rejects is at `%s`: is a disk not mounted? `penstock "
                "audit` names the nights, and a `--reload` of each brings its rejects back",
                *(kept, self._rejects),
            )
        pending = plan.pending(self._table, status)
        commit = status.night(str(night))
        if commit is not None and not reload:
            plan.check_committed(self._table, commit)
        return status, pending

    async def _plan(
        self, night: Night, status: Status, pending: plan.Plan | None, reload: bool, consent: Consent, at_once: bool
    ) -> plan.Plan:
        if pending is not None:
            if pending.night != str(night) or pending.reload != reload:
                raise self._unfinished(pending)
            if consent.deleted is not None and pending.without_deleted != (consent.deleted == "keep"):
                raise Refused(
                    f"the reload of night {pending.night} was begun with the other choice of `--deleted`: finish it with "
                    "`--reload` alone"
                )
            await self._cut.check_still_there(pending.ranges, pending.topic_id, pending.epochs)
            return pending
        made = await (self._reload_plan(night, status, consent) if reload else self._next_plan(night, status, consent, at_once))
        await asyncio.to_thread(self._persist, made)
        return made

    async def _reload_plan(self, night: Night, status: Status, consent: Consent) -> plan.Plan:
        deleted = consent.deleted
        commit = status.night(str(night))
        if commit is None:
            raise Refused(f"night {night} is not in the table, so there is nothing to reload")
        if commit.night != str(night):
            raise Refused(f"night {night} was loaded with night {commit.night}: reload that one")
        ranges = {tp: (part.start, part.end) for tp, part in commit.partitions.items()}
        await self._cut.check_still_there(ranges, commit.topic_id, commit.epochs)
        await self._check_noted(night, status, consent)
        words = await asyncio.to_thread(are_deleted, self._table, status, commit)
        if words and deleted is None:
            raise Refused(
                f"rows of night {night} were deleted on purpose, and a reload would bring them back: {'; '.join(words)}\n"
                f"hint: {self._command('--night', night, '--reload', '--deleted', 'keep')} lets them stay deleted, and"
                " `--deleted restore` brings them back"
            )
        if words and deleted == "keep":
            await asyncio.to_thread(deleted_rows, self._table, status, commit)
            await asyncio.to_thread(self._check_rejects, commit)
        return plan.Plan(
            str(night), status.run + 1, ranges, reload=True, missing=commit.missing, topic_id=commit.topic_id,
            nights=commit.nights, epochs=commit.epochs, without_deleted=bool(words) and deleted == "keep",
        )  # fmt: skip

    def _check_rejects(self, commit: NightCommit) -> None:
        """See that a night's rejects are there: a reload that leaves deleted rows out knows them by those. Raises EtlError."""
        found = reject_counts(self._rejects)
        there = sum(found.get(run, 0) for run in commit.runs)
        wanted = commit.kept if commit.kept >= 0 else min(1, commit.rejects)
        if there < wanted:
            raise Refused(
                f"night {commit.night} has {wanted:,} rejects, and `{self._rejects}` keeps {there:,} of them: a reload that "
                "leaves deleted rows out can't tell the others from those\nhint: mount its disk, or correct "
                f"`{self._keys}rejects`; `--deleted restore` loads all of the night"
            )

    async def _next_plan(self, night: Night, status: Status, consent: Consent, at_once: bool) -> plan.Plan:
        """The plan of a night, with those before it that are missing as far as a person consents."""
        skipped = _skipped(night, status)
        decided = self._check_skipped(night, skipped, consent) if skipped else []
        self.check_begun(night)
        missing = await self._until_complete(night, at_once)
        decided += await self._check_noted(night, status, consent)
        ranges = await self._cut.ranges(status)
        decided += [] if status.ends else self._check_begin(night, ranges.offsets, consent)
        return plan.Plan(
            str(night), status.run + 1, ranges.offsets, missing=tuple(missing),
            topic_id=ranges.topic_id, nights=tuple(map(str, skipped)), epochs=ranges.epochs, decided=tuple(decided),
        )  # fmt: skip

    async def _check_noted(self, night: Night, status: Status, consent: Consent) -> list[str]:
        """See that the table that is there is the one that the aggregate notes; what a person has decided about it. Raises
        EtlError."""
        note = await self._cut.notes.of(self._table)
        if note is None:
            if status.run:
                self._on_step(f"the aggregate noted nothing of `{self._table}` so far: it will note run {status.run + 1}")
            return []
        found = f"run {status.run}" if status.run else "no table"
        if note.run > status.run:
            words = f"the aggregate notes run {note.run} (night {note.night}) of `{self._table}`, and there is {found}"
        elif status.id != note.table_id:
            words = f"`{self._table}` is another table (id {status.id}) than the aggregate notes (id {note.table_id})"
        else:
            return []
        if consent.accept_table or (consent.from_earliest and not status.run):
            return [f"goes on with what is there: {words}"]
        way = "--accept-table" if status.run else "--from-earliest"
        raise Refused(
            f"{words}: it is lost, exchanged or an older copy\nhint: mount its disk, or correct `{self._keys}table`; if the "
            f"one that is there is to go on, {self._command('--night', night, way)}"
        )

    def _check_begin(self, night: Night, ranges: Mapping[TopicPartition, tuple[int, int]], consent: Consent) -> list[str]:
        """See that a new table begins with its topic's first records, or that a person says where. Raises Refused."""
        late = [f"{topic}-{partition} at {start}" for (topic, partition), (start, _) in sorted(ranges.items()) if start > 0]
        if late and not consent.from_earliest:
            raise Refused(
                f"`{self._table}` has no nights, and its topic no longer has its first records ({', '.join(late)}): nobody"
                f" knows whether they were loaded\nhint: mount its disk, or correct `{self._keys}table`; if the table is new,"
                f" {self._command('--night', night, '--from-earliest')}"
            )
        return [f"the table begins where its topic did by then: {', '.join(late)}"] if late else []

    async def _note(self, commit: NightCommit) -> None:
        """Let the aggregate note the table's run. The table has what counts: without the note the next load writes it."""
        try:
            table_id = (await asyncio.to_thread(table.status, self._table)).id
            await self._cut.notes.note(self._table, TableNote(commit.run, commit.night, table_id))
        except EtlError as error:
            self._log.warning(
                "the aggregate doesn't note run %d of `%s` before the next night: %s", commit.run, self._table, error
            )
        else:
            failpoints.failpoint(TABLE_NOTED)

    def _check_skipped(self, night: Night, skipped: list[Night], consent: Consent) -> list[str]:
        """See that a night may take those along; what a person has decided about it. Raises Refused."""
        gap = str(skipped[0]) if len(skipped) == 1 else f"{skipped[0]}..{skipped[-1]}"
        if not consent.covering and consent.covering_since is None:
            nights = f"{skipped[0]}..{night}"
            raise Refused(
                f"night {gap} is not in the table yet, and what arrived in it would become part of night {night}: load"
                f" `--nights {quoted(nights)}`, or all of it as one commit with `--night {quoted(night)} --covering`"
            )
        if consent.covering_since == skipped[0]:
            return [f"covers {gap}, by a person's word"]
        if consent.covering_since is not None or len(skipped) > COVERED_MAX:
            raise Refused(
                f"night {night} would take {len(skipped)} nights along ({gap}), and a person has to say that they are missing:"
                f" a clock that is ahead asks for as many\nhint: if nothing was loaded for so long,"
                f" {self._command('--night', night, '--covering-since', skipped[0])}"
            )
        return []

    async def _until_complete(self, night: Night, at_once: bool) -> list[str]:
        """Wait as configured until the night has arrived; what is missing all the same (only with `mark`). Raises Incomplete,
        or NotYet instead of a pause."""
        wait = self._wait
        if wait is None or wait.night != night:
            wait = self._wait = Wait(night, self._cut.goals(night), self._wait_seconds)
        goals = wait.goals
        while True:
            missing = await self._cut.missing(goals, everywhere=self._incomplete == "mark")
            # What goes on can't be marked as done: only what should be there and is not.
            if not missing or (self._incomplete == "mark" and self._cut.is_over(goals)):
                return missing
            # A night that goes on beyond the limit is not waited for at all.
            over_s = self._cut.over_in_ms(goals) / 1000
            if self._incomplete != "wait" or time.monotonic() + max(wait.pause_s, over_s) > wait.deadline:
                self._wait = None
                way_on = ", or load what is there with `--incomplete mark`" if self._cut.is_over(goals) else ""
                raise Incomplete(f"night {night} is incomplete: {'; '.join(missing)}; run it again later{way_on}")
            # Positions that move on are no news of their own.
            kind, now = re.sub(r"\d+", "", missing[0]), time.monotonic()
            if kind != wait.said or now >= wait.say_again:
                wait.said, wait.say_again = kind, now + SAID_EVERY_S
                more = f" (and {len(missing) - 1} more like it)" if len(missing) > 1 else ""
                self._on_step(f"{night} waits, at most {wait.deadline - now:.0f} seconds more: {missing[0]}{more}")
                # Time that would be spent anyway; how many records there will be isn't known yet.
                if self._ahead:
                    self._engine.begin(self._table.workspace / "spark", session.SMALL_OFFSETS)
            self.waits = self._cut.is_over(goals)
            if at_once:
                raise NotYet
            await asyncio.sleep(wait.pause_s)
            wait.pause_s = min(LONGEST_PAUSE_S, wait.pause_s * 1.5)

    def _persist(self, made: plan.Plan) -> None:
        """Write the plan down, once Spark has checked what was declared: a plan that stands has to be one that can be finished.
        Raises EtlError."""
        if not self._validated:
            spark = self._started(made.offsets)
            with session.failures_as_words(f"`{self._keys}schema` or `{self._keys}event.day`"):
                events.parse(events.none(spark, self._declared), self._declared)
            self._validated = True
        plan.persist(self._table, made)

    # The run

    def _started(self, offsets: int = 0) -> Any:
        """Spark; the first call starts it, for a night of so many offsets."""
        return self._engine.started(self._table.workspace / "spark", offsets)

    async def _run_around_rot(self, made: plan.Plan) -> NightCommit:
        """Load a persisted plan. Batches that Spark can't read are found and left out, for the rejects."""
        try:
            return await self._run(made)
        except EtlError as error:
            if not session.came_from_batches(error):
                raise
            self._on_step(f"{made.night} looks for batches that can't be read")
            found = await self._cut.corrupt(made.ranges)
            if set(found) <= set(made.corrupt):
                raise
        for batch in found:
            self._log.error(
                "the batch at offset %d of %s-%d can't be read: its %d records are rejected",
                *(batch.start, batch.topic, batch.partition, batch.records),
            )
        made = replace(made, corrupt=found)
        await asyncio.to_thread(plan.replace, self._table, made)
        return await self._run(made)

    async def _run(self, made: plan.Plan) -> NightCommit:
        """Load a persisted plan."""
        with session.failures_as_words(f"night {made.night}"):
            spark = await asyncio.to_thread(self._started, made.offsets)
            self._on_step(f"{made.night} reads {made.offsets:,} offsets")
            run = await asyncio.to_thread(Run, spark, self._table, self._rejects, made, self._declared)
            await asyncio.to_thread(run.write, self._config["bootstrap.servers"])
            if run.night.rejects:
                self._on_step(f"{made.night} keeps {run.rejects:,} rejects")
                corrupt = await self._cut.raw_bytes(made.corrupt, CORRUPT_BYTES_KEPT)
                await asyncio.to_thread(self._claim_rejects)
                await asyncio.to_thread(run.keep_rejects, corrupt)
            # What was read is what was planned only if the topic wasn't made again or cut back meanwhile.
            await self._cut.check_same_log(made.ranges, made.topic_id, made.epochs)
            version = await asyncio.to_thread(run.commit)
        self._log.debug("night %s is version %d of the table", made.night, version)
        return run.night

    def _claim_rejects(self) -> None:
        rejects.claim(self._rejects, self._table, f"{self._keys}rejects")

    def _finish(self, commit: NightCommit) -> None:
        """What follows a commit and is done again by every later call: clean rejects, the ready marker. Raises EtlError."""
        try:
            self._clean_rejects_and_mark(commit)
        except EtlError as error:
            raise EtlError(
                f"night {commit.night} is loaded, and what follows isn't finished (rejects of runs that don't count go, the "
                f"ready marker comes): run it again; {error}"
            ) from error

    def _clean_rejects_and_mark(self, commit: NightCommit) -> None:
        status = table.status(self._table)
        stray = rejects.stray(self._rejects, status)
        if stray:
            self._claim_rejects()
            spark = self._started()
            with session.failures_as_words("the rejects of runs that don't count can't be removed"):
                rejects.remove(spark, self._rejects, stray)
            failpoints.failpoint(REJECTS_CLEANED)
        # Another machine may have loaded the night again meanwhile: markers are looked at once more, by what is so now.
        while ready.mark_nights(self._table, commit, lambda: table.status(self._table)):
            pass


def _skipped(night: Night, status: Status) -> list[Night]:
    """The nights between the table's last one and this one. Raises Refused when it doesn't lie behind the last."""
    if not status.nights:
        return []
    last = parse_night(status.nights[-1].night)
    if night < last:
        raise Refused(
            f"night {night} lies before {last}, which is in the table: what arrived in it was loaded with a later night"
        )
    skipped = between(last, night)
    if len(skipped) > NIGHTS_MAX:
        raise Refused(f"night {night} lies {len(skipped)} nights behind {last}, the table's last one; is it right?")
    return skipped


@contextlib.contextmanager
def _failures_as_words() -> Iterator[None]:
    """Turn what the operating system or a cluster refuses into an EtlError: it ends this table's load alone."""
    try:
        yield
    except OSError as error:
        raise EtlError(os_error_text(error)) from error
    except KafkaError as error:
        raise EtlError(str(error)) from error


@contextlib.contextmanager
def _lock(table: Storage) -> Iterator[None]:
    """Hold the table for this process. Raises Refused when another one of this machine has it."""
    table.workspace.mkdir(parents=True, exist_ok=True)
    with (table.workspace / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"another process is loading `{table}`: wait for it") from None
        yield
