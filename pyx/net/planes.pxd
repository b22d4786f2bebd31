"""Sets of epoll threads, as Python makes and ends them."""

from libc.stdint cimport int32_t

from penstock.pyx.net.plane cimport ControlRequest, Plane

# Takes reactors for a plane; false when there is no memory, no descriptor or no reactor left. None runs yet.
cdef bint plane_open(Plane* plane, int32_t reactor_count) noexcept nogil
cdef bint plane_listen(Plane* plane, int fd) noexcept nogil       # before start; the plane then owns fd
cdef void plane_close(Plane* plane) noexcept nogil                # after all threads were joined
cdef void plane_stop(Plane* plane) noexcept nogil                 # asks every thread to drain and return
# Requests for the control plane, as queue_take gives them; connections that the queue stalled are woken.
cdef ControlRequest* plane_take(Plane* plane, int32_t most) noexcept nogil
