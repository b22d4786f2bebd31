"""Which log folders of this broker take no writes, reported in its registration: others lead what it led there.

The data plane finds out that a disk is full when an append finds no room (`broker/upkeep/disks.py`). The broker then reports
the folder's replicas in its own registration, and the controller elects others in sync instead (`cluster/planning.py`).
Once the disk has had room for `penstock.disk.settle.ms` the report is taken back. The replicas have caught up by then, or
catch up; nobody moves the leads back but preferred elections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock import log
from penstock.broker.cluster import fulldisks, registration
from penstock.broker.cluster.fulldisks import FullDisks
from penstock.broker.cluster.registration import WRITABLE, OwnRegistration, Unwritable
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.store.base import BadVersionError, NoNodeError, Store, TooLargeError, UnknownOutcomeError, paths
from penstock.pyx.log.logmanager import LogManager

LOOK_S = 0.5
"""How often the disks are looked at."""
NAMED_MAX = 10_000
"""Of more partitions than that all replicas of the broker are reported: a registration is one node of ZooKeeper's."""

_log = log.get(__name__)


class DiskReports:
    """Of one broker; `run` for each session. On the loop."""

    def __init__(self, dirs: LogDirs, logs: LogManager, settle_ms: int, monotonic_ms: Callable[[], int]) -> None:
        self._dirs = dirs
        self._logs = logs
        self._now_ms = monotonic_ms
        self._disks = FullDisks(settle_ms)
        self.full: frozenset[str] = frozenset()
        """The log folders that count as full."""

    async def run(self, store: Store, own: OwnRegistration) -> None:
        """For as long as the session lasts. Raises StoreError."""
        reported = WRITABLE  # A new registration says nothing of disks.
        while True:
            self._look()
            unwritable = self._find_unwritable()
            if unwritable != reported and await self._report(store, own, unwritable):
                reported = unwritable
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        full = [path for path, state in self._logs.folder_states().items() if state.space]
        before, self.full = self.full, fulldisks.on_look(self._disks, full, self._now_ms())
        for path in sorted(self.full - before):
            _log.warning(
                "log_dir=%s is full: brokers that are in sync lead what this one led there, until it has had room for %g s; "
                "partitions that no other broker has in sync stay here\nhint: penstock topics log-dirs",
                path, self._disks.settle_ms / 1000,
            )  # fmt: skip
        for path in sorted(before - self.full):
            _log.info("log_dir=%s has had room for %g s: its replicas may lead again", path, self._disks.settle_ms / 1000)

    def _find_unwritable(self) -> Unwritable:
        full = [log_dir for log_dir in self._dirs.online if str(log_dir.path) in self.full]
        partitions = frozenset(partition for log_dir in full for partition in log_dir.partitions)
        if full and (len(full) == len(self._dirs.online) or len(partitions) > NAMED_MAX):
            return Unwritable(is_all=True)
        return Unwritable(partitions=partitions)

    async def _report(self, store: Store, own: OwnRegistration, unwritable: Unwritable) -> bool:
        """Whether the registration says it; if not, the next look tries again. Raises StoreError."""
        path = paths.broker(own.broker)
        try:
            stays, stat = await store.get(paths.incarnation(own.broker))
            if registration.read_incarnation(own.broker, stays, stat.version).incarnation != own.incarnation:
                return False
            data, registered = await store.get(path)
            if registered.created_zxid != own.epoch:
                return False
            versions = registered.version, stat.version
            try:
                await store.multi(registration.report_unwritable(own.broker, data, *versions, unwritable))
            except TooLargeError:  # Their names have more bytes than a node takes.
                await store.multi(registration.report_unwritable(own.broker, data, *versions, Unwritable(is_all=True)))
        except (BadVersionError, NoNodeError, UnknownOutcomeError):
            return False
        return True
