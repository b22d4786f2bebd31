"""Once the lease is over, clients of partitions with a silent follower are refused: others lead them soon, if not by now.

The others are served, as far as acks=all goes. The log says when the lease is over, and when it is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster.lease import SILENCE_MS
from penstock.broker.cluster.messages import Partition
from penstock.broker.replication.replicalogs import ReplicaLogs
from penstock.pyx.log.logmanager import LogManager

TICK_S = 0.5
"""How often the lease is looked at."""

_log = log.get(__name__)


class Isolation(tasks.Background):
    """Of one broker. lease_is_over: others may lead by now. isolate: told what is led here and served to no client."""

    NAME = "isolation"

    def __init__(
        self,
        replica_logs: ReplicaLogs,
        logs: LogManager,
        lease_is_over: Callable[[], bool],
        isolate: Callable[[Collection[Partition]], None],
    ) -> None:
        self._replica_logs = replica_logs
        self._logs = logs
        self._lease_is_over = lease_is_over
        self._isolate = isolate
        self.partitions: Collection[Partition] = ()
        """Those that this broker leads, and serves to no client."""
        self._was_held = False
        self._over_since_s: float | None = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._look_at_lease()
            except Exception:  # noqa: BLE001 - without this look no client would be refused, or served again
                _log.exception("a look at the lease has failed")

    def _say_lease(self, is_over: bool) -> None:
        if not is_over:
            self._was_held = True
            if self._over_since_s is not None:
                _log.info("the lease is back after %.1f s: clients are served as before", time.monotonic() - self._over_since_s)
            self._over_since_s = None
        elif self._was_held and self._over_since_s is None:
            self._over_since_s = time.monotonic()
            _log.warning(
                "the lease is over: the session with ZooKeeper has ended, or may have, and others may lead by now. Until it is "
                "back this broker refuses produce with acks=0 and 1, ListOffsets, and what its "
                "coordinators and its controller would decide; acks=all goes on where followers are heard"
            )

    async def _look_at_lease(self) -> None:
        is_over = self._lease_is_over()
        self._say_lease(is_over)
        if not is_over and not self.partitions:
            return
        before = self.partitions
        self.partitions = frozenset(await self._replica_logs.in_thread(self._logs.isolate, SILENCE_MS if is_over else None))
        self._isolate(self.partitions)
        if self.partitions and not before:
            _log.warning(
                "the lease is over and followers are silent: no client is served of %d partitions that this broker leads",
                len(self.partitions),
            )
        elif before and not self.partitions:
            _log.info("clients of all partitions that this broker leads are served again")
