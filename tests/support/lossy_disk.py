"""A file system of its own whose power can be cut: what wasn't flushed is gone afterwards, as on a machine that stops.

It can be frozen, too: each write waits then.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from support.patience import until

# XFS's ioctl, which ext4 has under the same number; the flag leaves out even the journal that is in memory.
GOING_DOWN = 0x8004587D
FREEZE, THAW = 0xC0045877, 0xC0045878
NO_LOG_FLUSH = (2).to_bytes(4, "little")
IMAGE_BYTES = 1 << 30
ANOTHER_START = "00000000-0000-0000-0000-000000000000"
"""A boot id that no kernel gives."""
MAKE = {"xfs": ["mkfs.xfs", "-q", "-f"], "ext4": ["mkfs.ext4", "-q", "-F"]}


class LossyDisk:
    """An image in a file, mounted by a loop device at `path` while `with` lasts."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self.path = folder / f"{kind}-disk"
        self._image = folder / f"{kind}.img"
        self._is_frozen = False

    @staticmethod
    def why_not(kind: str) -> str:
        """What this machine lacks, or nothing."""
        if os.getuid() == 0 and shutil.which(MAKE[kind][0], path="/usr/sbin:/sbin:/usr/bin:/bin") is not None:
            return ""
        return f"cutting the power of a disk needs root and {MAKE[kind][0]}"

    def __enter__(self) -> Self:
        lacking = self.why_not(self.kind)
        if lacking:
            pytest.skip(lacking)
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        _run([*MAKE[self.kind], str(self._image)])
        try:
            self.mount()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"loop devices can't be mounted here: {error.stderr.strip()}")
        return self

    def mount(self) -> None:
        """As a machine does that starts again: the journal is replayed."""
        if not self._mounted():
            # Another mount namespace (of a container that was started meanwhile) holds the file system that went down, so that
            # one gets that again; what is on the disk is in the image, and a copy of it is another disk.
            copy = self._image.with_suffix(".copy")
            _run(["cp", "--sparse=always", str(self._image), str(copy)])
            copy.replace(self._image)
            assert self._mounted(), f"{self._image} can't be used after its power was cut"

    def _mounted(self) -> bool:
        """Whether it is mounted and can be written to; it is left alone if not."""
        options = "loop,nouuid" if self.kind == "xfs" else "loop"
        _run(["mount", "-o", options, str(self._image), str(self.path)])
        try:
            (self.path / "mounted").write_bytes(b"")
        except OSError:
            self.unmount()
            return False
        return True

    def cut(self) -> None:
        """Nothing reaches the disk from here on; processes that use it get EIO."""
        self._ask(GOING_DOWN, NO_LOG_FLUSH)

    def freeze(self) -> None:
        """Every write waits, until `thaw`."""
        self._ask(FREEZE)
        self._is_frozen = True

    def thaw(self) -> None:
        """Let writes go on. May be called again."""
        if self._is_frozen:
            self._ask(THAW)
            self._is_frozen = False

    def _ask(self, what: int, value: bytes = bytes(4)) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, what, value)
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """After those who used it have ended."""

        def gone() -> bool:
            return subprocess.run(["umount", str(self.path)], capture_output=True, check=False).returncode == 0

        until(gone, f"{self.path} to be unmounted")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.thaw()
        if os.path.ismount(self.path):
            self.unmount()
        self._image.unlink(missing_ok=True)


def forget_start(data: Path) -> None:
    """Have `.lock` of a stopped broker's data folder say that another start of the machine has left it."""
    lock = data / ".lock"
    process, _, *rest = lock.read_text().splitlines()
    lock.write_text("\n".join([process, ANOTHER_START, *rest, ""]))


def flush_file(path: Path) -> None:
    """As the kernel may do on its own at any time, to any file and not to others."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _run(command: list[str]) -> None:
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
