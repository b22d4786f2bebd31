"""Partitions on their way through a stage, each on a lane of its own: fetch, one transaction a turn, start over.

The mirror and the dedupe stage both are such stages. A lane that can't go on by its own strength stops alone and
says why once; the others go on. What a retry can mend is tried again from the start: take the identity, ask the
output cluster for the position, go on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence

from penstock import log
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched, Fetcher
from penstock.pipeline.clients.transaction import Fenced
from penstock.pipeline.stages.completion import to_its_end
from penstock.pipeline.stages.failures import (
    TRANSIENT,
    OperatorNeeded,
    StartsOver,
    needs_operator,
    patiently,
)
from penstock.pipeline.stages.lane import Lane, LaneWorker, Pace, wait_for
from penstock.pipeline.stages.laneview import LaneView
from penstock.pipeline.stages.lanewatch import LaneWatch
from penstock.pipeline.stages.memory import ROOM_BYTES, Held, Share
from penstock.pipeline.stages.position import PROCESS
from penstock.pyx.record.rawbatch import BatchError

TAKEN_AT_ONCE = 8  # identities taken at the same time
LANE_BYTES_MIN = 1 << 20  # this much may wait in a lane however many there are
QUIET_S = 10.0  # a stalled lane that does nothing for so long without a failure is well again
TAKEN_OVER_S = 60.0  # a lane that others take twice in so long, or in so many sessions, and work on is left to them
TAKEN_OVER_SESSIONS = 5
NEWER = "another process of the same name, which began later, took over this partition"


class Lanes:
    """All lanes of one input cluster, fed by one fetcher.

    `refresh_ms`: idle positions are committed again this often. `watch_ms`: how often the input is looked at for
    growth or a new topic of the same name, besides what fetching shows. `turn_bytes`: a turn takes what waits, but
    no more once it has so much. `session_ms`: how long a lane whose identity somebody else took leaves it to them.
    `stalled_ms`: a lane that meets the same failure for so long is stalled: it tries on, and its position says so. `silent_ms`:
    a lane that commits nothing for so long while records wait is silent.
    `process`: those of all inputs of the process, to which these are added; they end together. `held`: what all of these hold.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        logger: log.Fields,
        refresh_ms: int,
        watch_ms: int = 30_000,
        turn_bytes: int = 4 << 20,
        session_ms: int = 10_000,
        stalled_ms: int = 300_000,
        silent_ms: int = 370_000,
        linger_ms: int = 0,
        pace: Pace | None = None,
        process: list[Lanes] | None = None,
        held: Held | None = None,
    ) -> None:
        self._process = [] if process is None else process
        self._process.append(self)
        self.lanes: dict[TopicPartition, Lane] = {}
        self._readers: dict[TopicPartition, Lane] = {}  # by input
        self._fetcher = fetcher
        self._log = logger
        self.view = LaneView(self.lanes, fetcher, silent_ms)
        self._watch = LaneWatch(self.lanes, fetcher, logger, watch_ms=watch_ms, stalled_ms=stalled_ms)
        self._refresh_s = refresh_ms / 1000
        self._turn_bytes = turn_bytes
        self._session_s = session_ms / 1000
        # Each of two that share a name notices at its next turn only, and then waits for a session.
        self._contest_s = max(TAKEN_OVER_S, TAKEN_OVER_SESSIONS * self._session_s)
        self._stalled_s = stalled_ms / 1000
        self._linger_s = linger_ms / 1000
        self._pace = pace or Pace()
        self._held = held or Held()
        self._lost = asyncio.Event()  # another lane is lost
        self._lane_bytes = LANE_BYTES_MIN
        self._full: set[Lane] = set()
        self._reaching: dict[str, asyncio.Lock] = {}  # by topic
        self._places = asyncio.Semaphore(TAKEN_AT_ONCE)
        self._group: asyncio.TaskGroup | None = None  # while it runs
        self._ended = False
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, tp: TopicPartition, worker: LaneWorker, way_past: Callable[[int | None], str] | None = None) -> Lane:
        """A lane for one more partition; it sets out with `begin`, or with `run` if that comes later."""
        lane = self.lanes[tp] = self._readers[tp] = Lane(tp, worker, way_past, Share(self._held))
        self._lane_bytes = max(LANE_BYTES_MIN, ROOM_BYTES // len(self.lanes))
        return lane

    def begin(self, lane: Lane) -> None:
        """Let a lane that was added set out, if the others run already; it is lost where these have ended."""
        if self._ended:
            lane.stopped, lane.is_lost = "the other partitions of this process were taken over", True
            lane.tried.set()
            lane.resolved.set()
        elif self._group is not None:
            self._fetcher.add(lane.tp, 0)
            self._pause(lane)
            self._tasks.append(self._group.create_task(self._live(lane)))

    def stopped(self) -> dict[str, str]:
        """The lanes that stopped, `topic-partition` -> why."""
        return {lane.name: lane.stopped for lane in self.lanes.values() if lane.stopped}

    def retry(self, tp: TopicPartition) -> None:
        """What a lane stopped for is over, or an operator has decided: it starts over, whatever it does or waits for."""
        lane = self.lanes[tp]
        lane.stopped, lane.is_lost, lane.force = "", False, True
        lane.lost_at.clear()
        lane.retried.set()
        lane.stop(StartsOver("an operator has decided"))

    def hear(self, decisions: Mapping[TopicPartition, int | None]) -> None:
        """Committed positions say how often operators have decided about each lane (None: nobody of ours wrote it)."""
        for tp, count in decisions.items():
            lane = self.lanes[tp]
            # Once for each: a worker that stops before it reads its position never learns of it.
            if count is not None and count not in (lane.worker.position.decisions, lane.heard):
                lane.heard = count
                self.retry(tp)

    def is_replaced(self) -> bool:
        """Whether other processes have taken every lane of this one."""
        every = [lane for lanes in self._process for lane in lanes.lanes.values()]
        return bool(every) and all(lane.is_lost for lane in every)

    async def run(self) -> None:
        """Move all lanes until cancelled; turns under way are then finished. Ends by itself when other processes have
        taken all of them.
        """
        self._fetcher.assign(dict.fromkeys(self.lanes, 0))
        for tp in self.lanes:
            self._fetcher.pause(tp)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._tasks = [group.create_task(self._live(lane)) for lane in self.lanes.values()]
                self._tasks += [
                    group.create_task(work()) for work in (self._feed, self._watch.look_behind, self._watch.look_out)
                ]
                while not self.is_replaced():
                    await self._lost.wait()
                    self._lost.clear()
                for task in self._tasks:
                    task.cancel()
        finally:
            self._group, self._ended = None, True
            await self._fetcher.close()

    def _pause(self, lane: Lane) -> None:
        for tp in lane.inputs:
            self._fetcher.pause(tp)

    def _resume(self, lane: Lane) -> None:
        self._full.discard(lane)
        for tp in lane.inputs:
            self._fetcher.resume(tp)

    def _stop(self, lane: Lane, error: Exception) -> None:
        # Without the traceback, whose frames hold what was fetched.
        lane.stopped, lane.reason = str(error), error.with_traceback(None)
        lane.resolved.set()
        self._log.error("%s is STOPPED, the others go on: %s", lane.name, error)

    async def _live(self, lane: Lane) -> None:
        """A lane's life: start, turn after turn, and after a failure take the identity and start again."""
        while True:
            moving = False
            try:
                if lane.stopped:
                    await self._stand_still(lane)
                    continue
                if lane.force or not lane.resolved.is_set():
                    lane.retried.clear()
                    force, lane.force = lane.force, False  # a decision that comes meanwhile asks for one more
                    try:
                        await self._take(lane, force=force)
                    except BaseException:
                        lane.force |= force
                        raise
                for peer in lane.peers:
                    await peer.resolved.wait()
                await self._reach_input(lane)
                if not lane.taken:
                    await self._take(lane)
                lane.taken, moving = False, True
                try:
                    await self._move(lane)
                finally:
                    lane.moving, lane.outlook.looked_at = False, -math.inf
                    lane.clear()
            except Fenced as error:
                if moving:
                    await self._failed(lane, error)  # whether somebody else has the identity, `take` will say
                else:
                    await self._taken_over(lane)
            except StartsOver as why:
                self._log.info("%s starts again: %s", lane.name, why)
                self._pause(lane)
                lane.taken = False
            except Exception as error:  # noqa: BLE001  what nobody thought of holds up its own partition, too
                await self._failed(lane, error)

    async def _taken_over(self, lane: Lane) -> None:
        """Somebody else has the identity: leave it to them for a session, then take it back.

        It is taken back once: who had it may have ended since. When it is lost again, the position says whose it is. Of two
        processes of a name the one that began later takes it back each time, so that it goes on with all partitions.
        """
        self._pause(lane)
        now = asyncio.get_running_loop().time()
        lane.lost_at = [at for at in lane.lost_at if now - at < self._contest_s] + [now]
        holder = await self._holder(lane)
        if len(lane.lost_at) > 1 and not "" < holder < PROCESS:
            twice = f"another process took over this partition twice within {self._contest_s:.0f} s: two of the same name run"
            self._leave_to_others(lane, NEWER if holder > PROCESS else twice)
            return
        self._log.warning(
            "%s: another process took over (one of the same name, an operator's command, or the coordinator after a power "
            "cut); it is taken back in %g s",
            lane.name,
            self._session_s,
        )
        decisions, offsets = lane.worker.position.decisions, lane.worker.own_offsets
        await wait_for(lane.retried, self._session_s)
        try:
            await self._take(lane, force=True)
            await lane.worker.refresh()  # says whose it is
            if lane.worker.position.decisions != decisions:  # it was an operator's command
                lane.lost_at.clear()
                lane.stopped, lane.reason = "", None
            elif lane.worker.own_offsets[0] in offsets:
                lane.lost_at.clear()  # nobody did the work meanwhile: a coordinator fences after a power cut, too
        except Exception as error:  # noqa: BLE001  see `_live`
            await self._failed(lane, error)

    def _leave_to_others(self, lane: Lane, what: str) -> None:
        lane.is_lost = True
        self._stop(lane, OperatorNeeded(
            f"{what}; stop one of them, and this one takes back what nobody has gone on with for {self._contest_s:.0f} s"
        ))  # fmt: skip
        for lanes in self._process:
            lanes._lost.set()

    async def _holder(self, lane: Lane) -> str:
        """The process that committed a lane's position last, as far as that can be known now."""
        with contextlib.suppress(*TRANSIENT, OperatorNeeded):
            return await lane.worker.holder()
        return ""

    async def _take(self, lane: Lane, *, force: bool = False) -> None:
        """Take the identity. Raises Fenced when somebody else has it.

        `take` ends with a transaction of its own at times; the coordinator may have given up that one because it took
        too long. Taking again tells.
        """
        try:
            async with self._places:
                try:
                    await lane.worker.take(force=force)
                except Fenced:
                    await lane.worker.take(force=force)
            lane.taken = True
            lane.resolved.set()
        finally:
            lane.tried.set()

    async def _stand_still(self, lane: Lane) -> None:
        """A stopped lane writes into its position why, and keeps that from expiring, until an operator has decided."""
        pause_s = self._refresh_s
        lane.retried.clear()  # of a decision that came before it stopped
        if lane.is_lost:
            await self._leave(lane)
        else:
            try:
                await to_its_end(self._keep(lane))
                if not lane.stopped:
                    return
            except Fenced:
                raise
            except (OperatorNeeded, BatchError):
                pass  # why it stopped: there is no position, or it is not to be touched
            except Exception:  # noqa: BLE001  see `_live`
                pause_s = lane.backoff.next_s()
            await wait_for(lane.retried, pause_s)

    async def _leave(self, lane: Lane) -> None:
        """Leave a lane to who has taken it, unless they are gone: input waits, and nobody commits anything for a while."""
        seen = 0, False
        with contextlib.suppress(*TRANSIENT, OperatorNeeded):
            seen = await lane.worker.look()
        await wait_for(lane.retried, self._contest_s)
        with contextlib.suppress(*TRANSIENT, OperatorNeeded):
            if seen[1] and await lane.worker.look() == seen and lane.is_lost:
                self._log.warning("%s is taken back: its input waits, and nobody goes on with it", lane.name)
                lane.lost_at.clear()
                lane.stopped, lane.reason, lane.is_lost, lane.force = "", None, False, True

    async def _keep(self, lane: Lane) -> None:
        """Keep the position of a lane that stands still from expiring, unless an operator has decided that it goes on."""
        decisions = lane.worker.position.decisions
        await self._take(lane)
        if lane.worker.position.decisions != decisions:
            lane.stopped, lane.reason = "", None
            return
        with contextlib.suppress(Fenced):  # whether somebody else has the identity, the next `_take` will say
            await lane.worker.refresh(lane.stopped, lane.stalled)

    async def _failed(self, lane: Lane, error: Exception) -> None:
        self._pause(lane)
        if lane.stopped:
            return
        was_stalled = lane.stalled
        self._note(lane, error)
        if lane.stopped:
            return
        if lane.stalled != was_stalled:
            with contextlib.suppress(Exception):  # told again in its time
                await self._keep(lane)
                lane.taken = False
        await wait_for(lane.retried, lane.backoff.next_s())

    def _note(self, lane: Lane, error: Exception) -> None:
        """Stop the lane, or say once why it starts again."""
        if needs_operator(error):
            self._stop(lane, error)
            return
        lane.failure = error.with_traceback(None)
        text, now = str(error) or type(error).__name__, asyncio.get_running_loop().time()
        expected = isinstance(error, TRANSIENT)
        if not expected:
            text = f"an error that should not be: {error!r}"
        if text != lane.said:
            self._log.warning("%s starts again: %s", lane.name, text, exc_info=None if expected else error)
            lane.said, lane.failing_since = text, now
        elif now - lane.failing_since >= self._stalled_s:
            self._stall(lane, text)

    def _stall(self, lane: Lane, text: str) -> None:
        if not lane.stalled:
            self._log.error("%s is STALLED for %g s, it tries on: %s", lane.name, self._stalled_s, text)
        lane.stalled = text

    async def _reach_input(self, lane: Lane) -> None:
        """Wait until the input cluster knows the topic; meanwhile keep the position from expiring."""

        topic = lane.tp[0]
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def ask() -> None:
            (await self._fetcher.client.metadata([topic], refresh=True)).topic(topic)

        while True:
            try:
                # One lane of a topic asks at a time: the others would only ask and say the same.
                async with (
                    asyncio.timeout(min(self._refresh_s, self._stalled_s)),
                    self._reaching.setdefault(topic, asyncio.Lock()),
                ):
                    return await patiently(ask, f"find topic `{topic}` at the input", self._log)
            except TimeoutError:
                if loop.time() - began >= self._stalled_s:
                    self._stall(lane, f"topic `{topic}` can't be found at the input")
                await self._keep(lane)
                lane.taken = False  # used up

    async def _move(self, lane: Lane) -> None:
        offsets = await lane.worker.start()
        lane.clear()
        for tp, offset in offsets.items():
            if tp not in self._readers:
                self._readers[tp] = lane
                lane.inputs.append(tp)
                self._fetcher.add(tp, offset)
            else:
                self._fetcher.seek(tp, offset)
        lane.inputs = list(offsets)  # what it read before and doesn't any more stays paused
        lane.moving, lane.failure = True, None
        self._resume(lane)
        while True:
            try:
                async with asyncio.timeout(min(QUIET_S, self._refresh_s) if lane.stalled else self._refresh_s):
                    await lane.ready(min(self._turn_bytes, self._lane_bytes))
            except TimeoutError:
                lane.stalled = ""
                await lane.worker.refresh()
                continue
            await self._pace.wait()
            await self._turn(lane)
            lane.backoff.reset()
            lane.said, lane.stalled, lane.failure = "", "", None

    async def _turn(self, lane: Lane) -> None:
        """One turn. What it had is free behind it: a lane that then waits for a long time keeps none of it."""
        pieces = lane.next(self._turn_bytes)
        # An error behind good batches comes again with the next fetch, which has nothing before it.
        emptied = lane in self._full and not lane.is_full(self._lane_bytes)
        if emptied or any(piece.error is not None for piece in pieces):
            self._resume(lane)
        await lane.turn(pieces)

    async def _feed(self) -> None:
        """Fetch for all lanes, while there is room for what comes. A full lane is left out until it was emptied."""
        while True:
            await self._held.room(self._hurry)
            self._put(await self._fetcher.fetch(ahead=False))

    def _put(self, answers: Sequence[Fetched]) -> None:
        for fetched in answers:
            lane = self._readers[fetched.tp]
            lane.put(fetched, self._linger_s)
            if lane.is_full(self._lane_bytes):
                self._full.add(lane)
                self._pause(lane)

    def _hurry(self) -> None:
        for lanes in self._process:
            for lane in lanes.lanes.values():
                lane.hurry()
