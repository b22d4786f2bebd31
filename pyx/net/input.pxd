"""What a connection receives. Its bytes are first in the reactor's scratch; what of them isn't a whole frame moves into
a buffer of the connection's own, which grows with what has arrived, whatever a frame's size says.

What all connections hold beyond INPUT_FREE_BYTES each is bounded (`input_bytes_max`). A buffer grows only if the rest
of its frame would fit, too: so large frames leave room to small ones, and those that have begun can end. Half of the
bound is for frames of connections that have brought as much in whole requests before: a client that only begins
requests doesn't get it.

A connection that gets no memory is STALL_INPUT: it isn't read until some is given back. Memory is then short, and
every reactor checks which connections hold it (reactor.pyx: `_relieve`): a connection has to bring as much as it
holds in INPUT_TURNOVER_MS. One that has brought less for `input_patience_ms` is closed, the largest first, until
most of the memory is free. While memory isn't short no connection is closed for it.
"""

from penstock.pyx.net.control cimport Served
from penstock.pyx.net.plane cimport (
    INCOMING_ENDED, INCOMING_GONE, INCOMING_LAST, INCOMING_MORE, INCOMING_NOTHING, INCOMING_RESET, Connection, Incoming,
    Reactor, Stall,
)

cdef enum Taken:
    TAKEN_BYTES = 1
    TAKEN_NOTHING = 0
    TAKEN_STALLED = 2                 # there is no memory for it now
    TAKEN_ERROR = -1

cdef inline bint input_has_more(const Connection* c) noexcept nogil:
    """Whether there may be bytes to take."""
    return c.incoming == INCOMING_MORE or c.incoming == INCOMING_LAST or c.incoming == INCOMING_RESET

# What was seen of the socket: NOTHING, MORE, the LAST, that it ENDED, or a RESET. A peer that has ended its sending
# side, or has gone, stays so. No event tells that again, so LAST and RESET are kept until nothing is left to read.
cdef inline void input_seen(Connection* c, Incoming what) noexcept nogil:
    cdef bint read_all = what == INCOMING_NOTHING or what == INCOMING_ENDED
    if what == INCOMING_RESET:
        c.incoming = INCOMING_RESET if input_has_more(c) or c.incoming == INCOMING_NOTHING else INCOMING_GONE
    elif c.incoming == INCOMING_LAST:
        c.incoming = INCOMING_ENDED if read_all else INCOMING_LAST
    elif c.incoming == INCOMING_RESET:
        c.incoming = INCOMING_GONE if read_all else INCOMING_RESET
    elif c.incoming == INCOMING_NOTHING or c.incoming == INCOMING_MORE:
        c.incoming = what

cdef Taken input_take(Reactor* r, Connection* c, size_t* got) noexcept nogil      # once
cdef Served input_end_turn(Reactor* r, Connection* c) noexcept nogil                # at the end of a turn
cdef void input_free(Reactor* r, Connection* c) noexcept nogil   # only while nothing is in it, or to close
# A connection that isn't read, for what plane.pxd's Stall says; and no longer.
cdef void input_stall(Reactor* r, Connection* c, Stall why) noexcept nogil
cdef void input_unstall(Reactor* r, Connection* c) noexcept nogil
# Whether a connection that waits would get what it waits for. It wasn't taken yet.
cdef bint input_may_go_on(Reactor* r, const Connection* c) noexcept nogil
# In a sweep: notes whether the connection brings enough for the memory that it holds.
cdef void input_watch(Reactor* r, Connection* c) noexcept nogil
# Whether it has brought too little for too long. It matters only while memory is short.
cdef bint input_lags(Reactor* r, const Connection* c) noexcept nogil
