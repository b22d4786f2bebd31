"""Waits for the commit, over real logs: the other replicas' fetches are made by hand, as network threads make them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.replication.commits import Commits
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.replicatable import Replica
from support.dataplane import batch, topic_id
from support.harness import topic_name
from support.logs import LOGS
from support.onloop import on_loop

US_EPOCH, EPOCHS = 50, {1: 101, 2: 102}
LOST, LATE = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    made = topic_name("commits")
    LOGS.open_replica(made, topic_id(made), 0, str(tmp_path), {})
    lead(made)
    yield made
    if (made, 0) in LOGS.partitions():
        LOGS.delete(made, 0)


def lead(name: str, epoch: int = 3, version: int = 0, isr: tuple[int, ...] = (1, 2)) -> None:
    """This broker leads; `isr`: the others that are in sync."""
    replicas = [Replica(one, one in isr, one in isr, EPOCHS[one]) for one in EPOCHS]
    assert LOGS.set_leader(
        name, 0, broker_epoch=US_EPOCH, leader_epoch=epoch, partition_epoch=version, replicas=replicas, enough=2
    )


def follow(name: str, epoch: int, version: int) -> None:
    assert LOGS.set_follower(
        name, 0, broker_epoch=US_EPOCH, leader=1, leader_epoch=epoch, partition_epoch=version, unclean_epoch=-1
    )


def fetch(name: str, replica: int, offset: int, epoch: int = 3) -> None:
    """Another replica has all below an offset."""
    done = LOGS.replica_fetched(
        name, 0, replica=replica, broker_epoch=EPOCHS[replica], leader_epoch=epoch, offset=offset,
        last_epoch=epoch if offset else -1, now_ms=time.monotonic_ns() // 1_000_000,
    )  # fmt: skip
    assert done.error == 0 and done.diverging is None


@asynccontextmanager
async def hearing() -> AsyncIterator[Commits]:
    commits = Commits(LOGS)
    commits.start()
    try:
        yield commits
    finally:
        await commits.stop()


async def passes() -> None:
    """Let the loop look at its descriptors, more than once."""
    for _ in range(5):
        await asyncio.sleep(0)


@on_loop
async def test_a_wait_ends_when_all_in_sync_replicas_have_fetched_past_it(name: str) -> None:
    async with hearing() as commits:
        first, second = LOGS.append(name, 0, batch([b"1"])), LOGS.append(name, 0, batch([b"2"]))
        assert (first.waits, first.needed, second.needed) == (True, 1, 2)
        waits = [asyncio.create_task(commits.wait((name, 0), one.needed, 3)) for one in (second, first)]
        await passes()
        fetch(name, 1, 2)
        fetch(name, 2, 1)
        assert await waits[1] == 0
        await passes()
        assert not waits[0].done()
        fetch(name, 2, 2)
        assert await waits[0] == 0
        assert await commits.wait((name, 0), 2, 3) == 0


@on_loop
async def test_waits_are_answered_in_the_order_of_the_log(name: str) -> None:
    over: list[int] = []

    async def wait(commits: Commits, needed: int) -> None:
        assert await commits.wait((name, 0), needed, 3) == 0
        over.append(needed)

    async with hearing() as commits:
        for _ in range(4):
            LOGS.append(name, 0, batch([b"x"]))
        waits = [asyncio.create_task(wait(commits, needed)) for needed in (4, 2, 3, 1)]
        await passes()
        for replica in EPOCHS:
            fetch(name, replica, 4)
        await asyncio.gather(*waits)
    assert over == [1, 2, 3, 4]


@on_loop
async def test_a_lost_lead_ends_a_wait_though_it_is_won_again_at_once(name: str) -> None:
    async with hearing() as commits:
        appended = LOGS.append(name, 0, batch([b"x"]))
        wait = asyncio.create_task(commits.wait((name, 0), appended.needed, 3))
        await passes()
        follow(name, 4, 1)
        lead(name, 5, 2)
        for replica in EPOCHS:
            fetch(name, replica, 0, 5)
        later = asyncio.create_task(commits.wait((name, 0), appended.needed, 5))
        assert await wait == LOST
        await passes()
        assert not later.done()
        LOGS.fence_all()
        assert await later == LOST
        assert await commits.wait((name, 0), 0, 5) == LOST


@on_loop
async def test_a_lead_that_goes_on_in_a_new_epoch_keeps_its_waits(name: str) -> None:
    async with hearing() as commits:
        appended = LOGS.append(name, 0, batch([b"x"]), 3)
        wait = asyncio.create_task(commits.wait((name, 0), appended.needed, 3))
        await passes()
        lead(name, 4, 1, isr=(1,))
        await passes()
        assert not wait.done()
        assert LOGS.append(name, 0, batch([b"y"]), 3).base_offset == 1
        done = LOGS.replica_fetched(
            name, 0, replica=1, broker_epoch=EPOCHS[1], leader_epoch=4, offset=1, last_epoch=3, now_ms=0
        )  # fmt: skip
        assert done.error == 0 and await wait == 0


@on_loop
async def test_time_ends_a_wait_and_the_record_stays(name: str) -> None:
    async with hearing() as commits:
        appended = LOGS.append(name, 0, batch([b"x"]))
        assert await commits.wait((name, 0), appended.needed, 3, timeout_ms=1) == LATE
        lead(name, 3, 1, isr=())
        assert await commits.wait((name, 0), appended.needed, 3, timeout_ms=1) == LATE
        lead(name, 3, 2, isr=(1,))
        fetch(name, 1, 1)
        assert await commits.wait((name, 0), appended.needed, 3, timeout_ms=1) == 0


@on_loop
async def test_a_log_that_is_closed_or_gone_ends_its_waits(name: str) -> None:
    async with hearing() as commits:
        appended = LOGS.append(name, 0, batch([b"x"]))
        wait = asyncio.create_task(commits.wait((name, 0), appended.needed, 3))
        await passes()
        LOGS.delete(name, 0)
        assert await wait == LOST
        assert await commits.wait((name, 0), appended.needed, 3) == LOST


@on_loop
async def test_a_coordinators_append_needs_the_lead_since_its_epoch_and_enough_replicas(name: str) -> None:
    def refused(led_since: int) -> int:
        with pytest.raises(KafkaError) as raised:
            LOGS.append(name, 0, batch([b"x"]), led_since)
        return raised.value.code

    follow(name, 4, 1)
    lead(name, 5, 2)
    assert refused(3) == refused(4) == LOST
    assert LOGS.append(name, 0, batch([b"x"]), 5).base_offset == 0
    lead(name, 5, 3, isr=())
    assert refused(5) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert LOGS.offsets(name, 0).log_end == 1


@on_loop
async def test_on_one_node_nothing_waits(tmp_path: Path) -> None:
    name = topic_name("alone")
    LOGS.lead(name, topic_id(name), 0, 7, str(tmp_path), {})
    try:
        appended = LOGS.append(name, 0, batch([b"x"]), 7)
        assert (appended.waits, appended.needed) == (False, 1)
        assert await Commits(LOGS).wait((name, 0), appended.needed, 7) == 0
    finally:
        LOGS.delete(name, 0)


@on_loop
async def test_an_eventfd_is_quiet_once_what_it_says_is_taken(name: str) -> None:
    """One that isn't read keeps the loop turning."""
    LOGS.take_entrants()
    LOGS.take_moved()
    appended = LOGS.append(name, 0, batch([b"x"]))
    assert LOGS.committed(name, 0, appended.needed, 3) is None
    lead(name, 3, 1, isr=())
    lead(name, 3, 2, isr=(1,))
    fetch(name, 1, 1)
    fetch(name, 2, 1)
    assert LOGS.take_moved() == [(name, 0)] and LOGS.take_entrants() == [(name, 0)]
    for fd in (LOGS.moved_fd, LOGS.entrants_fd):
        with pytest.raises(BlockingIOError):
            os.eventfd_read(fd)
