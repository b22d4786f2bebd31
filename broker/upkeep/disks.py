"""What the broker does when a disk fails or is full.

The data plane finds out at an append, a flush or a read, marks the log folder and writes an eventfd; from then on each
partition of a failed folder answers KAFKA_STORAGE_ERROR by itself. `Disks` then logs the failure once,
Metadata shows the partitions without a leader, and when no folder is left the broker stops. A failed folder stays offline
until the next start: after a failed fsync it isn't known what the disk holds, so nothing is ever tried again.

A full disk is no failure. The ballast (ballast.py) is let go, so that the broker itself goes on: markers, committed
offsets, checkpoints, the store, deletes. Clients' appends are refused with KAFKA_STORAGE_ERROR, which they try again, until
there is space for the ballast. Without a ballast each append finds out for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock import log
from penstock.broker import tasks
from penstock.broker.logs.logdirs import LogDir, LogDirs
from penstock.broker.topics.changes import Topics
from penstock.broker.upkeep.pending import PendingUpkeep
from penstock.pyx.log.logmanager import LogManager

CHECK_S = 1.0
"""How often the space on a full disk is checked."""
HAS_SPACE, FULL, RESERVED = range(3)

_log = log.get(__name__)


class Disks:
    """Watches the log folders from `start` to `stop`. On the loop; disks are touched in a thread of its own.

    The data plane writes one eventfd for all of them; `_hear` reads it, and lets `pending` check too.
    """

    def __init__(
        self, dirs: LogDirs, logs: LogManager, topics: Topics, pending: PendingUpkeep, all_failed: Callable[[], None]
    ) -> None:
        self._dirs = dirs
        self._logs = logs
        self._topics = topics
        self._pending = pending
        self._all_failed = all_failed
        self._thread = ThreadPoolExecutor(1, "disks")
        self._full: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def start(self) -> None:
        """Take the ballasts and begin to watch. A disk that has no space for its ballast is said in the log."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._logs.news_fd, self._hear)
        for log_dir in self._dirs.online:
            if log_dir.ballast.wanted and not await loop.run_in_executor(self._thread, _take, log_dir):
                if log_dir.ballast.was_left:
                    await self._ran_full(log_dir)  # It was before the kill: what space there is is the broker's own.
                else:
                    _log.warning("log_dir=%s has no room for a ballast", log_dir.path)
        self._task = tasks.start(self._run(), "disks")
        self._news.set()

    async def stop(self) -> None:
        """End; the ballasts stay until the folders are let go."""
        asyncio.get_running_loop().remove_reader(self._logs.news_fd)
        await tasks.end(self._task)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def _hear(self) -> None:
        os.eventfd_read(self._logs.news_fd)
        self._pending.look()
        self._news.set()

    async def _run(self) -> None:
        loop, looked_s = asyncio.get_running_loop(), 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), CHECK_S if self._full else None)
            if self._full and loop.time() - looked_s >= CHECK_S:  # However much there is to hear of other folders.
                await self._check_space()
                looked_s = loop.time()
            if not self._news.is_set():
                continue
            self._news.clear()
            for path, (failed, space, *_) in self._logs.folder_states().items():
                log_dir = self._dirs.by_path(path)
                if log_dir is None or log_dir.offline:
                    continue
                if failed:
                    self._fail(log_dir, failed)
                elif space == FULL and path not in self._full:
                    await self._ran_full(log_dir)

    def _fail(self, log_dir: LogDir, error: int) -> None:
        log_dir.error = os.strerror(error)
        self._full.discard(str(log_dir.path))
        _log.error(
            "log_dir=%s failed and is offline until the next start: %s; its %d partitions answer KAFKA_STORAGE_ERROR",
            log_dir.path, log_dir.error, len(log_dir.partitions),
        )  # fmt: skip
        self._topics.folder_failed(str(log_dir.path))
        if not self._dirs.online:
            _log.critical("no log folder works: the broker stops")
            self._all_failed()

    async def _ran_full(self, log_dir: LogDir) -> None:
        path = str(log_dir.path)
        self._full.add(path)
        held_bytes = log_dir.ballast.held_bytes
        if held_bytes or log_dir.ballast.was_left:
            log_dir.ballast.was_left = False
            await asyncio.get_running_loop().run_in_executor(self._thread, log_dir.ballast.release)
            self._logs.set_space(path, RESERVED)
        _log.error(
            "log_dir=%s is full: clients' appends are refused until there is room again; the ballast gave %d bytes",
            path, held_bytes,
        )  # fmt: skip

    async def _check_space(self) -> None:
        for log_dir in self._dirs.online:
            path = str(log_dir.path)
            if path in self._full and await asyncio.get_running_loop().run_in_executor(self._thread, _space, log_dir):
                self._full.discard(path)
                self._logs.set_space(path, HAS_SPACE)
                _log.info("log_dir=%s has room again", path)


def _take(log_dir: LogDir) -> bool:
    try:
        return log_dir.ballast.take()
    except OSError:
        return False


def _space(log_dir: LogDir) -> bool:
    """Whether the ballast is held again, or, where none is wanted, whether anything is free."""
    try:
        return log_dir.ballast.take() if log_dir.ballast.wanted else log_dir.ballast.has_space()
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
