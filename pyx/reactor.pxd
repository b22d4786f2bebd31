# The epoll threads and what other threads may do to them.
from libc.stdint cimport int32_t, uint32_t, uint64_t

from penstock.pyx.frame cimport Writer
from penstock.pyx.plane cimport ControlRequest, MailKind, Plane, Reactor

# Takes reactors for a plane; false when there is no memory, no descriptor or no reactor left. None runs yet.
cdef bint plane_open(Plane* plane, int32_t reactor_count) noexcept nogil
cdef bint plane_listen(Plane* plane, int fd) noexcept nogil       # before start; the plane then owns fd
cdef void plane_close(Plane* plane) noexcept nogil                # after all threads were joined
cdef void plane_stop(Plane* plane) noexcept nogil                 # asks every thread to drain and return
cdef void reactor_loop(Reactor* r) noexcept nogil                 # the body of a thread

# The reader pool's hook.
cdef void on_warm(void* owner, uint32_t place, uint32_t generation) noexcept nogil

# Sends mail to the reactor of a token; takes `answer` (freed when the token means nothing). False: no such
# reactor.
cdef bint token_post(Plane* plane, uint64_t token, MailKind kind, Writer* answer) noexcept nogil
# Requests for the control plane, as queue_take gives them; connections that the queue stalled are woken.
cdef ControlRequest* plane_take(Plane* plane, int32_t most) noexcept nogil
