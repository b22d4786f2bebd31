"""How many records stand in a topic's log: by batch header, by partition and by 10-minute bucket.

The rule is the same at every hop: a batch counts its header's record count (a message set of old clients what it
holds), in the bucket of its maximum timestamp. Control batches and aborted transactions are not records. Counts come
from the logs themselves and never from a process's counters, so they survive any kill. A batch that can't be read counts
what its header claims, and is a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.admin import EARLIEST, LATEST, TOPIC_RESOURCE, Admin
from penstock.pipeline.fetcher import Fetched, Fetcher
from penstock.pyx.record.rawbatch import BatchError, RawBatch, count_records

BUCKET_MS = 600_000
# An operator waits for the answer: a cluster that can't be reached is reported soon.
CLIENT: dict[str, Any] = {"client.id": "penstock-audit", "default.api.timeout.ms": 15_000}

Partition = tuple[str, int]


# The broker, or the answer's bytes, say of these that there is no way to read on.
UNREADABLE = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE})


@dataclass(frozen=True)
class Unreadable:
    """A batch that can't be read, and why; `records` is what its header claims."""

    partition: int
    offset: int
    records: int
    reason: str


@dataclass
class TopicCounts:
    """The records of one topic on one cluster, up to the last stable offsets `ends`.

    `short` are partitions whose log ends before the end that was asked for: (the log's end, the one asked for).
    """

    records: Counter[int] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)
    short: dict[int, tuple[int, int]] = field(default_factory=dict)
    compacted: bool = False

    @property
    def total(self) -> int:
        """All records."""
        return sum(self.records.values())


async def count_topic(
    bootstrap: str,
    topic: str,
    ends: dict[int, int] | None = None,
    on_progress: Callable[[int], None] = lambda records: None,
) -> TopicCounts:
    """Count the committed records of a topic from its log start to its last stable offsets, or to `ends`.

    on_progress is called with the number of records of each fetch. Raises KafkaError when the topic is
    not there or a partition can't be read to its end.
    """
    counts = TopicCounts()
    async with Admin(bootstrap, **CLIENT) as admin:
        cluster = await admin.metadata([topic])
        if topic not in cluster.topics:
            code = cluster.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise KafkaError(code, f"topic `{topic}` on {bootstrap}")
        policies = [e.value for e in await admin.config_entries(TOPIC_RESOURCE, topic) if e.name == "cleanup.policy"]
        counts.compacted = any("compact" in (policy or "") for policy in policies)
        partitions = [(topic, number) for number in sorted(cluster.topics[topic].partitions)]
        starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        stable = await admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation="read_committed")
        counts.starts = {partition: starts[(topic, partition)].offset for _, partition in partitions}
        for tp in partitions:
            end, asked = stable[tp].offset, None if ends is None else ends.get(tp[1], 0)
            counts.ends[tp[1]] = end if asked is None else min(asked, end)
            if asked is not None and asked > end:
                counts.short[tp[1]] = (end, asked)
        await _scan(admin, topic, counts, on_progress)
    return counts


async def _scan(admin: Admin, topic: str, counts: TopicCounts, on_progress: Callable[[int], None]) -> None:
    left = {(topic, partition): start for partition, start in counts.starts.items() if start < counts.ends[partition]}
    fetcher = Fetcher(admin, isolation="read_committed")
    fetcher.assign(dict(left))
    try:
        while left:
            seen = 0
            for fetched in await fetcher.fetch():
                end, position = counts.ends[fetched.partition], fetched.next_offset
                for batch in fetched.batches:
                    if batch.base_offset >= end:
                        break
                    seen += _add(counts, fetched.partition, batch, _count(batch))
                if fetched.error is not None and position < end:
                    position = await _behind_error(admin, counts, fetched)
                    fetcher.seek(fetched.tp, position)
                if position >= end:
                    left.pop(fetched.tp, None)
                    fetcher.pause(fetched.tp)
            on_progress(seen)
    finally:
        await fetcher.close()


def _add(counts: TopicCounts, partition: int, batch: RawBatch, records: int) -> int:
    counts.records[partition] += records
    counts.buckets[batch.max_timestamp // BUCKET_MS] += records
    return records


async def _behind_error(admin: Admin, counts: TopicCounts, fetched: Fetched) -> int:
    """Where to go on in a partition after an error: behind a batch that can't be read, or at the partition's end where
    no way on is known; at the new log start when retention was quicker. Raises KafkaError for all else."""
    error, partition, end = fetched.error, fetched.partition, counts.ends[fetched.partition]
    corrupt = fetched.corrupt
    if corrupt is not None:
        claimed = max(0, min(corrupt.record_count, corrupt.last_offset - corrupt.base_offset + 1))
        reason = str(error).removeprefix(f"batch at offset {corrupt.base_offset}: ")
        counts.unreadable.append(Unreadable(partition, corrupt.base_offset, claimed, reason))
        _add(counts, partition, corrupt, claimed)
        return max(corrupt.last_offset, fetched.next_offset) + 1
    if isinstance(error, KafkaError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
        start = await admin.start_offset(fetched.tp)
        if start > fetched.next_offset:
            counts.starts[partition] = start
            return start
    if isinstance(error, BatchError) or (error is not None and error.code in UNREADABLE):
        reason = f"{error}; what follows it in the partition is not counted"
        counts.unreadable.append(Unreadable(partition, fetched.next_offset, 0, reason))
        return end
    assert error is not None
    raise error


def _count(batch: RawBatch) -> int:
    """The header's count; a compressed message set of magic 0 or 1 says none and is opened (1 if it can't be)."""
    try:
        return count_records(batch)
    except BatchError:
        return 1
