"""The one place where a connection's bytes come in and go out.

A Transport is a connection's end of its socket. A reader thread that sends in place of the network thread has one of
its own, by a descriptor of its own: either may be closed first. Results are those of the system calls: how many bytes
went or came; 0 at the end of the stream or of the file; -1 and errno, EAGAIN being "not now".
"""

from libc.stdint cimport int64_t

from penstock.pyx.posix cimport (
    F_DUPFD_CLOEXEC, MSG_MORE, MSG_NOSIGNAL, SHUT_RDWR, close, fcntl, off_t, recv, send, sendfile, shutdown,
)

cdef struct Transport:
    int fd                            # -1: none


cdef inline void transport_open(Transport* t, int fd) noexcept nogil:
    """Takes a socket over."""
    t.fd = fd


cdef inline bint transport_share(Transport* t, const Transport* other) noexcept nogil:
    """Another end of the same socket (none, if `other` has none); False: there is no descriptor."""
    t.fd = fcntl(other.fd, F_DUPFD_CLOEXEC, 0) if other.fd >= 0 else -1
    return t.fd >= 0 or other.fd < 0


cdef inline void transport_hang_up(Transport* t) noexcept nogil:
    """Ends the stream for all that share the socket: a send gets an error."""
    shutdown(t.fd, SHUT_RDWR)


cdef inline void transport_close(Transport* t) noexcept nogil:
    if t.fd >= 0:
        close(t.fd)
    t.fd = -1


cdef inline ssize_t transport_receive(Transport* t, void* to, size_t n) noexcept nogil:
    return recv(t.fd, to, n, 0)


cdef inline ssize_t transport_send(Transport* t, const void* source, size_t n, bint more) noexcept nogil:
    """`more`: other bytes follow at once, so that these needn't go in a packet of their own."""
    return send(t.fd, source, n, MSG_NOSIGNAL | (MSG_MORE if more else 0))


cdef inline ssize_t transport_send_file(Transport* t, int file, int64_t position, size_t n) noexcept nogil:
    cdef off_t at = position
    return sendfile(t.fd, file, &at, n)
