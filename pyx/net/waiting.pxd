"""A reactor's waiting requests: on a heap of deadlines, and on a list for each partition that they wait for, so that a
log that grows costs only those who wait for it. Fetches wait for an end to move, produces for replicas.
"""

from libc.stdint cimport int32_t
from libcpp.unordered_map cimport unordered_map

from penstock.pyx.log.partition cimport Partition
from penstock.pyx.request.waiting cimport Waiting

# One of a request's partitions; the request holds all of its as an array.
cdef struct Waiter:
    Waiting* who                      # NULL: the end of the array
    Partition* partition
    int32_t at                        # of a fetch's set
    Waiter* next                      # of the same partition
    Waiter* previous

cdef struct Waits:
    int32_t reactor                   # bit in the partitions' wake masks
    Waiting** heap                    # by deadline
    int32_t heap_n
    int32_t heap_capacity
    unordered_map[size_t, Waiter*] by_partition   # the first of its list, by the partition's address

cdef Waits* waits_new(int32_t reactor) noexcept nogil
cdef bint park(Waits* waits, Waiting* who) noexcept nogil         # of one that isn't parked; False: no memory
cdef void unpark(Waits* waits, Waiting* who) noexcept nogil       # safe on one that isn't parked
# Calls `retry` for each fetch for which the partition's end has moved, and watches it again for the others; and for
# each produce, which looks for itself: the lead may have been lost meanwhile.
ctypedef void (*Retry)(void* context, Waiting* who) noexcept nogil
cdef void retry_moved(Waits* waits, Partition* partition, Retry retry, void* context) noexcept nogil
