"""Looks at the logs of one input cluster's lanes, for what lanes can't see by themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from penstock import log
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.stages import heldback
from penstock.pipeline.stages.failures import TRANSIENT, OperatorNeeded, StartsOver
from penstock.pipeline.stages.lane import Lane
from penstock.pipeline.stages.outlook import look_at_ends

LOOK_S = 1.0  # how soon a lane that stands still is looked after


class LaneWatch:
    """Runs `look_behind` and `look_out` beside the lanes.

    `watch_ms`: how often the input is looked at for growth or a new topic of the same name, besides what fetching shows.
    `stalled_ms`: what holds an input back for so long is said.
    """

    def __init__(
        self,
        lanes: Mapping[TopicPartition, Lane],
        fetcher: Fetcher,
        logger: log.Fields,
        *,
        watch_ms: int,
        stalled_ms: int,
    ) -> None:
        self._lanes = lanes
        self._fetcher = fetcher
        self._log = logger
        self._watch_s = watch_ms / 1000
        self._stalled_s = stalled_ms / 1000

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
            watch, now = lane.held_back.setdefault(tp, heldback.HoldWatch()), asyncio.get_running_loop().time()
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
