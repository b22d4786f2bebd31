"""What the target will take: a source batch with a new header, or, where that can't be, rebuilt batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.pipeline.client import TopicPartition
from penstock.pipeline.lanes import OperatorNeeded
from penstock.pipeline.transaction import TransactionalSender
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, Record, records
from penstock.pyx.record.rewrite import rewrite_header

# Producers number a batch's records from 0. A broker that finds other offsets in a compressed batch would open and
# compress it anew (Apache Kafka does). The base offset is not under the checksum.
NO_BASE_OFFSET = bytes(8)


class Prepared(NamedTuple):
    """Batches that can go out: each is whole, dense, of magic 2; `rebuilt` of them are not the source's bytes."""

    batches: list[RawBatch]
    rebuilt: int


def is_forwardable(batch: RawBatch, max_bytes: int) -> bool:
    """Whether a batch goes on untouched but for its header.

    Not so: message sets of magic 0 and 1, batches with holes (compaction took records out, so that the offset
    span differs from the count), batches larger than the target allows.
    """
    return batch.magic == 2 and batch.last_offset_delta + 1 == batch.record_count and batch.size_in_bytes <= max_bytes


def prepare(batches: Sequence[RawBatch], position: int, max_bytes: int) -> Prepared:
    """The batches as the target will take them, records below `position` left out.

    Raises BatchError when a batch that has to be opened is rotten, and OperatorNeeded when one record alone
    is larger than the target allows.
    """
    prepared: list[RawBatch] = []
    rebuilt = 0
    for batch in batches:
        if is_forwardable(batch, max_bytes) and batch.base_offset >= position:
            prepared.append(batch)
        else:
            # Opening a batch makes an object of each record: right for the rare batch, never the ordinary way.
            left = [record for record in records(batch) if record.offset >= position]
            made = list(_rebuild(left, batch.codec, max_bytes)) if left else []
            rebuilt += len(made)
            prepared += made
    return Prepared(prepared, rebuilt)


def _rebuild(left: Sequence[Record], codec: int, max_bytes: int) -> Iterator[RawBatch]:
    """One batch, or as many as it takes for each to be small enough; how well they compress is known afterwards."""
    builder = BatchBuilder(codec, max_bytes=(1 << 31) - 1)
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
        raise OperatorNeeded(
            f"the record at offset {left[0].offset} takes {len(built)} bytes, more than `max.message.bytes` "
            f"({max_bytes}) of the topic that it goes to: raise that, then start again"
        )


async def send(sender: TransactionalSender, tp: TopicPartition, batches: Sequence[RawBatch]) -> int:
    """Send batches as they are but for new headers; the offset behind the last one on the target (-1: none sent).

    They travel together, in order. Raises Fenced, KafkaError.
    """
    futures = []
    for batch in batches:
        sequence = sender.next_sequence(tp, batch.record_count)
        header = rewrite_header(batch, sender.producer_id, sender.producer_epoch, sequence)
        futures.append(sender.submit(tp, [NO_BASE_OFFSET + header[len(NO_BASE_OFFSET) :], batch.payload]))
    stored = await asyncio.gather(*futures)
    ends = (where.base_offset + batch.record_count for where, batch in zip(stored, batches, strict=True))
    return max(ends, default=-1)
