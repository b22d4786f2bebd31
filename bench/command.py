"""`penstock bench`."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from pathlib import Path

import click
from rich.console import Console

from penstock.bench import figures, history, plots, report
from penstock.bench.cases import CASES
from penstock.bench.programs import Programs
from penstock.bench.run import Run, carry_out, chosen
from penstock.bench.sides import BEFORE, NAMES, OTHERS, penstock_of
from penstock.bench.targets import LONG_RUN_MINUTES
from penstock.bench.world import World
from penstock.console import Output
from penstock.errors import os_error_text
from penstock.hints import quoted

FREE_BYTES_MIN = 8 << 30


@click.command("bench")
@click.argument("what", type=click.Choice(list(CASES)), default="broker")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Of each case and side.")
@click.option(
    "--scale",
    type=click.FloatRange(0.0001, 10),
    default=1.0,
    show_default=True,
    help="Multiplies sizes, counts and times of the load; below 1 figures are rougher and some targets easier.",
)
@click.option("--minutes", type=click.FloatRange(0.05), help="Of the long case. [30, times the scale if that is below 1]")
@click.option("--only", metavar="REGEX", help="Cases whose name it finds.")
@click.option("--ours-only", is_flag=True, help="Leave others' programs out.")
@click.option(
    "--before",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="CHECKOUT",
    help="Measure the broker (and the mirror) of another checkout, in which `make build` ran, in the same turn.",
)
@click.option("--list", "listing", is_flag=True, help="Names and titles of the cases, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("build/bench"),
    show_default=True,
    help="Folder of the report.",
)
@click.option(
    "--figures",
    "document",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Also write the targets that were measured into the table of figures in this document.",
)
@click.option(
    "--history",
    "history_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    default=history.default_file,
    show_default=history.DEFAULT,
    help="Gets a line of JSON of each run that ends.",
)
@click.option(
    "--draw-history",
    is_flag=True,
    help="Measure nothing: draw the figures of `--only` over all runs of the history, into `--out`.",
)
@click.option("--work", type=click.Path(path_type=Path), help="Folder of the brokers' data; removed at the end. [OUT/work-*]")
def command(
    what: str,
    rounds: int,
    scale: float,
    minutes: float | None,
    only: str | None,
    ours_only: bool,
    before: Path | None,
    listing: bool,
    as_json: bool,
    out: Path,
    document: Path | None,
    history_file: Path,
    draw_history: bool,
    work: Path | None,
) -> None:
    """Our broker and Apache Kafka in turn, with the same clients: CPU first, then rates, latencies, memory, life cycle.
    `pipeline`: mirror, dedupe, nights and clients, beside MirrorMaker 2, a bare Spark job and confluent-kafka. `cluster`: three
    brokers of each, replication, and brokers that are killed.

    Prints the targets with our figures beside them, then every case; progress goes to standard error. Writes report.md,
    report.json and pictures. Wants a machine that does nothing else.

    Example: penstock bench --rounds 3 --only 'produce|consume'
    """  # fmt: skip
    try:
        cases = chosen(CASES[what], only)
    except re.error as error:
        raise click.ClickException(f"`--only {quoted(only)}` is not a regular expression: {error}") from None
    if not cases:
        raise click.ClickException(f"`--only {quoted(only)}` finds no case; `penstock bench --list` names them")
    if listing:
        width = max(len(case.name) for case in cases)
        click.echo("\n".join(f"{case.name:{width}}  {case.title}" for case in cases))
        return
    if draw_history:
        _draw_history(history_file, what, {case.name for case in cases}, out)
        return
    if before and not penstock_of(before).exists():
        raise click.ClickException(f"`{before}` has no `.venv/bin/penstock`: run `make build` in it")
    try:
        if document:
            figures.checked(document)
    except figures.NoTable as error:
        raise click.ClickException(str(error)) from None
    left_out = {*([] if before else [BEFORE]), *(OTHERS if ours_only else [])}
    sides = tuple(side for side in NAMES if side not in left_out)
    minutes = minutes if minutes is not None else LONG_RUN_MINUTES * min(1.0, scale)
    run = Run(cases, sides, rounds, scale, minutes, what=what)
    # An ordinary end by SIGTERM, so that no broker outlives it.
    signal.signal(signal.SIGTERM, lambda number, frame: _interrupt())
    _carry_out(run, out.resolve(), work, before.resolve() if before else None)
    try:
        history.append(history_file, run)
    except OSError as error:
        click.echo(f"the history has no line of this run: {os_error_text(error)}", err=True)
    if document:
        click.echo(f"{figures.update(document, run)} rows written to `{document}`", err=True)
    if as_json:
        click.echo(report.as_json(run))
    else:
        console = Output()
        report.tell(run, console if console.is_terminal else Output(width=160))
        click.echo(f"written to `{out}`", err=True)


def _draw_history(file: Path, what: str, cases: set[str], out: Path) -> None:
    entries, unread = history.read(file, what) if file.exists() else ([], [])
    if unread:
        click.echo(f"`{file}` has {len(unread)} lines that can't be read, the first is line {unread[0]}", err=True)
    out.mkdir(parents=True, exist_ok=True)
    picture = out / f"history-{what}.png"
    drawn = plots.draw_history(entries, what, cases, picture)
    if not drawn:
        raise click.ClickException(
            f"`{file}` has {len(entries)} runs of the {what}, and none of them measured a figure that has a target\n"
            f"hint: penstock bench {quoted(what)} --history {quoted(file)}"
        )
    click.echo(f"{drawn} figures of {len(entries)} runs drawn into `{picture}`", err=True)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _carry_out(run: Run, out: Path, work: Path | None, before: Path | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=(work or out).resolve()))
    if shutil.disk_usage(folder).free < FREE_BYTES_MIN * min(1.0, run.scale):
        shutil.rmtree(folder)
        raise click.ClickException(f"`{folder.parent}` has too little room for the brokers' data")
    world = World(folder, run.scale, run.minutes, Programs(out / "programs"), before)
    progress = Console(stderr=True, highlight=False)
    try:
        carry_out(run, world, lambda line: progress.print(line, markup=False, soft_wrap=True), lambda: save(run, out))
    finally:
        world.close()
    save(run, out, plots.draw(run, out))


def save(run: Run, out: Path, pictures: list[Path] | None = None) -> None:
    """Write what is known so far: a run that is broken off leaves what it measured."""
    (out / "report.json").write_text(report.as_json(run) + "\n", encoding="utf-8")
    (out / "report.md").write_text(report.markdown(run, pictures or []), encoding="utf-8")
