"""Whether the control plane's loop comes in time, and whether the network threads move.

The loop asks for a timer twice a second and notes how late it came. `Beats` notes how far each network thread is. One whose
beat stands still while it uses its processor is caught in a loop, and only a restart helps. One that stands still and sleeps
waits for a disk, or for a log that a thread holds which does: no restart would help, so it is no reason for one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.broker import tasks
from penstock.pyx.net.border import DataPlane

TICK_S = 0.5
DELAY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STANDS_S = 5.0
"""A network thread whose beat stands still for so long is looked at."""
RUNS_SHARE = 0.1
"""One that waits for a disk uses no processor; one that is caught gets at least so much of one, also on a busy machine."""
SAMPLE_S, SAMPLES = 15.0, 4
"""Rates are those of the time since the oldest of so many samples."""
MOVES, HELD, CAUGHT = "moves", "held", "caught"
NETWORK = "network-"
"""What the names of network threads begin with."""


class Beat(NamedTuple):
    """Where a thread's beat stood, when it was first seen to stand there, and the processor time that it had used by then."""

    beats: int
    since_s: float
    used_s: float


class Beats:
    """The threads of one data plane, as the last `look` has found them."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._seen: dict[str, Beat] = {}
        self.states: dict[str, str] = {}
        """MOVES, HELD or CAUGHT, by network thread."""
        self.stands_s: dict[str, float] = {}
        """For how long each thread, workers and readers too, has been seen at one piece of work; 0: it is at none, or moves."""

    def look(self) -> None:
        """Find out how far each thread is."""
        now_s = time.monotonic()
        named: dict[str, int | None] = {}
        for one in threading.enumerate():  # Other brokers in this process have threads of the same names: nobody knows whose.
            named[one.name] = None if one.name in named else one.native_id
        for thread in self._data_plane.threads():
            used_s = _used_s(named.get(thread.name))
            before = self._seen.get(thread.name)
            if before is None or before.beats != thread.beats or thread.waiting:
                before = self._seen[thread.name] = Beat(thread.beats, now_s, used_s)
            stands_s = self.stands_s[thread.name] = now_s - before.since_s
            if not thread.name.startswith(NETWORK):
                continue  # One that works for long holds up nobody else.
            state = MOVES
            if stands_s >= STANDS_S:
                state = CAUGHT if used_s - before.used_s > stands_s * RUNS_SHARE else HELD
            self.states[thread.name] = state

    def are_alive(self) -> bool:
        """Look, and say whether no thread is caught."""
        self.look()
        return CAUGHT not in self.states.values()


def _used_s(thread_id: int | None) -> float:
    """Processor time of a thread of this process, by its clock as Linux numbers them; 0 if it has ended or isn't known."""
    if thread_id is None:
        return 0.0
    try:
        return time.clock_gettime(~thread_id << 3 | 6)
    except OSError:
        return 0.0


class Rates:
    """By how much counters grow in a second, over the last minute."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read
        self._samples = deque([(time.monotonic(), dict(read()))], SAMPLES)

    def sample(self) -> None:
        """Note what the counters are, if the last time is a while ago."""
        now_s = time.monotonic()
        if now_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((now_s, dict(self._read())))

    def now(self) -> dict[str, float]:
        """By counter."""
        since_s, before = self._samples[0]
        passed_s = max(time.monotonic() - since_s, 1e-9)
        return {name: max(0.0, number - before.get(name, 0.0)) / passed_s for name, number in self._read().items()}


class Pulse(tasks.Background):
    """The loop's, from `start` to `stop`. On the loop; each of `looks` is called twice a second."""

    NAME = "pulse"

    def __init__(self, *looks: Callable[[], None]) -> None:
        self._looks = looks
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self.delays = [0] * (len(DELAY_BOUNDS_S) + 1)
        """How often the loop was so late: a count for each of DELAY_BOUNDS_S, and one for what is above."""
        self.delay_s = 0.0
        """All delays together."""

    def busy_s(self) -> float:
        """The processor time that the loop's thread has used."""
        return time.clock_gettime(self._clock)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            late_s = max(0.0, loop.time() - due_s)
            self.delays[bisect_left(DELAY_BOUNDS_S, late_s)] += 1
            self.delay_s += late_s
            for look in self._looks:
                look()
