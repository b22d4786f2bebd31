"""Threads for work that waits for a disk: each log folder has its own, so that a disk that hangs holds up no other folder's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class FolderThreads:
    """Used on the loop. A folder's threads are made at its first work."""

    def __init__(self, name: str, count: int) -> None:
        """`count`: how much of one folder's work is done at the same time."""
        self._name = name
        self._count = count
        self._of: dict[Hashable, ThreadPoolExecutor] = {}

    async def run(self, folder: Hashable, work: Callable[..., T], *given: object) -> T:
        """What `work(*given)` gives or raises. `folder` names one; for work that waits for several, all of them."""
        threads = self._of.get(folder)
        if threads is None:
            threads = self._of[folder] = ThreadPoolExecutor(self._count, self._name)
        return await asyncio.get_running_loop().run_in_executor(threads, work, *given)

    async def stop(self) -> None:
        """Wait for what is under way; nobody may call `run` any more."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, threads.shutdown) for threads in self._of.values()))
