"""Which controller epochs the metadata store has seen elected.

A controller writes its epoch to the store before it sends a request. So a request of a higher epoch comes from no controller.
If a broker believed it, the next election would have to go on above it, and an epoch has 32 bits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock import log
from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.store.base import Store, StoreError, paths
from penstock.broker.store.values import INT_MAX, whole_number

STORE_WAIT_S = 2.0
"""How long a controller's first request waits for the store."""
LOOK_MS = 100
"""The store is asked so often at most, whoever sends requests. A controller sends again what came between two looks."""
UNSEEN = 1_000
"""How far above the newest known epoch one is believed while the store doesn't answer."""

_log = log.get(__name__)


class ElectedEpochs:
    """What one broker knows of them. monotonic_ms: the clock."""

    def __init__(self, store: Store, monotonic_ms: Callable[[], int]) -> None:
        self._store = store
        self._monotonic_ms = monotonic_ms
        self._newest = NO_EPOCH
        self._looked_ms: int | None = None
        self._looking = asyncio.Lock()
        self._said = NO_EPOCH

    async def has(self, epoch: int, known: int) -> bool:
        """Whether a controller of that epoch was elected. known: the newest epoch that this broker believes already."""
        if epoch <= max(known, self._newest):
            return True
        async with self._looking:
            answers = await self._look()
        if epoch <= self._newest or (not answers and epoch <= max(known, 0) + UNSEEN):
            return True
        if epoch != self._said:
            self._said = epoch
            _log.warning(
                "a request of controller epoch %d is refused: the newest epoch in the metadata store is %d\n"
                "hint: let only brokers reach the listener `inter.broker.listener.name`", epoch, self._newest,
            )  # fmt: skip
        return False

    async def _look(self) -> bool:
        """Read the newest epoch. Whether the store answers."""
        now_ms = self._monotonic_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return True
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await self._store.sync()  # A server that lags may not know the election yet.
                data, _ = await self._store.get(paths.CONTROLLER_EPOCH)
            newest = whole_number(paths.CONTROLLER_EPOCH, data, 0, INT_MAX)
        except (StoreError, TimeoutError) as error:
            _log.debug("the newest controller epoch can't be read: %s", error)
            return False
        self._newest, self._looked_ms = max(self._newest, newest), self._monotonic_ms()
        return True
