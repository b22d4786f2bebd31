"""The life of lanes, with workers and a fetcher that follow a script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.fetcher import Fetched
from penstock.pipeline.lanes import LANE_PIECES, Lanes, OperatorNeeded
from penstock.pipeline.metadata import Cluster
from penstock.pipeline.transaction import Fenced
from penstock.pyx.record.rawbatch import RawBatch
from support.logs import batch

LIMIT_S = 20.0
FENCED = Fenced(ErrorCode.PRODUCER_FENCED, "somebody")


class Worker:
    """Notes each call; `plan` has what the n-th call of a kind raises or awaits."""

    def __init__(self, plan: dict[tuple[str, int], Any] | None = None) -> None:
        self.plan = plan or {}
        self.calls: list[str] = []
        self.turns: list[int] = []
        self.ended = 0

    async def _call(self, kind: str) -> None:
        self.calls.append(kind)
        step = self.plan.get((kind, self.calls.count(kind)))
        if isinstance(step, Exception):
            raise step
        if step is not None:
            await step()

    async def take(self) -> None:
        await self._call("take")

    async def start(self) -> int:
        await self._call("start")
        return 7

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        self.turns.append(len(fetched))
        await self._call("turn")
        self.ended += 1

    async def refresh(self) -> None:
        await self._call("refresh")

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
        return Cluster()

    def assign(self, offsets: dict[tuple[str, int], int]) -> None:
        self.offsets = dict(offsets)

    def seek(self, tp: tuple[str, int], offset: int) -> None:
        self.offsets[tp] = offset

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
    def __init__(self, *workers: Worker, refresh_ms: int = 50) -> None:
        self.input = Input()
        self.workers = {("t", i): worker for i, worker in enumerate(workers)}
        fetcher: Any = self.input
        self.lanes = Lanes(fetcher, self.workers, log.get("test"), refresh_ms, 10)

    async def run(self, until: Callable[[], bool]) -> None:
        await self.lanes.take()
        task = asyncio.ensure_future(self.lanes.run())
        async with asyncio.timeout(LIMIT_S):
            while not until() and not task.done():  # noqa: ASYNC110  (there is no event to wait for)
                await asyncio.sleep(0.001)
        if task.done():
            await task
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def first_cause(error: BaseException) -> BaseException:
    return first_cause(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def test_what_needs_an_operator_stops_one_lane_whose_position_is_kept() -> None:
    bad, good = Worker({("turn", 2): OperatorNeeded("look")}), Worker()
    stage = Stage(bad, good)
    asyncio.run(stage.run(lambda: bad.calls.count("refresh") >= 2 and good.ended > 20))
    assert stage.lanes.stopped() == {"t-0": "look"}
    assert bad.calls.count("turn") == 2
    assert bad.calls[bad.calls.index("refresh") - 1] == "take"


def test_an_identity_that_needs_an_operator_stops_one_lane() -> None:
    bad, good = Worker({("take", 1): OperatorNeeded("look")}), Worker()
    stage = Stage(bad, good)
    asyncio.run(stage.run(lambda: good.ended > 3))
    assert stage.lanes.stopped() == {"t-0": "look"} and "start" not in bad.calls


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.REQUEST_TIMED_OUT), OSError("gone"), FENCED])
def test_after_a_failure_the_identity_is_taken_again(error: Exception) -> None:
    worker = Worker({("turn", 2): error})
    stage = Stage(worker)
    asyncio.run(stage.run(lambda: worker.ended >= 3))
    calls = [call for call in worker.calls if call != "check"]
    assert calls[:7] == ["take", "start", "turn", "turn", "take", "start", "turn"]
    assert not stage.lanes.stopped()


def test_an_identity_that_somebody_else_has_ends_it_all() -> None:
    fenced = {("take", n): FENCED for n in (2, 3)}
    worker = Worker({("turn", 1): KafkaError(ErrorCode.NETWORK_EXCEPTION), **fenced})
    with pytest.raises(BaseException) as caught:
        asyncio.run(Stage(worker, Worker()).run(lambda: False))
    assert first_cause(caught.value) is FENCED


@pytest.mark.parametrize("step", [("take", 1), ("take", 2), ("refresh", 1)])
def test_a_transaction_that_took_too_long_is_nobody_else(step: tuple[str, int]) -> None:
    """The coordinator's timeout fences too; only an identity that can't be taken again is somebody else's."""
    worker = Worker({("turn", 1): KafkaError(ErrorCode.NETWORK_EXCEPTION), ("start", 2): OSError("gone"), step: FENCED})
    stage = Stage(worker, refresh_ms=50)
    stage.input.missing = 3 if step[0] == "refresh" else 0
    asyncio.run(stage.run(lambda: worker.ended > 2))
    assert not stage.lanes.stopped() and step[0] in worker.calls


def test_while_the_input_is_away_positions_are_kept() -> None:
    worker = Worker()
    stage = Stage(worker, refresh_ms=150)
    stage.input.missing = 4
    asyncio.run(stage.run(lambda: worker.ended > 0))
    calls = [call for call in worker.calls if call != "check"]
    assert calls[0] == "take" and calls[1:3] == ["take", "refresh"] and "start" in calls


def test_an_idle_position_is_kept() -> None:
    worker = Worker()
    stage = Stage(worker)
    stage.input.piece = lambda tp: Fetched(*tp, [], 7)
    stage.input.fetch = lambda *, ahead: asyncio.sleep(0.001, [])  # type: ignore[method-assign]  # gives nothing
    asyncio.run(stage.run(lambda: worker.calls.count("refresh") >= 3))
    assert worker.calls.count("take") == 1


def test_what_waits_is_bounded_and_taken_at_once() -> None:
    worker = Worker({("turn", n): lambda: asyncio.sleep(0.1) for n in range(1, 10)})
    stage = Stage(worker)
    asyncio.run(stage.run(lambda: worker.ended >= 4))
    assert max(worker.turns) == LANE_PIECES


def test_a_turn_takes_no_more_once_it_has_enough() -> None:
    worker = Worker({("turn", n): lambda: asyncio.sleep(0.05) for n in range(1, 10)})
    stage = Stage(worker)
    stage.lanes._turn_bytes = len(batch()) + 1
    asyncio.run(stage.run(lambda: worker.ended >= 6))
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
    asyncio.run(stage.run(lambda: bool(stage.lanes.stopped())))
    assert sum(worker.turns) == 2 and "UNKNOWN_SERVER_ERROR" in stage.lanes.stopped()["t-0"]


def test_a_stop_lets_the_turn_end() -> None:
    worker = Worker({("turn", 1): lambda: asyncio.sleep(0.2)})
    stage = Stage(worker)
    asyncio.run(stage.run(lambda: "turn" in worker.calls))
    assert worker.ended == 1


def test_a_changed_input_stops_the_lane_also_when_idle() -> None:
    worker = Worker({("check", 2): OperatorNeeded("grew")})
    stage = Stage(worker, refresh_ms=60_000)
    stage.input.fetch = lambda *, ahead: asyncio.sleep(0.001, [])  # type: ignore[method-assign]  # gives nothing
    asyncio.run(stage.run(lambda: bool(stage.lanes.stopped())))
    assert stage.lanes.stopped() == {"t-0": "grew"}
