"""An epoll thread."""

from penstock.pyx.net.plane cimport Reactor

cdef void reactor_loop(Reactor* r) noexcept nogil                 # the body of a thread
