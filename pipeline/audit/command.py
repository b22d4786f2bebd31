"""`penstock audit`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from penstock.errors import KafkaError, os_error_text
from penstock.pipeline import job
from penstock.pipeline.audit.hops import audit
from penstock.pipeline.audit.report import render
from penstock.pipeline.audit.snapshot import MovingError
from penstock.pipeline.etl.errors import EtlError

COMPLETE, PARTS, CANNOT_TELL, ON_ITS_WAY = 0, 1, 3, 4  # exit codes


@click.command("audit")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The pipeline's file.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a property.")
@click.option("--table", metavar="NAME", help="The table of `etl.NAME.table`. [the one of the plain keys, or else the first]")
@click.option("--json", "as_json", is_flag=True, help="The counts as JSON on standard output.")
def command(path: Path, overrides: tuple[str, ...], table: str | None, as_json: bool) -> None:
    """Count the records at every hop, side by side, and name the first hop at which they part.

    The counts come from the logs and the table, not from any process. Exit codes: 0 complete; 1 a count parts, a batch
    can't be read, or the audit failed (it then prints no counts); 2 wrong configuration; 3 it cannot tell, since a log no
    longer holds all its records; 4 no count parts, but records are still on their way.

    Example: penstock audit --config pipeline.properties
    """  # fmt: skip
    config = job.load(path, overrides, "audit")
    names = job.table_names(config)
    chosen = names[0] if table is None else table
    config = job.one_table(config, chosen)
    if config["penstock.etl.after"] == "mirror":
        raise click.ClickException(
            f"{job.words_for_tables([chosen])} is loaded after the mirror, and the audit counts through dedupe: name another"
            " one with --table"
        )
    columns = (TextColumn("counting"), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("records", total=None)
        try:
            answer = asyncio.run(audit(config, lambda records: progress.advance(task, records)))
        except (KafkaError, MovingError, EtlError) as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(os_error_text(error)) from None
    answer["not_audited"] += [job.words_for_tables([name]) for name in names if name != chosen]
    if as_json:
        click.echo(json.dumps(answer))
    else:
        Console().print(render(answer))
    raise SystemExit(_exit_code(answer))


def _exit_code(answer: dict[str, Any]) -> int:
    if answer["parts_at"]:
        return PARTS
    if answer["untold"]:
        return CANNOT_TELL
    return COMPLETE if answer["complete"] else ON_ITS_WAY
