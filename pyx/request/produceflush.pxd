"""Produce requests that name partitions with flush.messages: such a partition is flushed before the answer, by a
thread of the control plane: no other connection of the network thread waits for a disk.
"""

from penstock.pyx.log.partition cimport LogSet
from penstock.pyx.record.frame cimport Reader, RequestHead

# Log folders, each once; of more than fit the others are left out.
cdef enum:
    NAMED_FOLDERS_MAX = 64

cdef struct NamedFolders:
    size_t count
    size_t folder[NAMED_FOLDERS_MAX]

# Whether the request names a partition with flush.messages: the control plane then serves it in a thread of its own.
# `folders` (may be NULL) gets those of the partitions that it names.
cdef bint produce_flushes(LogSet* logs, const RequestHead* head, Reader body, NamedFolders* folders) noexcept nogil
# Flushes the request's partitions that have flush.messages: for a request that was appended with verdicts. 0, or errno
# of what failed.
cdef int produce_flush(LogSet* logs, const RequestHead* head, Reader body) noexcept nogil
