"""The machines of a coordinator, each with the deadline by which it is to be fed a Tick."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from penstock import log
from penstock.broker.coordination.machines import NEVER

_log = log.get(__name__)


class Machine(Protocol):
    """What the shell needs to know of a Group or Transaction."""

    wake_at_ms: int


M = TypeVar("M", bound=Machine)


@dataclass(slots=True, eq=False)
class Entry(Generic[M]):
    """A machine, the partition of its log, and the deadline that stands in the heap for it."""

    name: str
    machine: M
    partition: int
    armed_ms: int = NEVER


class Timers(Generic[M]):
    """One heap of monotonic deadlines and one loop timer for its earliest; stale entries are skipped when
    due.
    """

    def __init__(self, now_ms: Callable[[], int], due: Callable[[Entry[M]], None]) -> None:
        self._now_ms = now_ms
        self._due: Callable[[Entry[M]], None] = due
        self._heap: list[tuple[int, int, Entry[M]]] = []
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._handle_ms = NEVER

    def arm(self, entry: Entry[M]) -> None:
        """Make sure that the machine is fed a Tick no later than it wants."""
        wake_ms = entry.machine.wake_at_ms
        if wake_ms >= entry.armed_ms:
            return
        entry.armed_ms = wake_ms
        self._count += 1
        heapq.heappush(self._heap, (wake_ms, self._count, entry))
        self._schedule()

    def _schedule(self) -> None:
        if not self._heap or self._heap[0][0] >= self._handle_ms:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle_ms = self._heap[0][0]
        delay_ms = max(0, self._handle_ms - self._now_ms())
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def _fire(self) -> None:
        self._handle, self._handle_ms = None, NEVER
        now_ms = self._now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            wake_ms, _, entry = heapq.heappop(self._heap)
            if entry.armed_ms == wake_ms:
                entry.armed_ms = NEVER
                try:
                    self._due(entry)
                except Exception:  # noqa: BLE001 - the others' time has come too
                    _log.exception("the timer of %s has failed", entry.name)
        self._schedule()

    def stop(self) -> None:
        """Let no deadline come any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._heap.clear()
