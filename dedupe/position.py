"""Where a dedupe worker stands in its input: committed in the transaction that carries its output.

The counters beside the offset survive any kill, and the audit compares them with the logs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from penstock.pipeline import ranges
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.failures import OperatorNeeded

RANGES_MAX = 8  # more than so many accepted ranges become fewer: Kafka takes 4,096 bytes beside an offset


def identity(stage: str, tp: TopicPartition) -> str:
    """The transactional id of whoever works on an input partition."""
    return f"penstock-dedupe.{stage}.{tp[0]}-{tp[1]}"


@dataclass(frozen=True)
class Position:
    """The next input offset, the ids of input and output topic (hexadecimal), and records read, written, dropped as
    duplicates, quarantined (in corrupt batches, or for want of an id), moved into their right partition of `INPUT.moved`, and
    without an id (passed on or quarantined) since the stage began; `partitions` is how many both topics had then (0: not
    noted); `leader_epoch` is that of the last input batch passed (-1: none yet); `stopped` or `stalled` says why the
    partition stands still.

    read = written + dropped + quarantined + moved. `output_end` is the output offset behind the last batch written (0: not
    noted). `unknown` are output offsets, `FIRST..LAST`, whose ids the store lacks and the output no longer has: the worker
    stands still for them. `accepted` are ranges of such offsets that an operator has accepted. `misplaced` ids of the
    records read belong into another partition. `decisions` counts what operators decided about the partition. `moved_id` is
    the id of the topic of moved records, once the worker reads it too (empty: not yet); its position there is one like this.
    """

    offset: int
    topic_id: str
    output_id: str
    read: int = 0
    written: int = 0
    dropped: int = 0
    quarantined: int = 0
    without_id: int = 0
    partitions: int = 0
    output_end: int = 0
    unknown: str = ""
    accepted: str = ""
    misplaced: int = 0
    decisions: int = 0
    leader_epoch: int = -1
    stopped: str = ""
    stalled: str = ""
    moved: int = 0
    moved_id: str = ""

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
        accepted = ranges.parse(self.accepted)
        return "" if any(a <= complete_to and end - 1 <= b for a, b in accepted) else f"{complete_to}..{end - 1}"

    def accept(self) -> Position:
        """The position with its unknown offsets accepted."""
        accepted = ranges.merged(ranges.parse(self.accepted) + ranges.parse(self.unknown))
        if len(accepted) > RANGES_MAX:
            accepted[RANGES_MAX - 1 :] = [(accepted[RANGES_MAX - 1][0], accepted[-1][1])]
        return replace(self, unknown="", accepted=ranges.text_of(accepted))

    def metadata(self) -> str:
        """The text committed beside the offset."""
        fields = asdict(self)
        del fields["offset"]
        return json.dumps(fields)

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Position:
        """A position as it was committed. Raises OperatorNeeded when no dedupe worker wrote it."""
        try:
            position = cls(offset, **json.loads(metadata))
            default = asdict(cls(0, "", ""))
            if any(type(value) is not type(default[name]) for name, value in asdict(position).items()):
                raise TypeError
            if not (ranges.RANGES.fullmatch(position.unknown) and ranges.RANGES.fullmatch(position.accepted)):
                raise ValueError
            return position
        except (ValueError, TypeError):
            raise OperatorNeeded(
                f"the committed position {offset} has metadata {metadata!r}, which no dedupe worker wrote; "
                "`penstock groups delete GROUP --topic TOPIC:P` takes it away if the partition is to start over"
            ) from None


def decisions_of(metadata: str) -> int | None:
    """How often operators have decided about a committed position; None for one that no dedupe worker wrote."""
    try:
        return Position.parse(0, metadata).decisions
    except OperatorNeeded:
        return None
