# What a connection sends: answers in the order of their requests, as bytes and as pieces of files between them.
from penstock.pyx.plane cimport Connection, Reactor

# Takes answers that are there and sends them, as far as the peer takes them. False: the connection has to be closed.
cdef bint output_pump(Reactor* r, Connection* c) noexcept nogil
