"""One partition on its way through a stage: what waits for it, its turns, and why it stands still."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched
from penstock.pipeline.stages import heldback
from penstock.pipeline.stages.completion import to_its_end
from penstock.pipeline.stages.failures import OperatorNeeded, backoff_of_stages
from penstock.pipeline.stages.lanecounts import LaneCounts
from penstock.pipeline.stages.memory import SLOW_TURN_S, Held, Share
from penstock.pipeline.stages.outlook import Outlook
from penstock.pipeline.stages.position import StagePosition
from penstock.pipeline.stages.state import State
from penstock.pyx.record.rawbatch import BatchError

LANE_PIECES = 8  # answers that one lane keeps alive
MARKERS_LINGER_S = 0.25  # how long an answer without a record waits for the next one


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
        self.held_back: dict[TopicPartition, heldback.HoldWatch] = {}  # by input
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
            await wait_for(self._more, left_s)

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


async def wait_for(event: asyncio.Event, limit_s: float) -> None:
    """Wait for an event, but no longer than that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
