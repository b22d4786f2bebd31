"""The clock that counts through suspend, and that no one sets."""

from libc.stdint cimport int64_t

from penstock.pyx.linux.posix cimport clock_gettime, timespec

cdef extern from "<time.h>" nogil:
    int CLOCK_BOOTTIME


cdef inline int64_t boottime_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_BOOTTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000
