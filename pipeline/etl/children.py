"""The programs that a load starts, Spark's JVM and Maven: each in a process group of its own, none outlives the command.

A terminal's Ctrl-C goes to the command's group only, so the command decides when these end. A group, since Spark's start is a
shell script that runs a JVM before it becomes one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from penstock.pipeline.etl.errors import EtlError

GRACE_S = 5.0  # Spark removes its temporary folders when it is asked to end
GROUP_WITHIN_S = 1.0  # what is killed is gone by then, unless nobody reaps it
POLL_S = 0.02


class Children:
    """The running programs of this process. Threads may start some while another one ends them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._over = False

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program. Raises EtlError once all of them are to end, OSError when there is no such program."""
        with self._lock:
            if self._over:
                raise EtlError("the command is ending")
            process = subprocess.Popen(command, process_group=0, **options)
            self._running.append(process)
        return process

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a program to its end: exit code, and what it said on both outputs."""
        process = self.start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            said, _ = process.communicate()
        finally:
            self.end_one(process)
        return process.returncode, said.decode(errors="replace")

    def running(self) -> list[int]:
        """The pids of the programs that run."""
        with self._lock:
            return [process.pid for process in self._running]

    def end(self) -> None:
        """End all programs and let no other start; each is gone when this returns."""
        with self._lock:
            self._over = True
            running = list(self._running)
        for process in running:
            self.end_one(process)

    def end_one(self, process: subprocess.Popen[bytes]) -> None:
        """End a program, or forget one that has ended by itself."""
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            # A member of the group may be left when its leader is gone.
            deadline = time.monotonic() + GROUP_WITHIN_S
            while _signal(process, signal.SIGKILL) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            process.wait()
        with self._lock, contextlib.suppress(ValueError):
            self._running.remove(process)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Signal a program's group; whether anything is left of it."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


CHILDREN = Children()
