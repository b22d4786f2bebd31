"""What an operator decides about a lane: where it begins, what it leaves out, that it tries again.

A decision is one transaction on the target: the new position, and a record of `penstock.quarantine` that says what was
decided and why; batches that are left out are in it too. It takes the lane's identity, so that a running mirror can't
commit anything in between; that mirror reads the new position and goes on from there.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.mirror.identity import Identity
from penstock.mirror.position import UNSEEN, Position
from penstock.mirror.sourcerange import Stretch
from penstock.mirror.target import topic_of
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pipeline.options import Timeouts
from penstock.pipeline.stages import ranges
from penstock.pipeline.stages.batches import send
from penstock.pipeline.stages.failures import OperatorNeeded, decided_alone
from penstock.pipeline.stages.quarantine import Quarantine, chunks, note
from penstock.pipeline.stages.sourcelog import SourceLog
from penstock.pipeline.stages.topics import Topics

SENT = declare("mirror.decision_sent", "what is set aside and the new position are sent, not committed")


class Moved(NamedTuple):
    """What a decision came to: the lane, and its position before (if it had one) and after."""

    identity: Identity
    before: Position | None
    after: Position


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
        self._quarantine = Quarantine(self._target)

    async def __aenter__(self) -> Self:
        await self._target.start(self._timeouts.contact_ms)
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._source.close()
        await self._target.close()

    async def partitions(self, topic: str, partition: int | None) -> list[Identity]:
        """The lanes of a topic, or the one of a partition. Raises KafkaError for what the target doesn't have."""
        into = Topics(self._config).into(self._name, topic)
        found = sorted((await topic_of(self._target, into, "target")).partitions)
        if partition is not None and partition not in found:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"`{into}` partition {partition} at the target")
        mirror = self._config["penstock.mirror.name"]
        chosen = found if partition is None else [partition]
        return [Identity(mirror, self._name, (topic, number), (into, number)) for number in chosen]

    async def begin(self, lane: Identity, at: str, *, by_name: bool) -> Moved | str:
        """Let a lane go on at `start`, `end` or an offset of the source, whatever its position was.

        A lane that goes on by itself and wasn't meant `by_name` is left as it is, since what is copied once more is there
        twice: the answer says so.
        """
        tp = lane.partition
        await self._source.start(self._timeouts.contact_ms)
        theirs = await topic_of(self._source, tp[0], f"source {self._name}")
        ours = await topic_of(self._target, lane.into[0], "target")
        going = None if by_name else await self._going(lane, theirs.topic_id, ours.topic_id)
        if going is not None:
            topic, number = tp
            return f"it goes on by itself from offset {going.offset}; name it as `{topic}:{number}` to move it all the same"
        start = await self._source.start_offset(tp)
        end = await self._source.end_offset(tp, "read_committed")
        offset = {"start": start, "end": end}[at] if at in ("start", "end") else int(at)
        if not start <= offset <= end:
            raise OperatorNeeded(f"{lane} has offsets from {start} to {end} at the source, and {offset} is none of them")
        # A mirror that runs takes the lane back soon, so most is counted before the command takes it; what the mirror copies
        # meanwhile is counted behind that.
        known = await self._readable(lane) or Position(0, UNSEEN, ours.topic_id)
        same_log = known.topic_id in (UNSEEN, theirs.topic_id)
        again = await self._again(lane, known, start, offset) if same_log else known.records
        sender = await self._fence(lane)
        before = await self._readable(lane)
        if before is not None and before.decisions != known.decisions:
            raise OperatorNeeded(f"somebody else decided about {lane} at the same time: look at `penstock mirror status`")
        counted, known = max(offset, known.offset), before or known
        if same_log and counted < known.offset:
            again += await self._copied(lane, known, counted, known.offset)
        # In another log no gap is known: what it has left out is said to be before the offset.
        after = replace(
            (known if same_log else replace(known, offset=0, gap_ranges="")).passing(offset),
            again_records=again,
            topic_id=theirs.topic_id,
            target_id=ours.topic_id,
            leader_epoch=-1,
            cluster=(await self._source.metadata([])).cluster_id or "",
        )
        return await self._commit(lane, sender, "begin", before, after)

    async def skip(self, lane: Identity, to: int) -> Moved:
        """Set aside what a lane has before it, up to an offset."""
        tp = lane.partition
        await self._source.start(self._timeouts.contact_ms)
        end = await self._source.end_offset(tp, "read_committed")
        sender = await self._fence(lane)
        before = await self._position(lane)
        if before is None or before.topic_id == UNSEEN:
            raise OperatorNeeded(f"{lane} hasn't begun: {lane.way_to_begin('start|OFFSET')} says where")
        if not before.offset < to <= end:
            raise OperatorNeeded(
                f"{lane} is at offset {before.offset}, and what the source has committed ends at {end}: {to} is not between"
            )
        topic_id = (await topic_of(self._source, tp[0], f"source {self._name}")).topic_id
        before.check_topic(topic_id, lane.way_to_begin())
        stretch = Stretch(self._source, tp, topic_id, before.offset, to)
        await stretch.check()
        after = replace(before.passing(to), leader_epoch=-1)
        return await self._commit(lane, sender, "skip", before, after, stretch)

    async def retry(self, lane: Identity) -> Moved | str:
        """Let a stopped lane try again. One without a position can only begin: the answer says so."""
        sender = await self._fence(lane)
        before = await self._position(lane)
        if before is None:
            return f"it has no position to go on from: {lane.way_to_begin('start|end|OFFSET')} gives it one"
        return await self._commit(lane, sender, "retry", before, before)

    async def _fence(self, lane: Identity) -> TransactionalSender:
        await self._quarantine.place(0)
        sender = TransactionalSender(self._target, lane.transactional_id)
        await sender.init()
        return sender

    async def _position(self, lane: Identity) -> Position | None:
        found = (await self._target.committed(lane.group, [lane.into]))[lane.into]
        return None if found is None else Position.from_text(*found, lane.way_to_begin())

    async def _readable(self, lane: Identity) -> Position | None:
        """The position, but none where somebody else wrote it, which is why a lane starts over."""
        try:
            return await self._position(lane)
        except OperatorNeeded:
            return None

    async def _again(self, lane: Identity, known: Position, start: int, offset: int) -> int:
        """Records on the target that one reading of the source's log up to `offset` would not give: those copied a second time,
        and those that the log has lost."""
        if offset >= known.offset:
            return known.again_records
        try:
            await self._log(lane).check(known.offset, known.leader_epoch)
        except OperatorNeeded:  # it was cut back: of what was copied it has what lies before the offset, at most
            return known.records - await self._copied(lane, known, start, offset)
        return known.again_records + await self._copied(lane, known, offset, known.offset)

    async def _copied(self, lane: Identity, known: Position, first: int, to: int) -> int:
        """The records of a stretch of the source's log that are no gap."""
        left = ranges.outside((first, to - 1), ranges.parse(known.gap_ranges))
        return sum([await Stretch(self._source, lane.partition, known.topic_id, a, b + 1).count() for a, b in left])

    def _log(self, lane: Identity) -> SourceLog:
        return SourceLog(self._source, lane.partition, f"source {self._name}", lost="", cut="")

    async def _going(self, lane: Identity, topic_id: bytes, target_id: bytes) -> Position | None:
        """The position of a lane that has begun in the logs that there are, if nothing stopped it."""
        try:
            known = await self._position(lane)
        except OperatorNeeded:
            return None
        if known is None or (known.topic_id, known.target_id, known.stopped) != (topic_id, target_id, ""):
            return None
        return known

    async def _commit(
        self,
        lane: Identity,
        sender: TransactionalSender,
        decision: str,
        before: Position | None,
        after: Position,
        stretch: Stretch | None = None,
    ) -> Moved:
        """The position and what is set aside, in one transaction."""
        at = lane.partition[0], lane.partition[1]
        place, key = await self._quarantine.place(lane.partition[1]), str(lane).encode()
        headers = {
            "decision": decision,
            "because": self._because,
            "source": self._name,
            "topic": at[0],
            "partition": str(at[1]),
            "reason": "" if before is None else before.stopped or before.stalled,
            "from": "" if before is None else str(before.offset),
            "to": str(after.offset),
        }
        with decided_alone(lane, "penstock mirror status"):
            await sender.begin()
            records = 0
            if stretch is None:
                await send(sender, place, [note(None, headers, key)])
            else:
                async for piece in stretch.pieces():
                    records += piece.records
                    await send(sender, place, [*chunks(piece.data, {"offset": str(piece.offset), **headers}, key)])
                await send(sender, place, [note(None, {"records": str(records), **headers}, key)])
            after = replace(
                after, decisions=after.decisions + 1, gap_records=after.gap_records + records, stopped="", stalled=""
            )
            await sender.send_offsets(lane.group, {lane.into: (after.offset, after.metadata())})
            failpoint(SENT)
            await sender.commit()
        await sender.close()
        return Moved(lane, before, after)
