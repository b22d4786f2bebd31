"""What a process costs, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU seconds of all of a process's threads since its start, user and system; those that ended count too."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Resident memory, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def allow_files(count: int) -> None:
    """Raise the soft limit of open files towards count, for this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class TreeMemory:
    """The largest resident memory of a process and all that it started, together, while the block runs: sampled."""

    EVERY_S = 0.05

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak_mib = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self.EVERY_S):
            self.peak_mib = max(self.peak_mib, tree_rss_mib(self._pid))


def tree(pid: int) -> list[int]:
    """A process and all that it started, as far as they run."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and all that it started, as far as they run."""
    return sum(_or_zero(cpu_s, one) for one in tree(pid))


def tree_rss_mib(pid: int) -> float:
    """Resident memory of a process and all that it started, MiB. A process that was forked has its parent's pages until it
    runs a program of its own: they count once, else a JVM would be twice as large whenever it starts a program."""
    found: dict[tuple[str, ...], float] = {}
    for one in tree(pid):
        with contextlib.suppress(OSError):
            code_and_stack = tuple(_stat(one)[23:26])  # where they lie is another place for each program that is run
            found[code_and_stack] = max(found.get(code_and_stack, 0.0), rss_mib(one))
    return sum(found.values())


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2 :].split()  # the name may hold blanks and brackets


def _or_zero(measure: Callable[[int], float], pid: int) -> float:
    """What a process costs; nothing once it is gone."""
    try:
        return measure(pid)
    except (OSError, ProcessLookupError):
        return 0.0
