"""Signals that end the command: the work's loop runs in a thread of its own, so that the main thread can always hear them.

An exception out of a signal handler would come up anywhere in PySpark's client, which answers it with tracebacks and asks a
JVM that is going.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from queue import SimpleQueue
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asks the command to end; the work's thread is still at work."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def attend(work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and raise what it raises; or raise Interrupted at the first signal. Later ones are not heard then."""
    heard: SimpleQueue[BaseException | None] = SimpleQueue()

    def do() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:  # noqa: BLE001  (the main thread raises it)
            heard.put(error)
        else:
            heard.put(None)

    def hear(number: int, frame: FrameType | None) -> None:
        heard.put(Interrupted(number))

    # Who started us with a signal ignored (nohup, a shell's background job) wants it ignored.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, hear)
    threading.Thread(target=do, name="load", daemon=True).start()
    ended = heard.get()
    if isinstance(ended, Interrupted):
        raise ended
    for number, handler in before.items():
        signal.signal(number, handler)
    if ended is not None:
        raise ended


def leave(interrupted: Interrupted) -> None:
    """End the process as the signal asks, whatever its threads do: exit code 130 for Ctrl-C, else by the signal itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    if interrupted.number != signal.SIGINT:
        signal.signal(interrupted.number, signal.SIG_DFL)
        os.kill(os.getpid(), interrupted.number)
    os._exit(128 + signal.SIGINT)
