"""Pauses between tries, of clients and of stages."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Pauses that double from `first_ms` to `max_ms`, each scattered by a fifth so that those who wait for the same thing
    don't march in step.
    """

    def __init__(self, first_ms: float, max_ms: float) -> None:
        self._first_ms, self._max_ms = first_ms, max(first_ms, max_ms)
        self._failures = 0

    def next_s(self) -> float:
        """The next pause, seconds."""
        pause_ms = min(self._max_ms, self._first_ms * 2 ** min(self._failures, 30))
        self._failures += 1
        return float(pause_ms * random.uniform(0.8, 1.2) / 1000)

    async def wait(self) -> None:
        """Pause."""
        await asyncio.sleep(self.next_s())

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._failures = 0
