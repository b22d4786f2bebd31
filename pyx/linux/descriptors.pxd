"""File descriptors, which the whole process shares: connections and the files of logs take them, and the rest of the
broker (indexes, checkpoints, the metadata store) always has to find some.

The kernel gives the lowest free number, so the number of a new descriptor says how many are in use. Of the limit a
reserve is kept. Connections don't go into it, they wait in the kernel's queue; files of logs may use half of it.
Where a new one comes into that, and where none is free at all, files of logs that weren't used recently are closed;
they are opened again at their next use. So a shortage costs time, and no partition.
"""

from libc.stdint cimport int32_t

# open(2): an fd, or -errno. Where no descriptor is free, files of logs are closed for it; if that doesn't help, it is
# counted.
cdef int open_file(const char* path, int flags, int mode) noexcept nogil
# Whether a file's descriptor is one of the last that logs may have: with several in use no further one is taken.
cdef bint is_last_file(int fd) noexcept nogil
# After a file of a log was opened: closes others if there are few descriptors left.
cdef void spare_descriptors(int fd) noexcept nogil
# Whether a connection's descriptor is among those that are kept in reserve.
cdef bint in_reserve(int fd) noexcept nogil
# Whether another connection may come; `fd` is any descriptor. Closes files of logs for it.
cdef bint connection_may_come(int fd) noexcept nogil

cdef enum:
    FILES_BUSY = -1                    # none was closed, but others hold locks of files that may be closed soon

# Closes some files of logs, first those that weren't used for longest; how many, or FILES_BUSY. The caller may hold
# any lock: none is waited for.
ctypedef int32_t (*CloseFiles)() noexcept nogil
cdef void set_close_files(CloseFiles hook) noexcept nogil
