"""What the disks of the log folders answer: how much space there is, and whether they answer at all.

Each is asked now and then, in a thread of its own: a disk that hangs holds up nothing else. A flush of a file of which nothing
is to be written goes to the disk, too, and waits for it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from typing import Any, NamedTuple

from penstock.broker import tasks
from penstock.broker.logs.folder import META
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.broker.logs.logdirs import LogDir, LogDirs

EVERY_S = 15.0
OLD_S = 60.0
"""A disk that hasn't answered for so long has no figures: nobody knows."""


class Space(NamedTuple):
    """Of a folder's disk, and when it was asked, monotonic."""

    total_bytes: int
    free_bytes: int
    asked_s: float


class FolderSpace(tasks.Background):
    """Of all log folders, from `start`, which asks the disks at once, to `stop`. On the loop."""

    NAME = "space"

    def __init__(self, dirs: LogDirs) -> None:
        self._dirs = dirs
        self._threads = FolderThreads("space", 1)
        self._found: dict[str, Space] = {}
        self._asking: dict[str, float] = {}  # those whose answer is not there yet, and when they were asked, monotonic
        self._asks = tasks.Group("space")

    async def stop(self) -> None:
        """End; a thread that hangs is left behind."""
        await super().stop()
        await self._asks.stop()
        self._threads.leave()

    def get(self, path: str) -> Space | None:
        """What is known of a folder's disk."""
        space = self._found.get(path)
        return space if space is not None and time.monotonic() - space.asked_s < OLD_S else None

    def waits_s(self, path: str) -> float:
        """For how long a folder's disk has owed an answer; 0: it owes none."""
        asked_s = self._asking.get(path)
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    async def _run(self) -> None:
        while True:
            for log_dir in self._dirs:
                if str(log_dir.path) not in self._asking:
                    self._asks.start(self._ask(log_dir), f"space {log_dir.path}")
            await asyncio.sleep(EVERY_S)

    async def _ask(self, log_dir: LogDir) -> None:
        path = str(log_dir.path)
        self._asking[path] = time.monotonic()
        try:
            usage = await self._threads.run(path, _usage, log_dir)
        except OSError:
            self._found.pop(path, None)
        else:
            self._found[path] = Space(usage.total, usage.free, time.monotonic())
        finally:
            del self._asking[path]


def _usage(log_dir: LogDir) -> Any:
    """Bytes of a folder's disk, once it has flushed. Raises OSError."""
    if not log_dir.offline:
        descriptor = os.open(log_dir.path / META, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return shutil.disk_usage(log_dir.path)
