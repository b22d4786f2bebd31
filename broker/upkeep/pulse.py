"""Whether the control plane's loop comes in time: it asks for a timer twice a second, and notes how late it came."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left

from penstock.broker import tasks

TICK_S = 0.5
DELAY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Pulse:
    """The loop's, from `start` to `stop`. On the loop."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._task: asyncio.Task[None] | None = None
        self.delays = [0] * (len(DELAY_BOUNDS_S) + 1)
        """How often the loop was so late: a count for each of DELAY_BOUNDS_S, and one for what is above."""
        self.delay_s = 0.0
        """All delays together."""

    def busy_s(self) -> float:
        """The processor time that the loop's thread has used."""
        return time.clock_gettime(self._clock)

    def start(self) -> None:
        """Begin."""
        self._task = tasks.start(self._run(), "pulse")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            late_s = max(0.0, loop.time() - due_s)
            self.delays[bisect_left(DELAY_BOUNDS_S, late_s)] += 1
            self.delay_s += late_s
