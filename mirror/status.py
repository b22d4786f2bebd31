"""Where every lane of a mirror stands, from the positions on the target and the ends of the sources' logs.

No process of the mirror is asked: it works from any host, also while none runs.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.config import Config
from penstock.mirror.position import UNSEEN, Position
from penstock.pipeline import job
from penstock.pipeline.admin import LATEST, Admin
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.failures import TRANSIENT, OperatorNeeded
from penstock.pipeline.patience import USUAL, Patience
from penstock.pipeline.topics import Topics

CLIENT_ID = "penstock-mirror-status"
STANDING = ("stopped", "stalled", "silent", "no position", "not copied")
LONGEST_STEP_MS = 60_000  # the target's limit for a transaction: a mirror's steps are over before
SOON_MS = 10_000  # a lane that is behind for longer says so beside its state
LOOK_AGAIN_MS = 2_000  # beyond the linger: within that a lane that runs has copied something of what waits
Row = dict[str, Any]


class Ahead(NamedTuple):
    """What a source's partition has: its last stable offset, and the first offset whose record is younger than the time
    in which a mirror that runs has copied or told a record (None: there is no such record).
    """

    end: int
    young: int | None


async def status(config: Config, patience: Patience = USUAL) -> list[Row]:
    """A row for each lane. Raises KafkaError when the target can't be asked."""
    async with patience.admin(config["bootstrap.servers"], CLIENT_ID) as target:
        found = await asyncio.gather(
            *(_of_source(config, target, name, address, patience) for name, address in job.sources(config).items())
        )
    return [row for rows in found for row in rows]


async def _of_source(config: Config, target: Admin, name: str, address: str, patience: Patience) -> list[Row]:
    async with AsyncExitStack() as stack:
        try:
            source = await stack.enter_async_context(patience.admin(address, CLIENT_ID))
        except TRANSIENT:
            source = None
        return await _rows(config, target, name, source)


async def _rows(config: Config, target: Admin, name: str, source: Admin | None) -> list[Row]:
    """The lanes of a source; None: it can't be asked now."""
    group = job.mirror_group(config, name)
    positions = await target.settled(group)
    chosen = Topics(config)
    topics = {chosen.into(name, topic): topic for topic in chosen.named}
    for copied, _ in positions:
        topic = chosen.out_of(name, copied)
        if topic is not None and chosen.wants(topic):
            topics[copied] = topic
    theirs = await _wanted(source, chosen)
    topics |= {chosen.into(name, topic): topic for topic in theirs}
    cluster = await target.metadata([*topics], refresh=True)
    ids = {into: cluster.topics[into].topic_id for into in topics if into in cluster.topics}
    there = [(copied, number) for copied in ids for number in sorted(cluster.topics[copied].partitions)]
    lanes = list(dict.fromkeys([*there, *(tp for tp in sorted(positions) if tp[0] in topics)]))
    silent_ms = silent_after_ms(config)
    ahead = await _ahead(source, [(topics[copied], number) for copied, number in lanes], silent_ms)

    def row(into: TopicPartition) -> Row:
        tp = topics[into[0]], into[1]
        return _row(name, tp, positions.get(into), ahead.get(tp), ids.get(into[0], b""), silent_ms)

    rows = [row(into) for into in lanes]
    if any(one["state"] == "silent" for one in rows):
        # Records may be older than their arrival, and a mirror may have started just now: a lane that runs has moved by then.
        await asyncio.sleep((config["penstock.mirror.linger.ms"] + LOOK_AGAIN_MS) / 1000)
        positions = await target.settled(group)
        ahead = await _ahead(source, [(topics[copied], number) for copied, number in lanes], silent_ms)
        rows = [row(into) for into in lanes]
    for copied, topic in topics.items():
        if copied not in ids and not any(lane[0] == copied for lane in lanes):
            state, why = "no topic", f"`{copied}` is not on the target yet, and source {name} doesn't have it or can't be asked"
            if topic in theirs:
                state, why = "not copied", (
                    f"`{copied}` is not on the target: a mirror that runs makes it within `penstock.watch.ms`, or its log says "
                    "what it is refused for"
                )
            rows.append({**_empty(name, (topic, None)), "state": state, "why": why})
    return rows


async def _wanted(source: Admin | None, chosen: Topics) -> set[str]:
    """The topics of a source that are copied; none where it can't be asked now."""
    if source is None:
        return set()
    try:
        cluster = await source.metadata(None if chosen.are_searched else chosen.named, refresh=True)
    except TRANSIENT:
        return set()
    return {topic for topic, info in cluster.topics.items() if chosen.wants(topic, info.internal)}


def silent_after_ms(config: Config) -> int:
    """How long records wait at most for a mirror that runs: by then their lane has committed, or its position says that it
    is stalled or stopped. A lane that another process took is left to it for a session before.
    """
    limits = ("penstock.stalled.after.ms", "penstock.mirror.linger.ms", "session.timeout.ms")
    return LONGEST_STEP_MS + sum(int(config[name]) for name in limits)


async def _ahead(source: Admin | None, tps: list[TopicPartition], silent_ms: int) -> dict[TopicPartition, Ahead]:
    """What a source has; what can't be asked now is left out."""
    if source is None:
        return {}
    try:
        cluster = await source.metadata(list({topic for topic, _ in tps}), refresh=True)
        there = [tp for tp in tps if tp[0] in cluster.topics and tp[1] in cluster.topics[tp[0]].partitions]
        ends = await source.list_offsets(dict.fromkeys(there, LATEST), "read_committed")
        since_ms = max(0, time.time_ns() // 1_000_000 - silent_ms)
        young = await source.list_offsets(dict.fromkeys(there, since_ms))
    except TRANSIENT:
        return {}
    return {tp: Ahead(ends[tp].offset, at.offset if at.offset >= 0 else None) for tp, at in young.items()}


def _empty(source: str, tp: tuple[str, int | None]) -> Row:
    return {
        "source": source,
        "topic": tp[0],
        "partition": tp[1],
        "state": "",
        "position": None,
        "end": None,
        "lag": None,
        "last_commit": None,
        "records": None,
        "rebuilt": None,
        "gaps": None,
        "gap_records": None,
        "again_records": None,
        "why": "",
    }


def _row(
    source: str,
    tp: TopicPartition,
    found: tuple[int, str] | None,
    ahead: Ahead | None,
    target_id: bytes,
    silent_ms: int,
) -> Row:
    row = {**_empty(source, tp), "end": None if ahead is None else ahead.end}
    if found is None:
        return {**row, "state": "no position", "why": "this source is not known to the target"}
    try:
        position = Position.read(*found)
    except OperatorNeeded as error:
        return {**row, "position": found[0], "state": "stopped", "why": str(error)}
    row |= {
        "position": position.offset,
        "lag": None if ahead is None else max(0, ahead.end - position.offset),
        "last_commit": _moment(position.copied_ms),
        "records": position.records,
        "rebuilt": position.rebuilt,
        "gaps": position.gaps,
        "gap_records": position.gap_records,
        "again_records": position.again_records,
    }
    try:
        position.check_target(target_id)
    except OperatorNeeded as error:
        return {**row, "state": "stopped", "why": str(error)}
    if position.stopped:
        return {**row, "state": "stopped", "why": position.stopped}
    if position.stalled:
        return {**row, "state": "stalled", "why": position.stalled}
    why = "" if ahead is not None else "the source can't be asked now"
    committed_ms = max(position.committed_ms, position.copied_ms)
    if ahead is not None and ahead.end < position.offset:
        why = f"the source ends at {ahead.end}, before the position; a mirror that runs would have stopped and said the way on"
        return {**row, "state": "silent", "why": f"{why}: does it run?"}
    if ahead is not None and ahead.end > position.offset and committed_ms >= 0:
        quiet_ms = time.time_ns() // 1_000_000 - committed_ms
        waits = f"no commit for {quiet_ms // 1000} s while {ahead.end - position.offset} records wait"
        if quiet_ms > silent_ms and (ahead.young is None or ahead.young > position.offset):
            return {**row, "state": "silent", "why": f"{waits}: does the mirror run?"}
        why = f"{waits}; the lane is silent after {silent_ms // 1000} s" if quiet_ms > SOON_MS else ""
    if position.topic_id == UNSEEN:
        return {**row, "state": "registered", "why": "the source's topic was not reached yet"}
    return {**row, "state": "copying", "why": why}


def _moment(at_ms: int) -> str | None:
    return None if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
