"""Producer ids that several brokers take from one metadata store at the same time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from penstock.broker.coordination import producerids
from penstock.broker.coordination.producerids import BLOCK_SIZE, ProducerIds
from penstock.errors import ErrorCode, KafkaError
from support.store_homes import WAIT_S, EmbeddedHome, Home, play
from support.zookeeper import CuttingProxy, ZooKeeper, ZooKeeperHome


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


@pytest.mark.kafka
def test_a_broker_that_is_cut_off_from_the_store_sends_its_clients_away(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producerids, "STORE_WAIT_S", 0.2)
    proxy = CuttingProxy(zookeeper.port)

    async def none_known() -> int:
        return -1

    async def scenario(home: Home) -> None:
        ids = ProducerIds(await home.session(), 1, none_known, lambda: 0)
        proxy.cut(refuse=True)
        for _ in range(2):
            with pytest.raises(KafkaError) as caught:
                async with asyncio.timeout(WAIT_S):
                    await ids.next()
            assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    try:
        play(ZooKeeperHome(proxy.address), scenario)
    finally:
        proxy.close()


@pytest.mark.kafka
def test_the_first_block_is_there_before_the_store_goes_away(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producerids, "STORE_WAIT_S", 0.2)
    monkeypatch.setattr(producerids, "FIRST_RETRY_S", 0.01)
    proxy = CuttingProxy(zookeeper.port)
    closed_logs = 3

    async def known_by_own_logs() -> int:
        nonlocal closed_logs
        if closed_logs:
            closed_logs -= 1
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "logs are not open yet")
        return 77

    async def scenario(home: Home) -> None:
        ids = ProducerIds(await home.session(), 1, known_by_own_logs, lambda: 0)
        async with asyncio.timeout(WAIT_S):
            await ids.take_first_block()
            assert not closed_logs
            proxy.cut(refuse=True)
            given = [await ids.next() for _ in range(BLOCK_SIZE)]
            assert min(given) > 77 and len(set(given)) == BLOCK_SIZE
            with pytest.raises(KafkaError) as caught:
                await ids.next()
        assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    try:
        play(ZooKeeperHome(proxy.address), scenario)
    finally:
        proxy.close()
