"""What of a file is in the page cache, and how to get it out."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

CACHESTAT = 451


def drop_cache(path: Path) -> bool:
    """Write a file out and drop it from the page cache; whether its first page then really needs the disk."""
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def drop_cache_or_skip(path: Path) -> None:
    """The same for a test that can't do without it, nor without a kernel that tells what is in the page cache."""
    if not drop_cache(path):
        pytest.skip("pages of this file system can't be dropped")
    cached_bytes(path)


def cached_bytes(path: Path) -> int:
    """Of a file, in the page cache. Skips the test where the kernel doesn't tell: then the broker can't know either."""
    asked, found = (ctypes.c_uint64 * 2)(0, path.stat().st_size), (ctypes.c_uint64 * 5)()
    with path.open("r+b") as opened:
        if ctypes.CDLL(None).syscall(CACHESTAT, opened.fileno(), asked, found, 0) != 0:
            pytest.skip("needs Linux 6.5 or newer")
    return int(found[0]) * os.sysconf("SC_PAGESIZE")
