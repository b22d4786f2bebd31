"""Positions and ends that belong together, read from a pipeline that may be running.

A partition's position and the end of its output move in one transaction. Two equal, stable reads of the position around
a read of the end prove that no transaction came in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline import job
from penstock.pipeline.admin import LATEST, Admin
from penstock.pipeline.audit.counts import CLIENT
from penstock.pipeline.client import TopicPartition

TRIES = 50
PAUSE_S = 0.2


class MovingError(Exception):
    """A stage moved at every try: nothing consistent could be read."""


@dataclass(frozen=True)
class Mark:
    """A stage's committed position in one input partition, with the counters committed beside it."""

    offset: int
    counters: dict[str, int]


@dataclass(frozen=True)
class Stage:
    """Positions by group and input partition, and the stable ends of the output that they belong to.

    `moved`: the positions in the topic of moved records, if the stage has one.
    """

    marks: dict[str, dict[int, Mark]]
    ends: dict[int, int]
    moved: dict[int, Mark]


@dataclass(frozen=True)
class Snapshot:
    """The pipeline's stages: `mirror.marks` by source name, `dedupe.marks` under the stage's name."""

    mirror: Stage
    dedupe: Stage


def _counters(metadata: str) -> dict[str, int]:
    try:
        fields = json.loads(metadata)
    except ValueError:
        return {}
    return {name: value for name, value in fields.items() if isinstance(value, int)} if isinstance(fields, dict) else {}


async def _marks(
    admin: Admin, groups: dict[str, str], topics: Sequence[str], partitions: Sequence[int]
) -> dict[str, dict[TopicPartition, Mark]]:
    found: dict[str, dict[TopicPartition, Mark]] = {}
    for name, group in groups.items():
        tps = [(topic, number) for topic in topics for number in partitions]
        committed = await admin.committed(group, tps, require_stable=True)
        found[name] = {
            tp: Mark(entry[0], _counters(entry[1] or "")) for tp, entry in committed.items() if entry is not None
        }
    return found


async def _stage(admin: Admin, groups: dict[str, str], topic: str, output: str, moved: str = "") -> Stage:
    """Each partition's marks and end, taken when nothing moved meanwhile; partitions that moved are read again. `moved` is
    the topic of moved records, which need not be there."""
    left = sorted((await admin.metadata([topic])).topics[topic].partitions)
    topics = [topic, moved] if moved else [topic]
    stage = Stage({name: {} for name in groups}, {}, {})
    for _ in range(TRIES):
        before = await _marks(admin, groups, topics, left)
        found = await admin.list_offsets({(output, number): LATEST for number in left}, isolation="read_committed")
        after = await _marks(admin, groups, topics, left)
        for partition in list(left):
            tps = [(each, partition) for each in topics]
            if any(before[name].get(tp) != after[name].get(tp) for name in groups for tp in tps):
                continue
            left.remove(partition)
            stage.ends[partition] = found[(output, partition)].offset
            for name in groups:
                if (topic, partition) in after[name]:
                    stage.marks[name][partition] = after[name][(topic, partition)]
                if (moved, partition) in after[name]:
                    stage.moved[partition] = after[name][(moved, partition)]
        if not left:
            return stage
        await asyncio.sleep(PAUSE_S)
    raise MovingError(f"the stage that writes `{output}` moved at each of {TRIES} reads; audit again when it is calmer")


async def take(config: Config) -> Snapshot:
    """Read the aggregate cluster. Raises KafkaError, KeyError for a topic that is not there, MovingError."""
    topic, output = job.input_topic(config), job.output_topic(config)
    async with Admin(config["bootstrap.servers"], **CLIENT) as admin:
        counts = []
        for name in (topic, output):
            found = (await admin.metadata([name])).topics.get(name)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic `{name}` is not on the aggregate cluster")
            counts.append(len(found.partitions))
        if counts[0] != counts[1]:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"`{topic}` has {counts[0]} partitions and `{output}` {counts[1]}"
            )
        # The later stage first: what it has read was there before, so no stage ever seems to be ahead of its input.
        stage = config["penstock.dedupe.name"]
        dedupe = await _stage(admin, {stage: job.dedupe_group(config)}, topic, output, job.moved_topic(topic))
        mirror_groups = {name: job.mirror_group(config, name) for name in job.sources(config)}
        mirror = await _stage(admin, mirror_groups, topic, topic)
    return Snapshot(mirror, dedupe)
