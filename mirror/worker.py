"""One partition of one source cluster, copied exactly once.

A turn is one transaction on the target: the batches and the source offset behind them. Whatever happens in between -
a kill, a lost connection, an answer that never came - the next start takes the identity (which ends the
transaction of the worker that had it before), asks the target for the position, and goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from penstock import log
from penstock.failpoints import declare, failpoint
from penstock.hints import quoted
from penstock.mirror.identity import Identity
from penstock.mirror.position import UNSEEN, MirrorPosition
from penstock.mirror.source import Source, source_log
from penstock.mirror.target import Into, topic_of
from penstock.mirror.targetloss import LaneOutput
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.batches import Prepared, Refused, TooLarge, prepare, send
from penstock.pipeline.stages.completion import to_its_end
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.identity import take_identity
from penstock.pipeline.stages.lane import NoPosition
from penstock.pipeline.stages.lanecounts import LaneCounts
from penstock.pipeline.stages.state import State
from penstock.pyx.record.rawbatch import BatchError, RawBatch

FENCED = declare("mirror.fenced", "the identity is taken, nothing was read yet")
POSITIONED = declare("mirror.positioned", "the position was read from the target")
POSITION_SENT = declare("mirror.position_sent", "a position without batches is sent, not committed")
POSITION_COMMITTED = declare("mirror.position_committed", "a position without batches is committed")
BEGUN = declare("mirror.begun", "a transaction has begun, nothing was sent")
PRODUCED = declare("mirror.produced", "the batches are on the target, the position is not")
OFFSETS_SENT = declare("mirror.offsets_sent", "batches and position are sent, not committed")
COMMITTED = declare("mirror.committed", "the transaction is committed, nothing noted here yet")


class CountsDiffer(OperatorNeeded):
    """A topic has not as many partitions at the source as on the target."""


class MirrorWorker:
    """Copies one partition: `take()` fences and finds the position, `start()` checks it, `turn()` copies.

    `into` is the target's topic; the source's must have as many partitions.
    """

    def __init__(self, identity: Identity, source: Source, target: Admin, into: Into) -> None:
        self.identity = identity
        self.position = MirrorPosition(0, UNSEEN, into.topic_id)
        self.counts = LaneCounts()
        self._into = into
        self._cluster = source
        self._source = source.admin
        self._target = target
        self._sender: TransactionalSender | None = None
        self._attempted = -1
        self._begin = hints.to_begin(identity.address)
        topic, partition = identity.partition
        self._source_log = source_log(source.admin, identity)
        self._output = LaneOutput(source.admin, target, identity)
        self._log = log.get(__name__, source=identity.source, topic=topic, partition=partition)

    @property
    def places(self) -> dict[TopicPartition, MirrorPosition]:
        """Where it stands at the source."""
        return {self.identity.partition: self.position}

    @property
    def going(self) -> State:
        """The state of the partition if nothing holds it."""
        return self.position.going

    @property
    def own_offsets(self) -> tuple[int, ...]:
        """The committed offset, and that of the last turn."""
        return self.position.offset, self._attempted

    async def take(self, *, force: bool = False) -> None:
        """Take the identity, then learn the position from the target. Only the target is asked.

        A partition without a position is registered: from then on the target knows of this source. That is
        only done where nothing can have been copied before.
        Raises Fenced when a newer mirror has the identity, OperatorNeeded when an operator has to decide.
        """
        await self._into.learn()
        before = None if force else self._sender
        self._sender = await take_identity(self._target, self.identity.transactional_id, before)
        failpoint(FENCED)
        into = self.identity.into
        found = (await self._target.committed(self.identity.group, [into]))[into]
        if found is not None:
            self.position = MirrorPosition.from_text(*found, self._begin)
            self.position.check_target(self._into.topic_id, self._begin)
            self._sender.pin(into[0], self.position.target_id)
            return
        self._sender.pin(into[0], self._into.topic_id)
        end = await self._target.end_offset(into)
        if end > 0:
            raise NoPosition(
                f"the target has data (end offset {end}) but no position of source {self.identity.source}: if that was lost, "
                f"{hints.to_begin(self.identity.address)} goes on where the copy ended; if this source is new, "
                f"{hints.to_begin(self.identity.address, 'earliest')}{await self._older_position()}"
            )
        await self._commit_position(MirrorPosition(0, UNSEEN, self._into.topic_id))

    async def _older_position(self) -> str:
        """Where a mirror with a dot in its name had its position before such names were escaped."""
        into, group = self.identity.into, self.identity.older_group
        found = (await self._target.committed(group, [into]))[into] if group != self.identity.group else None
        if found is None:
            return ""
        return f"; an older version copied up to offset {found[0]} (group `{group}`): `--at {quoted(found[0])}` goes on there"

    async def close(self) -> None:
        """Give up what was taken; the position stays."""
        if self._sender is not None:
            await self._sender.close()

    async def start(self) -> dict[TopicPartition, int]:
        """Check the position against source and target; where to read on. A source that is only registered begins at offset 0.

        Raises Fenced, OperatorNeeded.
        """
        await self._cluster.check(self.identity.partition[0], self._into.name)
        await self._cluster.check_others(self.identity.into)
        topic_id, position = await self._topic_id(), self.position
        if position.topic_id == UNSEEN:
            start = await self._source_log.start()
            if start > 0:
                raise self._source_log.gone(0, start)
            position = replace(position, topic_id=topic_id)
        position.check_cluster(self._cluster.cluster_id, self._begin)
        position.check_topic(topic_id, self._begin)
        if not position.cluster:
            await self._cluster.check_twins(self.identity, topic_id)
        await self._output.check(position)
        position = await self._source_log.check(position)
        position = replace(position, cluster=self._cluster.cluster_id, stopped="", stalled="")
        if position != self.position:
            is_new = position.cluster != self.position.cluster
            await self._commit_position(position)
            if is_new:
                # A mirror the other way round, or of another name, may be starting now, too: each has said what it copies
                # before it looks, so that at least one of the two sees the other.
                await self._cluster.check(self.identity.partition[0], self._into.name, again=True)
                if position.records == 0:
                    try:
                        await self._cluster.check_twins(self.identity, topic_id)
                    except OperatorNeeded:
                        await self._commit_position(replace(position, cluster=""))  # its next start looks again
                        raise
        failpoint(POSITIONED)
        self._log.info("copies from offset %d", position.offset)
        return {self.identity.partition: position.offset}

    async def check(self) -> None:
        """Check whether source and target still have the same topics with the same partitions, and the target what was copied.

        Raises OperatorNeeded, KafkaError.
        """
        topic_id = await self._topic_id(refresh=False)  # the mirror looks at all topics of a cluster at once
        if self.position.topic_id != UNSEEN:
            self.position.check_topic(topic_id, self._begin)
        await self._output.log.check_after_election(self.position.target_end, self.position.producer_id)

    async def _topic_id(self, *, refresh: bool = True) -> bytes:
        """The source topic's id. Raises CountsDiffer where the partition counts do, OperatorNeeded, KafkaError."""
        topic = self.identity.partition[0]
        theirs = await topic_of(self._source, topic, f"source {self.identity.source}", refresh)
        ours = await topic_of(self._target, self._into.name, "target", refresh)
        self.position.check_target(ours.topic_id, self._begin)
        if len(theirs.partitions) != len(ours.partitions):
            few, end = (self._into.name, "TARGET") if len(theirs.partitions) > len(ours.partitions) else (topic, "SOURCE")
            many = max(len(theirs.partitions), len(ours.partitions))
            raise CountsDiffer(
                f"topic {topic} has {len(theirs.partitions)} partitions at source {self.identity.source} and "
                f"{len(ours.partitions)} on the target, and a copy needs the same number: make both equal with `penstock "
                f"topics grow {quoted(few)} -p {quoted(many)} -b {quoted(end)}`, and the copy goes on by itself; but a dedupe "
                "stage that reads the target's topic stops once that grows, and a new one has to begin"
            )
        return theirs.topic_id

    async def look(self) -> tuple[int, bool]:
        """The committed offset, and whether somebody has work there: input behind it, or an input that ends before it, and
        nothing stopped it."""
        into = self.identity.into
        found = (await self._target.committed(self.identity.group, [into], require_stable=False))[into]
        if found is None:
            return -1, False
        position = MirrorPosition.from_text(*found, self._begin)
        end = await self._source.end_offset(self.identity.partition, "read_committed")
        return position.offset, position.offset != end and not position.stopped

    async def holder(self) -> str:
        """The process that committed the position last."""
        into = self.identity.into
        found = (await self._target.committed(self.identity.group, [into], require_stable=False))[into]
        return "" if found is None else MirrorPosition.from_text(*found, self._begin).process

    async def refresh(self, stopped: str = "", stalled: str = "") -> None:
        """Commit the position again, so that an idle one doesn't expire on the target, with why it stands still."""
        await self._commit_position(replace(self.position, stopped=stopped, stalled=stalled))

    async def _commit_position(self, position: MirrorPosition) -> None:
        await to_its_end(self._transact_position(position))

    async def _transact_position(self, position: MirrorPosition) -> None:
        assert self._sender is not None, "take the identity first"
        position = position.by_us()
        await self._sender.begin()
        await self._sender.send_offsets(self.identity.group, {self.identity.into: (position.offset, position.metadata())})
        failpoint(POSITION_SENT)
        await self._sender.commit()
        failpoint(POSITION_COMMITTED)
        self.position = position

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        """Copy what was fetched, in order, in one transaction. The position moves only with the commit.

        Raises Fenced, KafkaError, BatchError for a corrupt batch that had to be opened, OperatorNeeded for a
        record that the target won't take and for a source that is not the one copied so far, StartsOver for a target that lacks
        what was copied so far.
        """
        for part in fetched:
            if part.topic_id is not None:
                self.position.check_topic(part.topic_id, self._begin)
        passed = await self._source_log.check_fetched(fetched, self.position)
        batches = [batch for part in fetched for batch in part.batches]
        prepared = self._prepare(batches)
        records = sum(batch.record_count for batch in prepared.batches)
        after = replace(
            passed.by_us(),
            records=self.position.records + records,
            rebuilt=self.position.rebuilt + prepared.rebuilt,
            copied_ms=time.time_ns() // 1_000_000,
            stopped="",
            stalled="",
        )
        sender, self._attempted = self._sender, after.offset
        assert sender is not None, "take the identity first"
        await sender.begin()
        failpoint(BEGUN)
        try:
            sent = await send(sender, self.identity.into, prepared.batches)
        except Refused as error:
            raise self._refused(error, prepared.batches[error.index], batches) from error
        failpoint(PRODUCED)
        if sent.end >= 0:
            await self._output.log.check_before_commit(self.position.target_end, self.position.producer_id, begin=sent.begin)
            after = replace(after, target_end=sent.end, producer_id=sender.producer_id)
        await sender.send_offsets(self.identity.group, {self.identity.into: (after.offset, after.metadata())})
        failpoint(OFFSETS_SENT)
        await sender.commit()
        failpoint(COMMITTED)
        self.position = after
        self.counts.add(records, records, sum(batch.size_in_bytes for batch in prepared.batches))

    def _prepare(self, batches: Sequence[RawBatch]) -> Prepared:
        try:
            into = self._into
            return prepare(batches, self.position.offset, into.max_message_bytes, into.has_append_time)
        except BatchError as error:
            corrupt = next((batch for batch in batches if batch.base_offset == error.offset), None)
            way = hints.to_skip(self.identity.address, None if corrupt is None else corrupt.last_offset + 1)
            raise OperatorNeeded(f"{error}: {way}") from error
        except TooLarge as error:
            raise OperatorNeeded(
                f"{error}, then {hints.to_retry(self.identity.address)}; or {hints.to_skip(self.identity.address, None)}"
            ) from error

    def _refused(self, error: Refused, batch: RawBatch, batches: Sequence[RawBatch]) -> OperatorNeeded:
        """The target won't take a batch: which one, and both ways on."""
        untouched = any(batch is other for other in batches)
        offset, behind = (batch.base_offset, batch.last_offset + 1) if untouched else (self.position.offset, None)
        lane = self.identity.address
        return OperatorNeeded(
            f"the target refuses the batch at source offset {offset}{'' if untouched else ' or one soon behind it'}: "
            f"{error}; change the configs of topic {self._into.name} on the target and {hints.to_retry(lane)}, or "
            f"{hints.to_skip(lane, behind)}"
        )
