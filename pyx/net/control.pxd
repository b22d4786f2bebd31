"""The queue of requests for the control plane: bounded in bytes, read by Python when its eventfd is readable."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from penstock.pyx.net.plane cimport Connection, ControlQueue, ControlRequest, Reactor, Served

cdef bint queue_open(ControlQueue* q) noexcept nogil
# Copies a frame of n bytes onto the queue, with the token of the connection's slot of that number. One that is larger
# than the bound is taken when the queue is empty. SERVE_STALLED: the queue is full, and `full` remembers that
# somebody waits for it.
cdef Served queue_put(
    Reactor* r, Connection* c, uint32_t number, const uint8_t* frame, int32_t n, bint handed_over
) noexcept nogil
# At most `most` requests, oldest first, as a list that the caller frees one by one; NULL when there is none.
# `unstall`: the queue was full and has room again.
cdef ControlRequest* queue_take(ControlQueue* q, int32_t most, bint* unstall) noexcept nogil
cdef void queue_clear(ControlQueue* q) noexcept nogil
cdef void queue_close(ControlQueue* q) noexcept nogil
