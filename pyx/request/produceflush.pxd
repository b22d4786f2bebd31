"""Produce requests that name partitions with flush.messages: such a partition is synced before the answer, by a
thread of the control plane and not by the network thread.
"""

from penstock.pyx.log.partition cimport LogSet
from penstock.pyx.record.frame cimport Reader, RequestHead

# Log folders, each once; of more than fit the others are left out.
cdef enum:
    NAMED_FOLDERS_MAX = 64

cdef struct NamedFolders:
    size_t count
    size_t folder[NAMED_FOLDERS_MAX]

# Whether the request names a partition with flush.messages, which is synced before the answer: the control plane then
# serves the request in a thread of its own, so that no other connection of this network thread waits for a disk.
# `folders` (may be NULL) gets those of the partitions that it names.
cdef bint produce_flushes(LogSet* logs, const RequestHead* head, Reader body, NamedFolders* folders) noexcept nogil
# Fsyncs the request's partitions that have flush.messages: for a request that was appended with verdicts. 0, or errno
# of what failed.
cdef int produce_flush(LogSet* logs, const RequestHead* head, Reader body) noexcept nogil
