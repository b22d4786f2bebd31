"""What the target will take: a source batch with a new header, or, where that can't be, rebuilt batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, Record, records
from penstock.pyx.record.rewrite import rewrite_header

# Producers number a batch's records from 0. A broker that finds other offsets in a compressed batch would open and
# compress it again (Apache Kafka does). The base offset is not under the checksum.
NO_BASE_OFFSET = bytes(8)

REFUSING = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
    }
)


class TooLarge(OperatorNeeded):
    """One record alone is larger than the target allows. The text says what to change; the caller adds how to go on then."""


class Prepared(NamedTuple):
    """Batches that can go out: each is whole, dense, of magic 2; `rebuilt` of them are not the source's bytes."""

    batches: list[RawBatch]
    rebuilt: int


def is_forwardable(batch: RawBatch, max_bytes: int, append_time: bool = False) -> bool:
    """Whether a batch goes on untouched but for its header.

    Not so: message sets of magic 0 and 1, batches with holes (compaction took records out, so that the offset
    span differs from the count), batches larger than the target allows, and LogAppendTime batches: without that bit
    readers would see the records' own times instead of the append time. `append_time`: the target gives all records
    its own append time anyhow.
    """
    if batch.magic != 2 or batch.last_offset_delta + 1 != batch.record_count or batch.size_in_bytes > max_bytes:
        return False
    return append_time or not batch.is_log_append_time


def prepare(batches: Sequence[RawBatch], position: int, max_bytes: int, append_time: bool = False) -> Prepared:
    """The batches as the target will take them, records below `position` left out; `append_time` as `is_forwardable`
    has it.

    Raises BatchError when a batch that has to be opened is corrupt, and TooLarge.
    """
    prepared: list[RawBatch] = []
    rebuilt = 0
    for batch in batches:
        if batch.base_offset >= position and is_forwardable(batch, max_bytes, append_time):
            prepared.append(batch)
        elif batch.base_offset >= position and (timed := _with_append_time(batch, max_bytes)) is not None:
            prepared.append(timed)
            rebuilt += 1
        else:
            # Opening a batch makes an object of each record: right for the rare batch, never the ordinary way.
            left = [record for record in records(batch) if record.offset >= position]
            made = list(_rebuild(left, batch.codec, max_bytes)) if left else []
            rebuilt += len(made)
            prepared += made
    return Prepared(prepared, rebuilt)


def _with_append_time(batch: RawBatch, max_bytes: int) -> RawBatch | None:
    """A LogAppendTime batch whose records have that time as their own; None if more has to be done to it."""
    if not batch.is_log_append_time or not is_forwardable(batch, max_bytes, append_time=True):
        return None
    from penstock.pyx.record.columns import keep  # here, since few mirrors meet such batches, and numpy comes with it

    timed = RawBatch(keep(batch, b"\x01" * batch.record_count, append_time=True))
    return timed if timed.size_in_bytes <= max_bytes else None


def _rebuild(left: Sequence[Record], codec: int, max_bytes: int) -> Iterator[RawBatch]:
    """One batch, or as many as it takes for each to be small enough; how well they compress is known afterwards."""
    builder = BatchBuilder(codec, max_bytes=(1 << 31) - 1, any_time=True)
    for record in left:
        builder.append(record.key, record.value, record.timestamp_ms, record.headers)
    built = builder.build()
    if len(built) <= max_bytes:
        yield RawBatch(built)
    elif len(left) > 1:
        middle = len(left) // 2
        yield from _rebuild(left[:middle], codec, max_bytes)
        yield from _rebuild(left[middle:], codec, max_bytes)
    else:
        raise TooLarge(
            f"the record at offset {left[0].offset} takes {len(built)} bytes, more than `max.message.bytes` "
            f"({max_bytes}) of the topic that it goes to: raise that"
        )


class Refused(KafkaError):
    """The broker won't take a batch, now or later: `index` says which of those that were sent."""

    def __init__(self, error: KafkaError, index: int) -> None:
        super().__init__(error.code, str(error))
        self.index = index


class Sent(NamedTuple):
    """The target's offset of the first batch that was sent, and the one behind the last one; -1: none was sent, or the broker
    has forgotten where they are."""

    begin: int
    end: int


async def send(sender: TransactionalSender, tp: TopicPartition, batches: Sequence[RawBatch]) -> Sent:
    """Send batches as they are but for new headers; where they are on the target.

    They travel together, in order. Raises Fenced, Refused, KafkaError.
    """
    futures = []
    for batch in batches:
        sequence = sender.next_sequence(tp, batch.record_count)
        header = rewrite_header(batch, sender.producer_id, sender.producer_epoch, sequence)
        futures.append(sender.submit(tp, [NO_BASE_OFFSET + header[len(NO_BASE_OFFSET) :], batch.payload]))
    try:
        stored = await asyncio.gather(*futures)
    except KafkaError as error:
        index = next((i for i, future in enumerate(futures) if future.done() and future.exception() is error), -1)
        if error.code in REFUSING and index >= 0:
            raise Refused(error, index) from error
        raise
    placed = [(where.base_offset, batch) for where, batch in zip(stored, batches, strict=True) if where.base_offset >= 0]
    if not placed:
        return Sent(-1, -1)
    return Sent(min(offset for offset, _ in placed), max(offset + batch.record_count for offset, batch in placed))
