"""SIGTERM and SIGINT of a process that runs until somebody asks it to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

SAY_AFTER_S = 1.0
"""After so long a stop that was asked for by Ctrl-C is said to go on; only from then on another one ends it: some programs
pass on a Ctrl-C that their child has had already."""
INTERRUPTED = 128 + signal.SIGINT


def hear(asked: asyncio.Event, say: Callable[[str], None]) -> None:
    """Set `asked` at the first SIGTERM or SIGINT. If the clean stop takes its time, `say` that a second SIGINT ends the process
    at once, as a kill would. On the running loop."""
    loop, since_s = asyncio.get_running_loop(), float("inf")

    def first(number: int) -> None:
        nonlocal since_s
        asked.set()
        if number == signal.SIGINT:
            since_s = time.monotonic()
            loop.call_later(SAY_AFTER_S, say, "stopping; Ctrl-C again ends at once, without a clean stop")

    def heard(number: int) -> None:
        if not asked.is_set():
            first(number)
        elif number == signal.SIGINT and time.monotonic() - since_s >= SAY_AFTER_S:
            say("ended by a second Ctrl-C, without a clean stop")
            os._exit(INTERRUPTED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heard, number)
