"""Mending a partition's folder whose .log files are damaged: `penstock log repair`. No broker may run on it.

Bytes that are no right batch are moved into a file beside their segment. Offsets that are lost so get a batch without
records in their place, as compaction leaves such: consumers pass over it, and the log has no hole that a start would take
for damage again. Index files of a changed segment are removed; the next start builds them from the batches.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.broker.logs.lock import InUseError, Lock
from penstock.broker.logs.logdirs import partition_of, topic_id_in
from penstock.broker.tools.logfiles import read_file
from penstock.durable import sync_folder
from penstock.pyx.log.checkpoint import Checkpoints
from penstock.pyx.log.damage import CorruptRange, corrupt_ranges
from penstock.pyx.record.crc import crc32c

CHUNK_BYTES = 1 << 20
OFFSETS_MAX = 0x7FFFFFFF
"""How far a segment's offsets go beyond its base offset."""
_SIDES = (".index", ".timeindex", ".txnindex", ".checks")
_HEAD = struct.Struct(">qiibI")
_BODY = struct.Struct(">hiqqqhii")


class RepairError(Exception):
    """Nothing was repaired; the text is one sentence for the user."""


class Repaired(NamedTuple):
    """A damaged range of a segment, after the repair."""

    file: Path
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int  # the offset of the batch that follows; -1 = the log ends here
    set_aside: Path | None  # has the bytes; None: offsets were missing without any


def repair(folder: Path) -> list[Repaired]:
    """Mend a partition's folder; answers what was damaged, in the order of offsets. Raises RepairError, OSError."""
    key = partition_of(folder.absolute().name)
    if key is None or not folder.is_dir():
        raise RepairError(f"`{folder}` is no folder of a partition, such as `DATA/orders-0`")
    data = folder.absolute().parent
    with _alone(data):
        known = Checkpoints(str(data)).of(key, topic_id_in(folder) or bytes(16))
        segments = sorted(path for path in folder.glob("*.log") if len(path.stem) == 20 and path.stem.isdigit())
        following: list[Path | None] = [*segments[1:], None][: len(segments)]
        found = [
            (path, _corrupt_ranges(path, after, known.first_dirty < 0)) for path, after in zip(segments, following, strict=True)
        ]
        found += [(path, _corrupt_swap(path)) for path in sorted(folder.glob("*.log.swap"))]
        repaired = [row for path, ranges in found if ranges for row in _mend(path, ranges)]
        sync_folder(folder)
    return repaired


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """No other process uses the data folder meanwhile."""
    try:
        lock = Lock.take(data)
    except InUseError:
        raise RepairError(f"a broker runs on `{data}`: stop it first") from None
    try:
        yield
    finally:
        lock.release()


def _corrupt_ranges(path: Path, after: Path | None, dense: bool) -> list[CorruptRange]:
    """The damaged ranges of a segment; one that follows says where its offsets have to end."""
    base_offset = int(path.stem)
    following = -1 if after is None else int(after.stem)
    ranges, next_offset, epoch = corrupt_ranges(str(path), base_offset, dense, following)
    if following < 0:
        return ranges
    if ranges and ranges[-1].next_offset < 0:
        ranges[-1] = ranges[-1]._replace(next_offset=max(following, next_offset))
    elif dense and next_offset < following:
        size = path.stat().st_size
        ranges.append(CorruptRange(size, size, next_offset, following, epoch))
    if ranges and following - base_offset > OFFSETS_MAX:
        raise RepairError(f"more offsets are missing behind `{path}` than a segment can have: restore the files")
    return ranges


def _corrupt_swap(path: Path) -> list[CorruptRange]:
    """The same of a file that compaction was putting in the place of segments; its `.checks` say where it has to end."""
    stem = path.name.partition(".")[0]
    wanted = next((end for suffix in (".checks.swap", ".checks") if (end := _checked_end(path, stem + suffix)) >= 0), -1)
    ranges, next_offset, epoch = corrupt_ranges(str(path), int(stem), False, wanted)
    if ranges and ranges[-1].next_offset < 0:
        ranges[-1] = ranges[-1]._replace(next_offset=wanted)
    elif next_offset < wanted:
        size = path.stat().st_size
        ranges.append(CorruptRange(size, size, next_offset, wanted, epoch))
    return ranges


def _checked_end(path: Path, name: str) -> int:
    """The next offset that the checks of a file say; -1: they aren't there, or are another's."""
    checks = path.with_name(name)
    row = next(iter(read_file(checks)), {}) if checks.exists() else {}
    return int(row["next_offset"]) if row.get("log_bytes") == path.stat().st_size else -1


def _mend(path: Path, ranges: list[CorruptRange]) -> list[Repaired]:
    beside = path.with_name(path.name + ".tmp")
    rows = []
    with path.open("rb") as source, beside.open("wb") as out:
        at = 0
        for one in ranges:
            _copy(source.fileno(), out.fileno(), at, one.position)
            aside = _set_aside(source.fileno(), path, one) if one.end > one.position else None
            if one.next_offset > one.first_offset:
                os.write(out.fileno(), _empty_batch(one))
            rows.append(Repaired(path, one.position, one.end - one.position, one.first_offset, one.next_offset, aside))
            at = one.end
        _copy(source.fileno(), out.fileno(), at, os.fstat(source.fileno()).st_size)
        os.fsync(out.fileno())
    sync_folder(path.parent)  # What was set aside is there before its bytes go.
    stem = path.name.partition(".")[0]
    for suffix in _SIDES:
        path.with_name(stem + suffix).unlink(missing_ok=True)
        path.with_name(f"{stem}{suffix}.swap").unlink(missing_ok=True)
    beside.replace(path)
    return rows


def _set_aside(source_fd: int, path: Path, one: CorruptRange) -> Path:
    """Copy a range into a file of its own; one of an earlier repair stays."""
    name = f"{path.name}.cut-{one.position}"
    aside, number = path.with_name(name), 0
    while aside.exists():
        number += 1
        aside = path.with_name(f"{name}.{number}")
    with aside.open("xb") as out:
        _copy(source_fd, out.fileno(), one.position, one.end)
        os.fsync(out.fileno())
    return aside


def _copy(source_fd: int, to_fd: int, position: int, end: int) -> None:
    while position < end:
        piece = os.pread(source_fd, min(CHUNK_BYTES, end - position), position)
        if not piece:
            raise RepairError("the file has become shorter meanwhile")
        left = memoryview(piece)
        while left:
            left = left[os.write(to_fd, left) :]
        position += len(piece)


def _empty_batch(one: CorruptRange) -> bytes:
    """A batch of magic 2 that has the lost offsets and no records."""
    body = _BODY.pack(0, one.next_offset - one.first_offset - 1, -1, -1, -1, -1, -1, 0)
    return _HEAD.pack(one.first_offset, len(body) + _HEAD.size - 12, one.leader_epoch, 2, crc32c(body)) + body
