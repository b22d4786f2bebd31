"""Compaction inside the test process: keyed batches, passes over a log, what a reader finds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from penstock.pyx.compaction.cleaner import Cleanable, Cleaner, Compacted, cleanable
from penstock.pyx.compaction.pace import Pace
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, records
from support.logs import FLUSH_DUE_MS, LOGS, NOW_MS, Log

RETENTION_MS = 1000
"""delete.retention.ms of these tests."""
MAX = (1 << 63) - 1


class Kept(NamedTuple):
    """A record that a reader finds."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def keyed(
    pairs: Iterable[tuple[bytes | None, bytes | None]],
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    timestamp_ms: int = NOW_MS,
    codec: int = 0,
) -> bytes:
    """A batch of these keys and values, one ms apart; `producer` is (id, epoch, first sequence)."""
    builder = BatchBuilder(codec=codec)
    for i, (key, value) in enumerate(pairs):
        assert builder.append(key, value, timestamp_ms + i)
    producer_id, epoch, sequence = producer
    return builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional)


class CompactedLog(Log):
    """A log whose sealed segments are compacted when the test says so."""

    def __init__(self, root: object, **config: int) -> None:
        super().__init__(root, **{"cleanup_delete": 0, "cleanup_compact": 1, **config})  # type: ignore[arg-type]
        self.checkpoint = -1
        self.rolls = 0
        self.rolled_ms = 0

    def put(self, *pairs: tuple[bytes | None, bytes | None], **given: object) -> int:
        """Append one batch; its base offset."""
        return self.append(keyed(pairs, **given))  # type: ignore[arg-type]

    def roll(self) -> None:
        """Seal the active segment, if it holds anything."""
        LOGS.reconfigure(self.topic, 0, {"segment_ms": 1})
        self.rolls += 1
        # The new segment is as old as this moment: each roll is later than the one before.
        self.rolled_ms = time.time_ns() // 1_000_000 + 10_000 * self.rolls
        self.upkeep(self.rolled_ms)
        LOGS.reconfigure(self.topic, 0, {"segment_ms": self.config.get("segment_ms", MAX)})

    def flush_sealed(self) -> None:
        """What isn't on the disk isn't compacted."""
        LOGS.flush(self.topic, 0)
        LOGS.flush_rolled(max(self.rolled_ms, time.time_ns() // 1_000_000) + FLUSH_DUE_MS)

    def cleanable(self, now_ms: int = NOW_MS, min_lag_ms: int = 0) -> Cleanable:
        self.flush_sealed()
        return cleanable(LOGS, self.topic, 0, self.checkpoint, now_ms, min_lag_ms)

    def compact(
        self, now_ms: int = NOW_MS, *, min_lag_ms: int = 0, buffer_bytes: int = 1 << 20, pace: Pace | None = None
    ) -> Compacted:
        """One pass; the next one goes on where it ended."""
        self.flush_sealed()
        cleaner = Cleaner(pace or Pace(), buffer_bytes)
        done = cleaner.compact(LOGS, self.topic, 0, self.checkpoint, now_ms, min_lag_ms, RETENTION_MS)
        self.checkpoint = done.first_dirty
        return done

    def kept(self, *, committed: bool = False) -> list[Kept]:
        """Every data record that is left; `committed` as a read_committed consumer filters them."""
        found = []
        for raw in self.read_all(isolation=1 if committed else 2):
            if raw.is_control or (committed and self._aborted(raw)):
                continue
            for record in records(raw):
                found.append(Kept(record.offset, record.key, record.value, record.timestamp_ms))
        return found

    def _aborted(self, raw: RawBatch) -> bool:
        if not raw.is_transactional:
            return False
        spans = LOGS.aborted(self.topic, 0, raw.base_offset, raw.next_offset)
        return any(producer == raw.producer_id and first <= raw.base_offset for producer, first in spans)
