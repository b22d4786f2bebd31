"""What of a file is in the page cache, and how to get it out."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

CACHESTAT = 451  # Linux 6.5
TRIES = 20  # pages that a processor is just adding or looking at can't be dropped


def drop_cache(path: Path) -> bool:
    """Write a file out and drop it from the page cache; whether it then really needs the disk."""
    with path.open("r+b") as opened:
        os.fsync(opened.fileno())
        for _ in range(TRIES):
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            cached = _cached_pages(opened.fileno())
            if cached == 0 or (cached is None and not _first_is_cached(opened.fileno())):
                return True
    return False


def drop_cache_or_skip(path: Path) -> None:
    """The same for a test that can't do without it, nor without a kernel that tells what is in the page cache."""
    if not drop_cache(path):
        pytest.skip("pages of this file system can't be dropped")
    cached_bytes(path)


def cached_bytes(path: Path) -> int:
    """Of a file, in the page cache. Skips the test where the kernel doesn't tell: then the broker can't know either."""
    with path.open("r+b") as opened:
        pages = _cached_pages(opened.fileno())
    if pages is None:
        pytest.skip("needs Linux 6.5 or newer")
    return pages * os.sysconf("SC_PAGESIZE")


def _cached_pages(fd: int) -> int | None:
    whole, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    return None if ctypes.CDLL(None).syscall(CACHESTAT, fd, whole, found, 0) else int(found[0])


def _first_is_cached(fd: int) -> bool:
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # the file system can't tell
        return True
    return True
