"""Who has a data folder, and what its last run has left there.

DIR         held by flock: whoever removes or replaces a file in the folder frees nothing
DIR/.lock   held by flock, as Penstocks of before hold it and nothing else, and by a lock of its bytes, as Apache Kafka takes
            it. Process, boot id, which transactions since the last clean stop were flushed; of a member of a cluster also
            this file's inode, and the incarnations under which its broker was registered last

The boot id says later whether a power cut may have taken what wasn't flushed: then recovery cuts damage off a log that it would
otherwise refuse. So it isn't guessed. Where the file is gone or holds something else it is "unknown", and stays so until all
logs of the folder were opened.

The incarnations say whether the cluster knows a later run of this broker than the folder does: then the folder was put back
from a copy, or was away. The inode tells the folder from a copy of it that was made during the same run.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

from penstock.broker.configs.flushes import Flushes

LOCK = ".lock"
_WORDS = {Flushes.NONE: "", Flushes.STAGES: "stages-flushed", Flushes.ALL: "flushed"}
"""What `.lock` says of the transactions since the last clean stop."""
UNKNOWN = "unknown"
"""The boot id of a run that left no `.lock`."""
_BOOT_ID = re.compile(r"[0-9a-f-]{36}")
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_NO_FOLDER_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP)


class InUseError(Exception):
    """Another process has the folder; `holder` is its id as `.lock` says it, or "unknown"."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class Last(NamedTuple):
    """What a folder's last run has left in its `.lock`: the boot id under which its logs were opened, or under which it
    was locked after a clean stop ("" if it says none: Kafka's, or the kernel didn't say it; UNKNOWN),
    and of which transactions whatever a power cut can take was flushed as `penstock.transaction.flush` promises.

    incarnations: those that may be the newest one in the store; none on one node, or where the folder isn't as its run left it.
    inode: of the file that said so.
    """

    boot_id: str
    flushed: Flushes = Flushes.NONE
    incarnations: tuple[str, ...] = ()
    inode: int = 0


class Lock:
    """Held from `take` to `release`, or to the end of the process."""

    def __init__(self, fds: tuple[int, int], was_empty: bool) -> None:
        self._folder_fd, self._fd = fds
        self.was_empty = was_empty  # as Kafka leaves it: no Penstock does
        self.last = self.read()

    @classmethod
    def take(cls, path: Path) -> Lock:
        """Raises InUseError, OSError."""
        folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _flock(folder_fd, path, passing=_NO_FOLDER_LOCKS)
            was_there = (path / LOCK).exists()
            fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BaseException:
            os.close(folder_fd)
            raise
        try:
            _flock(fd, path)
            try:
                # Of the open file: another one that this process closes, as a second `take` does, leaves it.
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            except BlockingIOError:
                raise InUseError(_holder(path)) from None
            if not was_there:
                _write(fd, Last(UNKNOWN))  # From here on it would look like Kafka's.
            return cls((folder_fd, fd), os.fstat(fd).st_size == 0)
        except BaseException:
            os.close(fd)
            os.close(folder_fd)
            raise

    def read(self) -> Last:
        """What `.lock` says now. Raises OSError."""
        return _parse(os.pread(self._fd, 256, 0))

    def write(self, last: Last) -> None:
        """Say it in `.lock`, durably. Raises OSError."""
        _write(self._fd, last)

    def forget_incarnations(self) -> None:
        """The logs of the folder aren't as its broker's last run left them. Raises OSError."""
        last = self.read()
        if last.incarnations:
            self.write(last._replace(incarnations=()))

    @property
    def is_original(self) -> bool:
        """Whether this is the file that its last run wrote, and no copy of it. Raises OSError."""
        return self.last.inode == os.fstat(self._fd).st_ino

    def release(self) -> None:
        """Let others have the folder."""
        os.close(self._fd)
        os.close(self._folder_fd)


def last_run(path: Path) -> Last:
    """What `.lock` of a folder says that may be another process's; as of a lost one if there is none. Raises OSError."""
    try:
        return _parse((path / LOCK).read_bytes()[:256])
    except FileNotFoundError:
        return Last(UNKNOWN)


def _parse(content: bytes) -> Last:
    lines = content.decode(errors="replace").splitlines()
    holder, boot_id, flushed, member = (*lines[:4], "", "", "", "")[:4]
    if lines and not (holder.isdecimal() and (not boot_id or _BOOT_ID.fullmatch(boot_id))):
        return Last(UNKNOWN)
    inode, *incarnations = member.split() or ("",)
    if not inode.isdecimal():
        inode, incarnations = "0", []
    known = next((one for one, word in _WORDS.items() if word == flushed), Flushes.NONE)
    return Last(boot_id, known, tuple(incarnations), int(inode))


def _flock(fd: int, path: Path, passing: tuple[int, ...] = ()) -> None:
    """passing: errors of file systems that don't lock this; what is locked beside it has to do there."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUseError(_holder(path)) from None
    except OSError as error:
        if error.errno not in passing:
            raise


def _holder(path: Path) -> str:
    """The process that `.lock` names."""
    try:
        line = (path / LOCK).read_bytes()[:256].decode(errors="replace").partition("\n")[0]
    except OSError:
        return UNKNOWN
    return line if line.isdecimal() else UNKNOWN


def _write(fd: int, last: Last) -> None:
    member = " ".join((str(os.fstat(fd).st_ino), *last.incarnations)) + "\n" if last.incarnations else ""
    text = f"{os.getpid()}\n{last.boot_id}\n{_WORDS[last.flushed]}\n{member}".encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))
    os.fsync(fd)
