"""A broker's lease, renewed by writes of its session, in whichever home the tree is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock.broker.replication import leaseholder
from penstock.broker.replication.leaseholder import LeaseHolder
from penstock.broker.store.base import SessionLostError, Store, paths
from penstock.pyx.log.logmanager import LogManager
from support.store_homes import WAIT_S, EmbeddedHome, Home, Scenario, play
from support.zookeeper import ZooKeeper, ZooKeeperHome

Run = Callable[[Scenario], None]
NODE = paths.alive(7)


@pytest.fixture
def run(zookeeper: ZooKeeper) -> Run:
    """A function that plays a scenario in a ZooKeeper."""
    return lambda scenario: play(ZooKeeperHome(zookeeper.address), scenario)


async def held(holder: LeaseHolder) -> None:
    async with asyncio.timeout(WAIT_S):
        while holder.is_over():  # noqa: ASYNC110 - it is told to threads
            await asyncio.sleep(0.01)


@pytest.mark.kafka
def test_a_lease_is_held_in_a_session_and_over_at_its_end(run: Run) -> None:
    async def scenario(home: Home) -> None:
        holder = LeaseHolder(7, LogManager(), is_enabled=True)
        assert holder.is_over() and holder.left_ms == 0
        first, other = await home.session(), await home.session()
        renewing = asyncio.create_task(holder.run(first))
        await held(holder)
        left_ms = holder.left_ms
        assert left_ms is not None and 0 < left_ms <= first.session_timeout_ms * 2 / 3
        stat = await other.exists(NODE)
        assert stat is not None and stat.ephemeral_session == first.session
        await other.delete(NODE)  # By whoever it is: the lease needs a node, and makes it again.
        async with asyncio.timeout(WAIT_S):
            while await other.exists(NODE) is None:  # noqa: ASYNC110 - a watch would need as many looks
                await asyncio.sleep(0.05)
        await home.expire(first)
        async with asyncio.timeout(WAIT_S):
            await renewing
        holder.end()
        assert holder.is_over()
        # The node of a session that isn't known to be over is no obstacle.
        if await other.exists(NODE) is None:
            await other.create(NODE, ephemeral=True)
        second = await home.session()
        renewing = asyncio.create_task(holder.run(second))
        await held(holder)
        stat = await other.exists(NODE)
        assert stat is not None and stat.ephemeral_session == second.session
        renewing.cancel()
        await asyncio.wait([renewing])

    run(scenario)


def test_a_session_that_ends_by_its_owners_word_alone_is_as_good_as_a_lease(tmp_path: Path) -> None:
    async def scenario(home: Home) -> None:
        holder = LeaseHolder(7, LogManager(), is_enabled=True)
        await holder.run(await home.session())
        assert not holder.is_over()
        holder.end()
        assert holder.is_over()

    play(EmbeddedHome(tmp_path / "metadata.db"), scenario)


class SlowStore:
    """A store whose answers take a second."""

    session_timeout_ms = 6_000

    def __init__(self) -> None:
        self.now_ms = 100_000
        self.asked = 0

    async def create(self, path: str, **kind: bool) -> None:
        self.now_ms += 1_000
        self.asked += 1

    async def set(self, path: str, value: bytes) -> None:
        self.asked += 1
        raise SessionLostError("it is over")


def test_a_lease_begins_when_its_write_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """When that was answered proves nothing: the session may have ended in between."""
    store = SlowStore()
    monkeypatch.setattr(leaseholder, "boottime_ms", lambda: store.now_ms)

    async def scenario() -> int | None:
        holder = LeaseHolder(7, LogManager(), is_enabled=True)
        renewing = asyncio.create_task(holder.run(cast(Store, store)))
        async with asyncio.timeout(WAIT_S):
            while not store.asked or holder.is_over():  # noqa: ASYNC110 - it is told to threads
                await asyncio.sleep(0)
        left_ms = holder.left_ms
        renewing.cancel()
        await asyncio.wait([renewing])
        return left_ms

    assert asyncio.run(scenario()) == 6_000 * 2 // 3 - 1_000


@pytest.mark.kafka
def test_without_leases_nothing_is_written_and_none_is_ever_over(run: Run) -> None:
    async def scenario(home: Home) -> None:
        holder = LeaseHolder(7, LogManager(), is_enabled=False)
        store = await home.session()
        await holder.run(store)
        holder.end()
        assert not holder.is_over() and holder.left_ms is None
        assert await store.exists(NODE) is None

    run(scenario)
