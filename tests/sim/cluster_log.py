"""A model of a partition's log on one disk: batches of one record, segments, flushes, and ranges whose bytes are read late.

Of each three offsets the third is a tombstone that deletes the two before it. A pass of compaction takes out what is deleted,
and the next one the tombstone; `gone` has their offsets. Epochs and high watermarks know nothing of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.cluster.leaderandisr import NO_EPOCH

KEYS = 3  # offsets of which the last one is a tombstone of the others

Batch = tuple[int, int]  # leader epoch and the record's number, which is unique in a run


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a log that was handed out: its bytes are read from the files later."""

    log: ReplicaLog
    cuts: int  # how often the log had been cut by then
    start: int
    end: int
    gone: frozenset[int]  # offsets that compaction had taken out of the files by then

    def read(self) -> list[Batch]:
        """The bytes, as the segments that were handed out hold them now: a cut makes the range shorter, and a segment is never
        written again after a cut.
        """
        return self.log.batches[self.start : min([self.end, *self.log.cuts[self.cuts :]])]


class ReplicaLog:
    """What a replica's folder holds. It outlives the process."""

    range_type = Range

    def __init__(self, topic_id: bytes = b"", *, is_made: bool = True) -> None:
        self.topic_id = topic_id
        self.is_made = is_made  # a log that no role has made yet isn't there
        self.is_aside = False  # it lies beside the log of another topic of its name
        self.batches: list[Batch] = []
        self.cuts: list[int] = []
        self.flushed = 0
        self.is_whole = True  # what recovery says: nothing is missing that should be there
        self.gone: set[int] = set()
        self.removed_below = 0
        self.copy: list[Batch] = []  # an older copy, to which an operator may put the log back
        self.copied: tuple[frozenset[int], int] = (frozenset(), 0)  # what the copy has of the two before
        self.has_changed = True  # since the laws were asked last
        self._kept: tuple[tuple[int, int], list[int]] = ((0, 0), [])

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
        self.has_changed = True

    def cut(self, offset: int) -> None:
        """Cut and fsync."""
        self._end_at(offset)
        self.flushed = self.end

    def take(self, start: int, end: int) -> Range:
        """Hand a range out."""
        gone = frozenset(offset for offset in self.gone if start <= offset < end)
        return self.range_type(self, len(self.cuts), start, end, gone)

    def lose(self, end: int) -> None:
        """A power cut, or damage: all from an offset on is gone."""
        self._end_at(end)
        self.flushed = min(self.flushed, self.end)

    def delete(self) -> None:
        """Its topic was deleted: nothing is left."""
        self._end_at(0)
        self.flushed = self.removed_below = 0
        self.copy, self.copied = [], (frozenset(), 0)
        self.is_made, self.is_whole = False, True

    def _end_at(self, end: int) -> None:
        self.has_changed = True
        del self.batches[end:]
        self.cuts.append(end)
        self.gone = {offset for offset in self.gone if offset < end}

    def compact(self, end: int) -> None:
        """A pass up to an offset, below which all is committed and flushed."""
        self.has_changed = True
        for tombstone in range(KEYS - 1, end, KEYS):
            deleted = set(range(tombstone - KEYS + 1, tombstone))
            if deleted <= self.gone:
                self.gone.add(tombstone)
                self.removed_below = max(self.removed_below, tombstone + 1)
            self.gone |= deleted

    @property
    def kept_deleted(self) -> list[int]:
        """Offsets of deleted records that this log shows, and whose tombstone it lacks: they are there for ever."""
        now = (len(self.batches), len(self.gone))
        if self._kept[0] != now:
            tombstones = [offset for offset in self.gone if offset % KEYS == KEYS - 1 and offset < self.end // KEYS * KEYS]
            deleted = (offset for tombstone in tombstones for offset in range(tombstone - KEYS + 1, tombstone))
            self._kept = (now, sorted(offset for offset in deleted if offset not in self.gone))
        return self._kept[1]
