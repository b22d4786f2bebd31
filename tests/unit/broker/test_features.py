"""Features of the cluster: what is updated at one time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.broker.configs.features import GROUP_VERSION, TRANSACTION_VERSION, Features
from penstock.broker.store.embedded import EmbeddedStore


def test_updates_at_one_time_all_count(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "store.db")
        features = Features()
        await features.load(store)
        await asyncio.gather(features.update({GROUP_VERSION: 0}), features.update({TRANSACTION_VERSION: 1}))
        read = Features()
        await read.load(store)
        for one in (features, read):
            assert (one.level(GROUP_VERSION), one.level(TRANSACTION_VERSION)) == (0, 1)
        await store.close()

    asyncio.run(run())
