"""The queue of requests for the control plane: bounded in bytes, read by Python when its eventfd is readable."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from penstock.pyx.linux.posix cimport pthread_mutex_t
from penstock.pyx.net.admission cimport PEER_BYTES

# What became of a frame, or of a wish for memory.
cdef enum Served:
    SERVED = 0
    SERVE_STALLED = 1                 # not now: the frame stays where it is, the connection is looked at again later
    SERVE_HELD = 2                    # the same: a partition that it names is held
    SERVE_CLOSE = -1                  # never: the connection ends

# A request on its way to the control plane. `frame` has no size in front.
cdef struct ControlRequest:
    uint64_t token
    int32_t listener
    int32_t n
    bint handed_over                  # a produce that its network thread may not serve
    char peer[PEER_BYTES]
    ControlRequest* next
    uint8_t frame[1]

cdef struct ControlQueue:
    pthread_mutex_t lock
    ControlRequest* first
    ControlRequest* last
    int64_t bytes
    int64_t bytes_max
    int fd                            # eventfd: readable while something is there
    bint full                         # a connection was stalled by it

cdef bint queue_open(ControlQueue* q) noexcept nogil
# Copies a frame of n bytes onto the queue. One that is larger than the bound is taken when the queue is empty.
# SERVE_STALLED: the queue is full, and `full` remembers that somebody waits for it.
cdef Served queue_put(
    ControlQueue* q, uint64_t token, int32_t listener, const char* peer, const uint8_t* frame, int32_t n,
    bint handed_over
) noexcept nogil
# At most `most` requests, oldest first, as a list that the caller frees one by one; NULL when there is none.
# `unstall`: the queue was full and has room again.
cdef ControlRequest* queue_take(ControlQueue* q, int32_t most, bint* unstall) noexcept nogil
cdef void queue_clear(ControlQueue* q) noexcept nogil
cdef void queue_close(ControlQueue* q) noexcept nogil
