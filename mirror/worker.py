"""One partition of one source cluster, copied exactly once.

A turn is one transaction on the target: the batches and the source offset behind them. Whatever happens in between -
a kill, a lost connection, an answer that never came - the next start takes the identity (which ends the
transaction of whoever had it before), asks the target for the position, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.mirror.position import Position
from penstock.pipeline.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.batches import prepare, send
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.fetcher import Fetched
from penstock.pipeline.lanes import OperatorNeeded, take_identity
from penstock.pipeline.metadata import TopicInfo
from penstock.pipeline.transaction import TransactionalSender

FENCED = declare("mirror.fenced", "the identity is taken, nothing was read yet")
POSITIONED = declare("mirror.positioned", "the position was read from the target")
POSITION_SENT = declare("mirror.position_sent", "a position without batches is sent, not committed")
POSITION_COMMITTED = declare("mirror.position_committed", "a position without batches is committed")
BEGUN = declare("mirror.begun", "a transaction has begun, nothing was sent")
PRODUCED = declare("mirror.produced", "the batches are on the target, the position is not")
OFFSETS_SENT = declare("mirror.offsets_sent", "batches and position are sent, not committed")
COMMITTED = declare("mirror.committed", "the transaction is committed, nothing noted here yet")


UNSEEN = b""  # the topic id of a source that was never reached: the target knows its name, its log is to be seen yet


class Identity:
    """The names under which a partition's copy is known to the target."""

    def __init__(self, mirror: str, source: str, partition: TopicPartition, group: str) -> None:
        self.source = source
        self.partition = partition
        self.group = group
        self.transactional_id = f"penstock-mirror.{mirror}.{source}.{partition[0]}-{partition[1]}"


class Worker:
    """Copies one partition: `take()` fences and finds the position, `start()` checks it, `turn()` copies.

    `into` is the target's topic; the source's must have as many partitions. `new_source`: the operator says that
    this source may begin although the target has data.
    """

    def __init__(
        self,
        identity: Identity,
        source: Admin,
        target: Admin,
        into: TopicInfo,
        max_batch_bytes: int,
        new_source: bool,
    ) -> None:
        self.identity = identity
        self.position = Position(0, UNSEEN, into.topic_id)
        self._into = into
        self._max_batch_bytes = max_batch_bytes
        self._new_source = new_source
        self._source = source
        self._target = target
        self._sender: TransactionalSender | None = None
        topic, partition = identity.partition
        self._log = log.get("mirror", source=identity.source, topic=topic, partition=partition)

    async def take(self) -> None:
        """Take the identity, then learn the position from the target. Only the target is asked.

        A partition without a position is registered: from then on the target knows of this source. That is
        only done where nothing can have been copied before, or where the operator says so (`new_source`).
        Raises Fenced when a newer mirror has the identity, OperatorNeeded when an operator has to decide.
        """
        self._sender = await take_identity(self._target, self.identity.transactional_id, self._sender)
        failpoint(FENCED)
        partition = self.identity.partition
        found = (await self._target.committed(self.identity.group, [partition]))[partition]
        if found is not None:
            self.position = Position.read(*found)
            self.position.check_target(self._into.topic_id)
            return
        end = (await self._target.list_offsets({partition: LATEST}))[partition].offset
        if end > 0 and not self._new_source:
            raise OperatorNeeded(
                f"the target has data (end offset {end}) but no position of source {self.identity.source}; if this "
                f"source is new, start the mirror once with `--new-source {self.identity.source}`"
            )
        await self._commit_position(Position(0, UNSEEN, self._into.topic_id))

    async def start(self) -> int:
        """Check the position against the source; a source that is only registered begins at its log start.

        Raises Fenced, OperatorNeeded.
        """
        topic_id = await self._topic_id()
        start, end = await self._source_ends()
        known, offset = self.position.topic_id, self.position.offset
        if known == UNSEEN or (self._new_source and known != topic_id):
            await self._commit_position(replace(self.position, offset=start, topic_id=topic_id, leader_epoch=-1))
        elif self._new_source and offset < start:
            self._log.warning(f"goes on at {start}, as told: the offsets from {offset} on are gone at the source")
            await self._commit_position(replace(self.position, offset=start))
        self.position.check_topic(topic_id)
        self._check_range(start, end)
        await self._check_epoch(self.position.leader_epoch, self.position.offset)
        self._new_source = False  # said once, it holds for this beginning and not for whatever happens later
        failpoint(POSITIONED)
        self._log.info(f"copies from offset {self.position.offset}")
        return self.position.offset

    async def check(self) -> None:
        """Look whether source and target still have the same topics with the same partitions.

        Raises OperatorNeeded, KafkaError.
        """
        topic_id = await self._topic_id()
        if self.position.topic_id != UNSEEN:
            self.position.check_topic(topic_id)

    async def _topic_id(self) -> bytes:
        """The source topic's id. Raises OperatorNeeded where the partition counts differ, KafkaError."""
        topic = self.identity.partition[0]
        theirs = await _topic(self._source, topic, f"source {self.identity.source}")
        ours = await _topic(self._target, topic, "target")
        self.position.check_target(ours.topic_id)
        counts = {len(topic.partitions) for topic in (self._into, theirs, ours)}
        if len(counts) > 1:
            raise OperatorNeeded(
                f"topic {topic} has {len(theirs.partitions)} partitions at source {self.identity.source} and "
                f"{len(ours.partitions)} on the target ({len(self._into.partitions)} when this mirror began); they "
                "must have the same number, since an id must always meet the same dedupe worker"
            )
        return theirs.topic_id

    async def _source_ends(self) -> tuple[int, int]:
        partition = self.identity.partition
        start = (await self._source.list_offsets({partition: EARLIEST}))[partition].offset
        end = (await self._source.list_offsets({partition: LATEST}))[partition].offset
        return start, end

    def _check_range(self, start: int, end: int) -> None:
        """The source must still have what comes next. Raises OperatorNeeded."""
        offset, source = self.position.offset, self.identity.source
        if offset < start:
            raise OperatorNeeded(
                f"the offsets from {offset} to {start} are gone at the source before they were copied; nothing is "
                f"skipped silently: start the mirror once with `--new-source {source}` to go on at {start}"
            )
        if offset > end:
            raise OperatorNeeded(
                f"the source was cut back: it ends at {end}, but {offset} offsets were copied; once you know what is "
                f"missing or there twice, delete the group's offset and start with `--new-source {source}`"
            )

    async def _check_epoch(self, epoch: int, offset: int) -> None:
        """The source must still have the log that was copied up to an offset under a leader epoch (KIP-320).

        Raises OperatorNeeded, KafkaError.
        """
        if epoch < 0:
            return
        partition = self.identity.partition
        _, end = (await self._source.offsets_for_leader_epoch({partition: epoch}))[partition]
        if end < offset:
            ends = f"its epoch {epoch} ends at {end}" if end >= 0 else f"it knows no epoch {epoch}"
            raise OperatorNeeded(
                f"the source was cut back: {ends}, but {offset} offsets were copied; once you know "
                "what is missing or there twice, delete the group's offset and start with "
                f"`--new-source {self.identity.source}`"
            )

    async def refresh(self) -> None:
        """Commit the position again, so that an idle one doesn't expire on the target."""
        await self._commit_position(self.position)

    async def _commit_position(self, position: Position) -> None:
        assert self._sender is not None, "take the identity first"
        await self._sender.begin()
        await self._sender.send_offsets(
            self.identity.group, {self.identity.partition: (position.offset, position.metadata())}
        )
        failpoint(POSITION_SENT)
        await self._sender.commit()
        failpoint(POSITION_COMMITTED)
        self.position = position

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        """Copy what was fetched, in order, in one transaction. The position moves only with the commit.

        Raises Fenced, KafkaError, BatchError for a rotten batch that had to be opened, OperatorNeeded for a
        record that the target won't take and for a source that is not the one copied so far.
        """
        leader_epoch = await self._check_fetched(fetched)
        batches = [batch for part in fetched for batch in part.batches]
        prepared = prepare(batches, self.position.offset, self._max_batch_bytes)
        after = replace(
            self.position,
            offset=fetched[-1].next_offset,
            leader_epoch=leader_epoch,
            records=self.position.records + sum(batch.record_count for batch in prepared.batches),
            rebuilt=self.position.rebuilt + prepared.rebuilt,
        )
        partition, sender = self.identity.partition, self._sender
        assert sender is not None, "take the identity first"
        await sender.begin()
        failpoint(BEGUN)
        await send(sender, partition, prepared.batches)
        failpoint(PRODUCED)
        await sender.send_offsets(self.identity.group, {partition: (after.offset, after.metadata())})
        failpoint(OFFSETS_SENT)
        await sender.commit()
        failpoint(COMMITTED)
        self.position = after

    async def _check_fetched(self, fetched: Sequence[Fetched]) -> int:
        """What was fetched must come from the log that was copied so far; gives its last leader epoch."""
        epoch, offset = self.position.leader_epoch, self.position.offset
        for part in fetched:
            if part.topic_id is not None:
                self.position.check_topic(part.topic_id)
            if part.leader_epoch not in (epoch, -1):
                await self._check_epoch(epoch, offset)
                epoch = part.leader_epoch
            offset = part.next_offset
        return epoch


async def _topic(cluster: Admin, topic: str, where: str) -> TopicInfo:
    found = await cluster.metadata([topic], refresh=True)
    if topic not in found.topics:
        raise KafkaError(found.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), f"`{topic}` at the {where}")
    return found.topics[topic]
