"""`penstock demo`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from penstock.pipeline.demo import flights
from penstock.pipeline.demo.parts import PartError
from penstock.pipeline.demo.progress import Show

if TYPE_CHECKING:
    from penstock.pipeline.demo.run import Outcome, Plan

NIGHTS = 31


@click.command("demo")
@click.option("--all", "whole_year", is_flag=True, help="All 365 days, 336,776 flights.")
@click.option("--nights", type=click.IntRange(1, 365), default=NIGHTS, show_default=True, help="How many nights.")
@click.option("--kill", is_flag=True, help="kill -9 mirror, dedupe, etl and brokers at random moments.")
@click.option("--cluster", is_flag=True, help="The aggregate is a cluster of three brokers around a ZooKeeper.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder of the run; emptied first.",
)
@click.option("--seed", type=int, default=None, help="Seed of all that is random; printed at the end.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as JSON on standard output.")
def command(whole_year: bool, nights: int, kill: bool, cluster: bool, out: Path, seed: int | None, as_json: bool) -> None:
    """Three datacenters' real flights: mirrored, deduplicated, a complete table a night.

    With --cluster, --kill kills one broker of the aggregate at a time: a leader, the controller, a coordinator.

    Example: penstock demo --nights 7 --kill
    """  # fmt: skip
    from penstock.pipeline.demo.run import Plan, demo  # here, since the help must not need what these need

    nights = (flights.LAST_DAY - flights.FIRST_DAY).days + 1 if whole_year else nights
    seed = random.randrange(1 << 32) if seed is None else seed
    plan = Plan(out.resolve(), flights.FIRST_DAY, nights, kill, seed, cluster)
    expected = sum(1 for row in flights.rows() if flights.flight_id(row)[:10] <= plan.days[-1].isoformat())
    try:
        with Show(expected, nights) as show:
            outcome = asyncio.run(demo(plan, show))
    except PartError as error:
        raise click.ClickException(f"{error}\nThe logs are in `{plan.out}`; the seed was {plan.seed}.") from None
    except asyncio.CancelledError:
        raise click.ClickException(f"stopped by SIGTERM; the logs are in `{plan.out}`") from None
    except ExceptionGroup as group:
        failed = [error for error in group.exceptions if isinstance(error, PartError)]
        if not failed:
            raise
        raise click.ClickException(f"{failed[0]}\nThe logs are in `{plan.out}`.") from None
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(outcome), "right": outcome.right, "seed": plan.seed}, default=str))
    else:
        _tell(outcome, plan, show)
    if not outcome.right:
        raise SystemExit(1)


def _tell(outcome: Outcome, plan: Plan, show: Show) -> None:
    from penstock.pipeline.audit.report import render

    show.console.print(render(outcome.audit))
    verdict = outcome.verdict
    table = Table(title="The table against the data set itself")
    for column in ("expected", "rows", "missing", "twice", "foreign"):
        table.add_column(column, justify="right")
    table.add_row(*(f"{getattr(verdict, name):,}" for name in ("expected", "rows", "missing", "twice", "foreign")))
    show.console.print(table)
    origins = ", ".join(f"{origin} {count:,}" for origin, count in sorted(verdict.by_origin.items()))
    show.console.print(f"{origins}; collectors sent {outcome.sent:,}, of them {outcome.duplicates:,} again")
    if outcome.kills:
        show.console.print("killed: " + ", ".join(f"{n} {c}x" for n, c in outcome.kills.items()))
    word = "[green]exact[/green]" if outcome.right else "[red]NOT exact[/red]"
    show.console.print(f"{word} after {outcome.seconds:.0f} s (seed {plan.seed}); picture: {outcome.picture}")
