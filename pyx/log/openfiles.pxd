"""Open files of logs, of which those that weren't used lately are closed where descriptors run short (descriptors.pxd).

A file counts as used lately if it was read or appended to since upkeep last passed, or since files were last closed.
"""

from libc.stdint cimport int32_t

# Closes an eighth of the open files, the oldest first; how many, or FILES_BUSY. The caller may hold any lock: none is
# waited for.
cdef int32_t close_files() noexcept nogil
