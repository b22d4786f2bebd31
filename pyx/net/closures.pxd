"""Connections that were closed for what their peers did, and whose they were: kept until the control plane takes them,
so that it can say whom an operator should look at. More than CLOSURES_KEPT are counted only (counters.pxd).
"""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.net.admission cimport PEER_BYTES
from penstock.pyx.posix cimport pthread_mutex_t

cdef enum:
    CLOSURES_KEPT = 256

cdef enum Reason:
    CLOSED_MEMORY_SHORT = 0
    CLOSED_SLOW_REQUEST = 1
    CLOSED_SLOW_READER = 2
    CLOSED_ADDRESS_LIMIT = 3

cdef struct Closure:
    Reason reason
    int64_t held_bytes                # of broker memory, for what it had sent
    char peer[PEER_BYTES]

cdef struct Closures:
    pthread_mutex_t lock
    int32_t n
    Closure kept[CLOSURES_KEPT]

cdef void closures_open(Closures* closures) noexcept nogil
cdef void closures_note(Closures* closures, Reason reason, const char* peer, int64_t held_bytes) noexcept nogil
# Takes the oldest ones, CLOSURES_KEPT at most; how many there were.
cdef int32_t closures_take(Closures* closures, Closure* out) noexcept nogil
