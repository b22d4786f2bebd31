"""An epoll thread."""

from penstock.pyx.net.plane cimport Reactor

cdef void reactor_loop(Reactor* r) noexcept nogil                 # the body of a thread
cdef void close_all(Reactor* r) noexcept nogil                    # closes what is there; once the thread has ended
