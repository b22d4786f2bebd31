"""Turns: a handler with much to do lets the loop do other work now and then."""

from __future__ import annotations

import asyncio
import time

TURN_S = 0.005


class Turns:
    """Of one handler's run, from when it is made."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()

    async def take(self) -> None:
        """Call between two pieces of work: the others have their turn if this one has lasted long enough."""
        if time.monotonic() - self._begun_s >= TURN_S:
            await asyncio.sleep(0)
            self._begun_s = time.monotonic()
