"""What a target has lost of a copy: the last batch of the lane that is still there, found again in the source's log.

The target's log doesn't say from which source offset a batch came. Its records do: the lane copied them in the source's order,
and after that batch it wrote no more records than its part of the target's log had offsets. So of the source's log only as many
records are looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.mirror.identity import Identity
from penstock.mirror.position import RANGES_MAX, MirrorPosition
from penstock.mirror.sourcerange import Stretch
from penstock.mirror.target import topic_of
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.stages import hints, ranges
from penstock.pipeline.stages.outputlog import MarkerLost, OutputLog, OutputLost
from penstock.pyx.record.rawbatch import BatchError, Record, records


class TargetLoss(NamedTuple):
    """Records of the source from offset `first` (None: nobody can tell which) up to `to` that the target had and has lost.
    The lane's last batch that the target still has ends at its offset `target_end` (-1: that isn't known)."""

    first: int | None
    to: int
    records: int = 0
    target_end: int = -1

    def roll_back(self, position: MirrorPosition) -> MirrorPosition:
        """The position that the target proves."""
        if self.first is None:
            return replace(position, target_end=-1, other_logs=position.other_logs + 1)
        back = position.passing(self.first)
        return replace(back, records=position.records - self.records, target_end=self.target_end)

    def leave_out(self, position: MirrorPosition) -> MirrorPosition:
        """A position after `roll_back` and a decision where to go on, with what it leaves out of the loss noted."""
        end = min(self.to, position.offset)
        if self.first is None or end <= self.first:
            return position
        known = ranges.merged([*ranges.parse(position.lost_ranges), (self.first, end - 1)])
        return replace(position, lost_ranges=ranges.text_of(known[-RANGES_MAX:]))


class LaneOutput:
    """What a lane wrote to the target, held against its position."""

    def __init__(self, source: Admin, target: Admin, lane: Identity) -> None:
        self.log = OutputLog(target, lane.into)
        self._source = source
        self._target = target
        self._lane = lane

    async def check(self, position: MirrorPosition) -> None:
        """Raise OutputLost for a target that lacks what was copied up to a position, KafkaError. All transactions of the lane
        must have ended."""
        try:
            why = await self.log.lacks(position.target_end, position.producer_id, settled=True)
            if why:
                raise await self._refusal(why, position)
        except MarkerLost as error:
            raise OutputLost(f"{error}; then {hints.to_retry(self._lane.address)}") from None

    async def find_loss(self, position: MirrorPosition) -> TargetLoss | None:
        """What the target has lost of the copy up to a position; None: nothing. Raises MarkerLost, KafkaError."""
        is_lost = await self.log.lacks(position.target_end, position.producer_id, settled=True)
        return await self._measure(position) if is_lost else None

    async def _refusal(self, why: str, position: MirrorPosition) -> OutputLost:
        loss, lane = await self._measure(position), self._lane.address
        seen = f"{why} (seen at {_moment(time.time_ns() // 1_000_000)}): the target lost records that were copied"
        until = f"; the last of them was copied at {_moment(position.copied_ms)}" if position.copied_ms >= 0 else ""
        if loss.first is None:
            return OutputLost(
                f"{seen}. Which of the source's offsets below {position.offset} they had can't be told{until}: "
                f"{hints.to_begin(lane)} copies again from there"
            )
        return OutputLost(
            f"{seen}. {loss.records} records of the source's offsets {loss.first} to {loss.to - 1} are missing{until}: "
            f"{hints.to_begin(lane, str(loss.first))} copies them again; {hints.to_begin(lane, str(loss.to))} goes on without "
            "them, and the audit names them"
        )

    async def _measure(self, position: MirrorPosition) -> TargetLoss:
        """What a target that lacks something has lost."""
        try:
            found = await self._find(position)
        except BatchError:  # a batch that has to be opened is corrupt
            found = None
        return found or TargetLoss(None, position.offset)

    async def _find(self, position: MirrorPosition) -> TargetLoss | None:
        topic = await topic_of(self._source, self._lane.partition[0], f"source {self._lane.source}")
        if topic.topic_id != position.topic_id:
            return None
        there = await self.log.last_batch(position.target_end, position.producer_id)
        if there is None:
            if await self._target.end_offset(self._lane.into) > 0:
                return None
            first = min(await self._source.start_offset(self._lane.partition), position.offset)
            return TargetLoss(first, position.offset, len(await self._copied(position, first)))
        wanted, most = _contents(await asyncio.to_thread(records, there)), position.target_end - there.next_offset
        copied = await self._tail(position, most + len(wanted))
        found = _contents(copied)
        # The batch behind which nothing is missing isn't there any more.
        ends = [
            end
            for end in range(max(len(wanted), len(found) - most), len(found))
            if found[end - 1] == wanted[-1] and found[end - len(wanted) : end] == wanted
        ]
        if len(ends) != 1:
            return None
        return TargetLoss(copied[ends[0] - 1].offset + 1, position.offset, len(found) - ends[0], there.next_offset)

    async def _tail(self, position: MirrorPosition, count: int) -> list[Record]:
        """At least so many of the last records that were copied up to a position, or all that the source has of them."""
        start = await self._source.start_offset(self._lane.partition)
        span = count
        while True:
            first = max(start, position.offset - span)
            found = await self._copied(position, first)
            if len(found) >= count or first <= start:
                return found
            span *= 2

    async def _copied(self, position: MirrorPosition, first: int) -> list[Record]:
        """The records that were copied of the source's offsets from `first` up to a position, without their gaps."""
        stretch = Stretch(self._source, self._lane.partition, position.topic_id, first, position.offset)
        left = ranges.outside((first, position.offset - 1), ranges.parse(position.gap_ranges))
        found: list[Record] = []
        async for piece in stretch.pieces():
            for batch in piece.batches:
                opened = await asyncio.to_thread(records, batch)
                found += [each for each in opened if any(low <= each.offset <= high for low, high in left)]
        return found


def _contents(of: Sequence[Record]) -> list[tuple[object, ...]]:
    """What the target has as the source has it: offsets are other ones, and timestamps may be."""
    return [(each.key, each.value, each.headers) for each in of]


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
