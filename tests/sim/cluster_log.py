"""A model of a partition's log on one disk: batches of one record, segments, flushes, and ranges whose bytes are read late."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.cluster.leaderandisr import NO_EPOCH

Batch = tuple[int, int]  # leader epoch and the record's number, which is unique in a run


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a log that was handed out: its bytes are read from the files later."""

    log: ReplicaLog
    cuts: int  # how often the log had been cut by then
    start: int
    end: int

    def read(self) -> list[Batch]:
        """The bytes, as the segments that were handed out hold them now: a cut makes the range shorter, and a segment is never
        written again after a cut.
        """
        return self.log.batches[self.start : min([self.end, *self.log.cuts[self.cuts :]])]


class ReplicaLog:
    """What a replica's folder holds. It outlives the process."""

    range_type = Range

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.cuts: list[int] = []
        self.flushed = 0
        self.is_whole = True  # what recovery says: nothing is missing that should be there
        self.copy: list[Batch] = []  # an older copy, to which an operator may put the log back

    @property
    def end(self) -> int:
        """The log end offset."""
        return len(self.batches)

    @property
    def last_epoch(self) -> int:
        """Of the last batch."""
        return self.batches[-1][0] if self.batches else NO_EPOCH

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch of a batch up to this one, and where it ends."""
        end = len(self.batches)
        while end and self.batches[end - 1][0] > epoch:
            end -= 1
        return (self.batches[end - 1][0] if end else NO_EPOCH, end)

    def append(self, batches: list[Batch]) -> None:
        """Append; not flushed yet."""
        self.batches.extend(batches)

    def cut(self, offset: int) -> None:
        """Cut and fsync."""
        del self.batches[offset:]
        self.cuts.append(offset)
        self.flushed = self.end

    def take(self, start: int, end: int) -> Range:
        """Hand a range out."""
        return self.range_type(self, len(self.cuts), start, end)

    def lose(self, end: int) -> None:
        """A power cut, or damage: all from an offset on is gone."""
        del self.batches[end:]
        self.cuts.append(end)
        self.flushed = min(self.flushed, self.end)
