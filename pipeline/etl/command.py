"""`penstock etl`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock import log
from penstock.failpoints import arm_from_environment
from penstock.pipeline import job
from penstock.pipeline.etl.children import CHILDREN
from penstock.pipeline.etl.cut import Clock
from penstock.pipeline.etl.errors import EtlError, Incomplete
from penstock.pipeline.etl.interrupt import Interrupted, attend, leave
from penstock.pipeline.etl.jvm import JVM
from penstock.pipeline.etl.load import Load, Outcome, WhenIncomplete
from penstock.pipeline.etl.night import Night, parse_night, parse_nights, time_zone

DID = {"loaded": "loaded", "reloaded": "loaded again", "already": "is in the table already"}


def _default(name: str) -> str:
    """The end of an option's help: which property it overrides, and what that is when nobody sets it."""
    return f"Default: `penstock.etl.{name}`, which is {job.SCHEMA.properties[f'penstock.etl.{name}'].default} unless set."


class IncompleteFailure(click.ClickException):
    """An incomplete night as the command line shows it."""

    exit_code = 3


@click.command("etl")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The pipeline's file.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a property.")
@click.option("--night", metavar="DATE", help="The night to load, YYYY-MM-DD or `yesterday` (in its time zone).")
@click.option("--nights", metavar="A..B", help="Several nights, oldest first, with one start of Spark.")
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
    reload: bool,
    covering: bool,
    incomplete: WhenIncomplete | None,
    wait_seconds: float | None,
    clock: Clock | None,
    as_json: bool,
) -> None:
    """Load nights of the deduplicated topic into the table, each in one commit.

    A night is what has arrived since the night before it was loaded, once its day is over in `penstock.etl.time.zone`
    and all that the sources held by then has come through; a night that is loaded late takes all that has arrived until
    then. `event_day` is another thing: the column, and partition, of the event's own day, whichever night brings it.

    A night that is in the table already is left alone. One that would take others along, since nights between it and the
    table's last one are missing, is refused without --covering. Exit codes: 0 done, 1 refused or failed, 2 wrong
    configuration, 3 incomplete, 130 interrupted (Ctrl-C).

    Example: penstock etl --config pipeline.properties --night 2013-01-01
    """  # fmt: skip
    log.setup()
    if (night is None) == (nights is None):
        raise click.UsageError("give either --night or --nights")
    config = job.load(path, overrides, "etl")
    config.secrets()  # One that isn't there is said before Spark starts.
    zone = time_zone(config["penstock.etl.time.zone"])
    asked = [parse_night(night, zone)] if night is not None else parse_nights(nights or "")
    arm_from_environment()
    show = Show(len(asked), as_json)
    try:
        load = Load(
            config,
            clock=clock or config["penstock.etl.clock"],
            incomplete=incomplete or config["penstock.etl.incomplete"],
            wait_seconds=config["penstock.etl.wait.seconds"] if wait_seconds is None else wait_seconds,
            on_step=show.step,
        )
        with show:
            attend(lambda: _load(load, asked, show, reload=reload, covering=covering))
    except Interrupted as interrupted:
        CHILDREN.end()
        JVM.end()
        click.echo(f"penstock: interrupted: {load.left()}", err=True)
        leave(interrupted)
    except Incomplete as error:
        raise IncompleteFailure(str(error)) from None
    except EtlError as error:
        raise click.ClickException(str(error)) from None


def _load(load: Load, asked: list[Night], show: Show, *, reload: bool, covering: bool) -> None:
    try:
        load.check_begun(asked[-1])
        for one in asked:
            show.done(load.night(one, reload=reload, covering=covering))
    finally:
        try:
            load.close()
        finally:
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
            self._task = self._progress.add_task("", total=nights)

    def __enter__(self) -> Show:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
        if self._progress is not None:
            self._progress.stop()

    def step(self, words: str) -> None:
        """Say what is going on."""
        if self._over:
            return  # an interrupt has the last word
        if self._progress is not None:
            self._progress.update(self._task, description=words)
        else:
            self._log.info("%s", words)

    def done(self, outcome: Outcome) -> None:
        """Say what became of a night."""
        commit = outcome.commit
        if self._progress is not None:
            self._progress.advance(self._task)
        if self._as_json:
            document = json.loads(commit.to_json()) | {
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
        words = f"night {commit.night} {DID[outcome.did]}: {commit.rows:,} rows"
        if commit.nights:
            words += f", with those of {', '.join(commit.nights)}"
        if commit.rejects:
            words += f", {commit.rejects:,} rejects"
        if commit.missing:
            words += f"; marked incomplete: {'; '.join(commit.missing)}"
        print(f"{words} (run {commit.run}, {outcome.seconds:.1f} s)", flush=True)
