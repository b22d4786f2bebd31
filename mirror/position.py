"""Where a partition's copy stands: kept on the target, in the transaction that carries the batches.

The committed metadata says which source log the offset belongs to and which target log has the copy, so that a
topic that was deleted and created again, or cut back, is not mistaken for the one that was copied so far.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace

from penstock.pipeline.stages import ranges
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.laggards import fields_of, short

UNSEEN = b""  # the topic id of a source that was never reached: the target knows its name, its log is to be seen yet
RANGES_MAX = 24  # ranges of gaps that are kept; of the oldest the source keeps no records for so long anyway


@dataclass(frozen=True)
class Position:
    """The next source offset to copy, and what is noted beside it."""

    offset: int
    topic_id: bytes
    """Of the source's topic: all zeros where the source has none, `UNSEEN` before the source was ever reached."""
    target_id: bytes
    """Of the target's topic."""
    leader_epoch: int = -1
    """Of the last source batch passed; -1: none yet."""
    records: int = 0
    """All records copied so far."""
    rebuilt: int = 0
    """Batches rebuilt so far."""
    cluster: str = ""
    """The source's cluster id; empty where it has none, and before the source was reached."""
    gaps: int = 0
    """Offsets that an operator let it pass without a copy."""
    gap_records: int = 0
    """Records in them, where somebody could count them."""
    again_records: int = 0
    """Records copied that the source's log doesn't account for: an operator let them be copied again, or the log is another."""
    decisions: int = 0
    """How often operators have decided about the partition."""
    copied_ms: int = -1
    """When the last batches were copied; -1: never."""
    stopped: str = ""
    """Why it stands still until an operator has decided."""
    stalled: str = ""
    """Why it stands still, though the mirror tries on."""
    gap_ranges: str = ""
    """Which offsets the gaps are: the last `RANGES_MAX` ranges of them."""
    target_end: int = -1
    """The target's offset behind the last batch copied; -1: noted by an earlier version, or nothing was copied."""
    producer_id: int = -1
    """What that batch carries on the target: with both one reading of the positions says which batches there they count."""
    committed_ms: int = field(default=-1, compare=False)
    """When it was committed, with batches or without; -1: by an earlier version."""

    def metadata(self) -> str:
        """The text to commit now beside the offset; under Kafka's 4096 bytes."""
        return json.dumps(
            {
                "topic_id": self.topic_id.hex(),
                "target_id": self.target_id.hex(),
                "cluster": self.cluster,
                "leader_epoch": self.leader_epoch,
                "records": self.records,
                "rebuilt": self.rebuilt,
                "gaps": self.gaps,
                "gap_records": self.gap_records,
                "again_records": self.again_records,
                "gap_ranges": self.gap_ranges,
                "target_end": self.target_end,
                "producer_id": self.producer_id,
                "decisions": self.decisions,
                "copied_ms": self.copied_ms,
                "stopped": short(self.stopped),
                "stalled": short(self.stalled),
                "committed_ms": time.time_ns() // 1_000_000,
            },
            ensure_ascii=False,
        )

    @classmethod
    def read(cls, offset: int, metadata: str, begin: str) -> Position:
        """A position as it was committed; `begin` is the command by which an operator gives another one, here and below. Raises
        OperatorNeeded when no mirror wrote it."""
        try:
            fields = json.loads(metadata)
            return cls(
                offset,
                bytes.fromhex(fields["topic_id"]),
                bytes.fromhex(fields["target_id"]),
                int(fields["leader_epoch"]),
                int(fields["records"]),
                int(fields["rebuilt"]),
                str(fields.get("cluster", "")),
                int(fields.get("gaps", 0)),
                int(fields.get("gap_records", 0)),
                int(fields.get("again_records", 0)),
                int(fields.get("decisions", 0)),
                int(fields.get("copied_ms", -1)),
                str(fields.get("stopped", "")),
                str(fields.get("stalled", "")),
                _ranges(fields.get("gap_ranges", "")),
                int(fields.get("target_end", -1)),
                int(fields.get("producer_id", -1)),
                int(fields.get("committed_ms", -1)),
            )
        except (ValueError, KeyError, TypeError):
            raise OperatorNeeded(
                f"the committed position {offset} has metadata {metadata!r}, which no mirror wrote, so that nobody "
                f"knows which log it belongs to: {begin} says where to go on"
            ) from None

    def passing(self, offset: int) -> Position:
        """The position at another offset of the same log: what lies between is a gap, or (backwards) is to be copied again."""
        known = ranges.parse(self.gap_ranges)
        if offset >= self.offset:
            left = ranges.merged([*known, *([(self.offset, offset - 1)] if offset > self.offset else [])])
            gaps = self.gaps + offset - self.offset
        else:
            left = [(first, min(last, offset - 1)) for first, last in known if first < offset]
            gaps = self.gaps - (ranges.size(known) - ranges.size(left))
        return replace(self, offset=offset, gaps=gaps, gap_ranges=ranges.text_of(left[-RANGES_MAX:]))

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


def _ranges(text: str) -> str:
    if ranges.RANGES.fullmatch(text) is None:
        raise ValueError
    return text


def cluster_of(metadata: str) -> str:
    """The cluster id of the source that a committed text notes; empty for one that no mirror wrote."""
    return str(fields_of(metadata).get("cluster", ""))


def decisions_of(metadata: str) -> int | None:
    """How often operators have decided about a committed position; None for one that no mirror wrote."""
    found = fields_of(metadata).get("decisions")
    return found if isinstance(found, int) else None
