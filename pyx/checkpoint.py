"""Offset checkpoints at the top of a log folder: `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`.

Text, as Kafka writes it:

    0                         the version
    2                         how many entries
    orders 0 1207             topic, partition, offset
    orders 1 990

Crash story: the file is replaced whole (written beside, synced, renamed). A file that is missing or wrong counts as
empty: recovery then walks everything, which is slow but right.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

VERSION = 0
Key = tuple[str, int]


def read_checkpoint(path: Path) -> dict[Key, int]:
    """The offsets in a checkpoint file; empty if it is missing or isn't one."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        if int(lines[0]) != VERSION:
            return {}
        offsets = {}
        for line in lines[2 : 2 + int(lines[1])]:
            topic, partition, offset = line.split(" ")
            offsets[topic, int(partition)] = int(offset)
        return offsets
    except (OSError, ValueError, IndexError):
        return {}


def write_checkpoint(path: Path, offsets: dict[Key, int]) -> None:
    """Replace a checkpoint file in one step and sync it. Raises OSError."""
    lines = [str(VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    beside = path.with_name(path.name + ".tmp")
    with beside.open("w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Checkpoints:
    """Both checkpoint files of one log folder, written only when something changed. Safe from any thread."""

    def __init__(self, folder: str) -> None:
        self._lock = threading.Lock()
        self._recovery_path = Path(folder, "recovery-point-offset-checkpoint")
        self._start_path = Path(folder, "log-start-offset-checkpoint")
        self.recovery = read_checkpoint(self._recovery_path)
        self.start = read_checkpoint(self._start_path)
        self._written_recovery = dict(self.recovery)
        self._written_start = dict(self.start)

    def put(self, key: Key, recovery_point: int, log_start: int, first_segment: int) -> None:
        """Take a partition's offsets. A log start that its first segment's name says isn't kept, as in Kafka."""
        with self._lock:
            self.recovery[key] = recovery_point
            if log_start > first_segment:
                self.start[key] = log_start
            else:
                self.start.pop(key, None)

    def carry(self, key: Key, other: Checkpoints) -> None:
        """Take what another folder says of a partition that moves here."""
        with other._lock:
            recovery, start = other.recovery.get(key, 0), other.start.get(key)
        with self._lock:
            self.recovery[key] = recovery
            if start is not None:
                self.start[key] = start

    def drop(self, key: Key) -> None:
        """Forget a partition that was deleted."""
        with self._lock:
            self.recovery.pop(key, None)
            self.start.pop(key, None)

    def write(self) -> None:
        """Write what changed. Raises OSError; what couldn't be written is tried again the next time."""
        with self._lock:
            # The log start first: a recovery point without it could show deleted records again.
            if self.start != self._written_start:
                write_checkpoint(self._start_path, self.start)
                self._written_start = dict(self.start)
            if self.recovery != self._written_recovery:
                write_checkpoint(self._recovery_path, self.recovery)
                self._written_recovery = dict(self.recovery)
