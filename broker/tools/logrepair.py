"""Mending a partition's folder whose .log files are damaged or missing: `penstock log repair`. No broker may run on it.

Bytes that are no right batch are moved into a file beside their segment. Offsets that are lost so get a batch without
records in their place, as compaction leaves such: consumers pass over it, and the log has no hole that a start would take
for damage again. Index files of a changed segment are removed; the next start builds them from the batches.

A log that ends earlier than the checkpoints know gets such a batch at its end, so that no offset is given twice. So does a
segment whose next one is gone, or that was cut. A log that begins later gets its new beginning into the checkpoints.
`penstock log accept` does these three and nothing else. What was lost is written to LOST in the partition's folder.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from penstock.broker.logs.folder import CLEAN_SHUTDOWN, disown, mark_clean, stop_text
from penstock.broker.logs.lock import InUseError, Lock
from penstock.broker.logs.logdirs import partition_of, topic_id_in
from penstock.broker.tools.logends import missing_from, segments
from penstock.broker.tools.logfiles import read_file
from penstock.durable import replace_file, sync_folder
from penstock.hints import quoted
from penstock.pyx.log.amendment import read_amendment
from penstock.pyx.log.checkpoint import Checkpoints, Offsets
from penstock.pyx.log.damage import CorruptRange, corrupt_ranges
from penstock.pyx.record.crc import crc32c

CHUNK_BYTES = 1 << 20
LOST = "lost-offsets"
"""Which offsets of a partition are lost, by whose decision: a line each."""
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


class Lost(NamedTuple):
    """What a partition's folder lacks: ranges of its segments, and its beginning."""

    folder: Path
    damaged: list[tuple[Path, list[CorruptRange], int]]  # the segment, its ranges, and where its bytes end that stay
    last: Path | None  # the last segment
    begin: tuple[int, int] | None  # where the log began, and where it begins now
    end: int  # where it ends from now on

    def rows(self) -> list[Repaired]:
        """What it comes to, in the order of offsets; nothing was changed yet."""
        rows = [] if self.begin is None else [_begin_row(self.folder, *self.begin)]
        for path, ranges, _ in self.damaged:
            rows += [_row(path, one, None) for one in ranges]
        return rows


def repair(folder: Path, reason: str = "repair") -> list[Repaired]:
    """Mend a partition's folder; answers what was damaged, in the order of offsets. Raises RepairError, OSError."""
    with _opened(folder) as (lost, checkpoints, topic_id, lock):
        return _repair(lost, checkpoints, topic_id, reason, lock)


def accept(folder: Path, reason: str = "accept", *, dry: bool = False) -> list[Repaired]:
    """Let a log begin and end where it does, and go on above every offset that it gave; answers what is lost. dry: nothing is
    changed. Raises RepairError, also if anything else is damaged; OSError."""
    with _opened(folder) as (lost, checkpoints, topic_id, lock):
        # The next start cuts a torn end off by itself, where it is no more than that.
        torn = [row for row in lost.damaged if row[0] == lost.last and [one.next_offset for one in row[1]] == [-1]]
        lost = lost._replace(damaged=[row for row in lost.damaged if row not in torn])
        for path, ranges, _ in lost.damaged:
            is_end = path == lost.last and [one.next_offset for one in ranges] == [lost.end]
            if not is_end and not _is_gap(path, ranges):
                raise RepairError(
                    f"`{path}` is damaged at byte {ranges[0].position}, which isn't the end of the log: run `penstock log "
                    f"repair {quoted(folder)}`, which also accepts what else is missing"
                )
        return lost.rows() if dry else _repair(lost, checkpoints, topic_id, reason, lock)


def _repair(lost: Lost, checkpoints: Checkpoints, topic_id: bytes, reason: str, lock: Lock) -> list[Repaired]:
    folder = lost.folder
    key = partition_of(folder.absolute().name)
    assert key is not None
    if lost.rows():
        disown(folder.absolute().parent, lock)
    repaired = [] if lost.begin is None else [_begin_row(folder, *lost.begin)]
    for path, ranges, keep in lost.damaged:
        repaired += _mend(path, ranges, keep)
    if not any(folder.glob("*.log")) and lost.begin is not None:
        (folder / f"{lost.end:020d}.log").touch(mode=0o600)
    sync_folder(folder)
    if repaired:
        _note(folder, repaired, reason)
    if lost.begin is not None:  # Last: until then the next start says what is lost.
        checkpoints.begin_at(key, topic_id, lost.begin[1])
        checkpoints.write()
        if stop_text(folder.absolute().parent):
            mark_clean(folder.absolute().parent)
    return repaired


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[tuple[Lost, Checkpoints, bytes, Lock]]:
    key = partition_of(folder.absolute().name)
    if key is None or not folder.is_dir():
        raise RepairError(f"`{folder}` is no folder of a partition, such as `DATA/orders-0`")
    data = folder.absolute().parent
    with _alone(data) as lock:
        checkpoints, topic_id = Checkpoints(str(data), stop_text(data)), topic_id_in(folder) or bytes(16)
        clean = (data / CLEAN_SHUTDOWN).exists()
        exact = clean or checkpoints.knows_end(key, topic_id)
        yield (
            _look(folder, checkpoints.of(key, topic_id, read_amendment(str(folder))), clean, exact),
            checkpoints,
            topic_id,
            lock,
        )


def _look(folder: Path, known: Offsets, clean: bool, exact: bool) -> Lost:
    """What a folder lacks. clean: the last stop was. exact: the log ended where it is known to have ended, and not later."""
    there = segments(folder)
    following: list[Path | None] = [*there[1:], None][: len(there)]
    found = [_corrupt_ranges(path, after, known, clean, exact) for path, after in zip(there, following, strict=True)]
    found += [(path, _corrupt_swap(path), path.stat().st_size) for path in sorted(folder.glob("*.log.swap"))]
    damaged = [(path, ranges, keep) for path, ranges, keep in found if ranges]
    first = int(there[0].stem) if there else known.log_end
    begun = known.begin if there or known.begin >= 0 else known.log_start
    begin = (begun, first) if 0 <= begun < first else None
    return Lost(folder, damaged, there[-1] if there else None, begin, known.log_end)


def _row(path: Path, one: CorruptRange, aside: Path | None) -> Repaired:
    return Repaired(path, one.position, one.end - one.position, one.first_offset, one.next_offset, aside)


def _is_gap(path: Path, ranges: list[CorruptRange]) -> bool:
    """Whether nothing is damaged of a segment: records that followed its last batch are missing."""
    return path.suffix == ".log" and [one.position for one in ranges] == [path.stat().st_size]


def _begin_row(folder: Path, before: int, now: int) -> Repaired:
    return Repaired(folder / f"{before:020d}.log", 0, 0, before, now, None)


def _note(folder: Path, repaired: list[Repaired], reason: str) -> None:
    """Take down what is lost, after what was lost before."""
    path = folder / LOST
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = [
        f"{now} offsets {one.first_offset} to {one.next_offset - 1}: {' '.join(reason.split())}\n"
        for one in repaired
        if one.next_offset > one.first_offset
    ]
    replace_file(path, (before + "".join(lines)).encode())


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[Lock]:
    """No other process uses the data folder meanwhile."""
    try:
        lock = Lock.take(data)
    except InUseError:
        raise RepairError(f"a broker runs on `{data}`: stop it first") from None
    try:
        yield lock
    finally:
        lock.release()


def _corrupt_ranges(
    path: Path, after: Path | None, known: Offsets, clean: bool, exact: bool
) -> tuple[Path, list[CorruptRange], int]:
    """A segment, its damaged ranges, and where its bytes end that stay. The next segment says where its offsets have to end, or
    what is known of the log's end. An end that isn't exact is a checkpoint's: a batch after a hole stays above it, since its
    offsets would be given again."""
    base_offset, dense = int(path.stem), known.first_dirty < 0
    following = -1 if after is None else int(after.stem)
    ranges, next_offset, epoch, good = corrupt_ranges(str(path), base_offset, dense, following, known.log_end if exact else -1)
    size = path.stat().st_size
    if not dense and following >= 0 and not ranges:
        lost = missing_from(path, next_offset, following, known, clean=clean)
        if lost < following:
            ranges.append(CorruptRange(size, size, lost, following, epoch))
    wanted = known.log_end if following < 0 else following
    if ranges and ranges[-1].next_offset < 0 and (following >= 0 or wanted > next_offset):
        ranges[-1] = ranges[-1]._replace(next_offset=max(wanted, next_offset))
    elif next_offset < wanted and following < 0:
        ranges.append(CorruptRange(good, good, next_offset, wanted, epoch))
        size = good  # Room ahead lies behind it.
    elif dense and next_offset < wanted:
        ranges.append(CorruptRange(size, size, next_offset, wanted, epoch))
    if ranges and wanted - base_offset > OFFSETS_MAX:
        raise RepairError(f"more offsets are missing behind `{path}` than a segment can have: restore the files")
    return path, ranges, size


def _corrupt_swap(path: Path) -> list[CorruptRange]:
    """The same of a file that compaction was putting in the place of segments; its `.checks` say where it has to end."""
    stem = path.name.partition(".")[0]
    wanted = next((end for suffix in (".checks.swap", ".checks") if (end := _checked_end(path, stem + suffix)) >= 0), -1)
    ranges, next_offset, epoch, _ = corrupt_ranges(str(path), int(stem), False, wanted)
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


def _mend(path: Path, ranges: list[CorruptRange], keep: int) -> list[Repaired]:
    beside = path.with_name(path.name + ".tmp")
    rows = []
    with path.open("rb") as source, beside.open("wb") as out:
        at = 0
        for one in ranges:
            _copy(source.fileno(), out.fileno(), at, one.position)
            aside = _set_aside(source.fileno(), path, one) if one.end > one.position else None
            if one.next_offset > one.first_offset:
                os.write(out.fileno(), _empty_batch(one))
            rows.append(_row(path, one, aside))
            at = one.end
        _copy(source.fileno(), out.fileno(), at, keep)
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
