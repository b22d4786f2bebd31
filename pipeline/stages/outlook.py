"""What a process knows of the logs that a lane reads, kept so that figures need no request.

A lane that goes on sees its logs' ends with each fetch. One that stands fetches nothing: its logs are looked at from time to
time, and the timestamp of its first unread batch is looked up once for each offset that it stands at.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.logs import LATEST, batch_at, list_offsets
from penstock.pyx.record.rawbatch import RawBatch

SKEW_MS = 1_000
"""By so much a producer's clock may be ahead of this one without being wrong."""


class Ends(NamedTuple):
    """A log's last stable offset, and the offset that it ends at."""

    stable: int
    end: int


async def look_at_ends(client: Client, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
    """Where logs end; those that aren't there, or have no leader, are left out. Raises KafkaError."""
    known = await client.metadata(sorted({topic for topic, _ in tps}), refresh=True)
    # One without a leader would hold up the answer for all.
    infos = {tp: known.topics[tp[0]].partitions.get(tp[1]) for tp in tps if tp[0] in known.topics}
    there = [tp for tp, info in infos.items() if info is not None and info.leader >= 0]
    # The end first: what comes between the two must not look as if it were held back.
    ends = await list_offsets(client, dict.fromkeys(there, LATEST))
    stable = await list_offsets(client, dict.fromkeys(there, LATEST), "read_committed")
    return {tp: Ends(stable[tp].offset, ends[tp].offset) for tp in there}


def first_ms(batch: RawBatch) -> int:
    """The timestamp of a batch's first record, or the nearest that its header has; -1: it has none."""
    return batch.base_timestamp if batch.magic >= 2 and not batch.is_log_append_time else batch.max_timestamp


class Outlook:
    """Of one lane. Times are of this machine's clock, in milliseconds."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, Ends] = {}  # by log, as they were seen last
        self.unreachable = ""  # why the logs can't be seen now
        self.no_topic = ""
        self.looked_at = float("-inf")  # when they were looked at because the lane stands (loop time)
        self.waits_since = float("inf")  # when records were first seen that wait since the lane was at its end (loop time)
        self._unread = (-1, -1)  # an offset, and the timestamp of the batch there
        self._at_end_ms = _now_ms()  # when the lane was last seen at the end

    def see(self, ends: dict[TopicPartition, Ends], offsets: dict[TopicPartition, int], now: float) -> None:
        """The logs end so, and the lane stands at these offsets. `now` is the loop's time."""
        self.ends, self.unreachable, self.no_topic = ends, "", ""
        if all(ends[tp].end <= offset for tp, offset in offsets.items() if tp in ends):
            self._at_end_ms = _now_ms()
        if all(ends[tp].stable <= offset for tp, offset in offsets.items() if tp in ends):
            self.waits_since = float("inf")
        else:
            self.waits_since = min(self.waits_since, now)

    def note_unread(self, offset: int, batch: RawBatch) -> None:
        """The first unread batch behind an offset."""
        self._unread = offset, first_ms(batch)

    def knows(self, offset: int) -> bool:
        """Whether the first unread batch behind an offset is noted."""
        return self._unread[0] == offset

    async def look_up(self, client: Client, tp: TopicPartition, offset: int) -> None:
        """Learn the timestamp of the batch at an offset where the lane stands, unless it is known. Raises KafkaError."""
        if self.knows(offset):
            return
        try:
            batch = await batch_at(client, tp, offset)
        except KafkaError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            batch = None  # gone: nobody knows any more
        if batch is not None:
            self.note_unread(offset, batch)

    def lag_s(self, offset: int, last_ms: int) -> float:
        """The age of the first unread batch behind an offset where the log has more; `last_ms` is the timestamp of the batch
        before it (-1: not known). A batch that nobody has seen yet has come since the lane was at the end; so has one that is
        stamped in the future, for all that is known.
        """
        now_ms = _now_ms()
        at_ms = self._unread[1] if self.knows(offset) else max(last_ms, self._at_end_ms)
        if not 0 <= at_ms <= now_ms + SKEW_MS:
            at_ms = self._at_end_ms
        return max(0, now_ms - at_ms) / 1000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
