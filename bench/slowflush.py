"""A file whose flushes take longer: a disk in it flushes as slowly as a rotating one.

The kernel reads and writes the file below by itself (FUSE passthrough, from Linux 6.9 on). Only its questions about the file
and its flushes come to the process here, which flushes the file below and then waits. A loop device on the file flushes one
at a time, and serves no other request meanwhile, as a disk does that writes its cache out.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import multiprocessing
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from penstock.bench.world import Skipped

# The kernel's protocol, from its header linux/fuse.h.
DEVICE = "/dev/fuse"
MAJOR, MINOR = 7, 40  # the first that has passthrough
FORGET, GETATTR, OPEN, RELEASE, FSYNC, FLUSH, INTERRUPT, BATCH_FORGET = 2, 3, 14, 18, 20, 25, 36, 42
WITHOUT_ANSWER = (FORGET, INTERRUPT, BATCH_FORGET)
REQUEST = struct.Struct("<IIQQIIIHH")  # length, operation, number, node, user, group, process, and two more
ANSWER = struct.Struct("<IiQ")  # length, negative errno, number
INIT_REQUEST = struct.Struct("<IIIII")  # versions, read-ahead, flags, and more flags
INIT_ANSWER = struct.Struct("<IIIIHHIIHHII24x")  # versions, read-ahead, flags, limits, ..., more flags, stacked file systems
FILE = struct.Struct("<QII QQQQQQIIIIIIIIII")  # how long it holds; number, size, blocks, times, mode, links, owner, ...
OPENED = struct.Struct("<QIi")  # handle, flags, number of the file below
MORE_FLAGS, PASSTHROUGH = 1 << 30, 1 << 5
OPEN_PASSTHROUGH = 1 << 7
BACKING_OPEN = 1 << 30 | 16 << 16 | 229 << 8 | 1  # an ioctl: its direction, its size, FUSE's letter, its number
BACKING = struct.Struct("<iIQ")
REQUEST_BYTES = 8192
WRITE_BYTES_MAX = 4096  # nothing is written by requests
HOLDS_S = 3600
BLOCK_BYTES = 512
THREADS = 8
MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2
START_LIMIT_S = 30.0


@contextmanager
def slow_flush(file: Path, flush_ms: int) -> Iterator[Path]:
    """The same file at another place, where each flush takes so much longer. Raises Skipped where the kernel can't do it."""
    place = file.with_suffix(".slow")
    place.touch()
    context = multiprocessing.get_context("spawn")  # this process holds the GIL whenever it likes
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(str(file), str(place), flush_ms, theirs), daemon=True)
    server.start()
    theirs.close()
    try:
        _started(ours)
        yield place
    finally:
        _libc().umount2(os.fsencode(place), MNT_DETACH)
        ours.close()
        server.terminate()
        server.join()
        place.unlink()


def _started(server: Connection) -> None:
    try:
        said = server.recv() if server.poll(START_LIMIT_S) else "it does not answer"
    except EOFError:
        said = "its process has ended"
    if said:
        raise Skipped(f"a disk whose flushes take longer needs root and FUSE with passthrough (Linux 6.9): {said}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _serve(file: str, place: str, flush_ms: int, parent: Connection) -> None:
    """Mount the file and answer the kernel until the parent is done, or gone. Says why not, or nothing once it is there."""
    try:
        below, device = os.open(file, os.O_RDWR), os.open(DEVICE, os.O_RDWR)
        options = f"fd={device},rootmode={stat.S_IFREG | 0o600:o},user_id=0,group_id=0"
        words = [os.fsencode(word) for word in ("penstock-bench", place, "fuse")]
        if _libc().mount(*words, MS_NOSUID | MS_NODEV, os.fsencode(options)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        server = _Server(device, below, flush_ms / 1000)
        server.begin()
    except OSError as error:
        parent.send(str(error))
        return
    for _ in range(THREADS):
        threading.Thread(target=server.answer_all, daemon=True).start()
    parent.send("")
    with contextlib.suppress(EOFError):
        parent.recv()


class _Server:
    """Answers the kernel's requests for a mounted file."""

    def __init__(self, device: int, below: int, flush_s: float) -> None:
        self._device = device
        self._below = below
        self._flush_s = flush_s
        self._backing = 0

    def begin(self) -> None:
        """Answer the first request. Raises OSError unless the kernel reads and writes the file below by itself."""
        _, number, said = self._next()
        *_, more_flags = INIT_REQUEST.unpack_from(said)
        if not more_flags & PASSTHROUGH:
            raise OSError(errno.EOPNOTSUPP, "its FUSE has none")
        answer = INIT_ANSWER.pack(MAJOR, MINOR, 0, MORE_FLAGS, 0, 0, WRITE_BYTES_MAX, 1, 0, 0, PASSTHROUGH, 1)
        self._answer(number, answer)
        self._backing = fcntl.ioctl(self._device, BACKING_OPEN, bytearray(BACKING.pack(self._below, 0, 0)))

    def answer_all(self) -> None:
        """Until the file is unmounted."""
        with contextlib.suppress(OSError):
            while True:
                operation, number, _ = self._next()
                if operation == GETATTR:
                    self._answer(number, self._attributes())
                elif operation == OPEN:
                    self._answer(number, OPENED.pack(0, OPEN_PASSTHROUGH, self._backing))
                elif operation == FSYNC:
                    os.fdatasync(self._below)
                    time.sleep(self._flush_s)
                    self._answer(number)
                elif operation in (FLUSH, RELEASE):
                    self._answer(number)
                elif operation not in WITHOUT_ANSWER:
                    self._answer(number, error=errno.ENOSYS)

    def _next(self) -> tuple[int, int, bytes]:
        """The next request: its operation, its number, and what it says."""
        request = os.read(self._device, REQUEST_BYTES)
        _, operation, number, *_ = REQUEST.unpack_from(request)
        return operation, number, request[REQUEST.size :]

    def _answer(self, number: int, data: bytes = b"", error: int = 0) -> None:
        os.write(self._device, ANSWER.pack(ANSWER.size + len(data), -error, number) + data)

    def _attributes(self) -> bytes:
        size = os.fstat(self._below).st_size
        times, owner = (0, 0, 0), (0, 0)
        return FILE.pack(
            HOLDS_S, 0, 0, 1, size, size // BLOCK_BYTES, *times, *times, stat.S_IFREG | 0o600, 1, *owner, 0, BLOCK_BYTES, 0
        )
