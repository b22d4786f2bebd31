"""Positions and ends that belong together, read from a pipeline that may be running.

A position and the output offset behind what it counts are of one transaction, so one read is enough, however busy the stage is.
Several sources write into one partition, and their positions are read at different moments; so the partition's last stable
offset is read first: every batch below it is counted by some position. Of the batches behind it those count that lie below the
`target_end` of their source's position; a batch's producer id says which source that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline import job
from penstock.pipeline.audit.counts import CLIENT_ID, Patience, TopicCounts, stable_ends
from penstock.pipeline.clients.admin import LATEST, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import BatchMark, Fetcher
from penstock.pipeline.options import DEFAULT_TIMEOUTS, Timeouts
from penstock.pipeline.stages import ranges
from penstock.pipeline.stages.noted import Noted
from penstock.pipeline.stages.stagetopics import find_moved_topic
from penstock.pipeline.stages.topics import TopicChoice
from penstock.pyx.record.rawbatch import RawBatch

TRIES = 50
PAUSE_S = 0.2


class MovingError(Exception):
    """A stage moved at every try: nothing consistent could be read."""


@dataclass(frozen=True)
class Mark:
    """A stage's committed position in one input partition, with the counters committed beside it, and the offsets of the
    input that operators have left out."""

    offset: int
    counters: dict[str, int]
    gaps: list[ranges.Range]
    stands: str = ""
    """Why the stage stands still there."""
    last_batch: BatchMark | None = None
    """Of the batch right below the offset."""
    untold: int = 0
    """Decisions of operators of which it isn't noted what was passed over and never read."""
    lost: Sequence[ranges.Range] = ()
    """The gaps whose records the target had, and lost."""

    @property
    def output_end(self) -> int:
        """The output's offset behind what the position counts; -1 where that isn't noted."""
        return max(self.counters.get("target_end", -1), self.counters.get("output_end", -1))

    @property
    def frontier(self) -> int:
        """The offset behind all that was ever read or left out: an operator may have set the position back."""
        return max(self.offset, self.counters.get("reached", -1))

    @property
    def unknown_gaps(self) -> int:
        """How many offsets were left out of which it isn't noted (any more) which they are."""
        return max(0, self.counters.get("gaps", 0) - ranges.size(self.gaps))


@dataclass
class StageMarks:
    """Positions by group and input partition.

    They count what the output has below `ends`, and what of it is in `tail`. `moved`: the positions in the topic of moved
    records, if the stage has one.
    """

    marks: dict[str, dict[int, Mark]]
    ends: dict[int, int] = field(default_factory=dict)
    tail: TopicCounts = field(default_factory=TopicCounts)
    moved: dict[int, Mark] = field(default_factory=dict)
    moved_topic: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The pipeline's stages: `mirror.marks` by source name, `dedupe.marks` under the stage's name; no dedupe where the nights
    are loaded after the mirror. `mirrored` are the target's topics that the mirror has a position in."""

    mirror: StageMarks
    dedupe: StageMarks | None
    mirrored: frozenset[str]


def _mark(offset: int, metadata: str) -> Mark:
    """A position as far as it can be read: the counts say what follows from what it lacks."""
    noted = Noted(metadata)
    return Mark(offset, noted.numbers, noted.gaps, noted.stands, noted.last_batch, noted.untold, noted.lost)


async def _marks(admin: Admin, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Mark]:
    """A partition's positions in a group, those of its topics that have one: what was decided before now is in them."""
    committed = await admin.committed(group, tps, require_stable=True)
    return {tp: _mark(*found) for tp, found in committed.items() if found is not None}


async def _stage(
    admin: Admin, groups: Mapping[str, str], topic: str, output: str, patience: Patience, moved: str = ""
) -> StageMarks:
    """Each partition's marks and end; `moved` is the topic of moved records, which need not be there."""
    left = sorted((await admin.metadata([topic])).topics[topic].partitions)
    stage = StageMarks({name: {} for name in groups}, moved_topic=moved)
    for _ in range(TRIES):
        stable = await admin.list_offsets({(output, number): LATEST for number in left}, isolation="read_committed")
        # Partition by partition: offsets of an open transaction are waited for, and all together are never without one.
        asked = [(name, number) for name in groups for number in left]
        found = await asyncio.gather(
            *(_marks(admin, groups[name], [(each, p) for each in (topic, moved) if each]) for name, p in asked)
        )
        for (name, number), marks in zip(asked, found, strict=True):
            stage.marks[name].pop(number, None)
            if (topic, number) in marks:
                stage.marks[name][number] = marks[topic, number]
            if (moved, number) in marks:
                stage.moved[number] = marks[moved, number]
        for number in list(left):
            marks_of = [marks[number] for marks in stage.marks.values() if number in marks]
            if await _add_tail(admin, stage, (output, number), stable[output, number].offset, marks_of, patience):
                left.remove(number)
        if not left:
            return stage
        await asyncio.sleep(PAUSE_S)
    raise MovingError(
        f"`{output}` partition {left[0]}: at none of {TRIES} tries was it clear who wrote its last batches: is a mirror of "
        "an older version running, or does somebody else write there in transactions?"
    )


async def _add_tail(
    admin: Admin, stage: StageMarks, tp: TopicPartition, stable: int, marks: Sequence[Mark], patience: Patience
) -> bool:
    """Add to a stage what of an output partition its positions count; whether that could be told."""
    end = max([stable, *(mark.output_end for mark in marks)])
    stage.ends[tp[1]] = stable
    if end == stable:
        return True
    batches = await _read(admin, tp, stable, end, patience)
    if batches is None or len(stage.marks) == 1:  # the log itself says what is wrong with it, or all is one writer's
        stage.ends[tp[1]] = end
        return True
    writers = {mark.counters.get("producer_id", -1): mark.output_end for mark in marks}
    if any(batch.is_transactional and batch.producer_id not in writers for batch in batches):
        return False
    for batch in batches:
        if batch.is_transactional and batch.base_offset < writers[batch.producer_id]:
            stage.tail.add(tp[1], batch)
    return True


async def _read(admin: Admin, tp: TopicPartition, start: int, end: int, patience: Patience) -> list[RawBatch] | None:
    """The committed batches of a partition between two offsets; None where they can't be read. Raises KafkaError."""
    if (await stable_ends(admin, [tp], {tp: end}, patience))[tp] < end:
        return None
    found: list[RawBatch] = []
    async with Fetcher(admin, {tp: start}, isolation="read_committed") as fetcher:
        while fetcher.position(tp) < end:
            for fetched in await fetcher.fetch(ahead=False):
                found += [batch for batch in fetched.batches if batch.base_offset < end]
                if fetched.error is not None:
                    return None
    return found


async def take(config: Config, timeouts: Timeouts = DEFAULT_TIMEOUTS, patience: Patience | None = None) -> Snapshot:
    """Read the aggregate cluster. Raises KafkaError, MovingError."""
    patience = patience or Patience()
    topic, output = job.input_topic(config), job.output_topic(config)
    async with timeouts.admin(config["bootstrap.servers"], CLIENT_ID) as admin:
        counts = []
        for name in (topic, output):
            found = (await admin.metadata([name])).topic(name, f"topic `{name}` is not on the aggregate cluster")
            counts.append(len(found.partitions))
        if counts[0] != counts[1]:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"`{topic}` has {counts[0]} partitions and `{output}` {counts[1]}")
        # The later stage first: what it has read was there before, so no stage ever seems to be ahead of its input.
        stage = config["penstock.dedupe.name"]
        dedupe = None
        if output != topic:
            group = job.dedupe_group(config)
            moved = await find_moved_topic(admin, group, stage, topic)
            dedupe = await _stage(admin, {stage: group}, topic, output, patience, moved)
        chosen = TopicChoice(config)
        sources = [name for name in job.sources(config) if chosen.out_of(name, topic) is not None]
        mirror = await _stage(admin, {name: job.mirror_group(config, name) for name in sources}, topic, topic, patience)
        groups = [job.mirror_group(config, name) for name in job.sources(config)]
        positions = [await admin.all_committed(group, require_stable=False) for group in groups]
    return Snapshot(mirror, dedupe, frozenset(topic for of_group in positions for topic, _ in of_group))
