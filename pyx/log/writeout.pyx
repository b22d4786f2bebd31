"""Bytes of a file written out to the disk while more are written to it; see writeout.pyi."""

import os
from libc.stdint cimport int64_t

from penstock.pyx.linux.posix cimport (
    EINVAL, ENOSYS, EOPNOTSUPP, SYNC_FILE_RANGE_WAIT_AFTER, SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE, errno,
    sync_file_range,
)


def write_out(int fd, int64_t position, int64_t n, bint wait):
    """Let the kernel write a range out, and wait for it; see writeout.pyi."""
    cdef unsigned int flags = SYNC_FILE_RANGE_WRITE
    cdef int error = 0
    if wait:
        flags |= SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER
    with nogil:
        if sync_file_range(fd, position, n, flags) != 0:
            error = errno
    # A file system without it: the sync that follows does all at once.
    if error != 0 and error != EINVAL and error != ENOSYS and error != EOPNOTSUPP:
        raise OSError(error, os.strerror(error))
