"""What a dedupe worker counts for whoever scrapes the process."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dedupe.position import DedupePosition
from penstock.pipeline.stages.lanecounts import LaneCounts


@dataclass(slots=True)
class DedupeCounts(LaneCounts):
    """What became of records since the process began."""

    duplicates: int = 0
    without_id: int = 0
    moved: int = 0

    def note(self, before: DedupePosition, after: DedupePosition, count: int) -> None:
        """A transaction is committed that took one input from a position to another, and published so many bytes."""
        self.add(after.read - before.read, after.written - before.written, count)
        self.duplicates += after.dropped - before.dropped
        self.without_id += after.without_id - before.without_id
        self.moved += after.moved - before.moved
