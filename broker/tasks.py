"""Tasks that run for as long as the broker does: one that fails says so, since no caller waits for it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from penstock import log
from penstock.tasks import end

__all__ = ["Background", "Group", "end", "start"]

_log = log.get(__name__)


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task on the running loop; what it raises is logged when it ends."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_say)
    return task


class Group:
    """Tasks that end together."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        """One more; `name`: its own."""
        task = start(work, name or self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Cancel those that run, and wait for their ends. A task of the group may call it: it isn't cancelled then."""
        await end(*(task for task in self._tasks if task is not asyncio.current_task()))


def _say(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("the task `%s` has failed", task.get_name(), exc_info=error)


class Background(ABC):
    """What works in a task of its own from `start` to `stop`, on the loop."""

    NAME: str
    """What the task is called where it fails."""
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = start(self._run(), self.NAME)

    async def stop(self) -> None:
        """End."""
        await end(self._task)

    @abstractmethod
    async def _run(self) -> None: ...
