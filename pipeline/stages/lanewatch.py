"""Looks at the lanes of one input cluster and at their logs: what `status` would say of each, its lag, and what lanes can't see
by themselves. Whoever scrapes the process asks here, and no cluster is asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.stages import heldback
from penstock.pipeline.stages.failures import TRANSIENT, OperatorNeeded, StartsOver
from penstock.pipeline.stages.lane import Lane, NoPosition
from penstock.pipeline.stages.outlook import Ends, look_at_ends
from penstock.pipeline.stages.state import LONGEST_STEP_MS, Ahead, Sight, State, state_of

LOOK_S = 1.0  # how soon a lane that stands still is looked after
TURN_MAX_S = 2 * LONGEST_STEP_MS / 1000  # a turn is a transaction of each input at most, of which there are two


class LaneWatch:
    """Runs `look_behind` and `look_out` beside the lanes.

    `watch_ms`: how often the input is looked at for growth or a new topic of the same name, besides what fetching shows.
    `stalled_ms`: what holds an input back for so long is said. `silent_ms`: a lane that commits nothing for so long while
    records wait is silent.
    """

    def __init__(
        self,
        lanes: Mapping[TopicPartition, Lane],
        fetcher: Fetcher,
        logger: log.Fields,
        *,
        watch_ms: int,
        stalled_ms: int,
        silent_ms: int,
    ) -> None:
        self._lanes = lanes
        self._fetcher = fetcher
        self._log = logger
        self._watch_s = watch_ms / 1000
        self._stalled_s = stalled_ms / 1000
        self._silent_ms = silent_ms

    async def look_behind(self) -> None:
        """Notice an input that grew, was recreated or is held back, also while nothing comes from it."""
        while True:
            await asyncio.sleep(self._watch_s)
            for lane in list(self._lanes.values()):
                if lane.stopped:
                    continue
                try:
                    await lane.worker.check()
                    await self._look_behind(lane)
                except (OperatorNeeded, StartsOver) as error:
                    lane.stop(error)
                except TRANSIENT:
                    continue
                except Exception:  # noqa: BLE001  see `_live`
                    self._log.exception("%s can't be looked at", lane.name)

    async def _look_behind(self, lane: Lane) -> None:
        """Learn what holds a lane's input back: an open transaction, records come and none can be read. Say it once that it has
        lasted for long."""
        for tp in lane.inputs:
            ends = self._fetcher.ends(tp)
            if ends is None:
                continue
            watch, now = lane.held_back.setdefault(tp, heldback.Watch()), asyncio.get_running_loop().time()
            position = self._fetcher.position(tp)
            stood_s = watch.stood_s(position, *ends[1:], now)
            if stood_s > 0 and tp == lane.tp:
                await lane.outlook.look_up(self._fetcher.client, tp, position)
            is_long = stood_s >= self._stalled_s and not watch.is_said
            if is_long or (stood_s > 0 and watch.hold() is None):
                hold = (await heldback.look(self._fetcher.client, [tp])).get(tp)
                watch.note(hold)
                if is_long and hold is not None:
                    watch.is_said = True
                    self._log.warning("%s %s", lane.name, hold.words)

    async def look_out(self) -> None:
        """Keep the logs in view of lanes that stand still, which fetch nothing."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(LOOK_S, self._watch_s))
            now = loop.time()
            due = [
                lane
                for lane in self._lanes.values()
                if not lane.moving and lane.resolved.is_set() and now - lane.outlook.looked_at >= self._watch_s
            ]
            if due:
                try:
                    await self._look_at(due)
                except Exception:  # noqa: BLE001  see `_live`
                    self._log.exception("what waits at the input can't be looked at")
                for lane in due:
                    lane.outlook.looked_at = loop.time()

    async def _look_at(self, lanes: Sequence[Lane]) -> None:
        """See where the logs of some lanes end, and how old the first unread batch of each is."""
        client, places = self._fetcher.client, {lane: lane.worker.places for lane in lanes}
        try:
            ends = await look_at_ends(client, [tp for tps in places.values() for tp in tps])
        except TRANSIENT as error:
            for lane in lanes:
                lane.outlook.unreachable = f"its input can't be asked: {error}"
            return
        for lane, tps in places.items():
            found = {tp: ends[tp] for tp in tps if tp in ends}
            lane.outlook.see(found, {tp: position.offset for tp, position in tps.items()}, asyncio.get_running_loop().time())
            name, partition = lane.tp
            if client.topic_id(name) is None:
                lane.outlook.no_topic = f"the input has no topic `{name}`"
            elif lane.tp not in found:
                lane.outlook.unreachable = f"the input has no leader of `{name}` partition {partition}"
            elif found[lane.tp].end > (offset := tps[lane.tp].offset):
                with contextlib.suppress(*TRANSIENT):
                    await lane.outlook.look_up(client, lane.tp, offset)

    def _see(self, lane: Lane) -> None:
        """Bring a lane's outlook up to date: one that moves has its logs' ends with each fetch."""
        places = lane.worker.places
        if lane.moving:
            fetched = {tp: self._fetcher.ends(tp) for tp in places}
            ends = {tp: Ends(*found[1:]) for tp, found in fetched.items() if found is not None}
            lane.outlook.see(ends, {tp: position.offset for tp, position in places.items()}, asyncio.get_running_loop().time())

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
