"""`penstock etl`."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock import log
from penstock.failpoints import arm_from_environment
from penstock.pipeline import job
from penstock.pipeline.etl.children import CHILDREN
from penstock.pipeline.etl.clusterview import SHORT_TIMEOUTS
from penstock.pipeline.etl.cut import Clock
from penstock.pipeline.etl.engine import Engine
from penstock.pipeline.etl.errors import EtlError, Incomplete
from penstock.pipeline.etl.follow import Follower
from penstock.pipeline.etl.interrupt import Interrupted, attend, leave
from penstock.pipeline.etl.jvm import JVM
from penstock.pipeline.etl.load import LONGEST_PAUSE_S, Load, NotYet, Outcome, WhenIncomplete
from penstock.pipeline.etl.night import YESTERDAY, Night, parse_night, parse_nights, time_zone
from penstock.pipeline.options import PIPELINE_FILE, SET, Timeouts, timeout_option

DID = {"loaded": "loaded", "reloaded": "loaded again", "already": "is in the table already"}


def _default(name: str) -> str:
    """The end of an option's help: which property it overrides, and what that is when nobody sets it."""
    return f"Default: `penstock.etl.{name}`, which is {job.SCHEMA.properties[f'penstock.etl.{name}'].default} unless set."


class IncompleteFailure(click.ClickException):
    """An incomplete night as the command line shows it."""

    exit_code = 3


@click.command("etl")
@PIPELINE_FILE
@SET
@click.option("--night", metavar="DATE", help="The night to load, YYYY-MM-DD or `yesterday` (in its time zone).")
@click.option("--nights", metavar="A..B", help="Several nights, oldest first, with one start of Spark.")
@click.option(
    "--follow",
    is_flag=True,
    help="Every night after its end, for ever: from each table's last one on; an empty table's first is --night, or yesterday.",
)
@click.option("--until", metavar="DATE", help="With --follow: end once this night is loaded.")
@click.option("--table", "tables", multiple=True, metavar="NAME", help="A table of `etl.NAME.table`; again for others. [all]")
@click.option("--reload", is_flag=True, help="Load the committed offsets of the night again and replace its rows.")
@click.option(
    "--covering",
    is_flag=True,
    help="Let the night take the missing nights before it along, in its commit; each gets its ready marker.",
)
@click.option(
    "--incomplete",
    type=click.Choice(["wait", "fail", "mark"]),
    help=f"While a night has not all arrived: wait, fail, or load it and mark in it what is missing. {_default('incomplete')}",
)
@timeout_option(SHORT_TIMEOUTS.timeout_s)
@click.option("--wait-seconds", type=click.FloatRange(min=0), help=f"Limit of waiting. {_default('wait.seconds')}")
@click.option(
    "--clock",
    type=click.Choice(["wall", "records"]),
    help=f"A night is over by the wall clock, or (replaying history) by the sources' record timestamps. {_default('clock')}",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each night; a range ends before its `end`.")
def command(
    path: Path,
    overrides: tuple[str, ...],
    night: str | None,
    nights: str | None,
    follow: bool,
    until: str | None,
    tables: tuple[str, ...],
    reload: bool,
    covering: bool,
    incomplete: WhenIncomplete | None,
    timeouts: Timeouts,
    wait_seconds: float | None,
    clock: Clock | None,
    as_json: bool,
) -> None:
    """Load nights of a topic (`penstock.etl.topic`, dedupe's output unless set) into the table, each in one commit.

    A night is what has arrived since the night before it was loaded, once its day is over in `penstock.etl.time.zone`
    and all that the sources held by then has come through; a night that is loaded late takes all that has arrived until
    then. `event_day` is another thing: the column, and partition, of the event's own day, whichever night brings it.

    A night that is in the table already is left alone. One that would take others along, since nights between it and the
    table's last one are missing, is refused without --covering. Of several tables each is loaded by itself: what one refuses
    doesn't stop the others. Exit codes: 0 done, 1 refused or failed, 2 wrong configuration, 3 incomplete (and nothing worse),
    130 interrupted (Ctrl-C).

    Example: penstock etl --config pipeline.properties --night 2013-01-01
    """  # fmt: skip
    log.setup()
    _check_asked(night, nights, follow, until, reload=reload or covering)
    config = job.load(path, overrides, "etl")
    job.check_tables(config)
    zone = time_zone(config["penstock.etl.time.zone"])
    chosen = {name: job.one_table(config, name) for name in dict.fromkeys(tables) or job.table_names(config)}
    first = parse_night(night or YESTERDAY, zone)
    asked = parse_nights(nights) if nights is not None else [first]
    last = None if until is None else parse_night(until, zone)
    arm_from_environment()
    show = Show(0 if follow else len(asked) * len(chosen), as_json)
    engine = Engine(config, str(zone), show.step)
    loads: dict[str, Load] = {}
    try:
        for name, own in chosen.items():
            loads[name] = Load(
                own,
                clock=clock or config["penstock.etl.clock"],
                incomplete=incomplete or config["penstock.etl.incomplete"],
                wait_seconds=config["penstock.etl.wait.seconds"] if wait_seconds is None else wait_seconds,
                on_step=partial(show.step, table=name),
                engine=engine,
                ahead=not follow,
                timeouts=timeouts,
                name=name,
            )
        run = Nights(loads, engine, show)
        with show:
            if follow:
                retry_s = config["penstock.etl.retry.backoff.ms"] / 1000
                attend(lambda: run.follow(first, last, retry_s))
            else:
                attend(lambda: run.load(asked, reload=reload, covering=covering))
    except Interrupted as interrupted:
        CHILDREN.end()
        JVM.end()
        click.echo(f"penstock: interrupted: {'; '.join(dict.fromkeys(_left(loads)))}", err=True)
        leave(interrupted)
    except Incomplete as error:
        raise IncompleteFailure(str(error)) from None
    except EtlError as error:
        raise click.ClickException(str(error)) from None


def _check_asked(night: str | None, nights: str | None, follow: bool, until: str | None, *, reload: bool) -> None:
    """See that the options say one thing. Raises UsageError."""
    if nights is not None and (follow or night is not None):
        raise click.UsageError("give one of --night, --nights and --follow")
    if not follow and night is None and nights is None:
        raise click.UsageError("give --night, --nights or --follow")
    if until is not None and not follow:
        raise click.UsageError("--until says how far to --follow")
    if follow and reload:
        raise click.UsageError("--follow takes each night as it comes: load this one by --night first")


def _left(loads: dict[str, Load]) -> Iterator[str]:
    for name, load in loads.items():
        yield f"table {name}: {load.left()}" if name else load.left()


@dataclass(frozen=True)
class Nights:
    """The work of the command: nights of some tables, by name, with one Spark."""

    loads: dict[str, Load]
    engine: Engine
    show: Show

    def load(self, asked: list[Night], *, reload: bool, covering: bool) -> None:
        """Load nights, each of all tables; those that are complete first. Raises EtlError: the only failure, or all in one."""
        failed: dict[str, EtlError] = {}
        try:
            next(iter(self.loads.values())).check_begun(asked[-1])
            for night in asked:
                left = deque(name for name in self.loads if name not in failed)
                waited = 0  # how many in turn have had nothing to load
                while left:
                    name = left.popleft()
                    try:
                        outcome = self.loads[name].night(night, reload=reload, covering=covering, at_once=len(left) > 0)
                        self.show.done(outcome, name)
                        waited = 0
                    except NotYet:
                        left.append(name)
                        waited += 1
                        if waited >= len(left):
                            time.sleep(LONGEST_PAUSE_S)
                            waited = 0
                    except EtlError as error:
                        if len(self.loads) == 1:
                            raise
                        failed[name] = error
                        self.show.failed(name, error)
                        if JVM.gone():
                            self.engine.stop()
        finally:
            self._close()
        if failed:
            words = f"{len(failed)} of {len(self.loads)} tables were not loaded: {job.words_for_tables(failed)}"
            if all(isinstance(error, Incomplete) for error in failed.values()):
                raise IncompleteFailure(words)
            raise EtlError(words)

    def follow(self, first: Night, until: Night | None, retry_s: float) -> None:
        """Load every night after its end."""
        show = self.show
        follower = Follower(
            self.loads, self.engine, first, until, retry_s,
            on_done=lambda name, outcome: show.done(outcome, name), on_failure=show.failed, on_step=show.step,
        )  # fmt: skip
        try:
            follower.run()
        finally:
            self._close()

    def _close(self) -> None:
        try:
            for load in self.loads.values():
                load.close()
        finally:
            self.engine.stop()
            JVM.end()
            CHILDREN.end()


class Show:
    """Progress for people on standard error, the answer on standard output."""

    def __init__(self, nights: int, as_json: bool) -> None:
        self._as_json = as_json
        self._over = False
        self._log = log.get(__name__)
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            columns = (
                TextColumn("nights"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("", total=nights or None)

    def __enter__(self) -> Show:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
        if self._progress is not None:
            self._progress.stop()

    def step(self, words: str, table: str = "") -> None:
        """Say what is going on."""
        if self._over:
            return  # an interrupt has the last word
        words = f"{table}: {words}" if table else words
        if self._progress is not None:
            self._progress.update(self._task, description=words)
        else:
            self._log.info("%s", words)

    def failed(self, table: str, error: EtlError) -> None:
        """Say why a table's night is not loaded, where the command goes on."""
        click.echo(f"penstock: {f'table {table}: ' if table else ''}{error}", err=True)

    def done(self, outcome: Outcome, table: str = "") -> None:
        """Say what became of a night."""
        commit = outcome.commit
        if self._progress is not None:
            self._progress.advance(self._task)
        if self._as_json:
            document = json.loads(commit.to_json()) | {
                "table": table,
                "did": outcome.did,
                "seconds": round(outcome.seconds, 3),
            }
            document["ranges"] = [
                {"topic": topic, "partition": partition} | asdict(part)
                for (topic, partition), part in sorted(commit.partitions.items())
            ]
            document |= {"records": commit.records, "rows": commit.rows, "rejects": commit.rejects}
            print(json.dumps(document), flush=True)
            return
        words = f"{f'table {table}: ' if table else ''}night {commit.night} {DID[outcome.did]}: {commit.rows:,} rows"
        if commit.nights:
            words += f", with those of {', '.join(commit.nights)}"
        if commit.rejects:
            words += f", {commit.rejects:,} rejects"
        if commit.missing:
            words += f"; marked incomplete: {'; '.join(commit.missing)}"
        print(f"{words} (run {commit.run}, {outcome.seconds:.1f} s)", flush=True)
