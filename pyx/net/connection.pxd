"""One connection, run by its reactor's thread only: bytes in (input.pxd), requests (requests.pxd), answers out in order
(output.pxd).
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.pyx.net.admission cimport PEER_BYTES
from penstock.pyx.net.client cimport Client
from penstock.pyx.net.plane cimport Connection, Plane, Reactor
from penstock.pyx.net.requesttimes cimport timings_settle, timings_unsent

# What is known of the client of a request.
cdef enum Presence:
    PRESENCE_GONE = 0                 # its connection is closed
    PRESENCE_HALF_CLOSED = 1          # it sends nothing more. Whether it still reads is seen when it is answered
    PRESENCE_SENDING = 2

# Takes over a socket that was accepted; closes it when there is no memory or place, or the reactor drains.
cdef void connection_open(Reactor* r, int fd, int32_t listener, const char* peer) noexcept nogil
cdef void connection_close(Reactor* r, Connection* c) noexcept nogil       # safe on a closed one
cdef void connection_run(Reactor* r, Connection* c) noexcept nogil         # a turn; may close it
# What is known of a connection, for others than its thread.
cdef struct ConnectionCopy:
    Client client
    char peer[PEER_BYTES]
    int32_t listener
    int64_t opened_ms                 # by the monotonic clock
    int64_t active_ms
    int64_t requests
    int64_t bytes_in
    int64_t bytes_out

# Any thread: those that are open now, `most` at most; how many. One that is opened or closed meanwhile may be missing.
cdef size_t connections_copy(Plane* plane, ConnectionCopy* out, size_t most) noexcept nogil
# Counts how long the requests took whose answers have been sent, by the clock as it was read last.
cdef inline void connection_settle(Reactor* r, Connection* c) noexcept nogil:
    if timings_unsent(&c.timings):
        timings_settle(
            &r.times, &c.timings, c.output_at + <int64_t>c.sent, c.pieces_at + c.pieces.first, r.clock_ns, &c.client,
            c.peer,
        )

cdef void connection_free_buffers(Reactor* r, Connection* c) noexcept nogil        # gives empty buffers back
# Of the client whose request has this token; from any thread, while the plane is open.
cdef Presence connection_presence(Plane* plane, uint64_t token) noexcept nogil
