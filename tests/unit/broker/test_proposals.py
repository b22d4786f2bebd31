"""Proposals of many partitions: one request is under way to a controller, and what comes meanwhile goes in the next one. A scan
looks only at partitions in which something may be due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from unit.broker.test_late_roles import replicas

from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.log import Log
from penstock.broker.cluster.messages import AlterPartition, AlterPartitionAnswer, LeaderAndIsrRequest, Partition, PartitionRole
from penstock.broker.cluster.replica import Replica
from penstock.broker.replication.proposals import TOGETHER_MAX
from penstock.broker.replication.replicalogs import ReplicaLogs
from penstock.broker.replication.replicas import Replicas
from penstock.errors import ErrorCode
from penstock.pyx.log.logmanager import LogManager

US, EPOCHS = 1, {1: 5, 2: 6, 3: 7}
FIRST, SECOND = 2, 3
LAG_MS = 1_000
WAIT_S = 60.0


class World:
    """Brokers 2 and 3, of which one is the controller, around a leader. A request waits at a controller until it is let go."""

    def __init__(self, path: Path) -> None:
        self.now_ms = time.monotonic_ns() // 1_000_000
        self.controller = FIRST
        self.asked: list[tuple[int, list[Partition]]] = []
        self.held: Replicas
        self.logs: LogManager
        self._path = path
        self._gates: list[asyncio.Future[None]] = []

    def play(self, story: Callable[[World], Awaitable[None]]) -> None:
        clock, controller = (lambda: self.now_ms), (lambda: self.controller)
        with replicas(self._path, self._alter, lag_ms=LAG_MS, controller=controller, monotonic_ms=clock) as made:
            self.held, self.logs = made
            asyncio.run(asyncio.wait_for(story(self), WAIT_S))

    async def lead(self, count: int, isr: tuple[int, ...] = (1, 2)) -> list[Partition]:
        """Lead so many partitions, of which all have all that there is; by default broker 3 isn't in sync."""
        partitions = [("t", index) for index in range(count)]
        state = LeaderAndIsr(US, 0, isr, partition_epoch=0, min_isr=2, is_new=True)
        told = tuple(PartitionRole(one, bytes([1] * 16), (1, 2, 3), state, EPOCHS) for one in partitions)
        await self.held.take(LeaderAndIsrRequest(1, 1, US, EPOCHS[US], told), lambda: EPOCHS[US])
        self.now_ms = time.monotonic_ns() // 1_000_000  # The leads have begun by that clock.
        for partition in partitions:
            for replica in (2, 3):
                self.fetch(partition, replica)
        return partitions

    def fetch(self, partition: Partition, replica: int) -> None:
        outcome = self.logs.replica_fetched(
            *partition, replica=replica, broker_epoch=EPOCHS[replica], leader_epoch=0, offset=0, last_epoch=-1,
            now_ms=self.now_ms,
        )  # fmt: skip
        assert outcome.error == 0

    async def _alter(self, controller: int, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        self.asked.append((controller, [ask.partition for ask in asks]))
        gate = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        await gate
        return [AlterPartitionAnswer(ask, ErrorCode.NONE, LeaderAndIsr(US, 0, ask.isr, partition_epoch=1)) for ask in asks]

    async def until_asked(self, requests: int) -> None:
        while len(self.asked) < requests:  # noqa: ASYNC110 - nothing tells it but a look
            await asyncio.sleep(0)

    def let_go(self, request: int, error: OSError | None = None) -> None:
        if error is None:
            self._gates[request].set_result(None)
        else:
            self._gates[request].set_exception(error)


def test_what_is_ready_while_a_request_is_under_way_goes_in_the_next_one(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        first, *rest = await world.lead(TOGETHER_MAX + 50)
        await world.held.proposals.propose([first])
        await world.until_asked(1)
        for partition in rest:
            await world.held.proposals.propose([partition])
        assert world.asked == [(FIRST, [first])]
        world.let_go(0)
        await world.until_asked(2)
        world.let_go(1)
        await world.until_asked(3)
        assert world.asked[1:] == [(FIRST, rest[:TOGETHER_MAX]), (FIRST, rest[TOGETHER_MAX:])]
        world.let_go(2)
        while world.held.proposals.isr_expands < len(rest) + 1:  # noqa: ASYNC110 - nothing tells it but a look
            await asyncio.sleep(0.01)

    World(tmp_path).play(story)


def test_a_controller_that_does_not_answer_holds_up_no_later_one(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        one, other = await world.lead(2)
        await world.held.proposals.propose([one])
        await world.until_asked(1)
        world.controller = SECOND
        await world.held.proposals.propose([other])
        await world.until_asked(2)
        assert world.asked == [(FIRST, [one]), (SECOND, [other])]

    World(tmp_path).play(story)


def test_a_request_that_is_lost_holds_up_none_that_wait(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        one, other = await world.lead(2)
        await world.held.proposals.propose([one])
        await world.until_asked(1)
        await world.held.proposals.propose([other])
        world.let_go(0, ConnectionError("the connection is lost"))
        await world.until_asked(2)
        assert world.asked == [(FIRST, [one]), (FIRST, [other])]

    World(tmp_path).play(story)


def test_a_scan_looks_only_where_something_may_be_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All replicas are in sync: thousands of such partitions cost next to nothing. Then a member of one lags, and a follower of
    another one has heard of a newer leader."""
    looked: list[Partition] = []
    look = ReplicaLogs.look

    def noting(held: ReplicaLogs, replica: Replica) -> Log:
        looked.append(replica.partition)
        return look(held, replica)

    async def story(world: World) -> None:
        partitions = await world.lead(4, isr=(1, 2, 3))
        monkeypatch.setattr(ReplicaLogs, "look", noting)
        await world.held.proposals.scan()
        assert not looked
        lagging, fenced = partitions[1], partitions[2]
        world.logs.fence(*fenced)
        world.now_ms += LAG_MS + 1
        for partition in partitions:
            if partition != fenced:
                world.fetch(partition, 2)
            if partition not in (fenced, lagging):
                world.fetch(partition, 3)
        await world.held.proposals.scan()
        await world.until_asked(1)
        assert set(looked) == {lagging, fenced} and world.asked == [(FIRST, [lagging])]
        assert fenced not in world.held.roles.led

    World(tmp_path).play(story)


def test_a_scan_looks_where_a_replica_is_not_in_sync_or_a_proposal_has_no_answer(tmp_path: Path) -> None:
    """What was refused before is proposed again, and what was lost is repeated."""

    async def story(world: World) -> None:
        (one,) = await world.lead(1)
        await world.held.proposals.scan()
        await world.until_asked(1)
        world.let_go(0, ConnectionError("the connection is lost"))
        world.now_ms += LAG_MS
        await world.held.proposals.scan()
        await world.until_asked(2)
        assert world.asked == [(FIRST, [one]), (FIRST, [one])]

    World(tmp_path).play(story)
