"""What a process shows of the lanes of one input cluster: what `status` would say of each, its lag, and turns that hang.

Whoever scrapes the process asks here, and no cluster is asked for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.stages.lane import Lane, NoPosition
from penstock.pipeline.stages.outlook import Ends
from penstock.pipeline.stages.state import LONGEST_STEP_MS, Ahead, Sight, State, state_of

TURN_MAX_S = 2 * LONGEST_STEP_MS / 1000  # a turn is a transaction of each input at most, of which there are two


class LaneView:
    """silent_ms: a lane that commits nothing for so long while records wait is silent."""

    def __init__(self, lanes: Mapping[TopicPartition, Lane], fetcher: Fetcher, silent_ms: int) -> None:
        self._lanes = lanes
        self._fetcher = fetcher
        self._silent_ms = silent_ms

    def state(self, lane: Lane) -> State:
        """A lane's state and why, as `status` would find it."""
        if lane.stopped:
            return {"state": "no position" if isinstance(lane.reason, NoPosition) else "stopped", "why": lane.stopped}
        if not lane.resolved.is_set():
            return {"state": "not begun", "why": lane.said or "its identity isn't taken yet"}
        self._see(lane)
        now, outlook, position = asyncio.get_running_loop().time(), lane.outlook, lane.worker.position
        if lane.stalled:
            position = replace(position, stalled=lane.stalled)
        # What has waited for less than that is young, whatever its timestamp says.
        is_young = (now - outlook.waits_since) * 1000 < self._silent_ms
        logs = {
            tp: (at.offset, Ahead(*outlook.ends[tp], at.offset if is_young else None))
            for tp, at in lane.worker.places.items()
            if tp in outlook.ends
        }
        # What was looked up is so only while the log stands where it did.
        held = [tp for tp, (offset, ahead) in logs.items() if ahead.is_held_back(offset) and tp in lane.held_back]
        hold = next(filter(None, (lane.held_back[tp].hold() for tp in held)), None)
        no_topic = outlook.no_topic
        if isinstance(lane.failure, KafkaError) and lane.failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            no_topic = no_topic or str(lane.failure)
        sight = Sight(position, list(logs.values()), outlook.unreachable, no_topic, hold=hold)
        return state_of(sight, self._silent_ms, lane.worker.going)

    def lag(self, lane: Lane) -> tuple[int, float] | None:
        """How many records a lane is behind the end of its log, those of open transactions too, and the age of the first of
        them in seconds; None where nobody knows."""
        if lane.is_lost or isinstance(lane.reason, NoPosition) or not lane.resolved.is_set():
            return None
        self._see(lane)
        ends, position = lane.outlook.ends.get(lane.tp), lane.worker.position
        if ends is None or lane.outlook.unreachable or lane.outlook.no_topic:
            return None
        behind = max(0, ends.end - position.offset)
        last_ms = -1 if position.last_batch is None else position.last_batch.timestamp_ms
        return behind, lane.outlook.lag_s(position.offset, last_ms) if behind else 0.0

    def hung(self) -> list[str]:
        """The lanes whose turn has taken longer than its steps may."""
        now = asyncio.get_running_loop().time()
        return [lane.name for lane in self._lanes.values() if now - lane.turn_since > TURN_MAX_S]

    def _see(self, lane: Lane) -> None:
        """Bring a lane's outlook up to date: one that moves has its logs' ends with each fetch."""
        places = lane.worker.places
        if lane.moving:
            fetched = {tp: self._fetcher.ends(tp) for tp in places}
            ends = {tp: Ends(*found[1:]) for tp, found in fetched.items() if found is not None}
            lane.outlook.see(ends, {tp: position.offset for tp, position in places.items()}, asyncio.get_running_loop().time())
