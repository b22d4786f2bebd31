"""What the machine is like: gathered here, checked in checks.py. A fact that can't be seen is None, never a guess."""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.broker import kernelfeatures
from penstock.broker.mounts import mount_of, mountinfo

MARKER = ".penstock-disk"
"""Lies at the top of each disk that the role `disks` has prepared: a folder without it lies on another disk."""
_FSYNCS = 50
_FSYNC_BYTES = 4096
_TIME_ERROR = 5  # adjtimex: the clock isn't synchronised
_TIMEX_BYTES = 256


@dataclass(frozen=True)
class Disk:
    """A log folder and the disk under it."""

    folder: str
    exists: bool
    mount_point: str | None = None
    device: str | None = None
    file_system: str | None = None
    options: tuple[str, ...] = ()
    on_root: bool | None = None
    marked: bool | None = None
    mode: int | None = None
    free_bytes: int | None = None
    size_bytes: int | None = None
    rotational: bool | None = None
    scheduler: str | None = None
    read_ahead_kb: int | None = None
    fsync_p99_ms: float | None = None


@dataclass(frozen=True)
class Facts:
    """All that the checks look at."""

    disks: tuple[Disk, ...]
    kernel: str
    missing_features: tuple[tuple[str, str], ...]  # name, and why with what it costs
    swappiness: int | None
    dirty_bytes: int | None
    dirty_background_bytes: int | None
    huge_pages: str | None
    congestion_control: str | None
    somaxconn: int | None
    open_files: int
    clock_synchronised: bool | None


def gather(folders: Sequence[Path]) -> Facts:
    """Look at the machine. Slow: each folder's disk is asked to flush a nameless file of some KiB."""
    features = kernelfeatures.find(folders)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Facts(
        disks=tuple(disk(folder) for folder in folders),
        kernel=os.uname().release,
        missing_features=tuple((one.name, f"{one.why}; {one.cost}") for one in features if one.refused),
        swappiness=_number("/proc/sys/vm/swappiness"),
        dirty_bytes=_number("/proc/sys/vm/dirty_bytes"),
        dirty_background_bytes=_number("/proc/sys/vm/dirty_background_bytes"),
        huge_pages=_chosen(_text("/sys/kernel/mm/transparent_hugepage/enabled")),
        congestion_control=_text("/proc/sys/net/ipv4/tcp_congestion_control"),
        somaxconn=_number("/proc/sys/net/core/somaxconn"),
        open_files=hard if hard != resource.RLIM_INFINITY else 1 << 30,
        clock_synchronised=_clock_synchronised(),
    )


def disk(folder: Path) -> Disk:
    """A log folder's facts."""
    if not folder.is_dir():
        return Disk(str(folder), exists=False)
    mount = mount_of(folder.resolve(), mountinfo())
    number = folder.stat().st_dev
    block = _block(number)
    room = os.statvfs(folder)
    point = mount.point if mount else None
    return Disk(
        folder=str(folder),
        exists=True,
        mount_point=point,
        device=mount.device if mount else None,
        file_system=mount.kind if mount else None,
        options=mount.options if mount else (),
        on_root=number == Path("/").stat().st_dev,
        marked=_is_file(Path(point) / MARKER) if point else None,
        mode=stat.S_IMODE(folder.stat().st_mode),
        free_bytes=room.f_bavail * room.f_frsize,
        size_bytes=room.f_blocks * room.f_frsize,
        rotational=_flag(block / "rotational") if block else None,
        scheduler=_chosen(_text(block / "scheduler")) if block else None,
        read_ahead_kb=_number(block / "read_ahead_kb") if block else None,
        fsync_p99_ms=_fsync_p99_ms(folder),
    )


def _block(number: int) -> Path | None:
    """The queue settings of the whole disk that a device number is, or is a partition of."""
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for one in (device / "queue", device / ".." / "queue"):
        if one.is_dir():
            return one
    return None


def _fsync_p99_ms(folder: Path) -> float | None:
    """The slowest but one in a hundred flushes of 4 KiB (of 50: the slowest)."""
    try:
        file_fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    took: list[float] = []
    try:
        for number in range(_FSYNCS):
            os.pwrite(file_fd, bytes(_FSYNC_BYTES), number * _FSYNC_BYTES)
            before = time.monotonic()
            os.fdatasync(file_fd)
            took.append((time.monotonic() - before) * 1000)
    except OSError:
        return None
    finally:
        os.close(file_fd)
    return round(sorted(took)[int(len(took) * 0.99)], 2)


def _clock_synchronised() -> bool | None:
    """What the kernel says of its clock; None where this process mustn't ask."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else state != _TIME_ERROR


def _is_file(path: Path) -> bool | None:
    try:
        return path.is_file()
    except OSError:
        return None


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: str | Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _flag(path: Path) -> bool | None:
    number = _number(path)
    return None if number is None else number != 0


def _chosen(text: str | None) -> str | None:
    """The word in brackets: `always [madvise] never`."""
    words: Iterable[str] = (text or "").split()
    return next((word[1:-1] for word in words if word.startswith("[")), None)
