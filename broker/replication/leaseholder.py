"""This broker's lease: renewed in each session by writes to `/penstock/alive/N`, and told to the data plane.

`broker/cluster/lease.py` says for how long a write proves the session. Network threads ask after each append of acks=0 and 1;
coordinators, the controller and ListOffsets ask here or there. Whether a leader whose lease is over refuses everything depends
on its followers, too: `Replicas` looks at them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from penstock import log
from penstock.broker.cluster.lease import Lease, renew
from penstock.broker.store.base import NodeExistsError, NoNodeError, SessionLostError, Store, StoreError, paths
from penstock.pyx.log.logmanager import LogManager

NEVER_MS = 1 << 62

_log = log.get(__name__)


def boottime_ms() -> int:
    """The clock of leases: it counts through suspend, and no one sets it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class LeaseHolder:
    """Of one broker, for one session after the other. is_enabled: `penstock.lease.enable`; else nobody asks for a lease."""

    def __init__(self, node_id: int, logs: LogManager, *, is_enabled: bool) -> None:
        self._path = paths.alive(node_id)
        self._logs = logs
        self._is_enabled = is_enabled
        self._lease = Lease(0)
        self.end()

    @property
    def left_ms(self) -> int | None:
        """For how much longer it lasts; 0: it is over; None: there is none."""
        return max(self._lease.until_ms - boottime_ms(), 0) if self._is_enabled else None

    def is_over(self) -> bool:
        """Whether the session may have ended, so that others lead, coordinate and control by now."""
        return self._is_enabled and not self._lease.holds(boottime_ms())

    def end(self) -> None:
        """The session is over, and the lease with it."""
        self._lease = Lease(0)
        self._tell()

    async def run(self, store: Store) -> None:
        """Renew it for as long as the session lasts."""
        if not self._is_enabled:
            return
        self._lease = Lease(store.session_timeout_ms)
        if not store.session_timeout_ms:  # It ends by its owner's word alone.
            self._lease.until_ms = NEVER_MS
            return self._tell()
        is_made = False
        while True:
            sent_ms = boottime_ms()
            try:
                if is_made:
                    await store.set(self._path, b"")
                else:
                    await self._make(store)
                    is_made = True
            except SessionLostError:
                return
            except NoNodeError:
                is_made = False  # Somebody has removed it.
            except StoreError as error:
                _log.warning("the lease isn't renewed: %s", error)
            else:
                renew(self._lease, sent_ms)
                self._tell()
            await asyncio.sleep(max(sent_ms + self._lease.renew_ms - boottime_ms(), 0) / 1000)

    async def _make(self, store: Store) -> None:
        """The node of this session; that of an earlier one goes."""
        while True:
            try:
                await store.create(self._path, ephemeral=True, parents=True)
            except NodeExistsError:
                with contextlib.suppress(NoNodeError):
                    await store.delete(self._path)
            else:
                return

    def _tell(self) -> None:
        self._logs.set_lease(self._lease.until_ms if self._is_enabled else None)
