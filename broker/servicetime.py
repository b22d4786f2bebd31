"""How long a request's service works on the control plane's loop, and how long it waits for others."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from time import monotonic_ns
from typing import Any, TypeVar

T = TypeVar("T")


class ServiceTime:
    """Of one request. Work is what runs between the awaits of its handler; all else since it began is waiting: for other
    clients, a disk, a thread, or its turn on the loop.
    """

    def __init__(self) -> None:
        self.begun_ns = monotonic_ns()
        self.local_ns = 0

    def begin(self) -> None:
        """Say that the service begins now, with the work that was done for it before."""
        self.begun_ns = monotonic_ns() - self.local_ns

    def work(self, since_ns: int) -> None:
        """Count what was done since then."""
        self.local_ns += monotonic_ns() - since_ns

    @types.coroutine
    def run(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await a coroutine, and count its steps as work."""
        step, value = coroutine.send, None
        while True:
            since_ns = monotonic_ns()
            try:
                awaited = step(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self.work(since_ns)
            try:
                step, value = coroutine.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - a cancellation: the coroutine's own business
                step, value = coroutine.throw, error
