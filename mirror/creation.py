"""A topic is made on the target: its partitions and configs come from the sources, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.mirror.source import Source
from penstock.pipeline.clients.admin import EARLIEST, TOPIC_RESOURCE, Admin
from penstock.pipeline.stages.failures import TRANSIENT
from penstock.pipeline.stages.stagetopics import make_topic

TRAVEL = ("cleanup.policy", "retention.ms", "retention.bytes")  # where a source's topic has its own


async def create(target: Admin, into: str, topics: Sequence[tuple[Source, str]]) -> int:
    """Make a topic as the first source that answers has it; it takes whatever any of the sources that answer took.

    The partitions it has. Raises KafkaError when no source can be reached or has it.
    """
    found = [one for one in await asyncio.gather(*(_look(source, topic) for source, topic in topics)) if one is not None]
    if not found:
        names = ", ".join(sorted({topic for _, topic in topics}))
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no source that can be reached has topic {names}")
    partitions, configs = found[0]
    largest = max(int(more.get("max.message.bytes") or 0) for _, more in found)
    kept = {name: value for name, value in configs.items() if name in TRAVEL and value is not None}
    made = {**kept, "compression.type": "producer", "max.message.bytes": str(largest)}
    await make_topic(target, into, partitions, made)
    return partitions


async def _look(source: Source, topic: str) -> tuple[int, Mapping[str, str | None]] | None:
    """The topic's partitions and configs at a source: those of its own, and its largest message in any case."""
    try:
        found = (await source.admin.metadata([topic], refresh=True)).topics.get(topic)
        if found is None:
            return None
        entries = await source.admin.config_entries(TOPIC_RESOURCE, topic)
    except TRANSIENT:
        return None
    own = {entry.name: entry.value for entry in entries if entry.is_own or entry.name == "max.message.bytes"}
    return len(found.partitions), own


async def outlived(target: Admin, into: str, topics: Sequence[tuple[Source, str]]) -> list[str]:
    """A sentence for each source whose oldest records are older than the target keeps records at all.

    Retention goes by the records' own times: history that is copied would be gone within minutes. Raises KafkaError.
    """
    configs = await target.describe_configs(TOPIC_RESOURCE, into)
    keep_ms = int(configs.get("retention.ms") or -1)
    if keep_ms < 0 or "delete" not in (configs.get("cleanup.policy") or "delete"):
        return []
    now_ms = time.time_ns() // 1_000_000
    said = []
    for source, topic in topics:
        try:
            oldest_ms = await _oldest_ms(source.admin, topic)
        except TRANSIENT:
            continue
        if 0 <= oldest_ms < now_ms - keep_ms:
            when = datetime.fromtimestamp(oldest_ms / 1000, UTC).isoformat(timespec="seconds")
            said.append(
                f"the oldest records of {topic} at source {source.name} are of {when}, and topic {into} on the target keeps "
                f"records for retention.ms={keep_ms} after their own times: they will be gone soon after they are copied; "
                f"`penstock configs set topic {quoted(into)} retention.ms=...` on the target changes that"
            )
    return said


async def _oldest_ms(admin: Admin, topic: str) -> int:
    """The time of the first record of a topic that has one, the oldest of its partitions; -1 for none."""
    found = (await admin.metadata([topic])).topics.get(topic)
    tps = [(topic, number) for number in found.partitions] if found is not None else []
    starts = await admin.list_offsets(dict.fromkeys(tps, EARLIEST))
    firsts = await admin.list_offsets(dict.fromkeys(tps, 0))
    return min((at.timestamp for tp, at in firsts.items() if at.offset >= starts[tp].offset >= 0), default=-1)
