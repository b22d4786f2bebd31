"""What others lead by now that this broker led, as it finds by itself in the metadata store.

The controller writes to `/penstock/moved/N` in the step that elects another broker in place of broker N, which lives. It tells
broker N its new role, too; but the two may be cut off from each other while both reach the store. So a broker that sees a
write waits for a moment, since the role nearly always comes, and then reads the states of all that it still leads. Where
another broker was elected it follows that one, resigns as coordinator, and shows its clients who leads.

A write of the lease that is answered comes after all that this session's server had to show before. So a broker whose lease
lasts has seen each move that is older than the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from penstock import log
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import Partition
from penstock.broker.replication.reading import read_one_state
from penstock.broker.replication.replicas import Replicas
from penstock.broker.store.base import BadValueError, Store, paths, setting

GRACE_S = 0.5
"""How long the controller's own message is waited for."""
READ_AT_ONCE = 100
"""States whose reads are out at the same time."""

_log = log.get(__name__)


class Moves:
    """Of one session. broker_epoch: of the present registration. shown: called with the states of what others lead by now."""

    def __init__(
        self,
        node_id: int,
        store: Store,
        replicas: Replicas,
        *,
        broker_epoch: Callable[[], int],
        shown: Callable[[Mapping[Partition, LeaderAndIsr]], None],
    ) -> None:
        self._path = paths.moved(node_id)
        self._store = store
        self._replicas = replicas
        self._broker_epoch = broker_epoch
        self._shown = shown

    async def run(self) -> None:
        """For as long as the session lasts. Raises StoreError."""
        while True:
            news = asyncio.Event()
            await self._store.exists(self._path, setting(news))
            # Whatever came before the watch was set, in another session or since the last look.
            await self._look()
            await news.wait()
            await asyncio.sleep(GRACE_S)

    async def _look(self) -> None:
        led = self._replicas.roles.led
        for at in range(0, len(led), READ_AT_ONCE):
            states = await self._read(led[at : at + READ_AT_ONCE])
            moved = await self._replicas.take_stored(states, self._broker_epoch)
            if moved:
                _log.warning(
                    "%d partitions that this broker led are led by others: the store says so, the controller has not told it",
                    len(moved),
                )
                self._shown({partition: states[partition] for partition in moved})

    async def _read(self, partitions: Sequence[Partition]) -> dict[Partition, LeaderAndIsr]:
        found = await asyncio.gather(*map(self._read_one, partitions))
        return {partition: state for partition, state in zip(partitions, found, strict=True) if state is not None}

    async def _read_one(self, partition: Partition) -> LeaderAndIsr | None:
        try:
            return await read_one_state(self._store, partition)
        except BadValueError as error:
            _log.error("topic=%s partition=%d stays as it is here: %s", *partition, error)
            return None
