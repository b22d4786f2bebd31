"""What all requests have that wait at their network thread (net/waiting.pxd): fetches for records, produces for
replicas.
"""

from libc.stdint cimport int32_t, int64_t

cdef enum WaitingKind:
    WAITING_FETCH = 0                 # a FetchJob
    WAITING_ACKS = 1                  # a ProduceWait

# The first member of both. Its network thread's own.
cdef struct Waiting:
    WaitingKind kind
    void* connection
    int64_t deadline_ms
    int32_t heap_index                # in the reactor's heap of deadlines; -1 = it isn't parked
    bint due                          # to be looked at when the connection runs next
    void* waiters                     # net/waiting.pxd
