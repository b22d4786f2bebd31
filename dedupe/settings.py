"""What all workers of a stage share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.dedupe.sift import Misplaced, WithoutId
from penstock.pipeline.stages.quarantine import Quarantine


@dataclass(frozen=True)
class Settings:
    """Of a stage, for one topic. Sizes are bytes; `max_batch_bytes` is what the output topic takes.

    `quarantine`: where what doesn't go on is set aside. `retention_bytes`: of the topic of moved records.
    """

    stage: str
    group: str
    output_topic: str
    data: Path
    size_max_bytes: int
    memory_max_ids: int
    turn_bytes: int
    max_batch_bytes: int
    spill_ms: int
    retention_bytes: int
    quarantine: Quarantine
    without_id: WithoutId = "pass"
    misplaced: Misplaced = "move"
