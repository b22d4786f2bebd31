"""What is true of one log and its log folder's checkpoints don't say yet: `penstock-amendment` in the partition's folder.

A fetcher thread cuts a follower's log, replaces all of it, or finds that it has holes. The checkpoints (checkpoint.py) are one
file of all logs of a log folder, and writing them takes the GIL, so the thread writes this file instead, before it changes
anything else (truncation.pxd). Text:

    penstock-amendment 1
    number 3
    cut 1207 1207 1000 -1 -1 1000 4711 begun
    holes 0
    crc32c 1f2e3d4c

    number   grows with each amendment of the log; a line of the checkpoints says up to which one it has them
    cut      where the log was cut (-1: it wasn't); of all cuts since that line the least such offset, and the least recovery
             point; base offset of the log's first segment and log start, if none of it stayed (else -1 and -1); base offset
             of the last segment that stays (-1: none) and its bytes; `begun`, or `done` once all files are as it says
    holes    1: compaction, the leader's, has left holes between the batches

A cut that was `begun` is finished by the next start, so a log is as it was before the cut or after it, never between: nothing
is appended before it is `done`. Once the checkpoints have been written the file goes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from penstock import log
from penstock.durable import replace_file, sync_folder
from penstock.pyx.record.crc import crc32c

NAME = "penstock-amendment"
_HEAD = "penstock-amendment 1"
_BEGUN, _DONE = "begun", "done"
_TEXT = re.compile(
    rf"{_HEAD}\nnumber (\d+)\ncut(?P<cut>(?: -?\d+){{7}}) (?P<state>{_BEGUN}|{_DONE})\nholes (?P<holes>[01])\n", re.ASCII
)
_CRC_LINE = re.compile(rb"crc32c ([0-9a-f]{8})\n\Z")
_SEGMENT = (".log", ".index", ".timeindex", ".txnindex", ".checks")
_PRODUCERS = (".snapshot", ".sequences")
_SIZE_MAX = 4096
_NUMBERED = re.compile(r"(\d{20})(\.[a-z]+)", re.ASCII)

_log = log.get(__name__)


class Amendment(NamedTuple):
    """What the file says."""

    number: int
    end: int = -1
    least_end: int = -1
    recovery_point: int = -1
    first_segment: int = -1
    log_start: int = -1
    kept: int = -1
    kept_bytes: int = 0
    done: bool = True
    holes: bool = False


def parse_amendment(data: bytes) -> Amendment:
    """What the bytes of the file say. Raises ValueError, saying what is wrong."""
    end = _CRC_LINE.search(data)
    if end is None:
        raise ValueError("its end is missing" if data else "it is empty")
    if int(end[1], 16) != crc32c(data[: end.start()]):
        raise ValueError("its checksum is wrong")
    found = _TEXT.fullmatch(data[: end.start()].decode("ascii"))
    if found is None:
        raise ValueError("its version isn't 1")
    number, cut, least, point, first, start, kept, size = map(int, [found[1], *found["cut"].split()])
    return Amendment(number, cut, least, point, first, start, kept, size, found["state"] == _DONE, found["holes"] == "1")


def format_amendment(known: Amendment) -> bytes:
    """The bytes of the file."""
    cut = " ".join(map(str, known[1:8]))
    text = f"{_HEAD}\nnumber {known.number}\ncut {cut} {_DONE if known.done else _BEGUN}\nholes {int(known.holes)}\n"
    return text.encode() + b"crc32c %08x\n" % crc32c(text.encode())


def read_amendment(folder: str) -> Amendment | None:
    """What a partition's folder says; None if it has no such file, or one that can't be read, which is said: where the log
    contradicts the checkpoints then, it isn't opened. Raises OSError."""
    try:
        fd = os.open(f"{folder}/{NAME}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return parse_amendment(os.read(fd, _SIZE_MAX))
    except ValueError as error:
        _log.warning("`%s/%s` is damaged (%s); what the checkpoints of the log folder say holds", folder, NAME, error)
        return None
    finally:
        os.close(fd)


def finish_cut(folder: Path, known: Amendment) -> None:
    """Carry out what is left of a cut that a crash has interrupted, before the log is opened. Raises OSError; it can be called
    again then."""
    is_whole = known.kept < 0
    for path in sorted(folder.iterdir(), reverse=True):
        named = _NUMBERED.fullmatch(path.name)
        if named is None:
            continue
        base, suffix = int(named[1]), named[2]
        if suffix in _SEGMENT:
            gone = is_whole or base >= known.end or (base == known.kept and suffix != ".log")
        else:
            gone = suffix in _PRODUCERS and (is_whole or base > known.end)
        if gone:
            path.unlink()
    if is_whole:
        (folder / "leader-epoch-checkpoint").unlink(missing_ok=True)
    else:
        _shorten(folder / f"{known.kept:020d}.log", known.kept_bytes)
    (folder / f"{known.end:020d}.log").touch(0o600)
    sync_folder(folder)
    replace_file(folder / NAME, format_amendment(known._replace(done=True)))
    _log.info("the log in `%s` was being cut at offset %d when the process ended: it was cut now", folder, known.end)


def _shorten(path: Path, size: int) -> None:
    """Cut a file, if it is longer. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size > size:
            os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)
