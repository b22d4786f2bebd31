"""Asks the kernel for what the data plane asks it for, by the same calls, and says what it answered; see kernel.pyi."""

from libc.stdint cimport uint64_t

from penstock.pyx.linux.posix cimport cached_pages, errno, set_time_slice


def cachestat(int fd):
    """0 or errno; see kernel.pyi."""
    cdef uint64_t pages = 0, unwritten = 0
    return errno if cached_pages(fd, 0, 1, &pages, &unwritten) != 0 else 0


def time_slice(uint64_t ns):
    """0 or errno; see kernel.pyi."""
    return set_time_slice(ns)
