"""Connections that were closed for what their peers did or sent, and whose they were: kept until the control plane
takes them and logs them (broker/upkeep/watch.py). More than CLOSURES_KEPT are counted only (counters.pxd).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from penstock.pyx.linux.posix cimport pthread_mutex_t
from penstock.pyx.net.admission cimport PEER_BYTES

cdef enum:
    CLOSURES_KEPT = 256
    DETAIL_BYTES = 160

# In the order of the counters in counters.pxd.
cdef enum Reason:
    CLOSED_MEMORY_SHORT = 0
    CLOSED_SLOW_REQUEST = 1
    CLOSED_SLOW_READER = 2
    CLOSED_ADDRESS_LIMIT = 3
    CLOSED_TLS = 4                    # what came looks like a TLS handshake
    CLOSED_HTTP = 5                   # or like HTTP
    CLOSED_REQUEST_SIZE = 6           # a size that no request may have
    CLOSED_MALFORMED = 7              # a header or body that the API and version don't have
    CLOSED_UNSUPPORTED = 8            # an API or version that isn't served
    CLOSED_UNACKNOWLEDGED = 9         # a produce with acks=0 failed: only a closed connection can say so (as in Kafka)
    CLOSED_FAILED = 10                # the control plane failed, and has logged why; or an operator's fault injection
    CLOSED_FAULT = 11                 # a network thread couldn't serve it: no memory, or a segment's file was cut short

cdef struct Closure:
    Reason reason
    int32_t listener
    int64_t held_bytes                # of broker memory, for what it had sent
    char peer[PEER_BYTES]
    char detail[DETAIL_BYTES]         # what this peer sent, in words; may be empty

cdef struct Closures:
    pthread_mutex_t lock
    int32_t n
    Closure kept[CLOSURES_KEPT]

cdef void closures_open(Closures* closures) noexcept nogil
# `detail`: NULL if there is none. CLOSED_FAILED isn't kept.
cdef void closures_note(
    Closures* closures, Reason reason, int32_t listener, const char* peer, int64_t held_bytes, const char* detail
) noexcept nogil
# The reason for which a size at the front of n bytes can't be a request's, and its detail (DETAIL_BYTES).
cdef Reason closures_tell_size(const uint8_t* p, size_t n, int32_t size_max, char* detail) noexcept nogil
# Takes the oldest ones, CLOSURES_KEPT at most; how many there were.
cdef int32_t closures_take(Closures* closures, Closure* out) noexcept nogil
