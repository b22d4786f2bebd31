"""A connection's requests: served in place into the output or a slot, or handed to the control plane, whose answer
comes back into the slot.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from penstock.pyx.net.closures cimport Reason
from penstock.pyx.net.control cimport Served
from penstock.pyx.net.plane cimport Connection, Reactor
from penstock.pyx.net.workers cimport Work
from penstock.pyx.request.fetch cimport FetchJob
from penstock.pyx.request.produce cimport ProduceResult
from penstock.pyx.request.refusals cimport Sender

# Frames at the front of a connection's input, their sizes with them.
cdef struct Span:
    int32_t frames
    size_t bytes
    int32_t largest
    Reason why                        # of SERVE_CLOSE

# Why the connection of a produce that is neither answered nor silent is closed.
cdef Reason produce_reason(ProduceResult result) noexcept nogil
# The frame at the front, which is whole and has n bytes without its size, and the produces right behind it, at most
# `most` together, that it is appended with. They are written to; `served` says which they were, unless the result is
# SERVE_STALLED or SERVE_HELD. The ring has room for one more.
cdef Served request_serve(Reactor* r, Connection* c, int32_t n, int32_t most, Span* served) noexcept nogil
# The last frame was wrong: what came before it is still answered, nothing after it is read. `detail`: of closures_note.
cdef void requests_refuse(Reactor* r, Connection* c, Reason why, const char* detail) noexcept nogil
# The detail of a frame that is whole (DETAIL_BYTES).
cdef void requests_describe(const uint8_t* frame, int32_t n, char* detail) noexcept nogil
# Who sends the produces of a connection.
cdef Sender connection_sender(Reactor* r, Connection* c) noexcept nogil
cdef bint slots_full(Connection* c) noexcept nogil               # no further request is read
# A copy of a frame, or `fetch` for its slot of that number, goes to a worker. SERVE_STALLED: too much is there already.
cdef Served give_to_worker(
    Reactor* r, Connection* c, uint32_t number, const uint8_t* frame, int32_t n, FetchJob* fetch
) noexcept nogil
# A worker is done; frees the job. `c` is NULL if the connection is gone.
cdef void requests_worked(Reactor* r, Connection* c, Work* work) noexcept nogil
# A diverted request comes back from the control plane; `lose`: a produce is carried out, but its answer is lost.
cdef void requests_resume(
    Reactor* r, Connection* c, uint32_t number, uint8_t* frame, int32_t n, bint lose
) noexcept nogil
