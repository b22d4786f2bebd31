"""A file that holds space on a log folder's disk, to be given up when the disk is full.

A broker on a full disk still has to append markers and committed offsets, write checkpoints and the metadata store, and
above all delete: without space for that, an operator can't even shorten the retention of a topic. So `.ballast` is taken
while there is space, and let go when an append finds none; clients' appends are then refused until there is space for it
again, so that they don't eat it up. It is never more than a 64th of the file system.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NAME = ".ballast"
SHARE = 64  # of a file system at most one part in so many
ROOM = 2  # so many times its size must be free before it is taken


class Ballast:
    """The ballast of one folder. Its methods touch the disk."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._path = folder / NAME
        self._wanted_bytes = size_bytes
        self.held_bytes = 0
        self.was_left = False  # whether a kill had left one, which the start gave up

    @property
    def wanted(self) -> bool:
        """Whether there is to be one (`penstock.ballast.bytes` is not 0)."""
        return self._wanted_bytes > 0

    def has_space(self) -> bool:
        """Whether the file system has space again, the ballast's own taken into account. Raises OSError."""
        size_bytes, free_bytes = self._size()
        return self.held_bytes + free_bytes >= ROOM * max(size_bytes, 1)

    def take(self) -> bool:
        """Hold the space; False when there isn't enough. Raises OSError for anything but a full disk."""
        if self.held_bytes:
            return True
        size_bytes, free_bytes = self._size()
        if not self.wanted or free_bytes < ROOM * size_bytes or size_bytes == 0:
            self.release()
            return False
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            self.held_bytes = size_bytes
        except OSError:
            self.release()  # Another writer was faster, or the file system can't set space aside.
        finally:
            os.close(fd)
        return self.held_bytes > 0

    def release_left(self) -> None:
        """Give up what a broker that was killed has left: on a full disk the start needs the space itself."""
        self.was_left = self._path.is_file()
        self.release()

    def release(self) -> None:
        """Give the space up."""
        self.held_bytes = 0
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _size(self) -> tuple[int, int]:
        """Bytes of the ballast on this file system, and bytes that are free."""
        disk = os.statvfs(self._path.parent)
        return min(self._wanted_bytes, disk.f_blocks * disk.f_frsize // SHARE), disk.f_bavail * disk.f_frsize
