"""`penstock mirror`, and the commands by which an operator looks at it and decides."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import click

from penstock import log
from penstock.errors import KafkaError
from penstock.failpoints import arm_from_environment
from penstock.mirror.decisions import Desk, Moved
from penstock.mirror.identity import Identity
from penstock.mirror.service import Mirror
from penstock.mirror.status import status
from penstock.pipeline import job
from penstock.pipeline.options import PIPELINE_FILE, SET, Invocation, Timeouts, timeout_option
from penstock.pipeline.stages import stage
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.laggards import STATES
from penstock.pipeline.stages.topics import Topics

BECAUSE = click.option("--because", required=True, metavar="TEXT", help="Why; it is kept with what was decided.")


@click.group("mirror", invoke_without_command=True)
@click.option("--config", "path", type=click.Path(path_type=Path), help="The pipeline's file.")
@SET
@click.pass_context
def command(context: click.Context, path: Path | None, overrides: tuple[str, ...]) -> None:
    """Copy topics of all source clusters into the aggregate cluster, exactly once. Without a sub-command: run the mirror.

    Exit codes: 0 stopped as asked, 1 failed or with partitions that stopped, 2 wrong configuration, 4 another mirror of
    the same name took over.

    Example: penstock mirror --config pipeline.properties
    """  # fmt: skip
    file = stage.own_file(context, path, overrides)
    if file is None:
        return
    log.setup()
    config = job.load(file, overrides, "mirror")
    arm_from_environment()
    stage.run(Mirror(config))


@command.command("status")
@PIPELINE_FILE
@SET
@timeout_option()
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
def show_status(path: Path, overrides: tuple[str, ...], timeouts: Timeouts, as_json: bool) -> None:
    """Show every partition of every source: position, lag, last commit, rebuilt batches, gaps, and why it stands still.

    Positions are read from the target, so it works from any host, also while no mirror runs. A partition is `copying`,
    `registered` (the target knows of the source, which was not reached yet), or it stands still: `stopped` or `stalled`, its
    position says why; `silent`, records have waited for longer than a mirror that runs ever takes (`penstock.stalled.after.ms`
    and some more), or the source ends before the position; `no position`, no mirror has begun it; `not copied`, the source has
    the topic and the target doesn't. A topic that neither is known to have is `no topic`. Exit code 1 when any stands still.

    Example: penstock mirror status --config pipeline.properties
    """
    config = job.load(path, overrides, "mirror")
    try:
        rows = asyncio.run(status(config, timeouts))
    except (KafkaError, OSError) as error:
        raise click.ClickException(str(error)) from None
    Invocation(config["bootstrap.servers"], {}, as_json).show(rows, "partitions")
    if any(row["state"] in STATES for row in rows):
        sys.exit(1)


@command.command("begin")
@click.argument("source")
@click.argument("topics", metavar="TOPIC[:P]...", nargs=-1, required=True)
@click.option("--at", required=True, metavar="start|end|OFFSET", help="Where the source's log is read from.")
@BECAUSE
@PIPELINE_FILE
@SET
@timeout_option()
def begin(
    source: str, topics: Sequence[str], at: str, because: str, path: Path, overrides: tuple[str, ...], timeouts: Timeouts
) -> None:
    """Say where the copy of a topic (or one partition) begins or goes on, whatever its position was.

    A running mirror goes on from there. What an earlier offset copies once more is there twice; what a later one leaves
    out is counted as a gap. Of a topic those partitions are left as they are that go on by themselves, unless they are named.

    Example: penstock mirror begin EWR flights --at start --because "a new source" --config pipeline.properties
    """  # fmt: skip
    if at not in ("start", "end") and not at.isdecimal():
        raise click.BadParameter(f"`{at}` is not start, end or an offset", param_hint="--at")
    _decide(
        path, overrides, timeouts, source, topics, because, lambda desk, lane, by_name: desk.begin(lane, at, by_name=by_name)
    )


@command.command("skip")
@click.argument("source")
@click.argument("topic", metavar="TOPIC:P")
@click.option(
    "--to",
    required=True,
    type=click.IntRange(1),
    metavar="OFFSET",
    help="The first offset that is copied; what lies before it is set aside.",
)
@BECAUSE
@PIPELINE_FILE
@SET
@timeout_option()
def skip(source: str, topic: str, to: int, because: str, path: Path, overrides: tuple[str, ...], timeouts: Timeouts) -> None:
    """Set a corrupt or refused batch aside: its bytes go to topic penstock.quarantine, and the copy goes on behind it.

    Bytes and position are one transaction on the target; the position counts what was left out. An offset within a batch
    divides it: its records from there on are copied, unless the batch can't be opened.

    Example: penstock mirror skip EWR flights:3 --to 4711 --because "bad disk" --config pipeline.properties
    """  # fmt: skip
    if ":" not in topic:
        raise click.BadParameter(f"`{topic}` names no partition (TOPIC:P)", param_hint="TOPIC:P")
    _decide(path, overrides, timeouts, source, [topic], because, lambda desk, lane, _: desk.skip(lane, to))


@command.command("retry")
@click.argument("source")
@click.argument("topics", metavar="[TOPIC[:P]]...", nargs=-1)
@BECAUSE
@PIPELINE_FILE
@SET
@timeout_option()
def retry(source: str, topics: Sequence[str], because: str, path: Path, overrides: tuple[str, ...], timeouts: Timeouts) -> None:
    """Let partitions that stopped try again, without a restart: those of a topic, one alone, or all of the source.

    Example: penstock mirror retry EWR flights:3 --because "max.message.bytes is raised" --config pipeline.properties
    """  # fmt: skip
    _decide(path, overrides, timeouts, source, topics, because, lambda desk, lane, _: desk.retry(lane))


def _decide(
    path: Path,
    overrides: tuple[str, ...],
    timeouts: Timeouts,
    source: str,
    topics: Sequence[str],
    because: str,
    decide: Callable[[Desk, Identity, bool], Awaitable[Moved | str]],
) -> None:
    """Do one thing to each lane that was named (by its partition or its topic alone), and say what came of it."""
    config = job.load(path, overrides, "mirror")
    arm_from_environment()
    known = job.sources(config)
    if source not in known:
        raise click.BadParameter(f"no source `{source}` in `{path}`: there are {', '.join(known)}", param_hint="SOURCE")
    if not because.strip():
        raise click.BadParameter("say why", param_hint="--because")
    chosen = Topics(config)
    if not topics and chosen.are_searched:
        raise click.UsageError("say which topics: `topics.include` is no list of them")
    wanted = [_lane(word) for word in topics or chosen.named]

    async def run() -> None:
        async with Desk(config, source, because, timeouts) as desk:
            for topic, partition in wanted:
                if not chosen.wants(topic):
                    raise OperatorNeeded(f"this mirror doesn't copy topic {topic}: `topics` and `topics.include` say which")
                for lane in await desk.partitions(topic, partition):
                    _say(lane, await decide(desk, lane, partition is not None))

    try:
        asyncio.run(run())
    except (KafkaError, OperatorNeeded, OSError) as error:
        raise click.ClickException(str(error)) from None


def _say(lane: Identity, moved: Moved | str) -> None:
    if isinstance(moved, str):
        click.echo(f"{lane} is left as it is: {moved}")
        return
    before, after = moved.before, moved.after
    was = "had no position" if before is None else f"was at {before.offset}"
    again = f"; copied again so far: {after.again_records} records" if after.again_records else ""
    gaps = f"gaps so far: {after.gaps} offsets, {after.gap_records} records"
    click.echo(f"{lane} {was} and goes on at {after.offset}; {gaps}{again}")


def _lane(word: str) -> tuple[str, int | None]:
    topic, colon, number = word.partition(":")
    if colon and not number.isdecimal():
        raise click.BadParameter(f"`{word}` is not TOPIC or TOPIC:PARTITION", param_hint="TOPIC")
    return topic, int(number) if colon else None
