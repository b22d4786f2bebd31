"""A reactor's waiting fetches: on a heap of deadlines, and on a list for each partition that they wait for, so that a
log that grows costs only those who wait for it.
"""

from libc.stdint cimport int32_t
from libcpp.unordered_map cimport unordered_map

from penstock.pyx.log.partition cimport Partition
from penstock.pyx.request.fetch cimport FetchJob

# One of a job's partitions; the job holds all of its as an array.
cdef struct Waiter:
    FetchJob* job
    Partition* partition
    int32_t at                        # of the job's set
    Waiter* next                      # of the same partition
    Waiter* previous

cdef struct Waits:
    int32_t reactor                   # bit in the partitions' wake masks
    FetchJob** heap                   # by deadline
    int32_t heap_n
    int32_t heap_capacity
    unordered_map[size_t, Waiter*] by_partition   # the first of its list, by the partition's address

cdef Waits* waits_new(int32_t reactor) noexcept nogil
cdef bint park(Waits* waits, FetchJob* job) noexcept nogil        # of a job that doesn't wait; False: no memory
cdef void unpark(Waits* waits, FetchJob* job) noexcept nogil      # safe on a job that doesn't wait
# Calls `retry` for each waiting job for which the partition's end has moved, and watches it again for the others.
ctypedef void (*Retry)(void* context, FetchJob* job) noexcept nogil
cdef void retry_moved(Waits* waits, Partition* partition, Retry retry, void* context) noexcept nogil
