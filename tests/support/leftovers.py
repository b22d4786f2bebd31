"""A pytest plugin: nothing that a test process started outlives it, however it ends.

A test that hangs ends its process at once (pytest-timeout's method `thread`), so no fixture stops its brokers and JVMs. Another
process therefore waits for that end, and then kills whatever inherited the mark that this plugin puts into the environment. The
kernel's own way, PR_SET_PDEATHSIG, would kill a child as soon as the thread that started it ends.

Run as a program, `leftovers.py PID MARK`, it is that other process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

NAME = "PENSTOCK_TEST_PROCESS"


def pytest_configure() -> None:
    """Start the watcher of this test process: of each worker, and of pytest itself where it has none."""
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    if NAME in os.environ:  # a worker, or a pytest that a test runs: it goes with its parent, too
        mark = f"{os.environ[NAME]}/{mark}"
    os.environ[NAME] = mark
    subprocess.Popen(
        [sys.executable, "-S", __file__, str(os.getpid()), mark], env={}, start_new_session=True, stdin=subprocess.DEVNULL
    )


def marked(mark: str) -> list[int]:
    """The processes that inherited a mark."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{NAME}={mark}".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def main() -> None:
    """Wait for the test process's end, then kill what it left."""
    pid, mark = int(sys.argv[1]), sys.argv[2]
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    while left := [one for one in marked(mark) if one != pid]:
        for one in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
