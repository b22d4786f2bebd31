"""Where a partition's copy stands: kept on the target, in the transaction that carries the batches.

The committed metadata says which source log the offset belongs to and which target log has the copy, so that a
topic that was deleted and created again, or cut back, is not mistaken for the one that was copied so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.pipeline.stages import ranges
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.position import StagePosition
from penstock.pipeline.stages.ranges import RangesText
from penstock.pipeline.stages.state import State

UNSEEN = b""  # the topic id of a source that was never reached: the target knows its name, its log is to be seen yet
RANGES_MAX = 24  # ranges of gaps that are kept; of the oldest the source keeps no records for so long anyway


@dataclass(frozen=True)
class MirrorPosition(StagePosition):
    """The next source offset to copy, and what is noted beside it."""

    writer = stage = "mirror"
    seldom = ("other_logs", "lost_ranges")
    order = (
        *("topic_id", "target_id", "cluster", "leader_epoch", "records", "rebuilt", "gaps", "gap_records", "again_records"),
        *("gap_ranges", "target_end", "producer_id", "decisions", "copied_ms", "stopped", "stalled", "committed_ms"),
    )

    topic_id: bytes
    """Of the source's topic: all zeros where the source has none, `UNSEEN` before the source was ever reached."""
    target_id: bytes
    """Of the target's topic."""
    cluster: str = ""
    """The source's cluster id; empty where it has none, and before the source was reached."""
    records: int = 0
    """All records copied so far."""
    rebuilt: int = 0
    """Batches rebuilt so far."""
    gaps: int = 0
    """Offsets that an operator let it pass without a copy."""
    gap_records: int = 0
    """Records in them, where somebody could count them."""
    again_records: int = 0
    """Records copied that the source's log doesn't account for: an operator let them be copied again, or the log is another."""
    other_logs: int = 0
    """Logs that an operator let it leave for another one: what they had behind the position then, nobody knows."""
    gap_ranges: RangesText = ""
    """Which offsets the gaps are: the last `RANGES_MAX` ranges of them."""
    lost_ranges: RangesText = ""
    """Which of them the target had and lost, so that an operator let the copy go on without them: the last ranges, too."""
    target_end: int = -1
    """The target's offset behind the last batch copied; -1: noted by an earlier version, or nothing was copied."""
    producer_id: int = -1
    """What that batch carries on the target: with both one reading of the positions says which batches there they count."""
    copied_ms: int = -1
    """When the last batches were copied; -1: never."""

    @property
    def going(self) -> State:
        """The state of a partition with it that nothing holds."""
        if self.topic_id == UNSEEN:
            return {"state": "registered", "why": "the source's topic was not reached yet"}
        return {"state": "copying", "why": ""}

    def passing(self, offset: int) -> MirrorPosition:
        """The position at another offset of the same log: what lies between is a gap, or (backwards) is to be copied again."""
        known = ranges.parse(self.gap_ranges)
        if offset >= self.offset:
            left = ranges.merged([*known, *([(self.offset, offset - 1)] if offset > self.offset else [])])
            gaps = self.gaps + offset - self.offset
        else:
            left = [(first, min(last, offset - 1)) for first, last in known if first < offset]
            gaps = self.gaps - (ranges.size(known) - ranges.size(left))
        lost = [(first, min(last, offset - 1)) for first, last in ranges.parse(self.lost_ranges) if first < offset]
        texts = ranges.text_of(left[-RANGES_MAX:]), ranges.text_of(lost)
        return replace(self, offset=offset, gaps=gaps, gap_ranges=texts[0], lost_ranges=texts[1])

    def check_cluster(self, cluster: str, begin: str) -> None:
        """Refuse a source that is another cluster. Raises OperatorNeeded."""
        if self.cluster and cluster and cluster != self.cluster:
            raise OperatorNeeded(
                f"the source's address leads to another cluster (its id is {cluster}, {self.cluster} was copied so far): "
                f"correct it, or {begin} once you know that nothing is missing"
            )

    def check_topic(self, topic_id: bytes, begin: str) -> None:
        """Refuse a source topic that is another one by its id. Raises OperatorNeeded."""
        if topic_id != self.topic_id:
            raise OperatorNeeded(
                f"the source topic was recreated (its id is {topic_id.hex()}, {self.topic_id.hex()} was copied so "
                f"far): {begin} once you know that nothing is missing"
            )

    def check_target(self, target_id: bytes, begin: str) -> None:
        """Refuse a target topic that is another one by its id. Raises OperatorNeeded."""
        if target_id != self.target_id:
            raise OperatorNeeded(
                f"the target topic was recreated (its id is {target_id.hex()}, the copy went to "
                f"{self.target_id.hex()}), so the copy up to offset {self.offset} is gone: {begin} says where to go on"
            )
