"""Where a dedupe worker stands in its input: committed in the transaction that carries its output.

The counters beside the offset survive any kill, and the audit compares them with the logs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages import hints, ranges
from penstock.pipeline.stages.position import StagePosition
from penstock.pipeline.stages.ranges import RangesText

RECENT_MAX = 10_000  # records by which a position tells whether most lack an id
RANGES_MAX = 8  # more than so many accepted ranges become fewer: Kafka takes 4,096 bytes beside an offset


def identity(stage: str, tp: TopicPartition) -> str:
    """The transactional id of whoever works on an input partition."""
    return f"penstock-dedupe.{stage}.{tp[0]}-{tp[1]}"


@dataclass(frozen=True)
class DedupePosition(StagePosition):
    """The next input offset, and what is noted beside it. Counters are of records since the stage began:
    read = written + dropped + quarantined + moved.
    """

    writer = "dedupe worker"
    order = (
        *("topic_id", "output_id", "read", "written", "dropped", "quarantined", "without_id", "partitions", "output_end"),
        *("unknown", "accepted", "misplaced", "decisions", "leader_epoch", "stopped", "stalled", "moved", "moved_id", "again"),
    )

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
    unknown: RangesText = ""
    """Output offsets, `FIRST..LAST`, whose ids the store lacks and the output doesn't give, so that the worker stands still."""
    accepted: RangesText = ""
    """Ranges of such offsets that an operator has accepted."""
    misplaced: int = 0
    """Records read whose id belongs into another partition."""
    moved: int = 0
    """Records that went to their right partition of `INPUT.moved`."""
    moved_id: str = ""
    """Of the topic of moved records, once the worker reads it, too (empty: not yet); its position there is one like this."""
    again: int = 0
    """What the output has beside what one reading of the inputs gives, before repeats are dropped, since operators have set the
    position: records that were read once more, less those that were passed over."""
    recent_read: int = 0
    """How many of the records read last `recent_without_id` is of: `RECENT_MAX` at most."""
    recent_without_id: int = 0

    @property
    def lacks_ids(self) -> bool:
        """Whether most of the records that were read last have no id, so that `penstock.dedupe.id` may be wrong."""
        recent = (self.recent_read, self.recent_without_id) if self.recent_read else (self.read, self.without_id)
        return 2 * recent[1] > recent[0]

    def with_recent(self, read: int, without_id: int) -> DedupePosition:
        """The position after so many more records, of which so many lack an id."""
        count, without_id = self.recent_read + read, self.recent_without_id + without_id
        if count > RECENT_MAX:
            count, without_id = RECENT_MAX, without_id * RECENT_MAX // count
        return replace(self, recent_read=count, recent_without_id=without_id)

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

    def accept(self) -> DedupePosition:
        """The position with its unknown offsets accepted."""
        accepted = ranges.merged(ranges.parse(self.accepted) + ranges.parse(self.unknown))
        if len(accepted) > RANGES_MAX:
            accepted[RANGES_MAX - 1 :] = [(accepted[RANGES_MAX - 1][0], accepted[-1][1])]
        return replace(self, unknown="", accepted=ranges.text_of(accepted))

    @classmethod
    def parse(
        cls, group: str, tp: TopicPartition, offset: int, metadata: str, read_with: TopicPartition | None = None
    ) -> DedupePosition:
        """A group's position of a partition, as it was committed; of moved records, `read_with` is the input partition whose
        worker reads them. Raises OperatorNeeded for what no dedupe worker wrote, or a newer version.
        """
        begin = f"{hints.to_delete(group, tp)}, then {hints.to_move(read_with or tp)}"
        return cls.from_text(offset, metadata, begin, f"the position of {tp[0]}-{tp[1]} in group `{group}`")
