"""Where a dedupe worker stands in its input: committed in the transaction that carries its output.

The counters beside the offset survive any kill, and the audit compares them with the logs.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace

from penstock.dedupe import hints as ways
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages import ranges
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.laggards import short

RANGES_MAX = 8  # more than so many accepted ranges become fewer: Kafka takes 4,096 bytes beside an offset


def identity(stage: str, tp: TopicPartition) -> str:
    """The transactional id of whoever works on an input partition."""
    return f"penstock-dedupe.{stage}.{tp[0]}-{tp[1]}"


@dataclass(frozen=True)
class Position:
    """The next input offset, and what is noted beside it. Counters are of records since the stage began:
    read = written + dropped + quarantined + moved.
    """

    offset: int
    topic_id: str
    """Of the input topic, hexadecimal."""
    output_id: str
    """Of the output topic."""
    read: int = 0
    written: int = 0
    dropped: int = 0
    """Repeats."""
    quarantined: int = 0
    """In batches that can't be opened, or for want of an id."""
    without_id: int = 0
    """Passed on or quarantined."""
    partitions: int = 0
    """How many both topics had when the stage began; 0: not noted."""
    output_end: int = 0
    """The output offset behind the last batch written; 0: not noted."""
    unknown: str = ""
    """Output offsets, `FIRST..LAST`, whose ids the store lacks and the output doesn't give, so that the worker stands still."""
    accepted: str = ""
    """Ranges of such offsets that an operator has accepted."""
    misplaced: int = 0
    """Records read whose id belongs into another partition."""
    decisions: int = 0
    """How often operators have decided about the partition."""
    leader_epoch: int = -1
    """Of the last input batch passed; -1: none yet."""
    stopped: str = ""
    """Why the partition stands still until an operator has decided."""
    stalled: str = ""
    """Why it stands still, though the worker tries on."""
    moved: int = 0
    """Records that went to their right partition of `INPUT.moved`."""
    moved_id: str = ""
    """Of the topic of moved records, once the worker reads it, too (empty: not yet); its position there is one like this."""
    again: int = 0
    """What the output has beside what one reading of the inputs gives, before repeats are dropped, since operators have set the
    position: records that were read once more, less those that were passed over."""
    committed_ms: int = field(default=-1, compare=False)
    """When it was committed, with output or without; -1: by an earlier version."""

    def unknown_ids(self, complete_to: int, output_start: int) -> str:
        """The output offsets whose ids are unknown to a store that is complete to an offset, where the output's log starts
        behind it; empty if there are none, or if they were accepted.
        """
        if self.output_end:
            end = min(output_start, self.output_end)
        else:
            # Written by an older version: the one offset may be the marker of the last transaction.
            end = output_start if self.written and output_start > complete_to + 1 else 0
        if complete_to >= end:
            return ""
        return "" if self.has_accepted(complete_to, end - 1) else f"{complete_to}..{end - 1}"

    def has_accepted(self, first: int, last: int) -> bool:
        """Whether an operator has accepted that the ids of these output offsets are unknown."""
        return not ranges.outside((first, last), ranges.parse(self.accepted))

    def accept(self) -> Position:
        """The position with its unknown offsets accepted."""
        accepted = ranges.merged(ranges.parse(self.accepted) + ranges.parse(self.unknown))
        if len(accepted) > RANGES_MAX:
            accepted[RANGES_MAX - 1 :] = [(accepted[RANGES_MAX - 1][0], accepted[-1][1])]
        return replace(self, unknown="", accepted=ranges.text_of(accepted))

    def metadata(self) -> str:
        """The text to commit now beside the offset; under Kafka's 4096 bytes."""
        noted = replace(
            self, stopped=short(self.stopped), stalled=short(self.stalled), committed_ms=time.time_ns() // 1_000_000
        )
        fields = asdict(noted)
        del fields["offset"]
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def parse(
        cls, group: str, tp: TopicPartition, offset: int, metadata: str, read_with: TopicPartition | None = None
    ) -> Position:
        """A group's position of a partition, as it was committed; of moved records, `read_with` is the input partition whose
        worker reads them. Raises OperatorNeeded when no dedupe worker wrote it.
        """
        position = _read(offset, metadata)
        if position is None:
            raise OperatorNeeded(
                f"the position of {tp[0]}-{tp[1]} in group `{group}` is offset {offset} with metadata {metadata!r}, which no "
                f"dedupe worker wrote: {ways.to_delete(group, tp)}, then {ways.to_move(read_with or tp)} says where to go on"
            )
        return position


def _read(offset: int, metadata: str) -> Position | None:
    """A position, or None for what isn't one."""
    try:
        position = Position(offset, **json.loads(metadata))
    except (ValueError, TypeError):
        return None
    default = asdict(Position(0, "", ""))
    is_whole = all(type(value) is type(default[name]) for name, value in asdict(position).items())
    return position if is_whole and all(map(ranges.RANGES.fullmatch, (position.unknown, position.accepted))) else None


def decisions_of(metadata: str) -> int | None:
    """How often operators have decided about a committed position; None for one that no dedupe worker wrote."""
    position = _read(0, metadata)
    return None if position is None else position.decisions
