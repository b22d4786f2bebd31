"""Where every lane of a mirror stands, from the positions on the target and the ends of the sources' logs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from penstock.config import Config
from penstock.mirror.identity import Identity
from penstock.mirror.position import UNSEEN, MirrorPosition
from penstock.mirror.source import source_log
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.metadata import TopicInfo
from penstock.pipeline.options import DEFAULT_TIMEOUTS, Timeouts
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.failures import TRANSIENT, OperatorNeeded
from penstock.pipeline.stages.outputlog import OutputLog
from penstock.pipeline.stages.state import Ahead, Sight, noted_state, silent_after_ms, state_of
from penstock.pipeline.stages.status import Reading, Row, look_ahead, look_at, look_twice
from penstock.pipeline.stages.topics import TopicChoice

CLIENT_ID = "penstock-mirror-status"
COUNTERS = ("records", "rebuilt", "gaps", "gap_records", "again_records", "other_logs")


async def status(config: Config, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> list[Row]:
    """A row for each partition. Raises KafkaError when the target can't be asked."""
    async with timeouts.admin(config["bootstrap.servers"], CLIENT_ID) as target:
        found = await asyncio.gather(
            *(_of_source(config, target, name, address, timeouts) for name, address in job.sources(config).items())
        )
    return [row for rows in found for row in rows]


async def _of_source(config: Config, target: Admin, name: str, address: str, timeouts: Timeouts) -> list[Row]:
    async with AsyncExitStack() as stack:
        source: Admin | str
        try:
            source = await stack.enter_async_context(timeouts.admin(address, CLIENT_ID))
        except TRANSIENT as error:
            source = f"source {name} at `{address}` can't be asked: {error}"
        return await look_twice(partial(_rows, config, target, name, source), config["penstock.mirror.linger.ms"])


async def _rows(config: Config, target: Admin, name: str, source: Admin | str) -> list[Row]:
    """The lanes of a source; a text says why that can't be asked now."""
    positions = await target.settled(job.mirror_group(config, name))  # before the ends, which none is beyond then
    chosen = TopicChoice(config)
    topics = {chosen.into(name, topic): topic for topic in chosen.named}
    for copied, _ in positions:
        topic = chosen.out_of(name, copied)
        if topic is not None and chosen.wants(topic, source=name):
            topics[copied] = topic
    theirs: dict[str, TopicInfo] = {}
    if not isinstance(source, str):
        try:
            theirs = await _wanted(source, chosen)
        except TRANSIENT as error:
            source = f"source {name} can't be asked: {error}"
    topics |= {chosen.into(name, topic): topic for topic in theirs}
    cluster = await target.metadata([*topics], refresh=True)
    ids = {into: cluster.topics[into].topic_id for into in topics if into in cluster.topics}
    there = [(copied, number) for copied in ids for number in sorted(cluster.topics[copied].partitions)]
    lanes = list(dict.fromkeys([*there, *(tp for tp in sorted(positions) if tp[0] in topics)]))
    silent_ms = silent_after_ms(config, config["penstock.mirror.linger.ms"])
    look = _Look(source, target, theirs, {}, silent_ms)
    if not isinstance(source, str):
        try:
            look.ahead.update(await look_ahead(source, [(topics[copied], number) for copied, number in lanes], silent_ms))
        except TRANSIENT as error:
            look = look._replace(source=f"source {name} can't be asked: {error}")
    identities = [Identity(config["penstock.mirror.name"], name, (topics[into[0]], into[1]), into) for into in lanes]
    rows = await asyncio.gather(*(_row(lane, positions.get(lane.into), ids.get(lane.into[0]), look) for lane in identities))
    for copied, topic in topics.items():
        if copied in ids or any(lane[0] == copied for lane in lanes):
            continue
        state, why = "no topic", f"`{copied}` is not on the target yet, and source {name} doesn't have it"
        if isinstance(look.source, str):
            state, why = "unreachable", look.source
        elif topic in theirs:
            state = "not copied"
            why = (
                f"`{copied}` is not on the target: a mirror that runs makes it within `penstock.watch.ms`, or its log says "
                "what it is refused for"
            )
        rows.append({**_empty(name, (topic, None)), "state": state, "why": why})
    return rows


class _Look(NamedTuple):
    """What was seen of a source: how to ask it (or why it can't be asked), its topics that are copied, what its logs have; and
    how to ask the target."""

    source: Admin | str
    target: Admin
    topics: Mapping[str, TopicInfo]
    ahead: dict[TopicPartition, Ahead]
    silent_ms: int


async def _wanted(source: Admin, chosen: TopicChoice) -> dict[str, TopicInfo]:
    """The topics of a source that are copied."""
    cluster = await source.metadata(None if chosen.are_searched else chosen.named, refresh=True)
    return {topic: info for topic, info in cluster.topics.items() if chosen.wants(topic, info.internal)}


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
        **dict.fromkeys(COUNTERS),
        "why": "",
    }


async def _row(lane: Identity, found: tuple[int, str] | None, target_id: bytes | None, look: _Look) -> Row:
    ahead = look.ahead.get(lane.partition)
    row = {**_empty(lane.source, lane.partition), "end": None if ahead is None else ahead.end}
    if found is None:
        why = (
            "this source is not known to the target: a mirror that runs registers it, or its log says why not; if the source "
            f"is new: {hints.to_begin(lane.address, 'earliest')}"
        )
        return {**row, "state": "no position", "why": why}
    try:
        position = MirrorPosition.from_text(*found, hints.to_begin(lane.address))
        row |= {name: getattr(position, name) for name in COUNTERS}
        row |= {"position": position.offset, "last_commit": _moment(position.copied_ms)}
        row["lag"] = None if ahead is None else max(0, ahead.end - position.offset)
        if target_id is None:
            return {**row, "state": "no topic", "why": f"the target doesn't have `{lane.into[0]}` now"}
        position.check_target(target_id, hints.to_begin(lane.address))
    except OperatorNeeded as error:
        return {**row, "position": found[0], "state": "stopped", "why": str(error)}
    position = replace(position, committed_ms=max(position.committed_ms, position.copied_ms))
    return row | state_of(await _sight(lane, position, look), look.silent_ms, position.going)


async def _sight(lane: Identity, position: MirrorPosition, look: _Look) -> Sight:
    """What there is to see of a lane with such a position."""
    source, ahead = look.source, look.ahead.get(lane.partition)
    if noted_state(position):
        return Sight(position)
    if why := await OutputLog(look.target, lane.into).lacks(position.target_end, position.producer_id):
        words = "the target lost records that were copied; a mirror that runs says which, and how to go on"
        return Sight(position, lost=f"{why}: {words}")
    if isinstance(source, str):
        return Sight(position, unreachable=source)
    topic = look.topics.get(lane.partition[0])
    if topic is None:
        return Sight(position, no_topic=f"source {lane.source} has no topic `{lane.partition[0]}`")
    if ahead is None:
        why = f"source {lane.source} has no leader of `{lane.partition[0]}` partition {lane.partition[1]}"
        return Sight(position, unreachable=why if lane.partition[1] in topic.partitions else f"{why}: it isn't there")
    try:
        if position.topic_id != UNSEEN:
            position.check_topic(topic.topic_id, hints.to_begin(lane.address))
        return await look_at(source, position, [Reading(lane.partition, source_log(source, lane), position, ahead)])
    except OperatorNeeded as error:
        return Sight(position, lost=str(error))
    except TRANSIENT as error:
        return Sight(position, unreachable=f"source {lane.source} can't be asked: {error}")


def _moment(at_ms: int) -> str | None:
    return None if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
