"""What an operator asks a dedupe stage or decides for it, beside the running one: `penstock dedupe accept`, ...

A decision takes the partition's identity, which ends whatever its worker has under way, and writes the position in a
transaction, together with a record of `penstock.quarantine` that says what was decided and why.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from penstock.config import Config
from penstock.dedupe import snapshot
from penstock.dedupe.folder import FolderError, StoreFolder, check_owner, owner
from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import Position, identity
from penstock.pipeline import job
from penstock.pipeline.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.audit.counts import count_topic
from penstock.pipeline.batches import send
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.commands.common import Asked, timeout_option
from penstock.pipeline.failures import OperatorNeeded, decided_alone
from penstock.pipeline.metadata import TopicInfo
from penstock.pipeline.patience import Patience
from penstock.pipeline.quarantine import Quarantine, came, note
from penstock.pipeline.transaction import TransactionalSender
from penstock.pyx.rocks import RocksError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Stage(Asked):
    """The stage that a pipeline's file describes, the topic that was `named`, and how answers are shown."""

    config: Config
    named: str | None

    @property
    def topic(self) -> str:
        """The topic that is meant. Raises UsageError for one that the stage doesn't read, or none of several."""
        topics = job.deduped(self.config)
        if self.named is None and len(topics) > 1:
            raise click.UsageError(f"dedupe reads {', '.join(topics)}: say with --topic which one is meant")
        if self.named is not None and self.named not in topics:
            raise click.UsageError(f"dedupe reads {', '.join(topics)}, not `{self.named}`")
        return self.named or next(iter(topics))

    def each(self) -> list[Stage]:
        """The stage with each of its topics, or with the one that was named."""
        topics = job.deduped(self.config) if self.named is None else [self.topic]
        return [replace(self, named=topic) for topic in topics]

    @property
    def group(self) -> str:
        """The group of its positions."""
        return job.dedupe_group(self.config)

    def input(self, partition: int) -> TopicPartition:
        """An input partition."""
        return self.topic, partition

    def output(self, partition: int) -> TopicPartition:
        """The output partition beside it."""
        return job.deduped(self.config)[self.topic], partition

    def folder(self, partition: int) -> StoreFolder:
        """The folder of its store, on this machine."""
        return StoreFolder.of(Path(self.config["penstock.dedupe.data"]), self.input(partition))

    def owner(self, partition: int, position: Position) -> str:
        """What the ids in that folder must belong to."""
        return owner(self.output(partition), position.output_id, IdSource(self.config["penstock.dedupe.id"]))


def stage_command(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that all of them share; they come to the command as `stage: Stage`."""

    def with_stage(
        path: Path, overrides: tuple[str, ...], as_json: bool, patience: Patience, topic: str | None, **rest: Any
    ) -> T:
        config = job.load(path, overrides, "dedupe")
        try:
            stage = Stage(config["bootstrap.servers"], {}, as_json, patience, config=config, named=topic)
            return command(stage=stage, **rest)
        except (FolderError, RocksError, OperatorNeeded) as error:
            raise click.ClickException(str(error)) from None

    with_stage.__doc__ = command.__doc__
    with_stage.__name__ = command.__name__
    with_stage.__click_params__ = list(getattr(command, "__click_params__", ()))  # type: ignore[attr-defined]  # click's own mark
    for option in (
        click.option("--json", "as_json", is_flag=True, help="The answer as JSON."),
        timeout_option(),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a property."),
        click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The pipeline's file."),
        click.option("--topic", help="The input topic that is meant; of several, status shows all."),
    ):
        with_stage = option(with_stage)
    return with_stage


async def find_position(admin: Admin, stage: Stage, partition: int) -> Position | None:
    """The committed position of a partition, if there is one. Raises OperatorNeeded."""
    tp = stage.input(partition)
    found = (await admin.committed(stage.group, [tp]))[tp]
    return None if found is None else Position.parse(*found)


async def position_of(admin: Admin, stage: Stage, partition: int) -> Position:
    """The same, which must be there. Raises ClickException if it isn't, OperatorNeeded."""
    found = await find_position(admin, stage, partition)
    if found is None:
        topic, _ = stage.input(partition)
        raise click.ClickException(f"group `{stage.group}` has no position of {topic}-{partition}")
    return found


Change = Callable[[Position | None], tuple[str, Position]]
"""What an operator decides, in words, and the position after it, given the one before. Raises ClickException."""


async def decide(admin: Admin, stage: Stage, partition: int, change: Change, because: str) -> str:
    """Change a position in the partition's own name; what was decided. Whoever works on it is fenced first, so that nothing
    comes in between, and has to read the position again.
    """
    tp = stage.input(partition)
    change(await find_position(admin, stage, partition))  # what is refused fences nobody
    place = await Quarantine(admin).place(partition)
    sender = TransactionalSender(admin, identity(stage.config["penstock.dedupe.name"], tp))
    await sender.init()
    try:
        what, after = change(await find_position(admin, stage, partition))
        after = replace(after, decisions=after.decisions + 1)
        with decided_alone(f"{tp[0]}-{tp[1]}", "penstock dedupe status"):
            await sender.begin()
            await send(sender, place, [note(what.encode(), came(tp, after.offset, because))])
            await sender.send_offsets(stage.group, {tp: (after.offset, after.metadata())})
            await sender.commit()
    finally:
        await sender.close()
    return what


async def topics_of(admin: Admin, stage: Stage, partition: int = 0) -> tuple[str, str, int]:
    """The ids of input and output topic (hexadecimal) and how many partitions both have. Raises ClickException."""
    read, written = await _both_topics(admin, stage)
    if differ := _counts_differ(stage, read, written):
        raise click.ClickException(differ)
    if partition not in read.partitions:
        raise click.ClickException(f"`{stage.topic}` has no partition {partition}")
    return read.topic_id.hex(), written.topic_id.hex(), len(read.partitions)


async def _both_topics(admin: Admin, stage: Stage) -> tuple[TopicInfo, TopicInfo]:
    """Input and output topic as the cluster has them. Raises ClickException."""
    names = [stage.input(0)[0], stage.output(0)[0]]
    cluster = await admin.metadata(names, refresh=True)
    for name in names:
        if name not in cluster.topics:
            raise click.ClickException(f"topic `{name}` is not there")
    return cluster.topics[names[0]], cluster.topics[names[1]]


def _counts_differ(stage: Stage, read: TopicInfo, written: TopicInfo) -> str:
    """How many partitions input and output have, in words, where that isn't the same."""
    before, behind = len(read.partitions), len(written.partitions)
    return "" if before == behind else f"`{stage.topic}` has {before} partitions and `{stage.output(0)[0]}` {behind}"


def partition_option(command: Callable[..., T]) -> Callable[..., T]:
    """Add `-p`, the partition that is meant."""
    return click.option("-p", "--partition", required=True, type=click.IntRange(0), help="The partition.")(command)


because_option = click.option("--because", required=True, metavar="TEXT", help="Noted with the decision.")

SHOWN = (
    "topic",
    "partition",
    "state",
    "running",
    "offset",
    "lag",
    "read",
    "dropped",
    "without_id",
    "misplaced",
    "moved",
    "quarantined",
    "ids",
    "only_in_memory",
    "window_s",
    "size_bytes",
    "why",
)


@click.command("status")
@stage_command
def status(stage: Stage) -> None:
    """Show each partition: position, lag, counters, and the store, if its folder is on this machine.

    `running` says whether a worker has that folder open, `ids` how many its files have; `only in memory` are the output offsets
    whose ids no file has yet. `window s` is the age of the oldest id in the files. --json says more: ends and log starts,
    ranges of unknown and accepted ids. The exit code is 1 if any stands still.

    Example: penstock dedupe status --config pipeline.properties
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        each = stage.each()
        if len(each) == 1:
            return await _rows(admin, each[0])
        rows = []
        for one in each:
            try:
                rows += await _rows(admin, one)
            except click.ClickException as error:
                rows.append(_no_row(one.topic, error.message))
        return rows

    rows = stage.ask(work)
    for row in rows:
        row["why"] = row["why"] or row["store_error"]
    stage.show(rows if stage.as_json else [_shown(row) for row in rows], "partitions")
    if any(row["state"] in STANDING or row["store_error"] for row in rows):
        sys.exit(1)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """What the table has of a row."""
    running = {True: "yes", False: "no", None: None}[row.get("running")]
    return {name: row.get(name) for name in SHOWN} | {"running": running}


async def _rows(admin: Admin, stage: Stage) -> list[dict[str, Any]]:
    """A row for each partition of one topic."""
    read, written = await _both_topics(admin, stage)
    differ = _counts_differ(stage, read, written)
    inputs = [stage.input(partition) for partition in sorted(read.partitions)]
    outputs = {partition: stage.output(partition) for partition in sorted(written.partitions)}
    committed = await admin.settled(stage.group, inputs)
    ends = await admin.list_offsets(dict.fromkeys([*inputs, *outputs.values()], LATEST), "read_committed")
    starts = await admin.list_offsets(dict.fromkeys(outputs.values(), EARLIEST))
    rows = []
    for tp in inputs:
        _, partition = tp
        output, found = outputs.get(partition), committed.get(tp)
        output_start, output_end = (0, 0) if output is None else (starts[output].offset, ends[output].offset)
        position = Position(0, "", "") if found is None else Position.parse(*found)
        noted = {name: value for name, value in asdict(position).items() if name not in NOT_SHOWN}
        rows.append(
            {
                "topic": stage.topic,
                "partition": partition,
                **_state(None if found is None else position, output_end, differ),
                **noted,
                "offset": None if found is None else position.offset,
                "end": ends[tp].offset,
                "lag": ends[tp].offset - position.offset,
                "output_start": output_start,
                "output_end": output_end,
                # Behind the last batch stands its transaction's marker, which has no ids.
                **store_status(stage.folder(partition), position.output_end or output_end),
            }
        )
    return rows


def _no_row(topic: str, why: str) -> dict[str, Any]:
    return {"topic": topic, "partition": None, "state": "not begun", "why": why, "store_error": ""}


STANDING = ("stopped", "stalled")
NOT_SHOWN = ("topic_id", "output_id", "moved_id", "partitions")


def _state(position: Position | None, output_end: int, differ: str) -> dict[str, str]:
    """How a partition is, and why it stands still if it does, as its position says; of none, as its output says. `differ`:
    in words, that input and output have not as many partitions."""
    if position is None and output_end > 0:
        return {"state": "stopped", "why": "its output has data and its position is gone: `penstock dedupe position` sets one"}
    if position is None:
        return {"state": "no position", "why": differ or "no worker has begun it"}
    unknown = f"ids of output offsets {position.unknown} are unknown" if position.unknown else ""
    if stopped := position.stopped or unknown:
        return {"state": "stopped", "why": stopped}
    if position.stalled:
        return {"state": "stalled", "why": position.stalled}
    return {"state": "reading", "why": ""}


def store_status(folder: StoreFolder, written_to: int) -> dict[str, Any]:
    """A store as its files are now; nothing is known (None) of one that is not on this machine.

    `only_in_memory` are output offsets up to `written_to` behind what the files are complete to: a restart reads them again.
    """
    facts = ("running", "ids", "oldest_ms", "window_s", "size_bytes", "files", "only_in_memory")
    unknown = {**dict.fromkeys(facts), "store_error": ""}
    if not folder.database.exists():
        return unknown
    try:
        store = snapshot.look(folder.database, snapshot.TRIES)
    except RocksError as error:
        return {**unknown, "running": folder.is_held(), "store_error": str(error)}
    stats, kept_to = store.stats(), store.kept_to
    store.close()
    oldest_ms = stats["oldest_ms"]
    return {
        "running": folder.is_held(),
        "ids": stats["ids_in_files"],
        "oldest_ms": oldest_ms,
        "window_s": max(0, time.time_ns() // 1_000_000 - oldest_ms) // 1000 if oldest_ms else 0,
        "size_bytes": stats["size_bytes"],
        "files": stats["files"],
        "only_in_memory": max(0, written_to - kept_to),
        "store_error": "",
    }


@click.command("accept")
@click.option("-p", "--partition", "named", type=click.IntRange(0), help="The partition.")
@click.argument("given", type=click.IntRange(0), metavar="[PARTITION]", required=False)
@click.option("--because", default="no reason was given", metavar="TEXT", help="Noted with the decision.")
@stage_command
def accept(stage: Stage, named: int | None, given: int | None, because: str) -> None:
    """Accept that the ids of expired output are unknown, so that a partition which stopped for them goes on.

    Messages whose ids were among them may come a second time. The position keeps the accepted offsets.

    Example: penstock dedupe accept -p 3 --config pipeline.properties --because "its disk is lost, no snapshot"
    """
    if (named is None) == (given is None):
        raise click.UsageError("name the partition once, with `-p PARTITION`")
    partition = int(given if named is None else named)  # type: ignore[arg-type]  # one of them was given

    async def work(admin: Admin) -> str:
        # Retention may have gone on since the worker stopped.
        output = stage.output(partition)
        await position_of(admin, stage, partition)
        start = await admin.start_offset(output)

        def change(before: Position | None) -> tuple[str, Position]:
            if before is None or not before.unknown:
                topic, _ = stage.input(partition)
                raise click.ClickException(
                    f"{topic}-{partition} has not stopped for unknown ids: there is nothing to accept"
                )
            unknown = before.unknown_ids(int(before.unknown.partition("..")[0]), start) or before.unknown
            return f"accept {unknown}", replace(before, unknown=unknown).accept()

        return (await decide(admin, stage, partition, change, because)).removeprefix("accept ")

    unknown = stage.ask(work)
    stage.say(
        f"unknown ids of output offsets {unknown} are accepted; a stage that runs goes on by itself",
        partition=partition,
        accepted=unknown,
    )


@click.command("position")
@partition_option
@click.option("--at", required=True, type=click.IntRange(0), metavar="OFFSET", help="The input offset to read from.")
@because_option
@stage_command
def position(stage: Stage, partition: int, at: int, because: str) -> None:
    """Set the input offset that a partition is read from: its position has expired, or the input's log has overtaken it.

    Messages before the offset that were never read are lost; those behind it that were read already are dropped as repeats,
    as long as their ids are known. Where there was no position its counters come from the logs, if they are whole. Moved
    records are read from where their topic begins.

    Example: penstock dedupe position -p 3 --at 4711 --config pipeline.properties --because "group was deleted by mistake"
    """

    async def work(admin: Admin) -> dict[str, Any]:
        tp, output = stage.input(partition), stage.output(partition)
        input_id, output_id, count = await topics_of(admin, stage, partition)
        start = await admin.start_offset(tp)
        end = await admin.end_offset(tp, "read_committed")
        if not start <= at <= end:
            raise click.ClickException(f"offset {at} is outside the log of {tp[0]}-{partition} ({start} to {end})")
        first = Position(0, input_id, output_id, partitions=count)
        if await find_position(admin, stage, partition) is None:
            output_end = await admin.end_offset(output, "read_committed")
            read = await count_topic(stage.bootstrap, tp[0], {partition: at}, patience=stage.patience)
            written = await count_topic(stage.bootstrap, output[0], {partition: output_end}, patience=stage.patience)
            if not (read.starts[partition] or written.starts[partition]):
                dropped = max(0, read.total - written.total)
                first = replace(first, read=read.total, written=written.total, dropped=dropped)
            # A transaction's marker is what it ends with.
            first = replace(first, output_end=max(0, output_end - 1))
        offset_before: int | None = None

        def change(found: Position | None) -> tuple[str, Position]:
            nonlocal offset_before
            offset_before = None if found is None else found.offset
            before = found or first
            for what, topic_id, now in (("input", before.topic_id, input_id), ("output", before.output_id, output_id)):
                if topic_id != now:
                    raise click.ClickException(f"the {what} topic was recreated since the position was written")
            return f"position {'none' if found is None else found.offset} -> {at}", replace(
                before, offset=at, leader_epoch=-1, moved_id=""
            )

        await decide(admin, stage, partition, change, because)
        return {"partition": partition, "before": offset_before, "offset": at}

    done = stage.ask(work)
    before = "none" if done["before"] is None else done["before"]
    stage.say(f"partition {partition} is read from offset {at} (before: {before}); a stage that runs goes on by itself", **done)


@click.command("snapshot")
@partition_option
@click.option(
    "--to", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A folder that isn't there yet."
)
@stage_command
def take_snapshot(stage: Stage, partition: int, to: Path) -> None:
    """Keep a copy of a partition's store; the stage may run meanwhile. On the same file system its files are links.

    Ids that only memory has are not in it: when it is restored they are read again from the output.

    Example: penstock dedupe snapshot -p 3 --to /backup/dedupe-3-monday --config pipeline.properties
    """
    complete_to = snapshot.take(stage.folder(partition), to)

    async def written_to(admin: Admin) -> int:
        found = await find_position(admin, stage, partition)
        return found.output_end if found is not None else 0

    try:
        only_in_memory: int | None = max(0, stage.ask(written_to) - complete_to)
    except (click.ClickException, OperatorNeeded):
        only_in_memory = None  # the snapshot is whole all the same
    lacks = f"; those of the {only_in_memory} behind are only in memory, and a restore reads them again from the output"
    stage.say(
        f"`{to}` has the ids of output offsets up to {complete_to}{lacks if only_in_memory else ''}",
        partition=partition,
        snapshot=str(to),
        complete_to=complete_to,
        only_in_memory=only_in_memory,
    )


@click.command("restore")
@partition_option
@click.option("--from", "source", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The snapshot.")
@stage_command
def restore(stage: Stage, partition: int, source: Path) -> None:
    """Put a snapshot in the place of a partition's store, which is set aside; the stage must not run on it.

    The next start reads what came since from the output. So a partition moves to another machine, too.

    Example: penstock dedupe restore -p 3 --from /backup/dedupe-3-monday --config pipeline.properties
    """
    committed = stage.ask(lambda admin: position_of(admin, stage, partition))
    try:
        check_owner(source, stage.owner(partition, committed))
    except OSError as error:
        raise click.ClickException(f"`{source}` is no snapshot: {error.strerror}") from None
    with held(stage.folder(partition)) as folder:
        complete_to = snapshot.restore(folder, source)
    stage.say(
        f"partition {partition} has the ids of output offsets up to {complete_to}; the next start reads the rest",
        partition=partition,
        complete_to=complete_to,
    )


@click.command("rebuild")
@partition_option
@stage_command
def rebuild(stage: Stage, partition: int) -> None:
    """Set a partition's store aside, so that the next start builds it from the output; the stage must not run on it.

    Example: penstock dedupe rebuild -p 3 --config pipeline.properties
    """

    async def work(admin: Admin) -> tuple[int, int, str]:
        output = stage.output(partition)
        before = await position_of(admin, stage, partition)
        start = await admin.start_offset(output)
        return start, await admin.end_offset(output, "read_committed"), before.unknown_ids(0, start)

    start, end, unknown = stage.ask(work)
    with held(stage.folder(partition)) as folder:
        aside = folder.set_aside()
    lost = f"; it will stop, since ids of output offsets {unknown} can't be known any more" if unknown else ""
    stage.say(
        f"the next start of partition {partition} reads output offsets {start} to {end}{lost}; "
        + (f"the store is `{aside}` now" if aside else "there was no store"),
        partition=partition,
        start=start,
        end=end,
        unknown=unknown,
        set_aside=None if aside is None else str(aside),
    )


@contextlib.contextmanager
def held(folder: StoreFolder) -> Iterator[StoreFolder]:
    """A folder that no other process works in meanwhile. Raises FolderError."""
    folder.lock()
    try:
        yield folder
    finally:
        folder.unlock()


ALL = (status, accept, position, take_snapshot, restore, rebuild)
