"""`penstock audit`, and the command that accepts what nothing explains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from penstock.commandgroup import Group
from penstock.config import Config
from penstock.errors import KafkaError, os_error_text
from penstock.hints import quoted
from penstock.output import reader_is_gone
from penstock.pipeline import job
from penstock.pipeline.audit.counts import STABLE_S, Patience
from penstock.pipeline.audit.report import difference_text, hint, render
from penstock.pipeline.audit.snapshot import MovingError
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.options import OWN_FILE, PIPELINE_FILE, SET, Timeouts, because, chosen_file, counting, timeout_option

COMPLETE, PARTS, CANNOT_TELL, ON_ITS_WAY = 0, 1, 3, 4  # exit codes
WORST_FIRST = (PARTS, CANNOT_TELL, ON_ITS_WAY, COMPLETE)

TABLES = click.option(
    "--table", "tables", multiple=True, metavar="NAME", help="A table of `etl.NAME.table`; again for others. [all]"
)
WAIT = click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=STABLE_S, show_default=True, metavar="SECONDS",
    help="How long to wait altogether for open transactions to end, before the audit says that it cannot tell.",
)  # fmt: skip


class CannotTellFailure(click.ClickException):
    """An audit that could not count, as the command line shows it."""

    exit_code = CANNOT_TELL


@click.group("audit", cls=Group, invoke_without_command=True)
@OWN_FILE
@SET
@TABLES
@WAIT
@timeout_option()
@click.option("--json", "as_json", is_flag=True, help="The counts as a JSON line for each table on standard output.")
@click.pass_context
def command(
    context: click.Context,
    path: Path | None,
    overrides: tuple[str, ...],
    tables: tuple[str, ...],
    wait_s: float,
    timeouts: Timeouts,
    as_json: bool,
) -> None:
    """Count the records at every hop, side by side, and name the first hop at which they part.

    The counts come from the logs and the table, not from any process; each table has an audit of its own. Rows that an owner
    has deleted are read out of the table's own log and named. Exit codes, the worst of all tables': 0 complete; 1 a count
    parts, a batch can't be read, or the table can't be; 2 wrong configuration; 3 it cannot tell, since a log no longer holds
    all its records, or can't be asked; 4 no count parts, but records are still on their way.

    Example: penstock audit --config pipeline.properties
    """  # fmt: skip
    if (file := chosen_file(context, path, bool(overrides or tables or as_json or wait_s != STABLE_S), "the options")) is None:
        return
    codes: list[int] = []
    for answer in _audits(file, overrides, tables, timeouts, wait_s, codes):
        try:
            if as_json:
                click.echo(json.dumps(answer))
            else:
                from penstock.console import Output  # here, as in `render`: an answer as JSON must not pay for rich

                Output().print(render(answer))
                if words := hint(answer, file):
                    click.echo(words)  # in one line, so that its command can be pasted
        except BrokenPipeError:
            reader_is_gone()  # the exit code still says what the counts come to
    raise SystemExit(next(code for code in WORST_FIRST if code in codes))


@command.command("accept")
@PIPELINE_FILE
@SET
@TABLES
@WAIT
@timeout_option()
@click.option(
    "--hop", "hops", multiple=True, metavar="NAME", help="Only at this hop, by its name in the audit; again for others."
)
@because("Why; it is kept with what is accepted.")
def accept(
    path: Path,
    overrides: tuple[str, ...],
    tables: tuple[str, ...],
    wait_s: float,
    timeouts: Timeouts,
    hops: tuple[str, ...],
    because: str,
) -> None:
    """Accept the differences that an audit finds now, since nothing explains them and nobody can mend them.

    It audits first, and says what it accepts: so many records more or fewer at one place of one hop, or a log that the mirror
    left for another one. Later audits name it, and part again as soon as a record more or fewer is missing there. What was
    accepted stands in the topic penstock.audit of the aggregate cluster. Damage, such as a batch that can't be read, can't be
    accepted. Exit codes: 0 accepted, 1 there is nothing to accept, or something that can't be.

    Example: penstock audit accept --because "log repair of 12 March" --config pipeline.properties
    """  # fmt: skip
    from penstock.pipeline.audit import accepted  # here, since the help must not need what this needs

    config, codes, found = job.load(path, overrides, "audit"), list[int](), dict[tuple[str, str], int]()
    left = []
    failed: click.ClickException | None = None
    try:
        for answer in _audits(path, overrides, tables, timeouts, wait_s, codes):
            for hop in answer["hops"]:
                if hops and hop["name"] not in hops:
                    continue
                for place, difference in hop["unaccepted"].items():
                    found[hop["key"], place] = difference
                    click.echo(f"{hop['name']}, {place}: {difference_text(place, difference)}" if difference else
                               f"{hop['name']}, {place}: no difference any more")  # fmt: skip
                if hop["damage"]:
                    left.append(f"{hop['name']}: {hop['damage']}")
    except click.ClickException as error:
        if not found:
            raise
        failed = error  # of another table: what was found of these is accepted all the same
    if found:
        asyncio.run(accepted.write(config, timeouts, found, because))
        click.echo(f"accepted, because {because}")
    if failed is not None:
        raise failed
    if left:
        raise click.ClickException(f"damage is no difference of counts, and can't be accepted: {'; '.join(left)}")
    if not found:
        command = f"`penstock audit --config {quoted(path)}`"
        raise click.ClickException(f"there is no difference to accept\nhint: {command} says what there is")


def _audits(
    path: Path, overrides: tuple[str, ...], tables: tuple[str, ...], timeouts: Timeouts, wait_s: float, codes: list[int]
) -> Iterator[dict[str, Any]]:
    """The audit of each table, and into `codes` what each comes to. Raises ClickException, of several tables at the end."""
    config = job.load(path, overrides, "audit")
    names = job.table_names(config)
    chosen = {name: job.one_table(config, name) for name in dict.fromkeys(tables) or names}
    topics = {job.input_topic(one) for one in chosen.values()}
    left = [job.words_for_tables([name]) for name in names if name not in chosen]
    failed = {}
    for name, one in chosen.items():
        try:
            answer = {"table": name, **_audited(one, topics, timeouts, wait_s)}
        except click.ClickException as error:
            if len(chosen) == 1:
                raise
            failed[name] = error.exit_code
            click.echo(f"penstock: {job.words_for_tables([name])}: {error.message}", err=True)
            continue
        answer["not_audited"] += left
        codes.append(_exit_code(answer))
        yield answer
    if failed:
        words = f"{len(failed)} of {len(chosen)} tables were not audited: {job.words_for_tables(failed)}"
        parts = PARTS in [*codes, *failed.values()]
        raise click.ClickException(words) if parts else CannotTellFailure(words)


def _audited(config: Config, topics: set[str], timeouts: Timeouts, wait_s: float) -> dict[str, Any]:
    """The audit of one table. Raises ClickException."""
    from penstock.pipeline.audit.hops import audit  # here, since the help must not need delta-rs

    with counting("counting") as show_more:
        try:
            return asyncio.run(audit(config, show_more, topics, timeouts, Patience(wait_s)))
        except (KafkaError, MovingError) as error:
            raise CannotTellFailure(str(error)) from None
        except EtlError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise CannotTellFailure(os_error_text(error)) from None


def _exit_code(answer: dict[str, Any]) -> int:
    if answer["parts_at"]:
        return PARTS
    if answer["untold"]:
        return CANNOT_TELL
    return COMPLETE if answer["complete"] else ON_ITS_WAY
