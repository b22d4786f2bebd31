"""`penstock etl`."""

from __future__ import annotations

from pathlib import Path

import click

from penstock import log
from penstock.failpoints import arm_from_environment
from penstock.pipeline import job
from penstock.pipeline.etl.clusterview import SHORT_TIMEOUTS
from penstock.pipeline.etl.cut import Clock
from penstock.pipeline.etl.errors import EtlError, Incomplete
from penstock.pipeline.etl.night import (
    COVERED_MAX,
    YESTERDAY,
    Consent,
    Deleted,
    WhenIncomplete,
    parse_night,
    parse_nights,
    time_zone,
)
from penstock.pipeline.options import PIPELINE_FILE, SET, Timeouts, timeout_option


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
    "--deleted",
    type=click.Choice(["keep", "restore"]),
    help="With --reload: rows that were deleted from the table on purpose stay deleted, or come back.",
)
@click.option(
    "--covering",
    is_flag=True,
    help=f"Let the night take up to {COVERED_MAX} missing nights before it along, in its commit; each gets its marker.",
)
@click.option(
    "--covering-since",
    metavar="DATE",
    help="The same for any number of nights: the first missing one, by the word of a person who knows why nothing was loaded.",
)
@click.option(
    "--from-earliest",
    is_flag=True,
    help="Let a new table begin where its topic does by now, though that has lost its first records, or the table before it is "
    "gone.",
)
@click.option(
    "--accept-table",
    is_flag=True,
    help="Go on with the table that is there, though the aggregate notes another one, or a later run, at its place.",
)
@click.option(
    "--take-back",
    is_flag=True,
    help="Take back the nights that are in the table before their end (a clock was ahead): the rows stay, as part of the night "
    "before; the markers go.",
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
    deleted: Deleted,
    covering: bool,
    covering_since: str | None,
    from_earliest: bool,
    accept_table: bool,
    take_back: bool,
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

    A job that waits for a whole night waits for the file `_penstock/_READY/night=DATE` in the table's folder. A night that was
    loaded with `--incomplete mark` has `_penstock/_INCOMPLETE/night=DATE` until a later night brings the rest.

    A night that is in the table already is left alone. A --reload of one from which rows were deleted on purpose is refused
    without --deleted. One that would take others along, since nights between it and the table's last one are missing, is
    refused without --covering. A night has to be over by the aggregate cluster's clock, too.
    Of several tables each is loaded by itself: what one refuses doesn't stop the others. Exit codes: 0 done, 1 refused or
    failed, 2 wrong configuration, 3 incomplete (and nothing worse), 130 interrupted (Ctrl-C).

    Example: penstock etl --config pipeline.properties --night 2013-01-01
    """  # fmt: skip
    from penstock.pipeline.etl.display import Display  # here, since the help must not need what these need
    from penstock.pipeline.etl.figures import NightFigures
    from penstock.pipeline.etl.nights import Nights

    since = None if covering_since is None else parse_night(covering_since)
    consent = Consent(covering, since, from_earliest, accept_table, deleted)
    _check_options(night, nights, follow, until, of_a_night=reload or consent != Consent(), take_back=take_back)
    if deleted and not reload:
        raise click.UsageError("--deleted says what a --reload does")
    config = job.load(path, overrides, "etl")
    log.setup(form=config["penstock.log.format"], process="etl")
    zone = time_zone(config["penstock.etl.time.zone"])
    chosen = {name: job.one_table(config, name) for name in dict.fromkeys(tables) or job.table_names(config)}
    first = parse_night(night or YESTERDAY, zone)
    wanted = parse_nights(nights) if nights is not None else [first]
    last = None if until is None else parse_night(until, zone)
    figures = NightFigures(job.table_names(config), zone, config["penstock.etl.textfile"])
    arm_from_environment()
    try:
        with figures.until_the_end(chosen, None if take_back else wanted[0]):
            job.check_tables(config)
            run = Nights(
                config,
                chosen,
                Display(0 if follow else len(wanted) * len(chosen), as_json),
                figures,
                clock=clock or config["penstock.etl.clock"],
                incomplete=incomplete or config["penstock.etl.incomplete"],
                wait_seconds=config["penstock.etl.wait.seconds"] if wait_seconds is None else wait_seconds,
                ahead=not follow,
                timeouts=timeouts,
            )
            retry_s = config["penstock.etl.retry.backoff.ms"] / 1000
            if take_back:
                run.attend(run.take_back())
            elif follow:
                run.attend(run.follow(first, last, retry_s))
            else:
                run.attend(run.load(wanted, reload=reload, consent=consent))
    except Incomplete as error:
        raise IncompleteFailure(str(error)) from None
    except EtlError as error:
        raise click.ClickException(str(error)) from None


def _check_options(
    night: str | None, nights: str | None, follow: bool, until: str | None, *, of_a_night: bool, take_back: bool
) -> None:
    """See that the options say one thing. Raises UsageError."""
    if take_back:
        if nights is not None or night is not None or follow or until is not None or of_a_night:
            raise click.UsageError("--take-back finds its nights by itself: give no others")
        return
    if nights is not None and (follow or night is not None):
        raise click.UsageError("give one of --night, --nights and --follow")
    if not follow and night is None and nights is None:
        raise click.UsageError("give --night, --nights, --follow or --take-back")
    if until is not None and not follow:
        raise click.UsageError("--until says how far to --follow")
    if follow and of_a_night:
        raise click.UsageError("--follow takes each night as it comes: load this one by --night first")
