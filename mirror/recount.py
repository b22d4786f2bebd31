"""What was copied before a position was lost, counted from the logs of both sides."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.mirror.identity import Identity
from penstock.mirror.position import UNSEEN, MirrorPosition
from penstock.mirror.sourcerange import Stretch
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.metadata import TopicInfo
from penstock.pipeline.stages.position import fields_of

TRIES = 3  # other sources copy into the partition meanwhile


async def recount(
    source: Admin, target: Admin, lane: Identity, topics: tuple[TopicInfo, TopicInfo], offset: int, others: Sequence[str]
) -> MirrorPosition:
    """A position for a lane that has none and goes on at an offset. `topics` are the source's and the target's, `others` the
    groups of other sources that copy into the same topic.

    Where both logs are whole, and the notes of the other sources say what theirs is, it has the records that the target has of
    this source; nothing is a gap if the source has as many below the offset. Else nothing is known to have been copied. Raises
    KafkaError.
    """
    theirs, ours = topics
    unknown = MirrorPosition(0, UNSEEN, ours.topic_id)
    if offset == 0 or await source.start_offset(lane.partition) or await target.start_offset(lane.into):
        return unknown
    copied = await _copied(target, lane, ours.topic_id, others)
    if copied is None:
        return unknown
    sent = await Stretch(source, lane.partition, theirs.topic_id, 0, offset).count()
    if copied >= sent:
        return MirrorPosition(offset, UNSEEN, ours.topic_id, records=copied, again_records=copied - sent)
    # Which of them the target lacks, nobody knows: all are said to be left out, and those that it has to be there besides.
    return MirrorPosition(0, UNSEEN, ours.topic_id, records=copied, again_records=copied)


async def _copied(target: Admin, lane: Identity, topic_id: bytes, others: Sequence[str]) -> int | None:
    """The records of this source on the target; None where the others' can't be told from them."""
    for _ in range(TRIES):
        before = await _of_others(target, lane, others)
        end = await target.end_offset(lane.into, "read_committed")
        there = await Stretch(target, lane.into, topic_id, 0, end).count()
        if before is not None and before == await _of_others(target, lane, others):
            return max(0, there - before)
    return None


async def _of_others(target: Admin, lane: Identity, others: Sequence[str]) -> int | None:
    """What the positions of other sources say that they have copied into the partition; None where one says nothing."""
    records = 0
    for group in others:
        found = (await target.committed(group, [lane.into]))[lane.into]
        noted = None if found is None else fields_of(found[1]).get("records")
        if not isinstance(noted, int):
            return None
        records += noted
    return records
