"""`penstock mirror`, and the commands by which an operator looks at it and decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import click

from penstock.errors import KafkaError
from penstock.failpoints import arm_from_environment
from penstock.mirror.decisions import Desk, Moved
from penstock.mirror.identity import Identity
from penstock.mirror.service import Mirror
from penstock.mirror.status import status
from penstock.pipeline import job
from penstock.pipeline.options import AS_JSON, PIPELINE_FILE, SET, Invocation, Timeouts, because, timeout_option, with_options
from penstock.pipeline.stages.address import PLACES, LogPlace, Named, log_place, one_partition, topic_or_partition
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.stage import stage_command
from penstock.pipeline.stages.status import show
from penstock.pipeline.stages.topics import TopicChoice

Choice = tuple[Sequence[Named], Callable[[Desk, Identity, bool], Awaitable[Moved | str]]]
"""Topics or partitions, and what is decided about each of their lanes; told whether that was named by its partition."""

BECAUSE = because("Why; it is kept with what was decided.")


@stage_command("mirror", Mirror)
def command() -> None:
    """Copy topics of all source clusters into the aggregate cluster, exactly once. Without a sub-command: run the mirror.

    Exit codes: 0 stopped as asked, 1 failed or with partitions that stopped, 2 wrong configuration, 4 another mirror of
    the same name took over.

    Example: penstock mirror --config pipeline.properties
    """


@command.command("status")
@PIPELINE_FILE
@SET
@timeout_option()
@AS_JSON
def show_status(path: Path, overrides: tuple[str, ...], timeouts: Timeouts, as_json: bool) -> None:
    """Show every partition of every source: position, lag, last commit, rebuilt batches, gaps, and why it stands still.

    Positions are read from the target, so it works from any host, also while no mirror runs. A partition is `copying`,
    `registered` (the target knows of the source, which was not reached yet), or it stands still: `stopped` or `stalled`, its
    position says why; `silent`, records have waited for longer than a mirror that runs ever takes (`penstock.stalled.after.ms`
    and some more); `lost`, the source's log no longer is the one that was copied up to the position, or the target's lacks what
    was copied; `waiting`, an open transaction has held its records back for so long; `unreachable`, the source can't be asked;
    `no topic`, it doesn't have the topic; `no position`, no mirror has begun it; `not copied`, the source has the topic and the
    target doesn't. The lag counts up to the end of the log, records behind an open transaction too. Exit code 1 when any stands
    still.

    Example: penstock mirror status --config pipeline.properties
    """
    config = job.load(path, overrides, "mirror")
    try:
        rows = asyncio.run(status(config, timeouts))
    except (KafkaError, OSError) as error:
        raise click.ClickException(str(error)) from None
    show(Invocation(config["bootstrap.servers"], {}, as_json), rows)


def decision_command(command: Callable[..., Choice]) -> Callable[..., None]:
    """Add SOURCE and the options of every decision to a command, which gives what is decided about which lanes. It is decided
    for each, and what came of it is said."""

    def decide(source: str, because: str, path: Path, overrides: tuple[str, ...], timeouts: Timeouts, **given: Any) -> None:
        config = job.load(path, overrides, "mirror")
        arm_from_environment()
        known, chosen = job.sources(config), TopicChoice(config)
        if source not in known:
            raise click.BadParameter(f"no source `{source}` in `{path}`: there are {', '.join(known)}", param_hint="SOURCE")
        named, about = command(**given)
        if not named and chosen.are_searched:
            raise click.UsageError("say which topics: `topics.include` is no list of them")

        async def run() -> None:
            async with Desk(config, source, because, timeouts) as desk:
                for topic, partition in named or [(topic, None) for topic in chosen.named]:
                    if not chosen.wants(topic, source=source):
                        raise OperatorNeeded(f"this mirror doesn't copy topic {topic}: `topics` and `topics.include` say which")
                    for lane in await desk.partitions(topic, partition):
                        _say(lane, await about(desk, lane, partition is not None))

        try:
            asyncio.run(run())
        except (KafkaError, OperatorNeeded, OSError) as error:
            raise click.ClickException(str(error)) from None

    return with_options(decide, command, (timeout_option(), SET, PIPELINE_FILE, BECAUSE, click.argument("source")))


@command.command("begin")
@decision_command
@click.argument("topics", metavar="TOPIC[:P]...", nargs=-1, required=True, type=topic_or_partition)
@click.option("--at", required=True, type=log_place, metavar=PLACES, help="Where the source's log is read from.")
def begin(topics: Sequence[Named], at: LogPlace) -> Choice:
    """Say where the copy of a topic (or one partition) begins or goes on, whatever its position was.

    A running mirror goes on from there. What an earlier offset copies once more is there twice; what a later one leaves
    out is counted as a gap. Of a topic those partitions are left as they are that go on by themselves, unless they are named.

    Example: penstock mirror begin EWR flights --at earliest --because "a new source" --config pipeline.properties
    """  # fmt: skip
    return topics, lambda desk, lane, by_name: desk.begin(lane, at, by_name=by_name)


@command.command("skip")
@decision_command
@click.argument("partition", metavar="TOPIC:P", type=one_partition)
@click.option(
    "--to",
    required=True,
    type=click.IntRange(1),
    metavar="OFFSET",
    help="The first offset that is copied; what lies before it is set aside.",
)
def skip(partition: Named, to: int) -> Choice:
    """Set a corrupt or refused batch aside: its bytes go to topic penstock.quarantine, and the copy goes on behind it.

    Bytes and position are one transaction on the target; the position counts what was left out. An offset within a batch
    divides it: its records from there on are copied, unless the batch can't be opened.

    Example: penstock mirror skip EWR flights:3 --to 4711 --because "bad disk" --config pipeline.properties
    """  # fmt: skip
    return [partition], lambda desk, lane, _: desk.skip(lane, to)


@command.command("retry")
@decision_command
@click.argument("topics", metavar="[TOPIC[:P]]...", nargs=-1, type=topic_or_partition)
def retry(topics: Sequence[Named]) -> Choice:
    """Let partitions that stopped try again, without a restart: those of a topic, one alone, or all of the source.

    Example: penstock mirror retry EWR flights:3 --because "max.message.bytes is raised" --config pipeline.properties
    """  # fmt: skip
    return topics, lambda desk, lane, _: desk.retry(lane)


def _say(lane: Identity, moved: Moved | str) -> None:
    if isinstance(moved, str):
        click.echo(f"{lane} is left as it is: {moved}")
        return
    before, after = moved.before, moved.after
    was = "had no position" if before is None else f"was at {before.offset}"
    again = f"; copied again so far: {after.again_records} records" if after.again_records else ""
    gaps = f"gaps so far: {after.gaps} offsets, {after.gap_records} records"
    click.echo(f"{lane} {was} and goes on at {after.offset}; {gaps}{again}")
