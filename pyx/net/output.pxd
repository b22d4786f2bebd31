"""What a connection sends: answers in the order of their requests, as bytes and as pieces of files between them.

A piece that isn't in the page cache is handed to a reader thread, which sends it in place of this one. Meanwhile
(OUTGOING_LENT) nothing else is sent, and the epoll thread doesn't listen for room in the socket: the reader does.
"""

from penstock.pyx.net.mailbox cimport Mail
from penstock.pyx.net.plane cimport Connection, Reactor

# Takes answers that are there and sends them, as far as the peer takes them. False: the connection has to be closed.
cdef bint output_pump(Reactor* r, Connection* c) noexcept nogil
# A reader thread's mail. False: the connection has to be closed.
cdef bint output_was_read(Reactor* r, Connection* c, const Mail* mail) noexcept nogil
# Has epoll tell of the connection's socket, `operation` being EPOLL_CTL_ADD or _MOD; False: it can't.
cdef bint output_watch(Reactor* r, Connection* c, int operation, bint room) noexcept nogil
# Before the socket of a connection is closed: a reader thread that has it lets go.
cdef void output_abandon(Reactor* r, Connection* c) noexcept nogil
