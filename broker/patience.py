"""How long requests wait for work that may wait for a disk: their `timeout_ms`. The work goes on without them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock import log, tasks
from penstock.errors import ErrorCode, KafkaError

WAIT_MIN_S = 0.1
"""Clients may ask with no time at all, and Kafka then does what takes none."""

_log = log.get(__name__)
T = TypeVar("T")


class Deadline:
    """Of one request."""

    def __init__(self, patience: Patience, timeout_ms: int) -> None:
        self._patience = patience
        self._at_s = asyncio.get_running_loop().time() + timeout_ms / 1000

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives or raises. Raises KafkaError REQUEST_TIMED_OUT when the time is over first."""
        left_s = self._at_s - asyncio.get_running_loop().time()
        return await self._patience.wait(work, max(left_s, WAIT_MIN_S))


class Patience:
    """Of one broker. Used on the loop."""

    def __init__(self) -> None:
        self._going_on: set[asyncio.Task[Any]] = set()

    def deadline(self, timeout_ms: int) -> Deadline:
        """Of a request that has just come."""
        return Deadline(self, timeout_ms)

    async def wait(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What the work gives or raises. Raises KafkaError REQUEST_TIMED_OUT when the time is over first; the work then goes
        on, and what it raises is logged."""
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait([task], timeout=timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        self._going_on.add(task)
        task.add_done_callback(self._ended)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The request timed out; what it asked for goes on.")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._going_on.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.warning("what a request asked for that timed out has failed: %s", error)

    async def stop(self) -> None:
        """Let what still goes on be finished by the next start, or not at all."""
        await tasks.end(*self._going_on)
