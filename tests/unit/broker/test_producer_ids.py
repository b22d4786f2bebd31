"""Producer ids that several brokers take from one metadata store at the same time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from penstock.broker.coordination.producerids import BLOCK_SIZE, ProducerIds
from support.store_homes import EmbeddedHome, Home, play
from support.zookeeper import ZooKeeper, ZooKeeperHome


@pytest.fixture(params=["embedded", pytest.param("ZooKeeper", marks=pytest.mark.kafka)])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param == "embedded":
        return EmbeddedHome(tmp_path / "metadata.db")
    server: ZooKeeper = request.getfixturevalue("zookeeper")
    return ZooKeeperHome(server.address)


@pytest.mark.parametrize("now_ms", [0, time.time_ns() // 1_000_000], ids=["a clock that is behind", "a clock"])
def test_no_two_brokers_give_the_same(home: Home, now_ms: int) -> None:
    async def known_by_own_logs() -> int:
        return 77

    async def scenario(home: Home) -> None:
        brokers = [ProducerIds(await home.session(), node, known_by_own_logs, lambda: now_ms) for node in (1, 2, 3)]

        async def take(ids: ProducerIds) -> list[int]:
            found = []
            for count in range(3 * BLOCK_SIZE):
                found.append(await ids.next())
                if count % 100 == 0:
                    await asyncio.sleep(0)
            return found

        taken = await asyncio.gather(*map(take, brokers))
        given = [number for found in taken for number in found]
        assert len(set(given)) == len(given) == 9 * BLOCK_SIZE
        assert min(given) > 77
        assert all(found == sorted(found) for found in taken)

    play(home, scenario)
