"""`penstock audit`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from penstock.errors import KafkaError
from penstock.pipeline import job
from penstock.pipeline.audit.hops import audit
from penstock.pipeline.audit.report import render
from penstock.pipeline.audit.snapshot import MovingError


@click.command("audit")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The pipeline's file.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a property.")
@click.option("--json", "as_json", is_flag=True, help="The counts as JSON on standard output.")
def command(path: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Count the records at every hop, side by side, and name the first hop at which they part.

    The counts come from the logs and the table, not from any process. Exit code 1 when a count parts.

    Example: penstock audit --config pipeline.properties
    """
    config = job.load(path, overrides)
    columns = (TextColumn("counting"), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("records", total=None)
        try:
            answer = asyncio.run(audit(config, lambda records: progress.advance(task, records)))
        except (KafkaError, MovingError, OSError) as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(answer))
    else:
        Console().print(render(answer))
    if answer["parts_at"]:
        raise SystemExit(1)
