"""A file system whose room is taken and given back."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A file system, mounted at `path`, which a file fills."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take what room there is, and what has become free since."""
        with self._ballast.open("ab", buffering=0) as file:
            end, piece = os.fstat(file.fileno()).st_size, 1 << 30
            while piece >= 1 << 16:
                try:
                    os.posix_fallocate(file.fileno(), end, piece)
                    end += piece
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EFBIG):
                        raise
                    piece //= 2
            for size in (1 << 12, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def drain(self) -> None:
        """Give all of it back."""
        self._ballast.unlink(missing_ok=True)

    def remount(self, how: str) -> None:
        """`ro` or `rw`."""
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True, capture_output=True)


@contextlib.contextmanager
def memory_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """A file system of memory, of so many bytes (`64m`); skips the test where this process may not mount one."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.getuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
