"""The life of lanes, with workers and a fetcher that follow a script."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.mirror.position import MirrorPosition
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched
from penstock.pipeline.clients.metadata import Cluster, TopicInfo
from penstock.pipeline.clients.transaction import Fenced
from penstock.pipeline.stages import heldback, laneview, memory
from penstock.pipeline.stages.failures import OperatorNeeded, StartsOver
from penstock.pipeline.stages.lane import LANE_PIECES, Lane, Pace
from penstock.pipeline.stages.lanecounts import LaneCounts
from penstock.pipeline.stages.lanes import Lanes
from penstock.pipeline.stages.state import State
from penstock.pyx.record.rawbatch import RawBatch
from support.logs import batch
from support.onloop import run_leaping

LIMIT_S = 120.0
FENCED = Fenced(ErrorCode.PRODUCER_FENCED, "somebody")


class Worker:
    """Notes each call; `plan` has what the n-th call of a kind raises or awaits. `rivals`: whoever takes its identity moves
    the position.
    """

    def __init__(self, plan: dict[tuple[str, int], Any] | None = None) -> None:
        self.tp: TopicPartition = ("t", 0)
        self.plan = plan or {}
        self.calls: list[str] = []
        self.turns: list[int] = []
        self.ended = 0
        self.force = 0
        self.told = "", ""
        self.others = 0
        self.rivals = True
        self.held_by = ""  # who committed the position last
        self.looks = [(7, False)]  # what each look finds, the last one from then on
        self.position = MirrorPosition(7, b"", b"")
        self.counts = LaneCounts()

    @property
    def decided(self) -> int:
        return self.position.decisions

    @decided.setter
    def decided(self, count: int) -> None:
        self.position = replace(self.position, decisions=count)

    @property
    def places(self) -> dict[TopicPartition, MirrorPosition]:
        return {self.tp: self.position}

    @property
    def going(self) -> State:
        return {"state": "copying", "why": ""}

    async def _call(self, kind: str) -> None:
        self.calls.append(kind)
        step = self.plan.get((kind, self.calls.count(kind)))
        if isinstance(step, Exception):
            raise step
        if step is not None:
            await step()

    async def take(self, *, force: bool = False) -> None:
        await self._call("take")
        self.force += force
        self.others += force and self.rivals

    @property
    def own_offsets(self) -> tuple[int, ...]:
        return 7 + self.others, -1

    async def start(self) -> dict[TopicPartition, int]:
        await self._call("start")
        return {self.tp: 7}

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        self.turns.append(len(fetched))
        await self._call("turn")
        self.ended += 1

    async def look(self) -> tuple[int, bool]:
        await self._call("look")
        return self.looks[min(self.calls.count("look"), len(self.looks)) - 1]

    async def holder(self) -> str:
        return self.held_by

    async def refresh(self, stopped: str = "", stalled: str = "") -> None:
        await self._call("refresh")
        self.told = stopped, stalled

    async def check(self) -> None:
        await self._call("check")


class Input:
    """A fetcher that gives one piece at a time for each partition that is not paused, and its client."""

    def __init__(self) -> None:
        self.paused: set[tuple[str, int]] = set()
        self.offsets: dict[tuple[str, int], int] = {}
        self.missing = 0
        self.client = self
        self.most = 0
        self.asked = 0
        self.piece: Callable[[tuple[str, int]], Fetched] = lambda tp: Fetched(*tp, [RawBatch(batch())], 8)

    async def metadata(self, topics: list[str], refresh: bool) -> Cluster:
        self.asked += 1
        if self.asked <= self.missing:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "nobody there")
        return Cluster(topics={topic: TopicInfo(topic, b"", {}) for topic in topics})

    def assign(self, offsets: dict[tuple[str, int], int]) -> None:
        self.offsets = dict(offsets)

    def seek(self, tp: tuple[str, int], offset: int) -> None:
        self.offsets[tp] = offset

    def ends(self, tp: tuple[str, int]) -> None:
        """Nothing was answered yet."""

    def topic_id(self, topic: str) -> None:
        """No topic is known."""

    async def retry(self, attempt: Callable[[], Awaitable[None]]) -> None:
        await attempt()

    def pause(self, tp: tuple[str, int]) -> None:
        self.paused.add(tp)

    def resume(self, tp: tuple[str, int]) -> None:
        self.paused.discard(tp)

    async def fetch(self, *, ahead: bool) -> list[Fetched]:
        assert not ahead
        await asyncio.sleep(0.001)
        return [self.piece(tp) for tp in self.offsets if tp not in self.paused]

    async def close(self) -> None:
        pass


class Stage:
    def __init__(
        self,
        *workers: Worker,
        refresh_ms: int = 50,
        stalled_ms: int = 300_000,
        session_ms: int = 50,
        process: list[Lanes] | None = None,
        linger_ms: int = 0,
    ) -> None:
        self.input = Input()
        self.workers = {("t", i): worker for i, worker in enumerate(workers)}
        fetcher: Any = self.input
        self.lanes = Lanes(
            fetcher, log.get(__name__), refresh_ms, 10,
            session_ms=session_ms, stalled_ms=stalled_ms, linger_ms=linger_ms, process=process,
        )  # fmt: skip
        for tp, worker in self.workers.items():
            worker.tp = tp
            self.lanes.add(tp, worker)

    async def run(self, until: Callable[[], bool]) -> None:
        task = asyncio.ensure_future(self.lanes.run())
        async with asyncio.timeout(LIMIT_S):
            while not until() and not task.done():  # noqa: ASYNC110  (there is no event to wait for)
                await asyncio.sleep(0.001)
        if task.done():
            await task
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_what_needs_an_operator_stops_one_lane_whose_position_is_kept() -> None:
    bad, good = Worker({("turn", 2): OperatorNeeded("look")}), Worker()
    stage = Stage(bad, good)
    run_leaping(stage.run(lambda: bad.calls.count("refresh") >= 2 and good.ended > 20))
    assert stage.lanes.stopped() == {"t-0": "look"}
    assert bad.calls.count("turn") == 2
    assert bad.calls[bad.calls.index("refresh") - 1] == "take" and bad.told == ("look", "")


def test_a_lane_that_stops_after_a_decision_stands_still() -> None:
    """A decision that is heard while the lane takes its identity: nobody who decides next has to race with the lane."""

    async def heard() -> None:
        stage.lanes.retry(("t", 0))

    bad = Worker({("take", 1): heard} | {("start", n): OperatorNeeded("look") for n in range(1, 1000)})
    good = Worker()
    stage = Stage(bad, good, refresh_ms=60_000)
    run_leaping(stage.run(lambda: good.ended > 300))
    assert stage.lanes.stopped() == {"t-0": "look"}
    assert bad.calls.count("refresh") == 1 and bad.calls.count("take") <= 4


def test_an_identity_that_needs_an_operator_stops_one_lane() -> None:
    bad, good = Worker({("take", 1): OperatorNeeded("look")}), Worker()
    stage = Stage(bad, good)
    run_leaping(stage.run(lambda: good.ended > 3))
    assert stage.lanes.stopped() == {"t-0": "look"} and "start" not in bad.calls


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.REQUEST_TIMED_OUT), OSError("gone"), FENCED])
def test_after_a_failure_the_identity_is_taken_again(error: Exception) -> None:
    worker = Worker({("turn", 2): error})
    stage = Stage(worker)
    run_leaping(stage.run(lambda: worker.ended >= 3))
    calls = [call for call in worker.calls if call not in ("check", "refresh")]  # a slow machine lets positions wait
    assert calls[:7] == ["take", "start", "turn", "turn", "take", "start", "turn"]
    assert not stage.lanes.stopped()


def test_an_identity_that_somebody_else_has_is_taken_back_once() -> None:
    fenced = {("take", n): FENCED for n in (2, 3)}
    worker, good = Worker({("turn", 1): KafkaError(ErrorCode.NETWORK_EXCEPTION), **fenced}), Worker()
    stage = Stage(worker, good)
    run_leaping(stage.run(lambda: worker.ended > 3 and good.ended > 3))
    assert worker.force == 1 and not stage.lanes.stopped()


def test_an_identity_that_is_taken_twice_stops_one_lane_and_its_position_is_left_alone() -> None:
    fenced = {("take", n): FENCED for n in (2, 3, 5, 6)}
    worker = Worker({("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2)} | fenced)
    good = Worker()
    stage = Stage(worker, good, refresh_ms=20)
    run_leaping(stage.run(lambda: bool(stage.lanes.stopped()) and good.calls.count("turn") > 200))
    assert "another process took over this partition twice" in stage.lanes.stopped()["t-0"]
    last_take = len(worker.calls) - worker.calls[::-1].index("take")
    assert "refresh" not in worker.calls[last_take:] and worker.force == 1


def test_of_two_that_share_a_name_the_older_one_leaves_when_it_is_lost_again() -> None:
    """The position says that a process which began later works on it. That may have ended: it is taken back once."""
    fenced = {("take", n): FENCED for n in (2, 3, 5, 6)}
    worker = Worker({("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2)} | fenced)
    good = Worker()
    worker.held_by = "9" * 13 + "-ffffffff"
    stage = Stage(worker, good)
    run_leaping(stage.run(lambda: bool(stage.lanes.stopped()) and good.ended > 3))
    assert "which began later, took over this partition" in stage.lanes.stopped()["t-0"] and worker.force == 1


def test_of_two_that_share_a_name_the_newer_one_never_leaves() -> None:
    """However often the older one takes a partition back: each would else be left with some of them."""
    fenced = {("take", n): FENCED for n in (2, 3, 5, 6, 8, 9)}
    worker = Worker({("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2, 3)} | fenced)
    worker.held_by = "0" * 13 + "-00000000"
    stage = Stage(worker, Worker())
    run_leaping(stage.run(lambda: worker.ended > 3))
    assert worker.force == 3 and not stage.lanes.stopped()


def test_two_that_take_turns_by_long_sessions_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a session is, two that share a name lose the identity within some of them."""
    monkeypatch.setattr("penstock.pipeline.stages.lanes.TAKEN_OVER_S", 0.0)
    fenced = {("take", n): FENCED for n in (2, 3, 5, 6)}
    worker = Worker({("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2)} | fenced)
    stage = Stage(worker, Worker(), session_ms=500)
    run_leaping(stage.run(lambda: bool(stage.lanes.stopped())))
    assert "another process took over this partition twice" in stage.lanes.stopped()["t-0"]


@pytest.mark.parametrize(
    ("looks", "is_taken_back"),
    [
        ([(7, True)], True),  # input waits and nobody moves the position
        ([(7, False), (7, True)], True),  # it came later
        ([(n, True) for n in range(7, 100)], False),  # somebody goes on
        ([(7, False)], False),  # nothing waits
    ],
)  # fmt: skip
def test_what_whoever_took_it_has_left_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[int, bool]], is_taken_back: bool
) -> None:
    monkeypatch.setattr("penstock.pipeline.stages.lanes.TAKEN_OVER_S", 0.6)
    fenced = {("take", n): FENCED for n in (2, 3, 5, 6)}
    worker = Worker({("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2)} | fenced)
    worker.looks = looks
    stage = Stage(worker, Worker(), session_ms=10)
    run_leaping(stage.run(lambda: worker.ended > 2 or worker.calls.count("look") > 4))
    assert (worker.ended > 2, not stage.lanes.stopped()) == (is_taken_back, is_taken_back)


def test_a_process_ends_when_the_lanes_of_all_its_inputs_were_taken() -> None:
    def taken() -> Worker:
        fenced = {("take", n): FENCED for n in (2, 3, 5, 6)}
        return Worker({("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2)} | fenced)

    process: list[Lanes] = []
    later = {("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (60, 61)}
    other = Worker(later | {("take", n): FENCED for n in (2, 3, 5, 6)})
    first, second = Stage(taken(), process=process), Stage(other, process=process)

    async def both() -> None:
        await asyncio.gather(first.run(lambda: False), second.run(lambda: False))

    run_leaping(both())
    assert first.lanes.is_replaced() and second.lanes.is_replaced() and other.ended > 50


def test_when_all_were_taken_twice_it_ends() -> None:
    workers = [
        Worker({("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2)}
               | {("take", n): FENCED for n in (2, 3, 5, 6)})
        for _ in range(2)
    ]  # fmt: skip
    stage = Stage(*workers)
    run_leaping(stage.run(lambda: False))
    assert stage.lanes.is_replaced()


@pytest.mark.parametrize("step", [("take", 1), ("take", 2), ("refresh", 1)])
def test_a_transaction_that_took_too_long_is_nobody_else(step: tuple[str, int]) -> None:
    """The coordinator's timeout fences too; only an identity that can't be taken again is somebody else's."""
    worker = Worker({("turn", 1): KafkaError(ErrorCode.NETWORK_EXCEPTION), ("start", 2): OSError("gone"), step: FENCED})
    stage = Stage(worker, refresh_ms=50)
    stage.input.missing = 3 if step[0] == "refresh" else 0
    run_leaping(stage.run(lambda: worker.ended > 2))
    assert not stage.lanes.stopped() and step[0] in worker.calls


def test_while_the_input_is_away_positions_are_kept() -> None:
    worker = Worker()
    stage = Stage(worker, refresh_ms=150)
    stage.input.missing = 1 << 30

    async def come_back() -> None:
        stage.input.missing = 0

    worker.plan = {("refresh", 1): come_back}
    run_leaping(stage.run(lambda: worker.ended > 0))
    calls = [call for call in worker.calls if call != "check"]
    assert calls[0] == "take" and calls[1:3] == ["take", "refresh"] and "start" in calls


def test_an_idle_position_is_kept() -> None:
    worker = Worker()
    stage = Stage(worker)
    stage.input.piece = lambda tp: Fetched(*tp, [], 7)
    stage.input.fetch = lambda *, ahead: asyncio.sleep(0.001, [])  # type: ignore[method-assign]  # gives nothing
    run_leaping(stage.run(lambda: worker.calls.count("refresh") >= 3))
    assert worker.calls.count("take") == 1


def test_what_waits_is_bounded_and_taken_at_once() -> None:
    worker = Worker({("turn", n): lambda: asyncio.sleep(0.1) for n in range(1, 10)})
    stage = Stage(worker)
    run_leaping(stage.run(lambda: worker.ended >= 4))
    assert max(worker.turns) == LANE_PIECES


class Fed(Input):
    """An input that notes how much is out at most: given, and not in a turn that has ended."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        super().__init__()
        self.workers = workers
        self.given = self.out = 0

    async def fetch(self, *, ahead: bool) -> list[Fetched]:
        answers = await super().fetch(ahead=ahead)
        self.given += len(answers)
        ended = sum(sum(worker.turns[: worker.ended]) for worker in self.workers)
        self.out = max(self.out, self.given - ended)
        return answers


def test_what_all_lanes_hold_is_bounded_whatever_one_of_them_does(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 6  # the one that hangs fills it alone
    monkeypatch.setattr(memory, "ROOM_BYTES", room * len(batch()))
    monkeypatch.setattr("penstock.pipeline.stages.lane.SLOW_TURN_S", 0.05)
    hung_until = asyncio.Event()
    hung = Worker({("turn", 1): hung_until.wait})
    others = [Worker({("turn", n): lambda: asyncio.sleep(0.002) for n in range(1, 40)}) for _ in range(30)]
    stage = Stage(hung, *others)
    stage.input = stage.lanes._fetcher = Fed([hung, *others])  # type: ignore[assignment]  # a fetcher that follows a script

    def is_enough() -> bool:
        if all(worker.ended >= 15 for worker in others):
            hung_until.set()
        return hung_until.is_set()

    run_leaping(stage.run(is_enough))
    # An answer has a piece for each of 31 partitions at most; the one that hangs holds as much as a lane may beside them.
    assert room <= stage.input.out <= room + 31 + 2 * LANE_PIECES


def test_where_there_is_no_room_nothing_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ROOM_BYTES", 2 * len(batch()))
    workers = [Worker() for _ in range(3)]
    stage = Stage(*workers, linger_ms=3_600_000)
    run_leaping(stage.run(lambda: all(worker.ended >= 3 for worker in workers)))


@pytest.mark.parametrize("ends", [None, lambda: KafkaError(ErrorCode.NETWORK_EXCEPTION), lambda: OperatorNeeded("look")])
def test_a_lane_that_waits_keeps_nothing_of_what_it_had(ends: Callable[[], Exception] | None) -> None:
    async def end() -> None:
        if ends is not None:
            raise ends()

    class Buffer(bytearray):
        """Bytes whose end can be seen."""

    gone: list[bool] = []

    def piece(tp: TopicPartition) -> Fetched:
        stage.input.pause(tp)
        data = Buffer(batch())
        weakref.finalize(data, gone.append, True)
        return Fetched(*tp, [RawBatch(data)], 8)

    worker = Worker({("turn", 1): end, ("start", 2): asyncio.Event().wait})
    stage = Stage(worker, refresh_ms=3_600_000)
    stage.input.piece = piece
    run_leaping(stage.run(lambda: bool(gone)))
    assert worker.turns == [1]


def test_a_turn_takes_no_more_once_it_has_enough() -> None:
    worker = Worker({("turn", n): lambda: asyncio.sleep(0.05) for n in range(1, 10)})
    stage = Stage(worker)
    stage.lanes._turn_bytes = len(batch()) + 1
    run_leaping(stage.run(lambda: worker.ended >= 6))
    assert max(worker.turns) == 2


def test_good_batches_before_an_error_are_not_lost() -> None:
    worker = Worker()
    stage = Stage(worker)
    pieces = [
        Fetched("t", 0, [RawBatch(batch())], 8),
        Fetched("t", 0, [RawBatch(batch())], 9, error=KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "x")),
        Fetched("t", 0, [], 9, error=KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "x")),
    ]
    stage.input.piece = lambda tp: pieces.pop(0) if len(pieces) > 1 else pieces[0]
    run_leaping(stage.run(lambda: bool(stage.lanes.stopped())))
    assert sum(worker.turns) == 2 and "UNKNOWN_SERVER_ERROR" in stage.lanes.stopped()["t-0"]


def test_an_error_between_two_inputs_comes_again() -> None:
    """A lane that reads two logs: good batches of one before an error, then batches of the other, in one turn."""
    worker = Worker()
    stage, one, other = Stage(worker), ("t", 0), ("t.moved", 0)
    broken = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "x")
    failed: set[TopicPartition] = set()
    pieces = iter([Fetched(*one, [RawBatch(batch())], 8, error=broken)])

    async def start() -> dict[TopicPartition, int]:
        return {one: 7, other: 0}

    def piece(tp: TopicPartition) -> Fetched:
        if tp == other:
            return Fetched(*tp, [RawBatch(batch())], 8)
        failed.add(tp)
        return next(pieces, Fetched(*tp, [], 8, error=broken))

    async def fetch(*, ahead: bool) -> list[Fetched]:
        await asyncio.sleep(0.001)
        return [piece(tp) for tp in (one, other) if tp not in stage.input.paused | failed]

    worker.start, stage.input.fetch = start, fetch  # type: ignore[method-assign]  # one of two inputs
    stage.input.add = stage.input.seek  # type: ignore[attr-defined]
    stage.input.resume = lambda tp: (stage.input.paused.discard(tp), failed.discard(tp))  # type: ignore[assignment, func-returns-value]
    run_leaping(stage.run(lambda: bool(stage.lanes.stopped()) or worker.ended > 100))
    assert "UNKNOWN_SERVER_ERROR" in stage.lanes.stopped()["t-0"]


def test_an_input_that_is_no_longer_read_stays_paused() -> None:
    worker = Worker({("turn", 1): StartsOver("one input less")})
    stage, other = Stage(worker), ("t.moved", 0)
    starts = iter([{("t", 0): 7, other: 0}])

    async def start() -> dict[TopicPartition, int]:
        return next(starts, {("t", 0): 7})

    worker.start = start  # type: ignore[method-assign]
    stage.input.add = stage.input.seek  # type: ignore[attr-defined]
    run_leaping(stage.run(lambda: worker.ended > 3))
    assert other in stage.input.paused and ("t", 0) not in stage.input.paused


@pytest.mark.parametrize("step", [("turn", 2), ("take", 1), ("start", 1)])
def test_what_nobody_thought_of_holds_up_one_lane(step: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Worker({step: ValueError("timestamp -2")}), Worker()
    run_leaping(Stage(bad, good).run(lambda: bad.ended > 3 and good.ended > 3))
    (said,) = [record for record in caplog.records if "ValueError" in record.getMessage()]
    assert "t-0 starts again" in said.getMessage() and said.exc_info


def test_a_stop_lets_the_turn_end() -> None:
    worker = Worker({("turn", 1): lambda: asyncio.sleep(0.2)})
    stage = Stage(worker)
    run_leaping(stage.run(lambda: "turn" in worker.calls))
    assert worker.ended == 1


def test_a_changed_input_stops_the_lane_also_when_idle() -> None:
    worker = Worker({("check", 2): OperatorNeeded("grew")})
    stage = Stage(worker, refresh_ms=60_000)
    stage.input.fetch = lambda *, ahead: asyncio.sleep(0.001, [])  # type: ignore[method-assign]  # gives nothing
    run_leaping(stage.run(lambda: bool(stage.lanes.stopped())))
    assert stage.lanes.stopped() == {"t-0": "grew"}


def test_an_identity_that_can_not_be_taken_now_holds_up_nobody_else() -> None:
    """A partition without a leader: it is asked once, and again while the others are on their way."""
    away = Worker({("take", n): KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER) for n in range(1, 4)})
    good = Worker()
    stage = Stage(away, good)
    run_leaping(stage.run(lambda: good.ended > 3 and away.ended > 0))
    assert away.calls.count("take") >= 4 and not stage.lanes.stopped()


def test_a_stopped_lane_goes_on_when_an_operator_has_decided() -> None:
    worker = Worker({("turn", 1): OperatorNeeded("look")})
    stage = Stage(worker, refresh_ms=60_000)

    async def scene() -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(stage.run(lambda: worker.ended > 3))
            while not stage.lanes.stopped():  # noqa: ASYNC110  (there is no event to wait for)
                await asyncio.sleep(0.001)
            stage.lanes.retry(("t", 0))
            await running

    run_leaping(scene())
    assert worker.force == 1 and not stage.lanes.stopped()


def test_operators_commands_are_no_fights() -> None:
    """Each takes the identity, as another process would; the position says that it was an operator."""

    async def decide() -> None:
        worker.decided += 1

    fenced: dict[tuple[str, int], Any] = {("take", n): FENCED for n in (2, 3, 5, 6, 8, 9)}
    lost = {("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2, 3)}
    worker = Worker(lost | fenced | {("take", n): decide for n in (4, 7, 10)})
    stage = Stage(worker)
    run_leaping(stage.run(lambda: worker.ended > 3))
    assert worker.force == 3 and not stage.lanes.stopped()


def test_the_same_failure_for_a_long_time_is_told_in_the_position_until_it_is_over() -> None:
    worker = Worker({("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone") for n in range(1, 6)})
    stage = Stage(worker, refresh_ms=60_000, stalled_ms=200)
    seen: list[tuple[str, str]] = []

    def over() -> bool:
        seen.append(worker.told)
        return worker.ended > 2

    run_leaping(stage.run(over))
    assert any(stopped == "" and "gone" in stalled for stopped, stalled in seen)
    assert not stage.lanes.lanes["t", 0].stalled


def test_an_input_that_stays_away_is_a_stall() -> None:
    worker = Worker()
    stage = Stage(worker, refresh_ms=60_000, stalled_ms=100)
    stage.input.missing = 1 << 30
    run_leaping(stage.run(lambda: bool(worker.told[1])))
    assert "can't be found" in worker.told[1]


def test_a_coordinator_that_fences_often_is_no_rival() -> None:
    """After each power cut it fences everybody; as long as nobody else moved the position the lane goes on."""
    fenced: dict[tuple[str, int], Any] = {("take", n): FENCED for n in (2, 3, 5, 6, 8, 9)}
    worker = Worker(fenced | {("turn", n): KafkaError(ErrorCode.NETWORK_EXCEPTION) for n in (1, 2, 3)})
    worker.rivals = False
    stage = Stage(worker)
    run_leaping(stage.run(lambda: worker.ended > 3))
    assert worker.force == 3 and not stage.lanes.stopped()


LONG_S = 3600.0
SOME_BYTES = 1 << 20


def data(count: int = 1) -> Fetched:
    return Fetched("t", 0, [RawBatch(batch())] * count, 8)


MARKERS = Fetched("t", 0, [], 9)
FAILED = Fetched("t", 0, [], 8, error=KafkaError(ErrorCode.NETWORK_EXCEPTION))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (data(), FAILED),
        (data(), OperatorNeeded("stop")),
        (data(), data(SOME_BYTES // len(bytes(RawBatch(batch()))) + 1)),  # enough for a turn
        (MARKERS, FAILED),
    ],
)
def test_what_was_fetched_lingers_until_it_is_worth_a_transaction(first: Fetched, then: Fetched | Exception) -> None:
    async def ask() -> None:
        lane = Lane(("t", 0), Worker())
        lane.put(first, LONG_S)
        ready = asyncio.ensure_future(lane.ready(SOME_BYTES))
        for _ in range(5):
            lane.put(data(), LONG_S)
            await asyncio.sleep(0)
            assert not ready.done()
        if isinstance(then, Exception):
            lane.stop(then)
        else:
            lane.put(then, LONG_S)
        await asyncio.wait_for(ready, LIMIT_S)

    run_leaping(ask())


def test_markers_alone_wait_for_the_next_batch_and_go_with_it() -> None:
    async def ask() -> None:
        lane = Lane(("t", 0), Worker())
        for _ in range(3):
            lane.put(MARKERS)
        ready = asyncio.ensure_future(lane.ready(SOME_BYTES))
        await asyncio.sleep(0)
        assert not ready.done()
        lane.put(data())
        await asyncio.wait_for(ready, LIMIT_S)
        assert len(lane.next(SOME_BYTES)) == 4
        lane.put(MARKERS)
        await asyncio.wait_for(lane.ready(SOME_BYTES), LIMIT_S)  # and by themselves, a little later
        assert lane.next(SOME_BYTES) == [MARKERS]

    run_leaping(ask())


def test_turns_are_no_closer_than_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s: list[float] = []

    async def note(pause_s: float) -> None:
        waited_s.append(pause_s)

    async def ask(pace: Pace) -> None:
        for _ in range(4):
            await pace.wait()

    monkeypatch.setattr(asyncio, "sleep", note)
    run_leaping(ask(Pace()))
    assert waited_s == []
    # One turn in 1,000 seconds: each waits for all before it, whatever the time that the test itself takes.
    run_leaping(ask(Pace(0.001)))
    assert [round(pause_s, -3) for pause_s in waited_s] == [1000.0, 2000.0, 3000.0]


def test_a_look_that_nobody_thought_of_holds_up_nobody() -> None:
    worker, good = Worker({("check", 1): RuntimeError("unheard of")}), Worker()
    stage = Stage(worker, good)
    run_leaping(stage.run(lambda: worker.calls.count("check") > 2 and good.calls.count("check") > 2 and worker.ended > 3))
    assert not stage.lanes.stopped()


def test_a_lane_that_commits_nothing_while_records_wait_is_silent() -> None:
    worker = Worker()
    worker.position = replace(worker.position, committed_ms=time.time_ns() // 1_000_000 - 3_600_000)
    stage = Stage(worker)
    stage.input.ends = lambda tp: (0, 20, 20)  # type: ignore[assignment, method-assign]  # so far has the log come
    lane = stage.lanes.lanes["t", 0]
    states = set()

    def is_silent() -> bool:
        states.add(stage.lanes.view.state(lane)["state"])
        if lane.moving:
            lane.outlook.waits_since = -LONG_S  # so long have they waited
        return "silent" in states

    run_leaping(stage.run(is_silent))
    assert states == {"not begun", "copying", "silent"}
    assert stage.lanes.stopped() == {}


def test_what_holds_a_log_back_is_over_as_soon_as_its_end_moves() -> None:
    """Whoever looked up the transaction looks again later."""

    async def ask() -> None:
        stage = Stage(Worker())
        lane, tp = stage.lanes.lanes["t", 0], ("t", 0)
        lane.resolved.set()
        lane.moving = True
        lane.held_back[tp] = heldback.HoldWatch()
        lane.held_back[tp].note(heldback.Hold(heldback.LONG_AGO_MS, "waits"))
        for stable, end, state in ((7, 9, "waiting"), (9, 9, "copying"), (7, 7, "copying")):
            stage.input.ends = lambda tp: (0, stable, end)  # type: ignore[assignment, method-assign]  # noqa: B023  (called at once)
            assert stage.lanes.view.state(lane)["state"] == state

    run_leaping(ask())


def test_a_turn_that_hangs_is_named() -> None:
    async def ask() -> None:
        stage = Stage(Worker(), Worker())
        assert stage.lanes.view.hung() == []
        now = asyncio.get_running_loop().time()
        stage.lanes.lanes["t", 0].turn_since = now - laneview.TURN_MAX_S - 1
        stage.lanes.lanes["t", 1].turn_since = now
        assert stage.lanes.view.hung() == ["t-0"]

    run_leaping(ask())


def test_a_turn_is_noted_while_it_lasts() -> None:
    async def note() -> None:
        since.append(lane.turn_since)

    since: list[float] = []
    worker = Worker({("turn", 1): note, ("turn", 2): KafkaError(ErrorCode.NETWORK_EXCEPTION)})
    stage = Stage(worker)
    lane = stage.lanes.lanes["t", 0]
    run_leaping(stage.run(lambda: worker.calls.count("turn") > 2))
    assert since[0] < math.inf == lane.turn_since
