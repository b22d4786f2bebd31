"""A controller epoch is believed if the metadata store has seen it elected."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.replication import electedepochs
from penstock.broker.replication.electedepochs import LOOK_MS, UNSEEN, ElectedEpochs
from penstock.broker.store.base import Store, paths
from support.store_homes import EmbeddedHome, Home, play
from support.zookeeper import CuttingProxy, ZooKeeper, ZooKeeperHome


class Clock:
    """One that a test moves."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


async def elect(store: Store, epoch: int) -> None:
    """What a controller leaves in the store before it sends anything."""
    await store.set(paths.CONTROLLER_EPOCH, b"%d" % epoch)


def test_an_epoch_is_believed_once_it_was_elected(tmp_path: Path) -> None:
    async def scenario(home: Home) -> None:
        store, clock = await home.session(), Clock()
        await store.create(paths.CONTROLLER_EPOCH, b"5")
        epochs = ElectedEpochs(store, clock)
        assert await epochs.has(5, -1) and await epochs.has(4, -1)
        assert not await epochs.has(6, 5)
        await elect(store, 6)
        clock.ms += LOOK_MS
        assert await epochs.has(6, 5)
        # What is believed already needs no store: it may have been put back from a copy.
        await elect(store, 1)
        clock.ms += LOOK_MS
        assert await epochs.has(6, 6) and not await epochs.has(7, 6)

    play(EmbeddedHome(tmp_path / "metadata.db"), scenario)


def test_whoever_asks_the_store_is_not_asked_each_time(tmp_path: Path) -> None:
    async def scenario(home: Home) -> None:
        store, clock = await home.session(), Clock()
        await store.create(paths.CONTROLLER_EPOCH, b"5")
        epochs = ElectedEpochs(store, clock)
        assert not await epochs.has(6, 5)
        await elect(store, 6)
        assert not await epochs.has(6, 5), "the store was asked again at once"
        clock.ms += LOOK_MS
        assert await epochs.has(6, 5)

    play(EmbeddedHome(tmp_path / "metadata.db"), scenario)


@pytest.mark.kafka
def test_while_the_store_is_away_a_controller_is_believed_that_is_not_far_ahead(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(electedepochs, "STORE_WAIT_S", 0.2)
    proxy = CuttingProxy(zookeeper.port)

    async def scenario(home: Home) -> None:
        epochs = ElectedEpochs(await home.session(), Clock())
        proxy.cut(refuse=True)
        assert await epochs.has(8, 7)
        assert await epochs.has(7 + UNSEEN, 7)
        assert not await epochs.has(8 + UNSEEN, 7)
        assert await epochs.has(UNSEEN, -1)

    try:
        play(ZooKeeperHome(proxy.address), scenario)
    finally:
        proxy.close()
