"""What every simulated world is made of: time that is a number, one source of chance, faults that end, and counters."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from penstock.broker.coordination.machines import Now


class Clockwork:
    """Plays events in the order of their times; the same seed gives the same run."""

    def __init__(self, seed: int, duration_ms: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.duration_ms = duration_ms
        self.now_ms = 1_000
        self.faults = True
        self.counts: dict[str, int] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = itertools.count()

    @property
    def now(self) -> Now:
        """The machines' clock."""
        return Now(self.now_ms, self.now_ms + 1_700_000_000_000)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something after a while."""
        heapq.heappush(self._events, (self.now_ms + max(0, delay_ms), next(self._sequence), action))

    def fault(self, probability: float) -> bool:
        """Whether a fault happens now; never once the faults have stopped."""
        return self.faults and self.random.random() < probability

    def count(self, what: str) -> None:
        """Keep count of what a run has seen, so that a test can tell that it saw something."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def play(self, until_ms: int) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
        self.now_ms = until_ms
