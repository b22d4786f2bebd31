"""What was copied before a position was lost, counted from the logs of both sides."""

from __future__ import annotations

import asyncio

from penstock.groupnames import MIRROR_GROUPS
from penstock.mirror.identity import Identity
from penstock.mirror.position import UNSEEN, MirrorPosition
from penstock.mirror.sourcerange import Stretch
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.metadata import TopicInfo
from penstock.pipeline.stages.noted import Noted

TRIES = 20  # other sources copy into the partition meanwhile
PAUSE_S = 0.2


async def recount(
    source: Admin, target: Admin, lane: Identity, topics: tuple[TopicInfo, TopicInfo], offset: int
) -> MirrorPosition:
    """A position for a lane that has none and goes on at an offset. `topics` are the source's and the target's.

    Where both logs are whole, and the positions of other sources and mirrors say what theirs is, it has the records that the
    target has of this source (those that an application has written there, too); nothing is a gap if the source has as many
    below the offset. Else nothing is known to have been copied. Raises KafkaError.
    """
    theirs, ours = topics
    unknown = MirrorPosition(0, UNSEEN, ours.topic_id)
    if offset == 0:
        return unknown
    copied = await _copied(target, lane, ours.topic_id)
    if copied is None:
        return unknown
    sent = await Stretch(source, lane.partition, theirs.topic_id, 0, offset).count()
    # Looked at after the count: what retention takes during it is left out without a word.
    if await source.start_offset(lane.partition) or await target.start_offset(lane.into):
        return unknown
    if copied >= sent:
        return MirrorPosition(offset, UNSEEN, ours.topic_id, records=copied, again_records=copied - sent)
    # Which of them the target lacks, nobody knows: all are said to be left out, and those that it has to be there besides.
    return MirrorPosition(0, UNSEEN, ours.topic_id, records=copied, again_records=copied)


async def _copied(target: Admin, lane: Identity, topic_id: bytes) -> int | None:
    """The records of this source on the target; None where the others' can't be told from them."""
    for _ in range(TRIES):
        before = await _of_others(target, lane, topic_id)
        stable = await target.end_offset(lane.into, "read_committed")
        # What lies behind an open transaction may be committed, and counted by its position, but can't be read.
        if stable == await target.end_offset(lane.into):
            there = await Stretch(target, lane.into, topic_id, 0, stable).count()
            if before is not None and before == await _of_others(target, lane, topic_id) and there >= before:
                return there - before
        await asyncio.sleep(PAUSE_S)
    return None


async def _of_others(target: Admin, lane: Identity, topic_id: bytes) -> int | None:
    """What the positions of other sources, of any mirror, say that they have copied into the partition; None where one doesn't
    say it of this topic."""
    records = 0
    groups = [one for one in await target.list_groups() if one.startswith(MIRROR_GROUPS)]
    for group in sorted(set(groups) - {lane.group, lane.older_group}):
        found = (await target.committed(group, [lane.into]))[lane.into]
        if found is None:
            continue
        noted = Noted(found[1])
        if "records" not in noted.numbers or noted.text("target_id") != topic_id.hex():
            return None
        records += noted.numbers["records"]
    return records
