# A connection's requests: served in place into the output or a slot, or handed to the control plane, whose answer
# comes back into the slot.
from libc.stdint cimport int32_t, uint32_t, uint8_t

from penstock.pyx.plane cimport Connection, Reactor, Served

# One whole frame, without its size, which is written to. The ring has room for one more.
cdef Served request_serve(Reactor* r, Connection* c, uint8_t* frame, int32_t n) noexcept nogil
# The last frame was wrong: what came before it is still answered, nothing after it is read.
cdef void requests_refuse(Reactor* r, Connection* c) noexcept nogil
cdef bint slots_full(Connection* c) noexcept nogil               # no further request is read
# A diverted request comes back from the control plane; `lose`: a produce is carried out, but its answer is lost.
cdef void requests_resume(
    Reactor* r, Connection* c, uint32_t number, uint8_t* frame, int32_t n, bint lose
) noexcept nogil
