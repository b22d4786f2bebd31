"""Where a dedupe worker stands in its input: committed in the transaction that carries its output.

The counters beside the offset survive any kill, and the audit compares them with the logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.groupnames import DEDUPE_GROUPS
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages import hints, ranges
from penstock.pipeline.stages.noted import Noted
from penstock.pipeline.stages.position import StagePosition
from penstock.pipeline.stages.ranges import RangesText
from penstock.pipeline.stages.recordcount import records_of, records_within
from penstock.pipeline.stages.state import State
from penstock.pyx.record.rawbatch import RawBatch

RECENT_MAX = 10_000  # records by which a position tells whether most lack an id
RANGES_MAX = 8  # more than so many ranges become fewer: Kafka takes 4,096 bytes beside an offset


def identity(stage: str, tp: TopicPartition) -> str:
    """The transactional id of whoever works on an input partition."""
    return f"{DEDUPE_GROUPS}{stage}.{tp[0]}-{tp[1]}"


@dataclass(frozen=True)
class DedupePosition(StagePosition):
    """The next input offset, and what is noted beside it. Counters are of records since the stage began:
    read = written + dropped + quarantined + moved.
    """

    writer = "dedupe worker"
    stage = "dedupe stage"
    seldom = ("losses",)
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
    """Records that went to their right partition of the topic of moved records."""
    moved_id: str = ""
    """Of the topic of moved records, once the worker reads it, too (empty: not yet); its position there is one like this."""
    again: int = 0
    """What the output has beside what one reading of the inputs gives, before repeats are dropped, since operators have set the
    position: records that were read once more. What an earlier version noted is less those that were passed over."""
    recent_read: int = 0
    """How many of the records read last `recent_without_id` is of: `RECENT_MAX` at most."""
    recent_without_id: int = 0
    reached: int = -1
    """The largest offset that the position has ever had, where an operator has set it back since. What lies below was read, but
    for the gaps."""
    gap_ranges: RangesText = ""
    """Which offsets operators let it pass over and were never read since: the last `RANGES_MAX` ranges of them."""
    gaps: int = 0
    """How many offsets they are, with those that `gap_ranges` doesn't have any more."""
    marks: int = 0
    """Records read of the topic of moved records that say whose it is."""
    untold: int = 0
    """Decisions of which can't be told what was passed over and never read: an earlier version's, and those where no position
    was left or the log was another one."""
    losses: int = 0
    """How often an operator has let it go on though the output had lost records. Ids of a store of before may be theirs."""

    @property
    def frontier(self) -> int:
        """The offset behind all that was ever read or passed over."""
        return max(self.offset, self.reached)

    def moved_to(self, offset: int) -> DedupePosition:
        """The position where an operator sets it: what it passes over for the first time is a gap."""
        gaps = ranges.parse(self.gap_ranges)
        passed = max(0, offset - self.frontier)
        if passed:
            gaps = ranges.merged([*gaps, (self.frontier, offset - 1)])
        return replace(
            self,
            offset=offset,
            reached=self.frontier,
            leader_epoch=-1,
            last_batch=None,
            gap_ranges=ranges.text_of(gaps[-RANGES_MAX:]),
            gaps=self.gaps + passed,
        )

    def without_lost(self, output_end: int, lost: int) -> DedupePosition:
        """The position once the output, which ends at `output_end`, has lost so many records: none of them was read."""
        left = {name: getattr(self, name) - lost for name in ("read", "written", "again")}
        return replace(self, **left, output_end=output_end, losses=self.losses + 1)

    def read_again_from(self, offset: int, records: int) -> DedupePosition:
        """After `without_lost`, the position that an operator sets back by so many records of the input. They count as never
        read until they are read again."""
        gap = offset, self.frontier - 1
        gaps = ranges.merged([*ranges.parse(self.gap_ranges), gap])
        more = ranges.size(gaps) - ranges.size(ranges.parse(self.gap_ranges))
        set_back = replace(
            self, gap_ranges=ranges.text_of(gaps[-RANGES_MAX:]), gaps=self.gaps + more, again=self.again + records
        )
        return set_back.moved_to(offset)

    def in_new_log(self, topic_id: str, start: int) -> DedupePosition:
        """The first position in another topic of the same name. What wasn't read of the one before nobody can tell."""
        fresh = DedupePosition(0, topic_id, self.output_id, partitions=self.partitions)
        return replace(fresh.moved_to(start), again=self.written, untold=self.untold + 1)

    def with_read(self, before: DedupePosition, batches: Sequence[RawBatch]) -> DedupePosition:
        """The position after some batches were read from the one `before` on. Of what lies below the frontier, gaps were read
        for the first time, and all else once more."""
        end = min(self.offset, before.frontier)
        if before.offset >= end:
            return self
        read, gaps = (before.offset, end - 1), ranges.parse(before.gap_ranges)
        left = [part for gap in gaps for part in ranges.outside(gap, [read])]
        known = ranges.outside(read, gaps)
        return replace(
            self,
            again=self.again + sum(records_within(batch, records_of(batch), known) for batch in batches),
            gap_ranges=ranges.text_of(left),
            gaps=self.gaps - ranges.size(gaps) + ranges.size(left),
        )

    @property
    def lacks_ids(self) -> bool:
        """Whether most of the records that were read last have no id, so that `penstock.dedupe.id` may be wrong."""
        recent = (self.recent_read, self.recent_without_id) if self.recent_read else (self.read, self.without_id)
        return 2 * recent[1] > recent[0]

    def going(self, id_source: str) -> State:
        """The state of a partition with it that nothing holds; `id_source` is `penstock.dedupe.id`."""
        if not self.lacks_ids:
            return {"state": "reading", "why": ""}
        why = f"most records have no id by `penstock.dedupe.id={id_source}`, so that their repeats aren't seen: is it right?"
        return {"state": "no ids", "why": why}

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
        position = cls.from_text(offset, metadata, begin, f"the position of {tp[0]}-{tp[1]} in group `{group}`")
        return replace(position, untold=Noted(metadata).untold)
