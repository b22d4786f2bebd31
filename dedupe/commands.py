"""What an operator decides for a dedupe stage, next to the running one: `penstock dedupe accept`, ...

A decision takes the partition's identity, which ends whatever its worker has under way, and writes the position in a
transaction, together with a record of `penstock.quarantine` that says what was decided and why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.dedupe import snapshot
from penstock.dedupe.folder import FolderError, StoreFolder, check_owner
from penstock.dedupe.inputs import input_log
from penstock.dedupe.position import DedupePosition, identity
from penstock.dedupe.stageview import StageView, both_topics, counts_differ, partition_command
from penstock.dedupe.status import status
from penstock.errors import os_error_text
from penstock.pipeline.audit.counts import count_topic
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.job import moved_topic, shared_moved_topic
from penstock.pipeline.stages.address import PLACES, LogPlace, log_place
from penstock.pipeline.stages.decision import fenced
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.outputlog import OutputLog
from penstock.pipeline.stages.quarantine import Quarantine, came, note
from penstock.pipeline.stages.stagetopics import find_moved_topic


async def find_position(admin: Admin, stage: StageView, partition: int) -> DedupePosition | None:
    """The committed position of a partition, if there is one. Raises OperatorNeeded."""
    tp = stage.input(partition)
    found = (await admin.committed(stage.group, [tp]))[tp]
    return None if found is None else DedupePosition.parse(stage.group, tp, *found)


async def position_of(admin: Admin, stage: StageView, partition: int) -> DedupePosition:
    """The same, which must be there. Raises ClickException if it isn't, OperatorNeeded."""
    found = await find_position(admin, stage, partition)
    if found is None:
        topic, _ = stage.input(partition)
        raise click.ClickException(f"group `{stage.group}` has no position of {topic}-{partition}")
    return found


Change = Callable[[DedupePosition | None], tuple[str, DedupePosition]]
"""What an operator decides, in words, and the position after it, given the one before. Raises ClickException."""


class MovedInput(NamedTuple):
    """A partition of the topic of moved records, and the position there; None: there is no such topic."""

    tp: TopicPartition
    position: DedupePosition | None


async def decide(
    admin: Admin,
    stage: StageView,
    partition: int,
    change: Change,
    because: str,
    *,
    with_moved: bool = False,
    moved_again: bool = False,
) -> str:
    """Change a position in the partition's own name; what was decided. Whoever works on it is fenced first, so that nothing
    comes in between, and has to read the position again. `with_moved`: the position of moved records is decided with it,
    and with `moved_again` set back to their beginning.
    """
    tp = stage.input(partition)
    change(await find_position(admin, stage, partition))  # what is refused fences nobody
    name = identity(stage.config["penstock.dedupe.name"], tp)
    called = f"{tp[0]}-{tp[1]}"
    async with fenced(admin, Quarantine(admin), name, stage.group, tp, called, "penstock dedupe status") as decision:
        before = await find_position(admin, stage, partition)
        what, after = change(before)
        others = {}
        if with_moved:
            moved = await find_moved(admin, stage, partition, before or after, again=moved_again)
            after = replace(after, moved_id="" if moved.position is None else moved.position.topic_id)
            others = {} if moved.position is None else {moved.tp: moved.position}
        await decision.send([note(what.encode(), came(tp, after.offset, because))])
        await decision.commit(after, others)
    return what


async def topics_of(admin: Admin, stage: StageView, partition: int = 0) -> tuple[str, str, int]:
    """The ids of input and output topic (hexadecimal) and how many partitions both have. Raises ClickException."""
    read, written = await both_topics(admin, stage)
    if differ := counts_differ(stage, read, written):
        raise click.ClickException(differ)
    if partition not in read.partitions:
        raise click.ClickException(f"`{stage.topic}` has no partition {partition}")
    return read.topic_id.hex(), written.topic_id.hex(), len(read.partitions)


@click.command("accept")
@click.option("--because", default="no reason was given", metavar="TEXT", help="Noted with the decision.")
@partition_command
def accept(stage: StageView, partition: int, because: str) -> None:
    """Accept that the ids of expired output are unknown, so that a partition which stopped for them goes on.

    Messages whose ids were among them may come a second time. The position keeps the accepted offsets.

    Example: penstock dedupe accept flights:3 --config pipeline.properties --because "its disk is lost, no snapshot"
    """

    async def work(admin: Admin) -> str:
        # Retention may have gone on since the worker stopped.
        output = stage.output(partition)
        await position_of(admin, stage, partition)
        start = await admin.start_offset(output)

        def change(before: DedupePosition | None) -> tuple[str, DedupePosition]:
            if before is None or not before.unknown:
                topic, _ = stage.input(partition)
                raise click.ClickException(f"{topic}-{partition} has not stopped for unknown ids: there is nothing to accept")
            unknown = before.unknown_ids(int(before.unknown.partition("..")[0]), start) or before.unknown
            return f"accept {unknown}", replace(before, unknown=unknown).accept()

        return (await decide(admin, stage, partition, change, because)).removeprefix("accept ")

    unknown = stage.ask(work)
    stage.say(
        f"unknown ids of output offsets {unknown} are accepted; a stage that runs goes on by itself",
        partition=partition,
        accepted=unknown,
    )


async def find_moved(
    admin: Admin, stage: StageView, partition: int, before: DedupePosition, *, again: bool = False
) -> MovedInput:
    """Where moved records are read from once a position is set: where they were, or where their topic begins (always, if
    `again`). `before` is the position without which nothing may be known of them."""
    tp = await find_moved_topic(admin, stage.group, stage.config["penstock.dedupe.name"], stage.topic), partition
    there = (await admin.metadata([tp[0]], refresh=True)).topics.get(tp[0])
    if there is None:
        return MovedInput(tp, None)
    start, topic_id = await admin.start_offset(tp), there.topic_id.hex()
    found = (await admin.committed(stage.group, [tp]))[tp]
    if found is None:
        # Which of them were read before, if any were, nobody knows.
        fresh = DedupePosition(0, topic_id, before.output_id, partitions=before.partitions, untold=int(bool(before.moved_id)))
        return MovedInput(tp, replace(fresh, offset=start) if fresh.untold else fresh.moved_to(start))
    known = DedupePosition.parse(stage.group, tp, *found, stage.input(partition))
    try:
        await input_log(admin, stage.input(partition), tp).check(replace(known, offset=max(start, known.offset)))
        is_that_log = known.topic_id == topic_id
    except OperatorNeeded:  # it was cut back, or put back from a copy
        is_that_log = False
    if not is_that_log:
        return MovedInput(tp, known.in_new_log(topic_id, start))
    return MovedInput(tp, known.moved_to(start) if again or start > known.offset else known)


class OutputLoss(NamedTuple):
    """What an output has lost: it ends at `end`, and lacks so many records (None: nobody can count them)."""

    end: int
    records: int | None


async def find_loss(admin: Admin, stage: StageView, partition: int, position: DedupePosition) -> OutputLoss | None:
    """What the output has lost of what was written up to a position; None: nothing. Raises MarkerLost, KafkaError."""
    output = stage.output(partition)
    log = OutputLog(admin, output)
    if not await log.lacks(position.output_end, settled=True):
        return None
    last = await log.last_batch(position.output_end)
    end = 0 if last is None else last.next_offset
    there = await count_topic(stage.bootstrap, output[0], {partition: end}, timeouts=stage.timeouts)
    lost = position.written - there.total
    # Those of moved records are counted elsewhere, and retention takes some, too.
    can_be_counted = not there.starts[partition] and not there.compacted and not position.moved_id and lost >= 0
    return OutputLoss(end, lost if can_be_counted else None)


async def after_loss(stage: StageView, partition: int, before: DedupePosition, loss: OutputLoss, at: int) -> DedupePosition:
    """The position that an operator sets where the output has lost records. Whether all of these come again is told only where
    all of the input is read again."""
    rolled_back = before.without_lost(loss.end, loss.records or 0)
    if at >= before.frontier:
        return replace(rolled_back.moved_to(at), untold=before.untold + 1)
    count = partial(count_topic, stage.bootstrap, stage.topic, timeouts=stage.timeouts)
    whole = await count({partition: before.frontier})
    below = (await count({partition: at})).total if at else 0
    is_told = at == 0 and loss.records is not None and not whole.starts[partition] and not whole.compacted
    after = rolled_back.read_again_from(at, whole.total - below)
    return after if is_told else replace(after, untold=before.untold + 1)


async def _by_the_logs(admin: Admin, stage: StageView, first: DedupePosition, partition: int) -> DedupePosition:
    """A first position with the counters that follow from the logs up to its offset, if these are whole. Whether all that lies
    below was read can't be told, unless as much was written."""
    output = stage.output(partition)
    output_end = await admin.end_offset(output, "read_committed")
    read = await count_topic(stage.bootstrap, stage.topic, {partition: first.offset}, timeouts=stage.timeouts)
    written = await count_topic(stage.bootstrap, output[0], {partition: output_end}, timeouts=stage.timeouts)
    whole = not (read.starts[partition] or written.starts[partition])
    names = [moved_topic(stage.topic, stage.config["penstock.dedupe.name"]), shared_moved_topic(stage.topic)]
    moved = (await admin.metadata(names, refresh=True)).topics
    first = replace(first, untold=int(bool(moved) or not whole or written.total < read.total))
    if whole:
        dropped, again = max(0, read.total - written.total), max(0, written.total - read.total)
        first = replace(first, read=read.total, written=written.total, dropped=dropped, again=again)
    last = await OutputLog(admin, output).last_batch(output_end)
    return replace(first, output_end=0 if last is None else last.next_offset)


@click.command("position")
@click.option("--at", "place", required=True, type=log_place, metavar=PLACES, help="Where the input's log is read from.")
@click.option("--because", required=True, metavar="TEXT", help="Noted with the decision.")
@partition_command
def position(stage: StageView, partition: int, place: LogPlace, because: str) -> None:
    """Set where a partition's input is read from: its position has expired, or the input's log has overtaken it.

    Messages before the offset that were never read are lost; those behind it that were read already are dropped as repeats,
    as long as their ids are known (one without an id passes once more). Where there was no position its counters come from the
    logs, if they are whole. Moved records are read on from their own position, or from where their topic begins. The audit
    names what was read again. It ends with 1 as long as records that were passed over have never been read.

    Where the output has lost records (a power cut of all replicas, an unclean election), give an offset from before them: what
    the output still has is dropped as repeats, once `penstock dedupe rebuild` has set the store aside, which may have the ids
    of lost records. The audit can tell that none is missing if the place is `earliest` and the logs are whole.

    Example: penstock dedupe position flights:3 --at 4711 --config pipeline.properties --because "group was deleted by mistake"
    """

    async def work(admin: Admin) -> dict[str, Any]:
        tp = stage.input(partition)
        input_id, output_id, count = await topics_of(admin, stage, partition)
        at = await place.find(admin, tp, f"{tp[0]}-{partition}")
        first = DedupePosition(at, input_id, output_id, partitions=count)
        known, after = await find_position(admin, stage, partition), None
        if known is None:
            first = await _by_the_logs(admin, stage, first, partition)
        elif known.output_id == output_id and (loss := await find_loss(admin, stage, partition, known)) is not None:
            after = await after_loss(stage, partition, known, loss, at)
        found: dict[str, int | None] = {}

        def change(before: DedupePosition | None) -> tuple[str, DedupePosition]:
            found["before"] = None if before is None else before.offset
            if before is None:
                return f"position none -> {at}", first
            for what, topic_id, now in (("input", before.topic_id, input_id), ("output", before.output_id, output_id)):
                if topic_id != now:
                    raise click.ClickException(f"the {what} topic was recreated since the position was written")
            if after is None:
                return f"position {before.offset} -> {at}", before.moved_to(at)
            if known is None or (before.offset, before.decisions) != (known.offset, known.decisions):
                raise click.ClickException("the partition was moved at the same time: run this again")
            return f"position {before.offset} -> {at}, the output ends at {after.output_end}", after

        await decide(admin, stage, partition, change, because, with_moved=True, moved_again=after is not None)
        return {"partition": partition, "before": found["before"], "offset": at}

    done = stage.ask(work)
    before = "none" if done["before"] is None else done["before"]
    goes_on = "a stage that runs goes on by itself, within `penstock.watch.ms`"
    stage.say(f"partition {partition} is read from offset {done['offset']} (before: {before}); {goes_on}", **done)


@click.command("snapshot")
@click.option("--to", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A folder that isn't there yet.")
@partition_command
def take_snapshot(stage: StageView, partition: int, to: Path) -> None:
    """Keep a copy of a partition's store; the stage may run meanwhile. On the same file system its files are links.

    Ids that only memory has are not in it: when it is restored they are read again from the output.

    Example: penstock dedupe snapshot flights:3 --to /backup/dedupe-3-monday --config pipeline.properties
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
@click.option("--from", "source", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The snapshot.")
@partition_command
def restore(stage: StageView, partition: int, source: Path) -> None:
    """Put a snapshot in the place of a partition's store, which is set aside; the stage must not run on it.

    The next start reads what came since from the output. So a partition moves to another machine, too.

    Example: penstock dedupe restore flights:3 --from /backup/dedupe-3-monday --config pipeline.properties
    """
    committed = stage.ask(lambda admin: position_of(admin, stage, partition))
    try:
        mend = "give the snapshot of this partition (`TOPIC:P`), or set `penstock.dedupe.id` as it was"
        check_owner(source, stage.owner(partition, committed), mend)
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
@partition_command
def rebuild(stage: StageView, partition: int) -> None:
    """Set a partition's store aside, so that the next start builds it from the output; the stage must not run on it.

    Example: penstock dedupe rebuild flights:3 --config pipeline.properties
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
    try:
        folder.lock("stop the stage first")
        yield folder
    except OSError as error:
        raise FolderError(f"`{folder.path}` can't be used: {os_error_text(error)}") from None
    finally:
        folder.unlock()


ALL = (status, accept, position, take_snapshot, restore, rebuild)
