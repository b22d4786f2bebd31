"""Where every lane of a mirror stands, from the positions on the target and the ends of the sources' logs.

No process of the mirror is asked: it works from any host, also while none runs.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

from penstock.config import Config
from penstock.mirror.identity import Identity
from penstock.mirror.position import UNSEEN, Position
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.options import DEFAULT_TIMEOUTS, Timeouts
from penstock.pipeline.stages.failures import TRANSIENT, OperatorNeeded
from penstock.pipeline.stages.laggards import LOOK_AGAIN_S, Ahead, look_ahead, quiet, silent_after_ms
from penstock.pipeline.stages.topics import Topics

CLIENT_ID = "penstock-mirror-status"
Row = dict[str, Any]


async def status(config: Config, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> list[Row]:
    """A row for each partition. Raises KafkaError when the target can't be asked."""
    async with timeouts.admin(config["bootstrap.servers"], CLIENT_ID) as target:
        found = await asyncio.gather(
            *(_of_source(config, target, name, address, timeouts) for name, address in job.sources(config).items())
        )
    return [row for rows in found for row in rows]


async def _of_source(config: Config, target: Admin, name: str, address: str, timeouts: Timeouts) -> list[Row]:
    async with AsyncExitStack() as stack:
        try:
            source = await stack.enter_async_context(timeouts.admin(address, CLIENT_ID))
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
    linger_ms = config["penstock.mirror.linger.ms"]
    silent_ms = silent_after_ms(config, linger_ms)
    ahead = await _ahead(source, [(topics[copied], number) for copied, number in lanes], silent_ms)

    def row(into: TopicPartition) -> Row:
        tp = topics[into[0]], into[1]
        lane = Identity(config["penstock.mirror.name"], name, tp, into)
        return _row(lane, positions.get(into), ahead.get(tp), ids.get(into[0], b""), silent_ms)

    rows = [row(into) for into in lanes]
    if any(one["state"] == "silent" for one in rows):
        await asyncio.sleep(linger_ms / 1000 + LOOK_AGAIN_S)
        positions = await target.settled(group)
        ahead = await _ahead(source, [(topics[copied], number) for copied, number in lanes], silent_ms)
        rows = [row(into) for into in lanes]
    for copied, topic in topics.items():
        if copied not in ids and not any(lane[0] == copied for lane in lanes):
            state, why = "no topic", f"`{copied}` is not on the target yet, and source {name} doesn't have it or can't be asked"
            if topic in theirs:
                state, why = (
                    "not copied",
                    (
                        f"`{copied}` is not on the target: a mirror that runs makes it within `penstock.watch.ms`, or its log "
                        "says what it is refused for"
                    ),
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


async def _ahead(source: Admin | None, tps: list[TopicPartition], silent_ms: int) -> dict[TopicPartition, Ahead]:
    """What a source has; what can't be asked now is left out."""
    if source is None:
        return {}
    try:
        return await look_ahead(source, tps, silent_ms)
    except TRANSIENT:
        return {}


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


def _row(lane: Identity, found: tuple[int, str] | None, ahead: Ahead | None, target_id: bytes, silent_ms: int) -> Row:
    row = {**_empty(lane.source, lane.partition), "end": None if ahead is None else ahead.end}
    if found is None:
        why = (
            "this source is not known to the target: a mirror that runs registers it, or its log says why not; if the source "
            f"is new: {lane.way_to_begin('start')}"
        )
        return {**row, "state": "no position", "why": why}
    try:
        position = Position.from_text(*found, lane.way_to_begin())
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
        position.check_target(target_id, lane.way_to_begin())
    except OperatorNeeded as error:
        return {**row, "state": "stopped", "why": str(error)}
    if position.stopped:
        return {**row, "state": "stopped", "why": position.stopped}
    if position.stalled:
        return {**row, "state": "stalled", "why": position.stalled}
    why = "" if ahead is not None else "the source can't be asked now"
    if ahead is not None:
        committed_ms = max(position.committed_ms, position.copied_ms)
        is_silent, why = quiet([(position.offset, ahead)], committed_ms, silent_ms, "mirror")
        if is_silent:
            return {**row, "state": "silent", "why": why}
    if position.topic_id == UNSEEN:
        return {**row, "state": "registered", "why": "the source's topic was not reached yet"}
    return {**row, "state": "copying", "why": why}


def _moment(at_ms: int) -> str | None:
    return None if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
