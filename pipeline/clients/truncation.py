"""Whether a log still has what was read of it (KIP-320).

A log is cut back when a replica leads that lacks records: after an unclean election or a power cut, or in a copy that was put
back. It may have grown since, so an offset alone says nothing. Each batch has the epoch of the leader that appended it, and
each epoch one leader. If the log has the end of the epoch that was read last at the position or after it, then all below the
position is as it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.logs import offsets_for_leader_epoch
from penstock.pipeline.clients.metadata import NO_EPOCH


class Position(NamedTuple):
    """An offset that comes next, and the leader epoch of the last batch below it."""

    offset: int
    leader_epoch: int = NO_EPOCH


class Truncation(NamedTuple):
    """What a log has instead of all below a position: the largest epoch up to the position's, and where that ends (-1: it knows
    none). What it has from there on, if anything, isn't what was read."""

    position: Position
    epoch: int
    end: int

    def __str__(self) -> str:
        offset, epoch = self.position
        is_known = self.end >= 0 and self.epoch == epoch  # else the answer is of an earlier epoch
        ends = f"its epoch {epoch} ends at {self.end}" if is_known else f"it knows no epoch {epoch}"
        return f"{ends}, but everything below {offset} was read"


class LogTruncatedError(KafkaError):
    """A partition's log was cut back below the position. `seek` goes on elsewhere, for instance at `truncation.end`."""

    def __init__(self, tp: TopicPartition, truncation: Truncation) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"`{tp[0]}` partition {tp[1]} was cut back: {truncation}")
        self.tp = tp
        self.truncation = truncation

    def __reduce__(self) -> tuple[type[LogTruncatedError], tuple[TopicPartition, Truncation]]:  # type: ignore[override]
        return type(self), (self.tp, self.truncation)


async def find_truncations(client: Client, read: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Truncation]:
    """The logs, among those with a leader epoch, that lack what was read below a position. Raises KafkaError."""
    epochs = {tp: position.leader_epoch for tp, position in read.items() if position.leader_epoch != NO_EPOCH}
    ends = await offsets_for_leader_epoch(client, epochs) if epochs else {}
    return {tp: Truncation(read[tp], *found) for tp, found in ends.items() if found[1] < read[tp].offset}
