"""`penstock audit`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from penstock.config import Config
from penstock.errors import KafkaError, os_error_text
from penstock.output import Output, reader_is_gone
from penstock.pipeline import job
from penstock.pipeline.audit.report import render
from penstock.pipeline.audit.snapshot import MovingError
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.options import PIPELINE_FILE, SET, Timeouts, timeout_option

COMPLETE, PARTS, CANNOT_TELL, ON_ITS_WAY = 0, 1, 3, 4  # exit codes


@click.command("audit")
@PIPELINE_FILE
@SET
@click.option("--table", "tables", multiple=True, metavar="NAME", help="A table of `etl.NAME.table`; again for others. [all]")
@timeout_option()
@click.option("--json", "as_json", is_flag=True, help="The counts as a JSON line for each table on standard output.")
def command(path: Path, overrides: tuple[str, ...], tables: tuple[str, ...], timeouts: Timeouts, as_json: bool) -> None:
    """Count the records at every hop, side by side, and name the first hop at which they part.

    The counts come from the logs and the table, not from any process; each table has an audit of its own. Exit codes, the
    worst of all tables': 0 complete; 1 a count parts, a batch can't be read, or an audit failed (it then prints no counts);
    2 wrong configuration; 3 it cannot tell, since a log no longer holds all its records; 4 no count parts, but records are
    still on their way.

    Example: penstock audit --config pipeline.properties
    """  # fmt: skip
    config = job.load(path, overrides, "audit")
    names = job.table_names(config)
    chosen = {name: job.one_table(config, name) for name in dict.fromkeys(tables) or names}
    topics = {job.input_topic(one) for one in chosen.values()}
    left = [job.words_for_tables([name]) for name in names if name not in chosen]
    codes, failed = [], {}
    for name, one in chosen.items():
        try:
            answer = {"table": name, **_audited(one, topics, timeouts)}
        except click.ClickException as error:
            if len(chosen) == 1:
                raise
            failed[name] = error
            click.echo(f"penstock: {job.words_for_tables([name])}: {error.message}", err=True)
            continue
        answer["not_audited"] += left
        codes.append(_exit_code(answer))
        try:
            if as_json:
                click.echo(json.dumps(answer))
            else:
                Output().print(render(answer))
        except BrokenPipeError:
            reader_is_gone()  # the exit code still says what the counts come to
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(chosen)} tables were not audited: {job.words_for_tables(failed)}")
    raise SystemExit(next(code for code in (PARTS, CANNOT_TELL, ON_ITS_WAY, COMPLETE) if code in codes))


def _audited(config: Config, topics: set[str], timeouts: Timeouts) -> dict[str, Any]:
    """The audit of one table. Raises ClickException."""
    from penstock.pipeline.audit.hops import audit  # here, since the help must not need delta-rs

    columns = (TextColumn("counting"), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("records", total=None)
        try:
            return asyncio.run(audit(config, lambda records: progress.advance(task, records), topics, timeouts))
        except (KafkaError, MovingError, EtlError) as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(os_error_text(error)) from None


def _exit_code(answer: dict[str, Any]) -> int:
    if answer["parts_at"]:
        return PARTS
    if answer["untold"]:
        return CANNOT_TELL
    return COMPLETE if answer["complete"] else ON_ITS_WAY
