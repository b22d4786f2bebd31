"""Where every lane of a mirror stands, from the positions on the target and the ends of the sources' logs."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from penstock.config import Config
from penstock.mirror.identity import Identity
from penstock.mirror.position import UNSEEN, MirrorPosition
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.options import DEFAULT_TIMEOUTS, Timeouts
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.failures import TRANSIENT, OperatorNeeded
from penstock.pipeline.stages.status import Ahead, Row, look_ahead, look_twice, silent_after_ms, state_of
from penstock.pipeline.stages.topics import TopicChoice

CLIENT_ID = "penstock-mirror-status"
COUNTERS = ("records", "rebuilt", "gaps", "gap_records", "again_records")


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
        return await look_twice(partial(_rows, config, target, name, source), config["penstock.mirror.linger.ms"])


async def _rows(config: Config, target: Admin, name: str, source: Admin | None) -> list[Row]:
    """The lanes of a source; None: it can't be asked now."""
    positions = await target.settled(job.mirror_group(config, name))  # before the ends, which none is beyond then
    chosen = TopicChoice(config)
    topics = {chosen.into(name, topic): topic for topic in chosen.named}
    for copied, _ in positions:
        topic = chosen.out_of(name, copied)
        if topic is not None and chosen.wants(topic):
            topics[copied] = topic
    theirs = set[str]()
    with contextlib.suppress(*TRANSIENT):
        theirs = await _wanted(source, chosen) if source is not None else theirs
    topics |= {chosen.into(name, topic): topic for topic in theirs}
    cluster = await target.metadata([*topics], refresh=True)
    ids = {into: cluster.topics[into].topic_id for into in topics if into in cluster.topics}
    there = [(copied, number) for copied in ids for number in sorted(cluster.topics[copied].partitions)]
    lanes = list(dict.fromkeys([*there, *(tp for tp in sorted(positions) if tp[0] in topics)]))
    silent_ms = silent_after_ms(config, config["penstock.mirror.linger.ms"])
    ahead: dict[TopicPartition, Ahead] = {}
    with contextlib.suppress(*TRANSIENT):
        wanted = [(topics[copied], number) for copied, number in lanes]
        ahead = await look_ahead(source, wanted, silent_ms) if source is not None else ahead
    rows = []
    for into in lanes:
        tp = topics[into[0]], into[1]
        lane = Identity(config["penstock.mirror.name"], name, tp, into)
        rows.append(_row(lane, positions.get(into), ahead.get(tp), ids.get(into[0], b""), silent_ms))
    for copied, topic in topics.items():
        if copied in ids or any(lane[0] == copied for lane in lanes):
            continue
        state, why = "no topic", f"`{copied}` is not on the target yet, and source {name} doesn't have it or can't be asked"
        if topic in theirs:
            state = "not copied"
            why = (
                f"`{copied}` is not on the target: a mirror that runs makes it within `penstock.watch.ms`, or its log says "
                "what it is refused for"
            )
        rows.append({**_empty(name, (topic, None)), "state": state, "why": why})
    return rows


async def _wanted(source: Admin, chosen: TopicChoice) -> set[str]:
    """The topics of a source that are copied."""
    cluster = await source.metadata(None if chosen.are_searched else chosen.named, refresh=True)
    return {topic for topic, info in cluster.topics.items() if chosen.wants(topic, info.internal)}


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


def _row(lane: Identity, found: tuple[int, str] | None, ahead: Ahead | None, target_id: bytes, silent_ms: int) -> Row:
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
        position.check_target(target_id, hints.to_begin(lane.address))
    except OperatorNeeded as error:
        return {**row, "position": found[0], "state": "stopped", "why": str(error)}
    position = replace(position, committed_ms=max(position.committed_ms, position.copied_ms))
    inputs = [] if ahead is None else [(position.offset, ahead)]
    row |= state_of(position, inputs, silent_ms, "mirror", "copying")
    if row["state"] == "copying" and ahead is None:
        row["why"] = "the source can't be asked now"
    if row["state"] == "copying" and position.topic_id == UNSEEN:
        row |= {"state": "registered", "why": "the source's topic was not reached yet"}
    return row


def _moment(at_ms: int) -> str | None:
    return None if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
