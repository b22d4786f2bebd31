"""Real processes for tests: a broker on a free port with a folder of its own, killed only by its own pid."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.broker import process
from penstock.pyx.wire.connection import WireConnection
from support.patience import until

__all__ = ["BrokerProcess", "WireConnection", "output", "topic_name", "until_still"]

_names = itertools.count()


class BrokerProcess(process.BrokerProcess):
    """With a small ballast: the 64 MiB of a broker in use, once for each of a run's brokers, would fill a disk."""

    def __init__(
        self,
        data: Path,
        properties: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(data, {"penstock.ballast.bytes": 1 << 20, **(properties or {})}, arguments, environment)

    def signal(self, number: int) -> None:
        """Send a signal. After SIGSTOP the broker does stand still."""
        super().signal(number)
        if number == signal.SIGSTOP:
            until_still(self.pid)


def until_still(pid: int) -> None:
    """Wait until a process that got SIGSTOP stands still: on a busy machine its threads go on for a while, until one of them
    gets a processor and takes the signal."""
    threads = Path(f"/proc/{pid}/task")
    until(lambda: all(_state(thread) == "T" for thread in threads.iterdir()), "a process that stands still")


def _state(thread: Path) -> str:
    """A thread's state as Linux shows it: `T` for one that a signal has stopped, and here also for one that has ended."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"


def topic_name(hint: str = "topic") -> str:
    """A name that no other test uses, also when tests share a broker."""
    return f"{hint}-{os.getpid()}-{next(_names)}-{secrets.token_hex(3)}"


def output(command: Sequence[str], *, stdin: str = "", timeout_s: float = 150) -> str:
    """What a program printed; it must end well."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
