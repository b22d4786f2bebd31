"""`penstock dedupe status`: where each partition stands, from its position, its logs, and its store on this machine."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

import click

from penstock.dedupe import snapshot
from penstock.dedupe.folder import FolderError, StoreFolder
from penstock.dedupe.inputs import input_log
from penstock.dedupe.position import DedupePosition
from penstock.dedupe.progress import window_s
from penstock.dedupe.stageview import StageView, both_topics, counts_differ, view_command
from penstock.errors import os_error_text
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.outputlog import OutputLog
from penstock.pipeline.stages.stagetopics import find_moved_topic
from penstock.pipeline.stages.state import Ahead, Sight, silent_after_ms, state_of
from penstock.pipeline.stages.status import Reading, Row, look_ahead, look_at, look_twice, show
from penstock.pyx.ids.store import RocksError

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
OF_MOVED_TOO = ("written", "dropped", "quarantined", "without_id")
NOT_SHOWN = ("offset", "last_batch", "process", "topic_id", "output_id", "moved_id", "partitions")


@click.command("status")
@click.argument("topic", required=False)
@view_command
def status(stage: StageView, topic: str | None) -> None:
    """Show each partition, of all topics or one: position, lag, counters, and the store, if its folder is on this machine.

    Positions are read from the cluster, so it works from any host, also while no stage runs. A partition is `reading`, or it
    stands still: `stopped` or `stalled`, its position says why; `silent`, records have waited for longer than a stage that runs
    ever takes (`penstock.stalled.after.ms` and some more); `lost`, the input no longer is the log that was read up to the
    position, or the output lacks what was written; `waiting`, an open transaction has held its records back for so long;
    `no position`, no stage has begun it; `no ids`, most of the last records had no id where `penstock.dedupe.id` says. A topic
    is `not begun` while it or its output isn't there. The exit code is 1 in all states but `reading`.

    `dropped`, `quarantined` and `without id` count moved records with the partition that they moved to, as the audit does.
    `running` says whether a worker has that folder open, `ids` how many its files have; `only in memory` are the output offsets
    whose ids no file has yet. `window s` is the age of the oldest id in the files. --json says more: ends and log starts,
    ranges of unknown and accepted ids, when the position was committed.

    Example: penstock dedupe status --config pipeline.properties
    """

    async def work(admin: Admin) -> list[Row]:
        each = stage.each() if topic is None else [stage.with_topic(topic)]
        if len(each) == 1:
            return await _rows(admin, each[0])
        return [row for rows in await asyncio.gather(*(_rows_or_why(admin, one) for one in each)) for row in rows]

    rows = stage.ask(work)
    for row in rows:
        row["why"] = row["why"] or row["store_error"]
    show(stage, rows, _shown)


def _shown(row: Row) -> Row:
    """What the table has of a row."""
    running = {True: "yes", False: "no", None: None}[row.get("running")]
    return {name: row.get(name) for name in SHOWN} | {"running": running}


async def _rows_or_why(admin: Admin, stage: StageView) -> list[Row]:
    """The rows of one topic of several, or one row that says why there are none."""
    try:
        return await _rows(admin, stage)
    except click.ClickException as error:
        row = {"topic": stage.topic, "partition": None, "state": "not begun", "why": error.message, "store_error": ""}
        return [row]


async def _rows(admin: Admin, stage: StageView) -> list[Row]:
    """A row for each partition of one topic. Raises ClickException for a topic that isn't there."""
    read, written = await both_topics(admin, stage)
    differ = counts_differ(stage, read, written)
    partitions = sorted(read.partitions)
    outputs = [stage.output(partition) for partition in sorted(written.partitions)]
    inputs = [stage.input(partition) for partition in partitions]
    of_moved = await find_moved_topic(admin, stage.group, stage.config["penstock.dedupe.name"], stage.topic)
    moved = [(of_moved, partition) for partition in partitions]
    silent_ms = silent_after_ms(stage.config)

    async def look() -> list[Row]:
        committed = await admin.settled(stage.group, [*inputs, *moved])  # before the ends, which none is beyond then
        ahead = await look_ahead(admin, [*inputs, *moved], silent_ms)
        output_ends = await admin.list_offsets(dict.fromkeys(outputs, LATEST), "read_committed")
        output_starts = await admin.list_offsets(dict.fromkeys(outputs, EARLIEST))
        rows = []
        for partition in partitions:
            output = stage.output(partition)
            start, end = (output_starts[output].offset, output_ends[output].offset) if output in output_ends else (0, 0)
            row = await _row(admin, stage, partition, of_moved, committed, ahead, end, differ, silent_ms)
            rows.append({**row, "output_start": start, "output_end": end})
        return rows

    rows = await look_twice(look)
    for row in rows:
        # Behind the last batch stands its transaction's marker, which has no ids.
        row |= store_status(stage.folder(row["partition"]), row.pop("written_to") or row["output_end"])
    return rows


async def _row(
    admin: Admin,
    stage: StageView,
    partition: int,
    of_moved: str,
    committed: dict[TopicPartition, tuple[int, str]],
    ahead: dict[TopicPartition, Ahead],
    output_end: int,
    differ: str,
    silent_ms: int,
) -> Row:
    """What position and logs say of a partition. `of_moved`: the topic of moved records; `differ`: in words, that
    input and output have not as many partitions."""
    tp, moved = stage.input(partition), (of_moved, partition)
    found = committed.get(tp)
    offset = None if found is None else found[0]
    row = {
        "topic": stage.topic,
        "partition": partition,
        "state": "reading",
        "why": "",
        "offset": offset,
        "end": None,
        "lag": None,
        "written_to": 0,
    }
    position = DedupePosition(0, "", "")
    row |= _noted(position)
    if tp in ahead:
        row |= {"end": ahead[tp].end, "lag": max(0, ahead[tp].end - (offset or 0))}
    inputs = []
    try:
        if found is not None:
            row |= dict.fromkeys(_noted(position))  # nothing is known of what can't be read
            position = DedupePosition.parse(stage.group, tp, *found)
            row |= _noted(position) | {"written_to": position.output_end}
            if tp in ahead:
                inputs.append(Reading(tp, input_log(admin, tp, tp), position, ahead[tp]))
        if position.moved_id and moved in committed:
            read_there = DedupePosition.parse(stage.group, moved, *committed[moved], tp)
            row |= {name: getattr(position, name) + getattr(read_there, name) for name in OF_MOVED_TOO}
            if moved in ahead:
                inputs.append(Reading(moved, input_log(admin, tp, moved), read_there, ahead[moved]))
    except OperatorNeeded as error:
        return {**row, "state": "stopped", "why": str(error)}
    unreachable = "" if tp in ahead else f"`{tp[0]}` partition {tp[1]} has no leader"
    if found is None and unreachable:
        return {**row, "state": "unreachable", "why": unreachable}
    if found is None and output_end > 0:
        why = f"its output has data and its position is gone: {hints.to_move(tp)} sets one"
        return {**row, "state": "stopped", "why": why}
    if found is None:
        return {**row, "state": "no position", "why": differ or "no stage has begun it: does one run?"}
    if position.unknown and not position.stopped:
        position = replace(position, stopped=f"ids of output offsets {position.unknown} are unknown")
    if unreachable:
        sight = Sight(position, unreachable=unreachable)
    elif why := await OutputLog(admin, stage.output(partition)).lacks(position.output_end):
        sight = Sight(position, lost=f"{why}: the output lost records; a stage that runs says how to go on")
    else:
        sight = await look_at(admin, position, inputs)
    return row | state_of(sight, silent_ms, position.going(stage.config["penstock.dedupe.id"]))


def _noted(position: DedupePosition) -> Row:
    return {name: value for name, value in asdict(position).items() if name not in NOT_SHOWN}


def store_status(folder: StoreFolder, written_to: int) -> dict[str, Any]:
    """A store as its files are now; nothing is known (None) of one that is not on this machine.

    `only_in_memory` are output offsets up to `written_to` behind what the files are complete to: a restart reads them again.
    """
    facts = ("running", "ids", "oldest_ms", "window_s", "size_bytes", "files", "only_in_memory")
    unknown = {**dict.fromkeys(facts), "store_error": ""}
    try:
        if not folder.database.exists():
            return unknown
        unknown["running"] = folder.is_held()
        store = snapshot.look(folder.database, snapshot.TRIES)
        try:
            stats, kept_to = store.stats(), store.kept_to
        finally:
            store.close()
    except (RocksError, FolderError) as error:
        return {**unknown, "store_error": str(error)}
    except OSError as error:
        return {**unknown, "store_error": os_error_text(error)}
    return {
        "running": unknown["running"],
        "ids": stats["ids_in_files"],
        "oldest_ms": stats["oldest_ms"],
        "window_s": window_s(stats),
        "size_bytes": stats["size_bytes"],
        "files": stats["files"],
        "only_in_memory": max(0, written_to - kept_to),
        "store_error": "",
    }
