"""How many records stand in a topic's log: by batch header, by partition and by 10-minute bucket.

The rule is the same at every hop: a batch counts its header's record count (a message set of old clients what it
holds), in the bucket of its maximum timestamp. Control batches and aborted transactions are not records. Counts come
from the logs themselves and never from a process's counters, so they survive any kill. A batch that can't be read counts
what its header claims, and is a finding.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import EARLIEST, LATEST, TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import BatchMark, Fetched, Fetcher
from penstock.pipeline.options import DEFAULT_TIMEOUTS, Timeouts
from penstock.pipeline.stages import heldback
from penstock.pipeline.stages.ranges import Range
from penstock.pipeline.stages.recordcount import records_of, records_within
from penstock.pipeline.stages.sourcelog import differs
from penstock.pyx.record.rawbatch import BatchError, RawBatch

BUCKET_MS = 600_000
STABLE_S = 75.0  # longer than our stages' transactions may last
STABLE_PAUSE_S = 0.1
UNMOVED_S = 15.0
"""A last stable offset that stays so long before the log's end is held back by an open transaction."""
LAST = (1 << 63) - 1  # behind all offsets
CLIENT_ID = "penstock-audit"

Read = tuple[int, BatchMark | None]
"""An offset up to which a log was read, and the mark of the batch right below it, where that is noted."""

# The broker, or the answer's bytes, say of these that there is no way to read on.
UNREADABLE = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE})


@dataclass(frozen=True)
class Unreadable:
    """A batch that can't be read, and why; `records` is what its header claims."""

    partition: int
    offset: int
    records: int
    reason: str


class Patience:
    """How long an audit waits altogether for transactions that are open to end."""

    def __init__(self, seconds: float = STABLE_S) -> None:
        self._left_s = seconds

    async def pause(self) -> bool:
        """Wait for a moment; False without waiting once the patience is over."""
        if self._left_s <= 0:
            return False
        self._left_s -= STABLE_PAUSE_S
        await asyncio.sleep(STABLE_PAUSE_S)
        return True


@dataclass
class TopicCounts:
    """The records of one topic on one cluster, up to the last stable offsets `ends`.

    `left_out` are records in the gaps that were asked for, which `records` and `buckets` don't count; `is_cut` says that a
    batch lies partly in a gap, or behind its end. `short` are partitions whose log ends before the end that was asked for:
    (the log's end, the one asked for). `others` are those whose log isn't the one that was read, with the reason. `open` says
    by partition which transaction holds its last stable offset back; `held` are those of which offsets behind it were asked
    for.
    """

    records: Counter[int] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    left_out: Counter[int] = field(default_factory=Counter)
    is_cut: bool = False
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)
    short: dict[int, tuple[int, int]] = field(default_factory=dict)
    others: dict[int, str] = field(default_factory=dict)
    open: dict[int, str] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    compacted: bool = False

    @property
    def total(self) -> int:
        """All records."""
        return self.records.total()

    def add(self, partition: int, batch: RawBatch, end: int = LAST, gaps: Sequence[Range] = ()) -> int:
        """Count what of a batch lies below an end and in no gap; how many records that is."""
        held = records_of(batch)
        behind, gone = records_within(batch, held, [(end, LAST)]), records_within(batch, held, gaps)
        count = held - behind - gone
        self.is_cut |= behind + gone > 0 and count > 0
        self.left_out[partition] += gone
        self.records[partition] += count
        self.buckets[batch.max_timestamp // BUCKET_MS] += count
        return count

    def merge(self, other: TopicCounts) -> None:
        """Count what another one counted, too."""
        self.records.update(other.records)
        self.buckets.update(other.buckets)


async def count_topic(
    bootstrap: str,
    topic: str,
    ends: Mapping[int, int] | None = None,
    on_progress: Callable[[int], None] = lambda records: None,
    gaps: Mapping[int, Sequence[Range]] | None = None,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    patience: Patience | None = None,
    read: Mapping[int, Read] | None = None,
) -> TopicCounts:
    """Count the committed records of a topic from its log start to its last stable offsets, or to `ends`; those in
    `gaps` apart, by partition. `read` says up to where the log was read by the stage after it.

    on_progress is called with the number of records of each fetch. Raises KafkaError when the topic is
    not there or a partition can't be read to its end.
    """
    counts = TopicCounts()
    async with timeouts.admin(bootstrap, CLIENT_ID) as admin:
        there = (await admin.metadata([topic])).topic(topic, f"topic `{topic}` on {bootstrap}")
        policies = [e.value for e in await admin.config_entries(TOPIC_RESOURCE, topic) if e.name == "cleanup.policy"]
        counts.compacted = any("compact" in (policy or "") for policy in policies)
        for partition, (offset, mark) in (read or {}).items():
            if mark is not None and (why := await differs(admin, (topic, partition), mark, offset)):
                counts.others[partition] = why
        partitions = [(topic, number) for number in sorted(there.partitions)]
        starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        counts.starts = {partition: starts[(topic, partition)].offset for _, partition in partitions}
        asked = {} if ends is None else {tp: ends.get(tp[1], 0) for tp in partitions}
        stable = await stable_ends(admin, partitions, asked, patience or Patience())
        found = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
        looked_s = time.monotonic()
        places = {tp: (stable[tp], found[tp].offset) for tp in partitions}
        for tp, (last, end) in places.items():
            wanted = asked.get(tp, last)
            counts.ends[tp[1]] = min(wanted, last)
            if wanted > end:
                counts.short[tp[1]] = (last, wanted)
            elif wanted > last:
                counts.held.add(tp[1])
        await _scan(admin, topic, counts, on_progress, gaps or {})
        counts.open = await _open(admin, places, looked_s)
    return counts


async def _open(admin: Admin, places: Mapping[TopicPartition, tuple[int, int]], looked_s: float) -> dict[int, str]:
    """The partitions that an open transaction holds back, and whose it is. Of each the last stable offset and the end were seen
    at a moment (monotonic); it is held back if it hasn't moved some seconds later, since a pipeline that runs has transactions
    under way at all times. Raises KafkaError."""
    left = {tp: (stable, end) for tp, (stable, end) in places.items() if stable < end}
    while left:
        now = await admin.list_offsets(dict.fromkeys(left, LATEST), isolation="read_committed")
        left = {tp: place for tp, place in left.items() if now[tp].offset <= place[0]}
        if time.monotonic() > looked_s + UNMOVED_S:
            break
        await asyncio.sleep(STABLE_PAUSE_S)
    found = await heldback.look(admin, sorted(left)) if left else {}
    return {
        tp[1]: f"{end - stable:,} offsets can't be counted, since the log "
        + (found[tp].words if tp in found else f"has an open transaction in `{tp[0]}` partition {tp[1]}")
        for tp, (stable, end) in sorted(left.items())
    }


async def stable_ends(
    admin: Admin, tps: Sequence[TopicPartition], wanted: Mapping[TopicPartition, int], patience: Patience
) -> dict[TopicPartition, int]:
    """The last stable offsets, once they are at the wanted ones: a transaction that began before may be open still. Those
    of a log that ends before, or of one that is held back for longer than the patience lasts, are as they are. Raises
    KafkaError.
    """
    while True:
        stable = await admin.list_offsets(dict.fromkeys(tps, LATEST), isolation="read_committed")
        short = [tp for tp in tps if stable[tp].offset < wanted.get(tp, 0)]
        if short:
            ends = await admin.list_offsets(dict.fromkeys(short, LATEST))
            short = [tp for tp in short if wanted[tp] <= ends[tp].offset]
        if not short or not await patience.pause():
            return {tp: at.offset for tp, at in stable.items()}


async def _scan(
    admin: Admin,
    topic: str,
    counts: TopicCounts,
    on_progress: Callable[[int], None],
    gaps: Mapping[int, Sequence[Range]],
) -> None:
    left = {(topic, partition): start for partition, start in counts.starts.items() if start < counts.ends[partition]}
    async with Fetcher(admin, left, isolation="read_committed") as fetcher:
        while left:
            seen = 0
            for fetched in await fetcher.fetch():
                end, position = counts.ends[fetched.partition], fetched.next_offset
                omitted = gaps.get(fetched.partition, ())
                for batch in fetched.batches:
                    if batch.base_offset >= end:
                        break
                    seen += counts.add(fetched.partition, batch, end, omitted)
                if fetched.error is not None and position < end:
                    position = await _behind_error(admin, counts, fetched, omitted)
                    fetcher.seek(fetched.tp, position)
                if position >= end:
                    left.pop(fetched.tp, None)
                    fetcher.pause(fetched.tp)
            on_progress(seen)


async def _behind_error(admin: Admin, counts: TopicCounts, fetched: Fetched, gaps: Sequence[Range]) -> int:
    """Where to go on in a partition after an error: behind a batch that can't be read, or at the partition's end where
    no way on is known; at the new log start when retention was quicker. Raises KafkaError for all else.

    What lies in a gap was set aside by an operator: that it can't be read is known.
    """
    error, partition, end = fetched.error, fetched.partition, counts.ends[fetched.partition]
    corrupt, offset = fetched.corrupt, fetched.next_offset
    gap = next((last for first, last in gaps if first <= offset <= last), None)
    if corrupt is not None:
        counts.add(partition, corrupt, end, gaps)
        if gap is None:
            reason = str(error).removeprefix(f"batch at offset {corrupt.base_offset}: ")
            counts.unreadable.append(Unreadable(partition, corrupt.base_offset, records_of(corrupt), reason))
        return max(corrupt.last_offset, offset) + 1
    if isinstance(error, KafkaError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
        start = await admin.start_offset(fetched.tp)
        if start > offset:
            counts.starts[partition] = start
            return start
    if isinstance(error, BatchError) or (error is not None and error.code in UNREADABLE):
        if gap is not None:
            return gap + 1
        reason = f"{error}; what follows it in the partition is not counted"
        counts.unreadable.append(Unreadable(partition, offset, 0, reason))
        return end
    assert error is not None
    raise error
