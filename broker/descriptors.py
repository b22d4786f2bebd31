"""How many file descriptors the broker has, and what they are enough for.

Connections and the files of logs share the process's limit; a part of it is kept in reserve (pyx/linux/descriptors.pxd). A
partition holds one descriptor for each of its segments that was used recently, as a rule one, and none when it is idle. Where
there are too few, files are closed and opened again: so a broker may have more partitions than descriptors, but not any
number.
"""

from __future__ import annotations

import resource
from pathlib import Path

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.linux import descriptors

PARTITIONS_A_FILE = 10
"""Partitions for each descriptor that logs may have: with more of them most appends would have to open a file."""
OWN = 48
"""About what the broker holds for itself: threads, listeners, the metadata store, locks."""
WORKING = 16
"""The fewest that a broker can work with, beside its own and the reserve."""
HOW = "raise the limit (`ulimit -n`, or `LimitNOFILE=` of its service)"

_log = log.get(__name__)


class DescriptorsError(Exception):
    """The limit is too low for a broker; the text is one sentence for the user."""


def raise_limit() -> None:
    """As many as the user is allowed, not only the usual 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_partitions() -> int:
    """How many partitions the limit is enough for."""
    most, reserve = descriptors.allowed()
    return max(most - reserve - OWN, 0) * PARTITIONS_A_FILE


def check_partitions(there: int, more: int) -> None:
    """Raise KafkaError POLICY_VIOLATION if the descriptors aren't enough for further partitions."""
    enough = for_partitions()
    if there + more > enough:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The broker may have {descriptors.allowed()[0]} open files, which is enough for {enough} partitions; there are"
            f" {there}, and {more} more are wanted. To have them, {HOW} and start it again.",
        )


def check() -> None:
    """Raise DescriptorsError if there are fewer than a broker needs that has no log open."""
    most, reserve = descriptors.allowed()
    used = _used()
    if most < used + reserve + WORKING:
        raise DescriptorsError(
            f"the process may have {most} open files and has {used} already: {HOW} to {used + reserve + WORKING} at least"
        )


def _used() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def say(partitions: int, connections: int | None) -> None:
    """Say at start how many there are, and what they are too few for.

    connections: the most that the properties allow; None = any number.
    """
    most, reserve = descriptors.allowed()
    used = _used()
    left = max(most - used - reserve, 0)
    _log.info(
        "open files: %d allowed, %d in use, %d kept in reserve: %d for connections and %d partitions",
        most, used, reserve, left, partitions,
    )  # fmt: skip
    if connections is not None and connections > left:
        _log.warning(
            "`max.connections` allows %d connections, but there are file descriptors for %d: further ones will wait; %s",
            connections, left, HOW,
        )  # fmt: skip
    if partitions > left:
        _log.warning(
            "there are file descriptors for %d logs and %d partitions: files will be closed and opened again; %s",
            left, partitions, HOW,
        )  # fmt: skip
