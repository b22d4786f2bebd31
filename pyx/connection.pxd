# One connection, run by its reactor's thread only: bytes in, frames cut and served, answers out in order.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t

from penstock.pyx.plane cimport Connection, Reactor

# Takes over a socket that was accepted; closes it when there is no memory or place, or the reactor drains.
cdef void connection_open(Reactor* r, int fd, int32_t listener, const char* peer) noexcept nogil
cdef void connection_close(Reactor* r, Connection* c) noexcept nogil       # safe on a closed one
cdef void connection_ready(Reactor* r, Connection* c) noexcept nogil       # asks for a turn
cdef void connection_run(Reactor* r, Connection* c) noexcept nogil         # a turn; may close it
cdef void connection_unstall(Reactor* r, Connection* c) noexcept nogil
# A diverted request comes back from the control plane; `lose`: a produce is carried out, but its answer is lost.
cdef void connection_resume(
    Reactor* r, Connection* c, uint32_t number, uint8_t* frame, int32_t n, bint lose
) noexcept nogil
cdef void connection_rest(Reactor* r, Connection* c) noexcept nogil        # gives empty buffers back
# Bytes of answers that wait for the peer, without pieces.
cdef int64_t output_left(const Connection* c) noexcept nogil
cdef bint slots_full(Connection* c) noexcept nogil                        # no further request is read
