"""What an operator decides about a lane: where it begins, what it leaves out, that it tries again.

`pipeline/stages/decision.py` says how a decision is committed; batches that are left out are in its transaction, too.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.mirror.identity import Identity
from penstock.mirror.position import UNSEEN, MirrorPosition
from penstock.mirror.recount import recount
from penstock.mirror.source import Source, source_log
from penstock.mirror.sourcerange import Stretch
from penstock.mirror.target import topic_of
from penstock.mirror.targetloss import LaneOutput
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.options import Timeouts
from penstock.pipeline.stages import hints, ranges
from penstock.pipeline.stages.address import LogPlace
from penstock.pipeline.stages.decision import Decision, fenced
from penstock.pipeline.stages.failures import OperatorNeeded, OtherLog
from penstock.pipeline.stages.quarantine import Quarantine, chunks, note
from penstock.pipeline.stages.topics import TopicChoice


class Moved(NamedTuple):
    """What a decision came to: the lane, and its position before (if it had one) and after."""

    identity: Identity
    before: MirrorPosition | None
    after: MirrorPosition


class Desk:
    """Decisions about one source's lanes, taken for a reason (`because`)."""

    def __init__(self, config: Config, source: str, because: str, timeouts: Timeouts) -> None:
        client = {"client.id": f"penstock-mirror-{config['penstock.mirror.name']}-operator", **timeouts.properties()}
        self._config = config
        self._name = source
        self._because = because
        self._timeouts = timeouts
        self._source = Admin(job.sources(config)[source], **client)
        self._target = Admin(config["bootstrap.servers"], **client)
        self._quarantine = Quarantine(self._target)  # looked at once for all lanes

    async def __aenter__(self) -> Self:
        await self._target.start(self._timeouts.contact_ms)
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._source.close()
        await self._target.close()

    async def partitions(self, topic: str, partition: int | None) -> list[Identity]:
        """The lanes of a topic, or the one of a partition. Raises KafkaError for what the target doesn't have."""
        into = TopicChoice(self._config).into(self._name, topic)
        found = sorted((await topic_of(self._target, into, "target")).partitions)
        if partition is not None and partition not in found:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"`{into}` partition {partition} at the target")
        mirror = self._config["penstock.mirror.name"]
        chosen = found if partition is None else [partition]
        return [Identity(mirror, self._name, (topic, number), (into, number)) for number in chosen]

    async def begin(self, lane: Identity, at: LogPlace, *, by_name: bool) -> Moved | str:
        """Let a lane go on at a place of the source's log, whatever its position was.

        A lane that goes on by itself and wasn't meant `by_name` is left as it is, since what is copied once more is there
        twice: the answer says so.
        """
        tp = lane.partition
        await self._source.start(self._timeouts.contact_ms)
        theirs = await topic_of(self._source, tp[0], f"source {self._name}")
        ours = await topic_of(self._target, lane.into[0], "target")
        going = None if by_name else await self._going(lane, theirs.topic_id, ours.topic_id)
        if going is not None:
            return f"it goes on by itself from offset {going.offset}; name it as `{hints.address(tp)}` to move it all the same"
        offset, start = await at.find(self._source, tp, lane), await self._source.start_offset(tp)
        # A mirror that runs takes the lane back soon, so most is counted before the command takes it; what the mirror copies
        # meanwhile is counted behind that.
        known = await self._readable(lane)
        loss = None
        if known is not None and known.target_id == ours.topic_id:
            loss = await self._output(lane).find_loss(known)
        if loss is not None and known is not None:
            known = loss.roll_back(known)
        if known is None:
            known = await recount(self._source, self._target, lane, (theirs, ours), offset)
        if known.records == 0:
            source = Source(self._name, self._source, self._target, lane.group)
            await source.learn()
            await source.check_twins(lane, theirs.topic_id)
        cluster = (await self._source.metadata([])).cluster_id or ""
        is_unseen = known.topic_id == UNSEEN
        same_log = is_unseen or (known.topic_id == theirs.topic_id and known.cluster in ("", cluster))
        was_replaced = not same_log or (not is_unseen and await self._was_replaced(lane, known))
        again = await self._again(lane, known, (start, offset), was_replaced) if same_log else known.records
        async with self._fenced(lane) as decision:
            before = await self._readable(lane)
            is_other = loss is not None and before is not None and before.offset != loss.to
            if is_other or (before is not None and before.decisions != known.decisions):
                raise OperatorNeeded(f"somebody else moved {lane} at the same time: look at `penstock mirror status`")
            counted = max(offset, known.offset)
            if loss is None:
                known = before or known
            if same_log and counted < known.offset:
                again += await self._copied(lane, known, counted, known.offset)
            # In another log no gap is known: what it has left out is said to be before the offset.
            after = replace(
                (known if same_log else replace(known, offset=0, gap_ranges="")).passing(offset),
                again_records=again,
                other_logs=known.other_logs + was_replaced,
                topic_id=theirs.topic_id,
                target_id=ours.topic_id,
                target_end=known.target_end if known.target_id == ours.topic_id else -1,
                leader_epoch=-1,
                last_batch=None,
                cluster=cluster,
            )
            after = await source_log(self._source, lane).noted(after if loss is None else loss.leave_out(after))
            return await self._commit(decision, lane, "begin", before, after)

    async def skip(self, lane: Identity, to: int) -> Moved:
        """Set aside what a lane has before it, up to an offset."""
        tp = lane.partition
        await self._source.start(self._timeouts.contact_ms)
        end = await self._source.end_offset(tp, "read_committed")
        async with self._fenced(lane) as decision:
            before = await self._position(lane)
            if before is None or before.topic_id == UNSEEN:
                raise OperatorNeeded(f"{lane} hasn't begun: {hints.to_begin(lane.address, 'earliest|OFFSET')} says where")
            if not before.offset < to <= end:
                raise OperatorNeeded(
                    f"{lane} is at offset {before.offset}, and what the source has committed ends at {end}: {to} is not between"
                )
            topic_id = (await topic_of(self._source, tp[0], f"source {self._name}")).topic_id
            before.check_topic(topic_id, hints.to_begin(lane.address))
            stretch = Stretch(self._source, tp, topic_id, before.offset, to)
            await stretch.check()
            after = await source_log(self._source, lane).noted(replace(before.passing(to), leader_epoch=-1, last_batch=None))
            return await self._commit(decision, lane, "skip", before, after, stretch)

    async def retry(self, lane: Identity) -> Moved | str:
        """Let a stopped lane try again. One without a position can only begin: the answer says so."""
        async with self._fenced(lane) as decision:
            before = await self._position(lane)
            if before is None:
                return f"it has no position to go on from: {hints.to_begin(lane.address)} gives it one"
            return await self._commit(decision, lane, "retry", before, before)

    def _output(self, lane: Identity) -> LaneOutput:
        return LaneOutput(self._source, self._target, lane)

    def _fenced(self, lane: Identity) -> AbstractAsyncContextManager[Decision]:
        return fenced(
            self._target, self._quarantine, lane.transactional_id, lane.group, lane.into, lane, "penstock mirror status"
        )

    async def _position(self, lane: Identity) -> MirrorPosition | None:
        found = (await self._target.committed(lane.group, [lane.into]))[lane.into]
        return None if found is None else MirrorPosition.from_text(*found, hints.to_begin(lane.address))

    async def _readable(self, lane: Identity) -> MirrorPosition | None:
        """The position, but none where somebody else wrote it, which is why a lane starts over."""
        try:
            return await self._position(lane)
        except OperatorNeeded:
            return None

    async def _was_replaced(self, lane: Identity, known: MirrorPosition) -> bool:
        """Whether another log is in the place of the one that was copied up to a position."""
        try:
            await source_log(self._source, lane).check(known)
        except OtherLog:
            return True
        except OperatorNeeded:  # of the same log the beginning is gone, and a gap says how much of it
            pass
        return False

    async def _again(self, lane: Identity, known: MirrorPosition, begins: tuple[int, int], was_replaced: bool) -> int:
        """Records on the target that one reading of the source's log would not give: those copied a second time, and those
        that the log has lost. `begins`: where the log begins, and where the lane is to go on."""
        start, offset = begins
        if offset >= known.offset:
            return known.again_records
        if was_replaced:  # of what was copied it has what lies before the offset, at most
            return known.records - await self._copied(lane, known, start, offset)
        return known.again_records + await self._copied(lane, known, offset, known.offset)

    async def _copied(self, lane: Identity, known: MirrorPosition, first: int, to: int) -> int:
        """The records of a stretch of the source's log that are no gap."""
        left = ranges.outside((first, to - 1), ranges.parse(known.gap_ranges))
        return sum([await Stretch(self._source, lane.partition, known.topic_id, a, b + 1).count() for a, b in left])

    async def _going(self, lane: Identity, topic_id: bytes, target_id: bytes) -> MirrorPosition | None:
        """The position of a lane that has begun in the logs that there are, if nothing stopped it, or would."""
        try:
            known = await self._position(lane)
            if known is None or (known.topic_id, known.target_id, known.stopped) != (topic_id, target_id, ""):
                return None
            await self._output(lane).check(known)
            return await source_log(self._source, lane).check(known)
        except OperatorNeeded:
            return None

    async def _commit(
        self,
        decision: Decision,
        lane: Identity,
        kind: str,
        before: MirrorPosition | None,
        after: MirrorPosition,
        stretch: Stretch | None = None,
    ) -> Moved:
        """Commit the position and what is set aside, in one transaction."""
        topic, partition = lane.partition
        key = str(lane).encode()
        headers = {
            "decision": kind,
            "because": self._because,
            "source": self._name,
            "topic": topic,
            "partition": str(partition),
            "reason": "" if before is None else before.stopped or before.stalled,
            "from": "" if before is None else str(before.offset),
            "to": str(after.offset),
        }
        counted, records = {}, 0
        if stretch is not None:
            async for piece in stretch.pieces():
                records += piece.records
                await decision.send(chunks(piece.data, {"offset": str(piece.offset), **headers}, key))
            counted = {"records": str(records)}
        await decision.send([note(None, counted | headers, key)])
        after = replace(after, gap_records=after.gap_records + records, stopped="", stalled="")
        return Moved(lane, before, await decision.commit(after))
