"""Checking log folders, also those of a running broker: `penstock log verify`. Nothing here writes.

A running broker appends, rolls, compacts and removes files meanwhile. So damage counts only where two looks, one after the
other, find it at the same place. A file that went away between its listing and its reading is counted, and is no damage.

What counts as damage is what a start of the broker calls so: without a clean stop before it, it believes no `.checks` that
can't be read, and builds the index files again of all segments from the recovery point on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from penstock.broker.logs.folder import CLEAN_SHUTDOWN, META, stop_text
from penstock.broker.logs.logdirs import partition_of, topic_id_in
from penstock.broker.tools.logends import missing, segments
from penstock.broker.tools.logfiles import Row, read_file
from penstock.pyx.log.checkpoint import OURS, Checkpoints

BETWEEN_S = 0.05
"""From one look at what seems damaged to the next."""
LOOKS = 20
"""At a folder whose files go away while it is looked at."""
_INDEXES = (".index", ".timeindex", ".txnindex")


@dataclass
class Verified:
    """What was found."""

    files: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    gone: int = 0  # files that went away before they were read
    damage: list[Row] = field(default_factory=list)


class _Read(NamedTuple):
    """A file as it was at one moment."""

    stamp: tuple[int, int, int]
    batches: int
    records: int
    end: int  # where its batches end; -1: it has none
    damage: list[Row]


def verify(files: Sequence[Path], is_whole: Callable[[Path], bool], seen: Callable[[], object]) -> Verified:
    """Check files, in the order of their folders. is_whole: whether a folder is to be checked for its beginning, its end and
    its middle. seen: called after each file. Raises OSError; ValueError for a file that is none of a log folder's."""
    found = Verified()
    known: dict[Path, Checkpoints] = {}
    for folder, its in groupby(files, lambda path: path.parent):
        data = folder.absolute().parent
        if data not in known and (data / OURS).exists():
            known[data] = Checkpoints(str(data), stop_text(data))
        is_rebuilt = _rebuilt(folder, known.get(data))
        read: dict[Path, _Read] = {}
        damage: list[Row] = []
        for path in its:
            one = _check(path)
            if one is None:
                found.gone += 1
            else:
                read[path] = one
                found.files += 1
                found.bytes += one.stamp[1]
                found.batches += one.batches
                found.records += one.records
                damage += [{"file": str(path), **row} for row in one.damage if not is_rebuilt(path)]
            seen()
        if is_whole(folder) and data in known:
            damaged = {row["file"] for row in damage}
            damage += [row for row in _missing(folder, read, known[data]) if row["file"] not in damaged]
        found.damage += damage
    return found


def _check(path: Path) -> _Read | None:
    """A file, and what two looks have found damaged of it; None: it has gone."""
    first = _read(path)
    if first is None or not first.damage:
        return first
    time.sleep(BETWEEN_S)
    again = _read(path)
    if again is None:
        return None
    places = [row["position"] for row in first.damage]
    return again._replace(damage=[row for row in again.damage if row["position"] in places])


def _read(path: Path) -> _Read | None:
    damage: list[Row] = []
    batches, records, end = 0, 0, -1
    try:
        stamp = _stamp(path)
        for row in read_file(path):
            if "damage" in row:
                damage.append(row)
            elif "magic" in row:
                batches, records, end = batches + 1, records + row["count"], row["last_offset"] + 1
    except FileNotFoundError:
        if os.path.lexists(path):
            raise  # It is a link to nothing.
        return None
    return _Read(stamp, batches, records, end, damage)


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _missing(folder: Path, read: dict[Path, _Read], known: Checkpoints) -> list[Row]:
    """What two looks at a folder have found missing."""
    rows = _look(folder, read, known)
    if not rows:
        return []
    time.sleep(BETWEEN_S)
    data = folder.absolute().parent
    return [row for row in _look(folder, read, Checkpoints(str(data), stop_text(data))) if row in rows]


def _look(folder: Path, read: dict[Path, _Read], known: Checkpoints) -> list[Row]:
    """What a folder lacks. Sealed segments that have changed since they were read are read again."""
    for left in reversed(range(LOOKS)):
        try:
            for path in segments(folder)[:-1]:
                if path not in read or read[path].stamp != _stamp(path):
                    one = _read(path)
                    if one is not None:
                        read[path] = one
            rows = missing(folder, {path: one.end for path, one in read.items() if one.end >= 0}, known)
            return rows if folder.is_dir() else []  # It went with its topic.
        except FileNotFoundError:
            if left == 0:
                raise
            time.sleep(BETWEEN_S)
    return []


def _rebuilt(folder: Path, known: Checkpoints | None) -> Callable[[Path], bool]:
    """Whether the next start builds a file of a partition's folder again, whatever it holds."""
    key, data = partition_of(folder.absolute().name), folder.absolute().parent
    if key is None or not (data / META).exists() or (data / CLEAN_SHUTDOWN).exists():
        return lambda _: False
    point = 0 if known is None else known.of(key, topic_id_in(folder) or bytes(16)).recovery_point
    first = max((path.stem for path in segments(folder) if int(path.stem) <= point), default="")
    return lambda path: path.suffix == ".checks" or (path.suffix in _INDEXES and path.stem >= first)
