"""Open files of logs, closed where descriptors run short and they weren't used recently (descriptors.pxd).

A file counts as used recently if it was read or appended to since upkeep last passed, or since files were last closed.
"""

from libc.stdint cimport int32_t

# Closes an eighth of the open files, the oldest first; how many, or FILES_BUSY. The caller may hold any lock: none is
# waited for.
cdef int32_t close_files() noexcept nogil
