"""What the worker of a lane counts for whoever scrapes the process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LaneCounts:
    """What became of records since the process began. The worker alone writes it, once a transaction is committed."""

    read: int = 0
    records: int = 0
    """Published."""
    bytes: int = 0
    """Of the batches that were published."""

    def add(self, read: int, records: int, count: int) -> None:
        """A transaction is committed: so many records were read, so many published, of so many bytes."""
        self.read += read
        self.records += records
        self.bytes += count
