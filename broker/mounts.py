"""Mounts, as /proc/self/mountinfo has them (proc(5))."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Where a file system, or a folder of it, is mounted."""

    point: str
    root: str  # the folder of the file system that is mounted here: another one than `/` for a bind mount
    number: str  # of the file system's device
    kind: str
    device: str
    options: tuple[str, ...]


def mountinfo() -> str:
    """The mounts of this process; empty if they can't be seen."""
    try:
        return MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def mount_of(path: Path, text: str) -> Mount | None:
    """The mount that a path without links lies in: the longest that leads to it."""
    best: Mount | None = None
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, of_system = left.split(), right.split()
        if len(fields) < 6 or len(of_system) < 2:
            continue
        root, point = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), one) for one in fields[3:5])
        # Of two mounts at one place the later one hides the earlier.
        if path.is_relative_to(point) and (best is None or len(point) >= len(best.point)):
            best = Mount(point, root, fields[2], of_system[0], of_system[1], tuple(fields[5].split(",")))
    return best
