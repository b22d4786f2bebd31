"""An event loop whose time is a number: it goes on to the next timer where nothing else is to be done.

So what waits for seconds takes none, and how fast the machine is decides nothing: a seed plays the same run again.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Finds what is ready, or lets time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        if not ready and timeout is not None:
            self.now_s += timeout
        return sorted(ready, key=lambda one: one[0].fd)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See above. Nothing in it may wait for a thread or another process."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """In seconds since the loop was made."""
        return self._virtual.now_s


def play(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
