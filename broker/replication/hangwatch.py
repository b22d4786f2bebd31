"""A broker whose disk hangs leaves its cluster, and comes back once the disk answers again.

A thread watches the disks: the loop may be at such a disk itself, to append a coordinator's record or to look at a log. The
broker's session with ZooKeeper lives on by kazoo's threads. So this thread closes all connections of clients and brokers, which
would wait for a timeout, and then ends the session, by which others lead, control and coordinate. No answer leaves
any more that others may contradict. The rest is that of any lost session (`membership.py`), but the next one begins only when
the disk has answered for `penstock.disk.settle.ms`.

A broker that is alone in sync wherever it leads stays: nobody can replace it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from penstock import log
from penstock.broker.cluster import hungdisks
from penstock.broker.cluster.hungdisks import HungDisks
from penstock.broker.cluster.replica import Replica
from penstock.broker.replication.session import SessionStore
from penstock.pyx.log.logmanager import LogManager

LOOK_S = 0.25
"""How often the disks are looked at."""

_log = log.get(__name__)


class Doors(Protocol):
    """Where clients and brokers come in (`penstock.pyx.net.border.DataPlane`)."""

    def shut(self, shut: bool) -> None:
        """Close all connections, and new ones at once; or let them in again."""

    def hang_up_held(self) -> None:
        """End the connections of threads that are at a disk."""


class HangWatch:
    """Of one broker, from `start` to `stop`. replicas: those that it holds."""

    def __init__(
        self,
        logs: LogManager,
        store: SessionStore,
        doors: Doors,
        replicas: Callable[[], list[Replica]],
        *,
        hang_ms: int,
        settle_ms: int,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._logs = logs
        self._store = store
        self._doors = doors
        self._replicas = replicas
        self._now_ms = monotonic_ms
        self._hung = HungDisks(hang_ms, settle_ms)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hang watch", daemon=True)
        self.left = 0
        """How often this broker has left the cluster."""

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    async def stop(self) -> None:
        """Watch no longer."""
        self._ended.set()
        if not self._thread.is_alive():
            return
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def until_back(self) -> None:
        """Return at once, or, if this broker has left, when it may come back."""
        while self._hung.is_out:  # noqa: ASYNC110 - the thread ends it
            await asyncio.sleep(LOOK_S)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self._look()
            except Exception:  # noqa: BLE001 - without this look the broker would keep its leads
                _log.exception("a look at the disks has failed")

    def _look(self) -> None:
        write, was_out = self._logs.longest_write(), self._hung.is_out
        may_leave = write.ms >= self._hung.hang_ms and self._can_be_replaced()
        hungdisks.on_look(self._hung, write.ms, may_leave, self._now_ms())
        if self._hung.is_out:
            if not was_out:
                self._leave(write.log_dir, write.ms)
            self._doors.hang_up_held()
        elif was_out:
            self._doors.shut(False)
            _log.warning("no write is slow any more: this broker comes back to its cluster")

    def _leave(self, log_dir: str, write_ms: int) -> None:
        self.left += 1
        self._doors.shut(True)
        self._doors.hang_up_held()
        _log.error(
            "log_dir=%s hangs: a write has been out for %.1f s. This broker closes all connections and ends its session, so "
            "that others lead what it leads; it comes back once no write has been slow for %g s\nhint: dmesg --ctime | tail",
            log_dir, write_ms / 1000, self._hung.settle_ms / 1000,
        )  # fmt: skip
        self._store.give_up()

    def _can_be_replaced(self) -> bool:
        """Whether others can lead. By what this broker knows, without a wait for the loop."""
        leaders = [replica.leader for replica in self._replicas() if replica.leader is not None]
        return not leaders or any(len(leader.state.isr) > 1 for leader in leaders)
