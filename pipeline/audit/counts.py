"""How many records stand in a topic's log: by batch header, by partition and by 10-minute bucket.

The rule is the same at every hop: a batch counts its header's record count (a message set of old clients what it
holds), in the bucket of its maximum timestamp. Control batches and aborted transactions are not records. Counts come
from the logs themselves and never from a process's counters, so they survive any kill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.pipeline.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.fetcher import Fetcher
from penstock.pyx.record.rawbatch import BatchError, RawBatch, count_records

BUCKET_MS = 600_000
# Somebody waits for the answer: a cluster that is away is said to be, soon.
CLIENT: dict[str, Any] = {"client.id": "penstock-audit", "default.api.timeout.ms": 15_000}

Partition = tuple[str, int]


@dataclass
class TopicCounts:
    """The records of one topic on one cluster, up to the last stable offsets `ends`."""

    records: Counter[int] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

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
        partitions = [(topic, number) for number in sorted(cluster.topics[topic].partitions)]
        starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        stable = await admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation="read_committed")
        counts.starts = {partition: starts[(topic, partition)].offset for _, partition in partitions}
        counts.ends = {
            partition: stable[(topic, partition)].offset if ends is None else ends.get(partition, 0)
            for _, partition in partitions
        }
        await _scan(admin, topic, counts, on_progress)
    return counts


async def _scan(admin: Admin, topic: str, counts: TopicCounts, on_progress: Callable[[int], None]) -> None:
    left = {(topic, partition): start for partition, start in counts.starts.items() if start < counts.ends[partition]}
    fetcher = Fetcher(admin, isolation="read_committed")
    fetcher.assign(dict(left))
    while left:
        seen = 0
        for fetched in await fetcher.fetch():
            if fetched.error is not None:
                raise fetched.error
            for batch in fetched.batches:
                if batch.base_offset >= counts.ends[fetched.partition]:
                    break
                records = _count(batch)
                counts.records[fetched.partition] += records
                counts.buckets[batch.max_timestamp // BUCKET_MS] += records
                seen += records
            if fetched.next_offset >= counts.ends[fetched.partition]:
                left.pop((fetched.topic, fetched.partition), None)
                fetcher.pause((fetched.topic, fetched.partition))
        on_progress(seen)


def _count(batch: RawBatch) -> int:
    """The header's count; a compressed message set of magic 0 or 1 says none and is opened (1 if it can't be)."""
    try:
        return count_records(batch)
    except BatchError:
        return 1
