"""The committed offsets of one group, with those of open transactions. No I/O: values in, values out.

Three tables, all by (topic, partition):

- `committed`: what a fetch answers;
- `in_flight`: commits whose record is being appended; their partitions are not expired meanwhile;
- `transactional[producer id]`: written by TxnOffsetCommit, waiting for the producer's marker. While one is
  there a fetch that asks for stable offsets is answered UNSTABLE_OFFSET_COMMIT (KIP-447).

A commit becomes visible when its record is in the log, and the record with the higher log offset wins; so a
plain commit made while a transaction was open is not undone by the marker of an older TxnOffsetCommit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from penstock.broker.coordination.machines import TopicPartition


@dataclass(slots=True)
class Committed:
    """One committed offset, as it stands in the log (OffsetCommitValue).

    `expire_timestamp_ms` is set only by clients of OffsetCommit v2-4 that gave a retention of their own; -1
    else. `record_offset` is where the record lies in its `__consumer_offsets` partition, -1 until it does.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    record_offset: int = -1


@dataclass(slots=True, frozen=True)
class OffsetRecord:
    """A record of the log: a commit, or its tombstone when value is None."""

    topic: str
    partition: int
    value: Committed | None


@dataclass(slots=True)
class Offsets:
    """The offsets of one group."""

    committed: dict[TopicPartition, Committed] = field(default_factory=dict)
    in_flight: dict[TopicPartition, int] = field(default_factory=dict)
    transactional: dict[int, dict[TopicPartition, Committed]] = field(default_factory=dict)

    def is_empty(self) -> bool:
        """Whether nothing is stored and nothing is on its way."""
        return not self.committed and not self.in_flight and not self.transactional

    def begin(self, commits: Mapping[TopicPartition, Committed], producer_id: int) -> None:
        """Commits are about to be appended; producer_id -1 for plain ones."""
        if producer_id >= 0:
            self.transactional.setdefault(producer_id, {})
        for partition in commits:
            self.in_flight[partition] = self.in_flight.get(partition, 0) + 1

    def finish(self, commits: Mapping[TopicPartition, Committed], producer_id: int, base_offset: int) -> None:
        """The append has ended; base_offset -1 says that it failed."""
        for position, (partition, value) in enumerate(commits.items()):
            self._landed(partition)
            if base_offset < 0:
                continue
            value.record_offset = base_offset + position
            if producer_id >= 0:
                self.transactional.setdefault(producer_id, {})[partition] = value
            else:
                self.put(partition, value)
        if producer_id >= 0 and not self.transactional.get(producer_id, True):
            del self.transactional[producer_id]

    def _landed(self, partition: TopicPartition) -> None:
        left = self.in_flight.get(partition, 0) - 1
        if left > 0:
            self.in_flight[partition] = left
        else:
            self.in_flight.pop(partition, None)

    def put(self, partition: TopicPartition, value: Committed) -> None:
        """Make a commit visible unless a newer record is."""
        present = self.committed.get(partition)
        if present is None or present.record_offset <= value.record_offset:
            self.committed[partition] = value

    def end_transaction(self, producer_id: int, commit: bool) -> bool:
        """The producer's marker is in the log: its commits become visible or vanish. Whether there were
        any.
        """
        pending = self.transactional.pop(producer_id, None)
        if pending is None:
            return False
        if commit:
            for partition, value in pending.items():
                self.put(partition, value)
        return True

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an open transaction has written an offset of this partition."""
        return any(partition in pending for pending in self.transactional.values())

    def expired(
        self,
        base_ms: Callable[[Committed], int],
        subscribed: frozenset[str],
        retention_ms: int,
        wall_ms: int,
    ) -> tuple[TopicPartition, ...]:
        """Partitions whose commit is past its retention, counted from `base_ms(commit)`; topics that are
        subscribed stay.
        """
        old: list[TopicPartition] = []
        for partition, value in self.committed.items():
            if partition[0] in subscribed or partition in self.in_flight or self.is_unstable(partition):
                continue
            if value.expire_timestamp_ms >= 0:
                past = wall_ms >= value.expire_timestamp_ms
            else:
                past = wall_ms - base_ms(value) >= retention_ms
            if past:
                old.append(partition)
        return tuple(old)

    def remove(self, gone: Iterable[TopicPartition]) -> None:
        """Tombstones for these are in the log: what was written before them is no more, open transactions'
        too.
        """
        for partition in gone:
            self.committed.pop(partition, None)
            for pending in self.transactional.values():
                pending.pop(partition, None)

    def topics(self) -> Iterator[str]:
        """The topic of each commit that is stored, or on its way."""
        return (name for name, _ in chain(self.committed, self.in_flight, *self.transactional.values()))

    def partitions(self) -> set[TopicPartition]:
        """Every partition that has a commit, visible or not."""
        return {*self.committed, *self.in_flight}.union(*self.transactional.values())


def tombstones(partitions: Iterable[TopicPartition]) -> list[OffsetRecord]:
    """Records that take commits back."""
    return [OffsetRecord(topic, partition, None) for topic, partition in partitions]
