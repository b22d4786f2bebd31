"""Proposals of many partitions: one request is under way to a controller, and what comes meanwhile goes in the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from unit.broker.test_late_roles import replicas

from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import AlterPartition, AlterPartitionAnswer, LeaderAndIsrRequest, Partition, PartitionRole
from penstock.broker.replication.proposals import TOGETHER_MAX
from penstock.broker.replication.replicas import Replicas
from penstock.errors import ErrorCode
from penstock.pyx.log.logmanager import LogManager

US, EPOCHS = 1, {1: 5, 2: 6, 3: 7}
FIRST, SECOND = 2, 3
WAIT_S = 60.0


class Controllers:
    """Brokers 2 and 3: one is the controller. A request waits there until it is let go."""

    def __init__(self) -> None:
        self.now = FIRST
        self.asked: list[tuple[int, list[Partition]]] = []
        self._gates: list[asyncio.Future[None]] = []

    async def alter(self, controller: int, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        self.asked.append((controller, [ask.partition for ask in asks]))
        gate = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        await gate
        state = LeaderAndIsr(US, 0, (1, 2, 3), partition_epoch=1)
        return [AlterPartitionAnswer(ask, ErrorCode.NONE, state) for ask in asks]

    async def until_asked(self, requests: int) -> None:
        while len(self.asked) < requests:  # noqa: ASYNC110 - nothing tells it but a look
            await asyncio.sleep(0)

    def let_go(self, request: int, error: OSError | None = None) -> None:
        if error is None:
            self._gates[request].set_result(None)
        else:
            self._gates[request].set_exception(error)


async def lead(held: Replicas, logs: LogManager, count: int) -> list[Partition]:
    """Lead so many partitions, of which broker 3 has all that there is and isn't in sync."""
    partitions = [("t", index) for index in range(count)]
    state = LeaderAndIsr(US, 0, (1, 2), partition_epoch=0, min_isr=2, is_new=True)
    told = tuple(PartitionRole(one, bytes([1] * 16), (1, 2, 3), state, EPOCHS) for one in partitions)
    await held.take(LeaderAndIsrRequest(1, 1, US, EPOCHS[US], told), lambda: EPOCHS[US])
    for name, index in partitions:
        for replica in (2, 3):
            outcome = logs.replica_fetched(
                name, index, replica=replica, broker_epoch=EPOCHS[replica], leader_epoch=0, offset=0, last_epoch=-1,
                now_ms=time.monotonic_ns() // 1_000_000,
            )  # fmt: skip
            assert outcome.error == 0
    return partitions


def play(path: Path, story: Callable[[Replicas, LogManager, Controllers], Awaitable[None]]) -> None:
    controllers = Controllers()
    with replicas(path, controllers.alter, controller=lambda: controllers.now) as (held, logs):
        asyncio.run(asyncio.wait_for(story(held, logs, controllers), WAIT_S))


def test_what_is_ready_while_a_request_is_under_way_goes_in_the_next_one(tmp_path: Path) -> None:
    async def story(held: Replicas, logs: LogManager, controllers: Controllers) -> None:
        first, *rest = await lead(held, logs, TOGETHER_MAX + 50)
        await held.proposals.propose([first])
        await controllers.until_asked(1)
        for partition in rest:
            await held.proposals.propose([partition])
        assert controllers.asked == [(FIRST, [first])]
        controllers.let_go(0)
        await controllers.until_asked(2)
        controllers.let_go(1)
        await controllers.until_asked(3)
        assert controllers.asked[1:] == [(FIRST, rest[:TOGETHER_MAX]), (FIRST, rest[TOGETHER_MAX:])]
        controllers.let_go(2)
        while held.proposals.isr_expands < len(rest) + 1:  # noqa: ASYNC110 - nothing tells it but a look
            await asyncio.sleep(0.01)

    play(tmp_path, story)


def test_a_controller_that_does_not_answer_holds_up_no_later_one(tmp_path: Path) -> None:
    async def story(held: Replicas, logs: LogManager, controllers: Controllers) -> None:
        one, other = await lead(held, logs, 2)
        await held.proposals.propose([one])
        await controllers.until_asked(1)
        controllers.now = SECOND
        await held.proposals.propose([other])
        await controllers.until_asked(2)
        assert controllers.asked == [(FIRST, [one]), (SECOND, [other])]

    play(tmp_path, story)


def test_a_request_that_is_lost_holds_up_none_that_wait(tmp_path: Path) -> None:
    async def story(held: Replicas, logs: LogManager, controllers: Controllers) -> None:
        one, other = await lead(held, logs, 2)
        await held.proposals.propose([one])
        await controllers.until_asked(1)
        await held.proposals.propose([other])
        controllers.let_go(0, ConnectionError("the connection is lost"))
        await controllers.until_asked(2)
        assert controllers.asked == [(FIRST, [one]), (FIRST, [other])]

    play(tmp_path, story)
