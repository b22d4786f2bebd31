"""The space on the disks of the log folders, asked now and then in threads: a disk that hangs holds up nothing else."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import NamedTuple

from penstock.broker import tasks
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


class FolderSpace:
    """Of all log folders, from `start` to `stop`. On the loop."""

    def __init__(self, dirs: LogDirs) -> None:
        self._dirs = dirs
        self._threads = FolderThreads("space", 1)
        self._found: dict[str, Space] = {}
        self._asking: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the disks are asked at once."""
        self._task = tasks.start(self._run(), "space")

    async def stop(self) -> None:
        """End; a thread that hangs is left behind."""
        if self._task is not None:
            for task in (self._task, *self._tasks):
                task.cancel()
            await asyncio.gather(self._task, *self._tasks, return_exceptions=True)
        self._threads.leave()

    def get(self, path: str) -> Space | None:
        """What is known of a folder's disk."""
        space = self._found.get(path)
        return space if space is not None and time.monotonic() - space.asked_s < OLD_S else None

    async def _run(self) -> None:
        while True:
            for log_dir in self._dirs:
                if str(log_dir.path) not in self._asking:
                    task = tasks.start(self._ask(log_dir), f"space {log_dir.path}")
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(EVERY_S)

    async def _ask(self, log_dir: LogDir) -> None:
        path = str(log_dir.path)
        self._asking.add(path)
        try:
            usage = await self._threads.run(path, shutil.disk_usage, path)
        except OSError:
            self._found.pop(path, None)
        else:
            self._found[path] = Space(usage.total, usage.free, time.monotonic())
        finally:
            self._asking.discard(path)
