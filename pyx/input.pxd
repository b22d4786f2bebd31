# What a connection receives. Its bytes are first in the reactor's scratch; what of them isn't a whole frame moves into
# a buffer of the connection's own, which grows with what has arrived, whatever a frame's size says.
from penstock.pyx.plane cimport Connection, Reactor, Served

cdef enum Taken:
    TAKEN_BYTES = 1
    TAKEN_NOTHING = 0
    TAKEN_STALLED = 2                 # there is no memory for it now
    TAKEN_ERROR = -1

cdef Taken input_take(Reactor* r, Connection* c, size_t* got) noexcept nogil      # one recv
cdef Served input_settle(Reactor* r, Connection* c) noexcept nogil                # at the end of a turn
cdef void input_free(Reactor* r, Connection* c) noexcept nogil   # only while nothing is in it, or to close
# A connection that isn't read, as the control queue is full or memory for input is short; and no longer.
cdef void input_stall(Reactor* r, Connection* c) noexcept nogil
cdef void input_unstall(Reactor* r, Connection* c) noexcept nogil
