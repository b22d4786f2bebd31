"""Where every lane of a mirror stands, from the positions on the target and the ends of the sources' logs.

No process of the mirror is asked: it works from any host, also while none runs.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from penstock.config import Config
from penstock.mirror.position import UNSEEN, Position
from penstock.mirror.topics import Topics
from penstock.pipeline import job
from penstock.pipeline.admin import LATEST, Admin
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.failures import TRANSIENT, OperatorNeeded

PATIENCE = {"client.id": "penstock-mirror-status", "default.api.timeout.ms": 5_000}
STANDING = ("stopped", "stalled", "no position")
Row = dict[str, Any]


async def status(config: Config) -> list[Row]:
    """A row for each lane. Raises KafkaError when the target can't be asked."""
    async with Admin(config["bootstrap.servers"], **PATIENCE) as target:
        found = await asyncio.gather(
            *(_of_source(config, target, name, address) for name, address in job.sources(config).items())
        )
    return [row for rows in found for row in rows]


async def _of_source(config: Config, target: Admin, name: str, address: str) -> list[Row]:
    positions = await target.all_committed(job.mirror_group(config, name))
    chosen = Topics(config)
    topics = {chosen.into(name, topic): topic for topic in chosen.named}
    for copied, _ in positions:
        topic = chosen.out_of(name, copied)
        if topic is not None and chosen.wants(topic):
            topics[copied] = topic
    cluster = await target.metadata([*topics], refresh=True)
    ids = {into: cluster.topics[into].topic_id for into in topics if into in cluster.topics}
    there = [(copied, number) for copied in ids for number in sorted(cluster.topics[copied].partitions)]
    lanes = list(dict.fromkeys([*there, *(tp for tp in sorted(positions) if tp[0] in topics)]))
    ends = await _ends(address, [(topics[copied], number) for copied, number in lanes])
    rows = []
    for into in lanes:
        tp = topics[into[0]], into[1]
        rows.append(_row(name, tp, positions.get(into), ends.get(tp), ids.get(into[0], b"")))
    rows += [
        {**_empty(name, (topic, None)), "state": "no topic", "why": f"`{copied}` is not on the target yet"}
        for copied, topic in topics.items()
        if copied not in ids and not any(lane[0] == copied for lane in lanes)
    ]
    return rows


async def _ends(address: str, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The last stable offsets of a source; what can't be asked now is left out."""
    try:
        async with Admin(address, **PATIENCE) as source:
            cluster = await source.metadata(list({topic for topic, _ in tps}), refresh=True)
            there = [tp for tp in tps if tp[0] in cluster.topics and tp[1] in cluster.topics[tp[0]].partitions]
            found = await source.list_offsets(dict.fromkeys(there, LATEST), "read_committed")
            return {tp: at.offset for tp, at in found.items()}
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
        "why": "",
    }


def _row(source: str, tp: TopicPartition, found: tuple[int, str] | None, end: int | None, target_id: bytes) -> Row:
    row = {**_empty(source, tp), "end": end}
    if found is None:
        return {**row, "state": "no position", "why": "this source is not known to the target"}
    try:
        position = Position.read(*found)
    except OperatorNeeded as error:
        return {**row, "position": found[0], "state": "stopped", "why": str(error)}
    row |= {
        "position": position.offset,
        "lag": None if end is None else max(0, end - position.offset),
        "last_commit": _moment(position.copied_ms),
        "records": position.records,
        "rebuilt": position.rebuilt,
        "gaps": position.gaps,
        "gap_records": position.gap_records,
    }
    try:
        position.check_target(target_id)
    except OperatorNeeded as error:
        return {**row, "state": "stopped", "why": str(error)}
    if position.stopped:
        return {**row, "state": "stopped", "why": position.stopped}
    if position.stalled:
        return {**row, "state": "stalled", "why": position.stalled}
    if position.topic_id == UNSEEN:
        return {**row, "state": "registered", "why": "the source's topic was not reached yet"}
    return {**row, "state": "copying", "why": "" if end is not None else "the source can't be asked now"}


def _moment(at_ms: int) -> str | None:
    return None if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
