"""The log that a lane reads, held against what its position notes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import EARLIEST, LATEST, TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import BatchMark, Fetched
from penstock.pipeline.clients.truncation import Position
from penstock.pipeline.stages.failures import OperatorNeeded, OtherLog
from penstock.pipeline.stages.position import StagePosition
from penstock.pyx.record.rawbatch import RawBatch

P = TypeVar("P", bound=StagePosition)
COMPACTION_UNKNOWN = (
    " (or compaction changed it: give this client the right to describe the topic's configs, so that it can tell)"
)
_log = log.get(__name__)


class SourceLog:
    """The log that a lane reads, held against what its position notes: offsets, leader epochs, the last batch.

    A log that was put back from a copy and has grown since may give an offset or an epoch again, but no batch with the same
    offset, CRC and timestamp. `where` names the log's cluster for people; `lost` and `cut` say how an operator goes on when
    offsets are gone before they were read, and when the log is another one than was read.
    """

    def __init__(self, admin: Admin, tp: TopicPartition, where: str, lost: str, cut: str) -> None:
        self._admin = admin
        self._tp = tp
        self._name = f"{where}: `{tp[0]}` partition {tp[1]}"
        self._lost = lost
        self._cut = cut
        self._compared = 0  # the connection that batches came over when the last batch was compared

    async def start(self) -> int:
        """The offset that the log begins at. Raises KafkaError."""
        return await self._admin.start_offset(self._tp)

    async def check(self, position: P) -> P:
        """The log must still have what comes next at a position, and what came before it. Gives the position with the last
        batch noted, where it lacks that. Raises OperatorNeeded, KafkaError.
        """
        offset = position.offset
        start = (await self._admin.list_offsets({self._tp: EARLIEST}))[self._tp].offset
        end = (await self._admin.list_offsets({self._tp: LATEST}))[self._tp].offset
        if offset < start:
            raise self.gone(offset, start)
        if offset > end:
            raise OtherLog(
                f"{self._name} was cut back: it ends at offset {end}, but everything below {offset} was read; {self._cut}"
            )
        await self._check_epoch(position.leader_epoch, offset)
        if position.last_batch is None:
            return await self.noted(position)
        await self._check_batch(position.last_batch, offset)
        return position

    async def noted(self, position: P) -> P:
        """A position with the mark and the leader epoch of the batch right below it, if the log has that. Raises KafkaError."""
        before = await batch_before(self._admin, self._tp, position.offset, await self.start())
        if before is None:
            return replace(position, last_batch=None)
        return replace(position, leader_epoch=before.leader_epoch, last_batch=BatchMark.of(before))

    def gone(self, offset: int, start: int) -> OperatorNeeded:
        """What to say when the log begins above an offset that has to be read."""
        return OperatorNeeded(
            f"{self._name} begins at offset {start}: the offsets from {offset} to {start} are gone before they were read; "
            f"nothing is skipped silently: {self._lost}"
        )

    async def _check_epoch(self, leader_epoch: int, offset: int) -> None:
        """The log must not have been cut back and grown again since it was read under a leader epoch (KIP-320)."""
        found = await self._admin.find_truncations({self._tp: Position(offset, leader_epoch)})
        if found:
            raise OtherLog(f"{self._name} was cut back: {found[self._tp]}; {self._cut}")

    async def _check_batch(self, mark: BatchMark, offset: int) -> None:
        """The log must still have the last batch that was read below an offset, unless retention has removed it."""
        if why := await differs(self._admin, self._tp, mark, offset):
            raise OtherLog(f"{self._name} is not the log that was read: {why}; was a copy put back? {self._cut}")

    async def check_fetched(self, fetched: Sequence[Fetched], position: P) -> P:
        """What was fetched must come from the log that was read up to a position. Gives the position behind it.

        A log can only become another one while its broker is down. So the last batch is compared again whenever batches have
        come over another connection. Raises OperatorNeeded, KafkaError.
        """
        for part in fetched:
            if part.leader_epoch not in (position.leader_epoch, -1):
                await self._check_epoch(position.leader_epoch, position.offset)
            if part.connection != self._compared:
                if position.last_batch is not None:
                    await self._check_batch(position.last_batch, position.offset)
                self._compared = part.connection
            epoch = position.leader_epoch if part.leader_epoch == -1 else part.leader_epoch
            passed = position.last_batch if part.next_offset == position.offset else part.last_batch
            position = replace(position, offset=part.next_offset, leader_epoch=epoch, last_batch=passed)
        return position


async def batch_before(admin: Admin, tp: TopicPartition, offset: int, start: int) -> RawBatch | None:
    """The batch that ends right below an offset of a log, which begins at `start`; None where retention or compaction has
    removed it. Raises KafkaError."""
    found = await batch_or_none(admin, tp, offset - 1) if offset > start else None
    return None if found is None or found.base_offset >= offset else found


async def differs(admin: Admin, tp: TopicPartition, mark: BatchMark, offset: int) -> str:
    """In words, why a log is another one than was read, whose last batch below an offset had that mark; empty where it isn't,
    or where retention or compaction has removed the batch. Raises KafkaError."""
    start = await admin.start_offset(tp)
    if offset <= start:
        return ""
    batch = await batch_or_none(admin, tp, max(mark.offset, start))
    found = None if batch is None else BatchMark.of(batch)
    if found == mark:
        return ""
    policy = await cleanup_policy(admin, tp[0])
    unknown = COMPACTION_UNKNOWN if policy is None else ""
    if "compact" in (policy or ""):
        # Compaction rewrites a batch, and removes one; epochs and offsets are all that is left to compare.
        _log.info("`%s` partition %d: the batch at offset %d was compacted and can't be compared", *tp, mark.offset)
        return ""
    if offset <= await admin.start_offset(tp):
        return ""
    has = "the log has none there" if found is None else f"the log has {_words(found)}"
    return f"the last batch below offset {offset} was {_words(mark)}, but {has}{unknown}"


async def cleanup_policy(admin: Admin, topic: str) -> str | None:
    """A topic's `cleanup.policy`; None where this client has no right to know it. Raises KafkaError."""
    try:
        return (await admin.describe_configs(TOPIC_RESOURCE, topic)).get("cleanup.policy") or ""
    except KafkaError as error:
        if error.code not in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            raise
        return None


async def batch_or_none(admin: Admin, tp: TopicPartition, offset: int) -> RawBatch | None:
    """The batch at an offset, or the next one; None where there is none, or retention was faster."""
    try:
        return await admin.batch_at(tp, offset)
    except KafkaError as error:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        raise


def _words(mark: BatchMark) -> str:
    return f"the one of offset {mark.offset} (CRC {mark.crc:08x}, timestamp {mark.timestamp_ms})"
