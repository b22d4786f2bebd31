"""The log that a lane writes, held against what its position notes of it.

A position says up to which offset its lane has written, and with which producer id. Replicas that lost power, or an unclean
election, may take these records away and leave the position, which is in another log. To go on from it would lose them without
a word. The records are there if the log ends no lower, the batch right below that offset is the lane's own, and a marker has
committed it: no other producer has its producer id. An offset alone proves nothing in a log that was cut and has grown since.
Retention may remove the batch: that is no loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from penstock.errors import ErrorCode, raise_for
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import is_abort, split_sound
from penstock.pipeline.stages.failures import OperatorNeeded, StartsOver
from penstock.pipeline.stages.sourcelog import COMPACTION_UNKNOWN, cleanup_policy
from penstock.pyx.record.rawbatch import RawBatch

NOT_NOTED = -1
FETCH_BYTES = 64 << 10
MARKER_TRIES, MARKER_PAUSE_S = 20, 0.25
FIRST_SPAN = 1000  # offsets that are looked at first for a lane's last batch; then eight times as many, and so on


class OutputLost(OperatorNeeded):
    """The output's log lacks what was written up to a position."""


class MarkerLost(OutputLost):
    """The output's log has a transaction open that its coordinator has ended."""

    def __init__(self, tp: TopicPartition, producer_id: int) -> None:
        super().__init__(
            f"`{tp[0]}` partition {tp[1]} lost the marker of a transaction of producer id {producer_id}, which was committed "
            "and is open there for ever: if `kafka-transactions.sh find-hanging` names it, too, the `abort` of that tool ends "
            "it, and what it had counts as lost"
        )


class _Leadership(NamedTuple):
    """Who leads the log, in which epoch, and over which connection batches go there (0: none is open)."""

    leader: int = -1
    epoch: int = -1
    connection: int = 0


class OutputLog:
    """A log that one lane writes to, among others.

    A log can lose its end only with its leader: at a start of that broker, which ends the connection, or as another one is
    elected. So one comparison is enough for each leader, epoch and connection.
    """

    def __init__(self, admin: Admin, tp: TopicPartition) -> None:
        self._admin = admin
        self._tp = tp
        self._compared = _Leadership()

    async def lacks(self, end: int, producer_id: int | None = None, *, settled: bool = False) -> str:
        """In words, what shows that the log lacks what was written up to an offset; empty where it doesn't.

        `producer_id` is that of the last batch, `NOT_NOTED`, or None where nobody else writes there. `settled`: all of the
        lane's transactions have ended. Raises KafkaError, and MarkerLost where one is open that should have ended.
        """
        now = self._leadership()
        why = await self._difference(end, producer_id, settled)
        if not why:
            self._compared = now
        return why

    async def check_after_election(self, end: int, producer_id: int | None = None) -> None:
        """Raise StartsOver if another leader was elected since the log was compared, and lacks something; KafkaError."""
        now = self._leadership()
        if now.epoch >= 0 and now[:2] != self._compared[:2]:
            self._refuse(await self.lacks(end, producer_id))

    async def check_before_commit(self, end: int, producer_id: int | None = None, *, begin: int) -> None:
        """The same for a transaction whose batches were written from an offset `begin` on (-1: where isn't known). Without
        another request if they went to the leader, and over the connection, that was compared."""
        if 0 <= begin < end:
            self._refuse(f"`{self._tp[0]}` partition {self._tp[1]} was written at offset {begin}, below {end}")
        now = self._leadership()
        if not now.connection or now != self._compared:
            self._refuse(await self.lacks(end, producer_id))

    def _refuse(self, why: str) -> None:
        if why:
            raise StartsOver(why)  # what the lane has under way is aborted then, and what is missing can be told

    def _leadership(self) -> _Leadership:
        info = self._admin.partition_info(*self._tp)
        if info is None:
            return _Leadership()
        connection = self._admin.ready_connection(info.leader, "produce")
        return _Leadership(info.leader, info.leader_epoch, 0 if connection is None else connection.number)

    async def _difference(self, end: int, producer_id: int | None, settled: bool) -> str:
        topic, partition = self._tp
        if end <= 0:
            return ""
        there = await self._admin.end_offset(self._tp)
        if there < end:
            return f"`{topic}` partition {partition} ends at offset {there}, but was written up to {end}"
        if producer_id == NOT_NOTED or await self._starts_behind(end) or await self._has(end, producer_id, settled):
            return ""
        policy = await cleanup_policy(self._admin, topic)
        # Compaction removes batches, too, and retention may have been faster.
        if "compact" in (policy or "") or await self._starts_behind(end):
            return ""
        whose = "" if producer_id is None else f" of producer id {producer_id}"
        return (
            f"`{topic}` partition {partition} was written up to offset {end}, but has no committed batch{whose} that ends there"
            f"{COMPACTION_UNKNOWN if policy is None else ''}"
        )

    async def _starts_behind(self, end: int) -> bool:
        return await self._admin.start_offset(self._tp) >= end

    async def _has(self, end: int, producer_id: int | None, settled: bool) -> bool:
        """Whether the batch right below an offset is a producer's, and its transaction wasn't aborted."""
        found = -1
        for _ in range(MARKER_TRIES):
            is_committed, found = await self._find(end, producer_id)
            if is_committed is not None or not settled:
                return is_committed is not False
            await asyncio.sleep(MARKER_PAUSE_S)  # a coordinator answers before all markers are written
        raise MarkerLost(self._tp, found)

    async def _find(self, end: int, producer_id: int | None) -> tuple[bool | None, int]:
        """The same, None while the transaction is open; and whose it is."""
        found: RawBatch | None = None
        async for batch in batches_of(self._admin, self._tp, end - 1):
            if found is None:
                found = batch
                if batch.next_offset != end or batch.is_control or not _is_of(batch, producer_id):
                    break
            elif batch.is_control and batch.producer_id == found.producer_id:
                return not is_abort(batch), found.producer_id
        else:
            if found is not None:
                return None, found.producer_id
        return False, -1

    async def last_batch(self, end: int, producer_id: int | None = None) -> RawBatch | None:
        """A producer's last committed batch that ends at an offset or before it, once all its transactions have ended.
        `producer_id` None: nobody else writes to the log. None: the log has none. Raises MarkerLost, KafkaError."""
        start, to, span = await self._admin.start_offset(self._tp), await self._admin.end_offset(self._tp), FIRST_SPAN
        aborted: bool | None = None  # by the producer's first marker behind what is looked at
        while to > start:
            first = max(start, to - span)
            kept: RawBatch | None = None
            last: RawBatch | None = None  # of the transaction that no marker has ended yet
            markers: list[bool] = []
            async for batch in batches_of(self._admin, self._tp, first, to):
                if not _is_of(batch, producer_id):
                    continue
                if batch.is_control:
                    markers.append(is_abort(batch))
                    kept, last = kept if markers[-1] else last or kept, None
                elif batch.next_offset <= end:
                    last = batch
            if last is not None and aborted is None:
                raise MarkerLost(self._tp, last.producer_id)
            found = kept if last is None or aborted else last
            if found is not None:
                return found
            to, span, aborted = first, 8 * span, markers[0] if markers else aborted
        return None


def _is_of(batch: RawBatch, producer_id: int | None) -> bool:
    return batch.producer_id == producer_id if producer_id is not None else batch.is_transactional


async def batches_of(admin: Admin, tp: TopicPartition, first: int, to: int | None = None) -> AsyncIterator[RawBatch]:
    """The batches of a log, committed or not, and markers, from the one on that has an offset, up to those that begin at `to`
    (None: to the end). Raises KafkaError."""
    offset = first
    while to is None or offset < to:
        part = await admin.fetch_at(tp, offset, FETCH_BYTES)
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return
        raise_for(part.error_code, f"fetch of `{tp[0]}` partition {tp[1]} at {offset}")
        batches, _ = split_sound(memoryview(part.records or b""))
        for batch in batches:
            if to is not None and batch.base_offset >= to:
                return
            if batch.last_offset >= offset:
                yield batch
                offset = batch.next_offset
        if not batches:
            return
