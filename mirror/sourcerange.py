"""A stretch of a source's log: its bytes as they are, which a skip sets aside, and how many committed records they are.

A stretch may begin and end within a batch. Its bytes are then those of the whole batch, and only the records that lie in the
stretch are counted: the lane opens such a batch and copies the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from penstock.errors import ErrorCode, raise_for
from penstock.hints import quoted
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import committed_only, split_sound
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.recordcount import is_wrapper, records_of, records_within
from penstock.pyx.record.rawbatch import BatchError, RawBatch, records
from penstock.pyx.wire.messages import FetchResponse

FETCH_BYTES = 4 << 20


class Piece(NamedTuple):
    """Bytes of a log from an offset on, the committed batches among them, and how many of their records lie in the stretch."""

    offset: int
    data: bytes
    batches: list[RawBatch]
    records: int


class Stretch:
    """The offsets from `first` up to `to` of a source's partition; no transaction may be open below `to`."""

    def __init__(self, source: Admin, tp: TopicPartition, topic_id: bytes, first: int, to: int) -> None:
        self._source = source
        self._tp = tp
        self._topic_id = topic_id
        self._first = first
        self._to = to

    async def check(self) -> None:
        """Refuse an end within a batch that can't be opened. Raises OperatorNeeded with the ends that can be had."""
        part = await self._fetch(self._to)
        batches, _ = split_sound(memoryview(part.records or b""))
        if not batches or batches[0].base_offset >= self._to:
            return
        batch = batches[0]
        try:
            batch.check()
            records(batch)
        except BatchError as error:
            ends = [end for end in (batch.base_offset, batch.last_offset + 1) if end > self._first]
            ways = " or ".join(f"`--to {quoted(end)}`" for end in ends)
            raise OperatorNeeded(
                f"offset {self._to} is within the batch of offsets {batch.base_offset} to {batch.last_offset}, which can't be "
                f"opened ({error}), so that it is set aside whole or not at all: {ways}"
            ) from error

    async def count(self) -> int:
        """The committed records in it. Raises KafkaError."""
        return sum([piece.records async for piece in self.pieces()])

    async def pieces(self) -> AsyncIterator[Piece]:
        """What the log has of it, unchecked. Offsets that are gone are left out. Raises KafkaError."""
        offset = self._first
        while offset < self._to:
            part = await self._fetch(offset)
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset > offset:
                offset = part.log_start_offset
                continue
            raise_for(part.error_code, f"fetch of `{self._tp[0]}` partition {self._tp[1]} at {offset}")
            data = bytes(part.records or b"")
            if not data:
                return
            size, behind, batches = _cut(data, self._to)
            inside = [(self._first, self._to - 1)]
            kept = list(committed_only(batches, part.aborted_transactions or ()))
            yield Piece(offset, data[:size], kept, sum(records_within(batch, records_of(batch), inside) for batch in kept))
            if behind <= offset:  # nothing of it makes sense
                return
            offset = behind

    async def _fetch(self, offset: int) -> FetchResponse.PartitionData:
        # Read committed, so that the answer says which transactions were aborted.
        return await self._source.fetch_at(
            self._tp, offset, FETCH_BYTES, isolation="read_committed", topic_id=self._topic_id, max_wait_ms=500
        )


def _cut(data: bytes, to: int) -> tuple[int, int, list[RawBatch]]:
    """How many of the bytes belong to batches that begin below `to`, the offset behind them, and those batches.

    Headers are believed only as far as they make sense; where they don't, all bytes are taken and the offset is `to`.
    """
    batches, garbage = split_sound(memoryview(data))
    size, behind = 0, -1
    for index, batch in enumerate(batches):
        if _begins(batch) >= to:
            return size, max(behind, to), batches[:index]
        if batch.base_offset < behind:
            return len(data), to, batches[:index]
        size += batch.size_in_bytes
        behind = max(batch.base_offset, batch.last_offset) + 1
    if garbage is not None or not batches:
        return len(data), to, batches
    return size, behind, batches  # what is left of an answer comes with the next one


def _begins(batch: RawBatch) -> int:
    """The offset of a batch's first record, as far as it can be known."""
    if is_wrapper(batch):
        try:
            return records(batch)[0].offset
        except (BatchError, IndexError):
            pass
    return batch.base_offset
