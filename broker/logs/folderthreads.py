"""Threads for work that waits for a disk: each log folder has its own, so that a disk that hangs holds up no other folder's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class FolderThreads:
    """Used on the loop. A folder's threads are made at its first work."""

    def __init__(self, name: str, count: int) -> None:
        """`count`: how much of one folder's work is done at the same time."""
        self._name = name
        self._count = count
        self._of: dict[Hashable, ThreadPoolExecutor] = {}
        self._under_way: dict[Future[Any], Hashable] = {}

    async def run(self, folder: Hashable, work: Callable[..., T], *given: object) -> T:
        """What `work(*given)` gives or raises. `folder` names one; for work that waits for several, all of them."""
        threads = self._of.get(folder)
        if threads is None:
            threads = self._of[folder] = ThreadPoolExecutor(self._count, self._name)
        self._under_way = {one: where for one, where in self._under_way.items() if not one.done()}
        future = threads.submit(work, *given)
        self._under_way[future] = folder
        return await asyncio.wrap_future(future)

    async def wait(self, timeout_s: float | None = None) -> set[Hashable]:
        """Wait for what is under way, whoever has waited for it; the folders of what isn't done by then."""
        waiting = [asyncio.wrap_future(one) for one in self._under_way if not one.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        return {folder for one, folder in self._under_way.items() if not one.done()}

    async def stop(self) -> None:
        """Wait for what is under way; nobody may call `run` any more."""
        await self.wait()
        self.leave()

    def leave(self) -> None:
        """The same without waiting: a thread that hangs is left behind."""
        for threads in self._of.values():
            threads.shutdown(wait=False, cancel_futures=True)
