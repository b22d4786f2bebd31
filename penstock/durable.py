"""Names and small files that survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE_UMASK = 0o077  # files of a broker or a stage hold records and secrets: no other user of the machine reads them


def boot_id() -> str:
    """Another after each start of the machine; "" where the kernel doesn't say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def sync_folder(path: Path) -> None:
    """Make names that came, went or changed in a folder survive a power cut. Raises OSError."""
    _sync(path, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Make what a file holds survive a power cut. Raises OSError."""
    _sync(path)


def _sync(path: Path, flags: int = 0) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes | memoryview, mode: int = 0o666, *, readable: bool = False) -> None:
    """Write a file that is there whole or as it was before, also after a power cut; `readable`: any user may read it, whatever
    the umask is. Raises OSError."""
    beside = path.with_name(path.name + ".tmp")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        if readable:
            os.fchmod(file.fileno(), 0o644)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)
