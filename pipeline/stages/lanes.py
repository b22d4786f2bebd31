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
from dataclasses import replace
from typing import Protocol

from penstock import log
from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched, Fetcher
from penstock.pipeline.clients.transaction import Fenced
from penstock.pipeline.stages import heldback
from penstock.pipeline.stages.completion import to_its_end
from penstock.pipeline.stages.failures import (
    TRANSIENT,
    OperatorNeeded,
    StartsOver,
    backoff_of_stages,
    needs_operator,
    patiently,
)
from penstock.pipeline.stages.lanecounts import LaneCounts
from penstock.pipeline.stages.memory import ROOM_BYTES, SLOW_TURN_S, Held, Share
from penstock.pipeline.stages.outlook import Ends, Outlook, look_at_ends
from penstock.pipeline.stages.position import PROCESS, StagePosition
from penstock.pipeline.stages.state import LONGEST_STEP_MS, Ahead, Sight, State, state_of
from penstock.pyx.record.rawbatch import BatchError

TAKEN_AT_ONCE = 8  # identities taken at the same time
LANE_BYTES_MIN = 1 << 20  # this much may wait in a lane however many there are
LANE_PIECES = 8  # answers that one lane keeps alive
QUIET_S = 10.0  # a stalled lane that does nothing for so long without a failure is well again
TAKEN_OVER_S = 60.0  # a lane that others take twice in so long, or in so many sessions, and work on is left to them
TAKEN_OVER_SESSIONS = 5
NEWER = "another process of the same name, which began later, took over this partition"
MARKERS_LINGER_S = 0.25  # how long an answer without a record waits for the next one
LOOK_S = 1.0  # how soon a lane that stands still is looked after
TURN_MAX_S = 2 * LONGEST_STEP_MS / 1000  # a turn is a transaction of each input at most, of which there are two


class NoPosition(OperatorNeeded):
    """The output cluster has no position of a partition where one has to be."""


class LaneWorker(Protocol):
    """What drives one partition. Every call may raise Fenced, OperatorNeeded, StartsOver, KafkaError, BatchError, OSError."""

    @property
    def counts(self) -> LaneCounts:
        """What it has done."""
        ...

    @property
    def position(self) -> StagePosition:
        """Where it stands in its own partition, as far as it knows."""
        ...

    @property
    def places(self) -> Mapping[TopicPartition, StagePosition]:
        """Where it stands in all that it reads."""
        ...

    @property
    def going(self) -> State:
        """The state of the partition if nothing holds it."""
        ...

    @property
    def decisions(self) -> int:
        """How often an operator has decided about the partition: its position says so."""
        ...

    @property
    def own_offsets(self) -> tuple[int, ...]:
        """The committed offset that it knows of, and that of its last turn, which may be committed too."""
        ...

    async def take(self, *, force: bool = False) -> None:
        """Take the identity and learn the position from the output cluster.

        The first time and with `force` whoever had it is fenced; else it is only taken if nobody else has it since.
        """
        ...

    async def start(self) -> Mapping[TopicPartition, int]:
        """Check the position against the input; the offsets to read from, of the lane's partition and of any others that
        its turns take."""
        ...

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        """Everything that was fetched, in order, in one transaction for each input."""
        ...

    async def look(self) -> tuple[int, bool]:
        """The committed offset, whoever committed it, and whether somebody has work there: input behind it, or an input that
        ends before it, and nothing stopped it."""
        ...

    async def holder(self) -> str:
        """The `PROCESS` that committed the position last; empty where that isn't known."""
        ...

    async def refresh(self, stopped: str = "", stalled: str = "") -> None:
        """Commit an idle position again, so that it does not expire, with why its lane stands still, if it does."""
        ...

    async def check(self) -> None:
        """Look whether the input is still the one that the position belongs to. Raises OperatorNeeded."""
        ...


class Lane:
    """One partition: its worker, what waits for it, and why it stopped (empty: it goes on).

    `inputs` are what it reads: its own partition, and whatever else its worker starts with. `peers` are lanes that must have
    been registered before this one sends anything. `way_past` says how an operator
    gets past a batch that can't be read, given the offset behind it if that is known. `share` counts what it holds.
    """

    def __init__(
        self,
        tp: TopicPartition,
        worker: LaneWorker,
        way_past: Callable[[int | None], str] | None = None,
        share: Share | None = None,
    ) -> None:
        self.tp = tp
        self.inputs = [tp]
        self._way_past = way_past
        self.name = f"{tp[0]}-{tp[1]}"
        self.worker = worker
        self.peers: Sequence[Lane] = ()
        self.stopped = ""
        self.reason: Exception | None = None  # the error that it stopped for
        self.backoff = backoff_of_stages()
        self.stalled = ""  # the failure that it can't get over for a long time, though another try may
        self.said = ""  # the failure that was told last
        self.failure: Exception | None = None  # that failure, while it lasts
        self.moving = False  # what is fetched for it goes on
        self.turn_since = math.inf  # when the turn under way began (loop time)
        self.outlook = Outlook()
        self.failing_since = 0.0  # when the failure in `said` was told (loop time)
        self.force = False  # an operator has decided: its identity is taken whoever has it
        self.heard = -1  # how many decisions there were when it was last started over for one
        self.retried = asyncio.Event()  # set when an operator has decided, so that a wait ends
        self.lost_at: list[float] = []  # when others took the identity, of late (loop time)
        self.is_lost = False  # it stopped because others have it: its position is theirs to keep
        self.taken = False  # the identity was taken and nothing was done under it yet
        self.tried = asyncio.Event()  # its identity was asked for once, whatever came of it
        self.resolved = asyncio.Event()  # it was taken once, or the lane stopped
        self._waiting: list[Fetched] = []
        self._bytes = 0  # that wait
        self._in_turn = 0
        self._share = share or Share(Held())
        self.held_back: dict[TopicPartition, heldback.Watch] = {}  # by input
        self._due = math.inf  # when what waits is worth a transaction of its own, however little it is (loop time)
        self._reason: Exception | None = None
        self._wake = asyncio.Event()
        self._more = asyncio.Event()

    def put(self, fetched: Fetched, linger_s: float = 0.0) -> None:
        """Hand over what was fetched. It may wait for more: markers alone, which only move the position, for a while longer."""
        if self.turn_since == math.inf:
            self._note_unread([*self._waiting, fetched])
        if fetched.error is not None:
            linger_s = 0.0
        elif not fetched.batches:
            linger_s = max(linger_s, MARKERS_LINGER_S)
        self._due = min(self._due, asyncio.get_running_loop().time() + linger_s)
        self._waiting.append(fetched)
        count = _bytes(fetched)
        self._bytes += count
        self._share.add(count)
        self._wake.set()
        self._more.set()

    def stop(self, reason: Exception) -> None:
        """Hand over a reason to stop or to start again, before anything that waits."""
        self._reason = reason
        self._wake.set()
        self._more.set()

    def is_full(self, most_bytes: int) -> bool:
        """Whether no more should be fetched for it now."""
        return self._bytes >= most_bytes or len(self._waiting) >= LANE_PIECES

    def clear(self) -> None:
        """Forget what waits: the position is asked for again."""
        self._share.remove(self._bytes)
        self._waiting, self._bytes, self._due, self._reason = [], 0, math.inf, None
        self._wake.clear()

    def hurry(self) -> None:
        """Let what waits go, however little it is."""
        if self._waiting:
            self._due = -math.inf
            self._more.set()

    async def ready(self, turn_bytes: int) -> None:
        """Wait until what waits is worth a transaction: a turn's bytes, as much as a lane holds, or it has waited its time."""
        await self._wake.wait()
        loop = asyncio.get_running_loop()
        while self._reason is None and not self.is_full(turn_bytes) and (left_s := self._due - loop.time()) > 0:
            self._more.clear()
            await _wait(self._more, left_s)

    def next(self, most_bytes: int) -> list[Fetched]:
        """What waits once it is `ready`, at least one piece and no more of them once they have so many bytes.

        Raises what was handed over; good batches before an error come first.
        """
        if self._reason is not None:
            raise self._reason
        error, corrupt = self._waiting[0].error, self._waiting[0].corrupt
        if error is not None and not self._waiting[0].batches:
            if isinstance(error, BatchError) and self._way_past is not None:
                words = self._way_past(None if corrupt is None else corrupt.last_offset + 1)
                raise OperatorNeeded(f"{error}: {words}") from error
            raise error
        pieces: list[Fetched] = []
        taken = 0
        while self._waiting and taken < most_bytes and (self._waiting[0].batches or not self._waiting[0].error):
            pieces.append(self._waiting.pop(0))
            taken += _bytes(pieces[-1])
        self._bytes -= taken
        self._in_turn = taken
        if not self._waiting:
            self._due = math.inf
            self._wake.clear()
        return pieces

    def _note_unread(self, pieces: Sequence[Fetched]) -> None:
        """Note the first unread batch, if it is among what was fetched."""
        offset = self.worker.position.offset
        if not self.outlook.knows(offset):
            first = next((piece for piece in pieces if piece.tp == self.tp and piece.batches), None)
            if first is not None:
                self.outlook.note_unread(offset, first.batches[0])

    async def turn(self, pieces: Sequence[Fetched]) -> None:
        """Let the worker do its turn with what `next` gave, which the lane holds until then."""
        loop = asyncio.get_running_loop()
        slow = loop.call_later(SLOW_TURN_S, self._share.set_slow, True)
        self.turn_since = loop.time()
        try:
            await to_its_end(self.worker.turn(pieces))
            self._note_unread(self._waiting)
        finally:
            self.turn_since = math.inf
            slow.cancel()
            self._share.set_slow(False)
            self._share.remove(self._in_turn)
            self._in_turn = 0


class Pace:
    """At most so many turns a second of all lanes that share it; None: as many as they like.

    A turn that has to wait takes what comes meanwhile along: beyond the bound lanes linger longer.
    """

    def __init__(self, turns_per_s: float | None = None) -> None:
        self._apart_s = 1 / turns_per_s if turns_per_s else 0.0
        self._next = 0.0  # loop time

    async def wait(self) -> None:
        """Wait for the next free place."""
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._apart_s
        if at > now:
            await asyncio.sleep(at - now)


def _bytes(fetched: Fetched) -> int:
    return sum(batch.size_in_bytes for batch in fetched.batches)


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
        self._refresh_s = refresh_ms / 1000
        self._watch_s = watch_ms / 1000
        self._turn_bytes = turn_bytes
        self._session_s = session_ms / 1000
        # Each of two that share a name notices at its next turn only, and then waits for a session.
        self._contest_s = max(TAKEN_OVER_S, TAKEN_OVER_SESSIONS * self._session_s)
        self._stalled_s = stalled_ms / 1000
        self._silent_ms = silent_ms
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
            if count is not None and count not in (lane.worker.decisions, lane.heard):
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
                self._tasks += [group.create_task(work()) for work in (self._feed, self._watch, self._look_out)]
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
        decisions, offsets = lane.worker.decisions, lane.worker.own_offsets
        await _wait(lane.retried, self._session_s)
        try:
            await self._take(lane, force=True)
            await lane.worker.refresh()  # says whose it is
            if lane.worker.decisions != decisions:  # it was an operator's command
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
            await _wait(lane.retried, pause_s)

    async def _leave(self, lane: Lane) -> None:
        """Leave a lane to who has taken it, unless they are gone: input waits, and nobody commits anything for a while."""
        seen = 0, False
        with contextlib.suppress(*TRANSIENT, OperatorNeeded):
            seen = await lane.worker.look()
        await _wait(lane.retried, self._contest_s)
        with contextlib.suppress(*TRANSIENT, OperatorNeeded):
            if seen[1] and await lane.worker.look() == seen and lane.is_lost:
                self._log.warning("%s is taken back: its input waits, and nobody goes on with it", lane.name)
                lane.lost_at.clear()
                lane.stopped, lane.reason, lane.is_lost, lane.force = "", None, False, True

    async def _keep(self, lane: Lane) -> None:
        """Keep the position of a lane that stands still from expiring, unless an operator has decided that it goes on."""
        decisions = lane.worker.decisions
        await self._take(lane)
        if lane.worker.decisions != decisions:
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
        await _wait(lane.retried, lane.backoff.next_s())

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
            errors = (await self._fetcher.client.metadata([topic], refresh=True)).errors
            raise_for(errors.get(topic, 0), f"topic `{topic}`")

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

    async def _watch(self) -> None:
        """Notice an input that grew, was recreated or is held back, also while nothing comes from it."""
        while True:
            await asyncio.sleep(self._watch_s)
            for lane in list(self.lanes.values()):
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

    # What is known of lanes without asking

    async def _look_out(self) -> None:
        """Keep the logs in view of lanes that stand still, which fetch nothing."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(LOOK_S, self._watch_s))
            now = loop.time()
            due = [
                lane
                for lane in self.lanes.values()
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
        return [lane.name for lane in self.lanes.values() if now - lane.turn_since > TURN_MAX_S]


async def _wait(event: asyncio.Event, limit_s: float) -> None:
    """Wait for an event, but no longer than that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
