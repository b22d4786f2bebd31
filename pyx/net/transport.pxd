"""The one place where a connection's bytes come in and go out, and where its socket is asked for room.

A Transport is a connection's end of its socket. A reader thread that sends in place of the network thread has one of
its own, by a descriptor of its own: either may be closed first. Results are those of the system calls: how many bytes
went or came; 0 at the end of the stream or of the file; -1 and errno, EAGAIN being "not now".
"""

from libc.stdint cimport int64_t

from penstock.pyx.linux.posix cimport (
    EPOLL_CTL_DEL, F_DUPFD_CLOEXEC, MSG_MORE, MSG_NOSIGNAL, POLLOUT, SHUT_RDWR, SIOCOUTQ, SOL_SOCKET, SO_LINGER,
    SO_SNDBUF, close, epoll_ctl, epoll_event, fcntl, getsockopt, ioctl, linger, off_t, poll, pollfd, recv, send,
    sendfile, setsockopt, shutdown, socklen_t,
)

cdef struct Transport:
    int fd                            # -1: none


cdef inline void transport_open(Transport* t, int fd) noexcept nogil:
    """Takes a socket over."""
    t.fd = fd


cdef inline void transport_none(Transport* t) noexcept nogil:
    """No end of any socket."""
    t.fd = -1


cdef inline bint transport_is_open(const Transport* t) noexcept nogil:
    return t.fd >= 0


cdef inline bint transport_share(Transport* t, const Transport* other) noexcept nogil:
    """Another end of the same socket (none, if `other` has none); False: there is no descriptor."""
    t.fd = fcntl(other.fd, F_DUPFD_CLOEXEC, 0) if transport_is_open(other) else -1
    return transport_is_open(t) or not transport_is_open(other)


cdef inline void transport_hang_up(Transport* t) noexcept nogil:
    """Ends the stream for all that share the socket: a send gets an error."""
    shutdown(t.fd, SHUT_RDWR)


cdef inline void transport_reset(const Transport* t) noexcept nogil:
    """Has the peer find the connection reset once the socket is closed, and what wasn't sent yet dropped."""
    cdef linger none
    none.l_onoff = 1
    none.l_linger = 0
    setsockopt(t.fd, SOL_SOCKET, SO_LINGER, &none, sizeof(linger))


cdef inline void transport_close(Transport* t) noexcept nogil:
    if transport_is_open(t):
        close(t.fd)
    t.fd = -1


cdef inline bint transport_watch(const Transport* t, int epoll, int operation, epoll_event* event) noexcept nogil:
    """Has an epoll tell of the socket, `operation` being EPOLL_CTL_ADD or _MOD; False: it can't."""
    return epoll_ctl(epoll, operation, t.fd, event) == 0


cdef inline void transport_unwatch(const Transport* t, int epoll) noexcept nogil:
    """Before the socket is closed while somebody shares it: their descriptor would keep it in the epoll."""
    epoll_ctl(epoll, EPOLL_CTL_DEL, t.fd, NULL)


cdef inline bint transport_wait(const Transport* t, int wait_ms) noexcept nogil:
    """Waits for room, or for an error, but no longer than that; False: there is none."""
    cdef pollfd one
    one.fd = t.fd
    one.events = POLLOUT
    return poll(&one, 1, wait_ms) > 0


cdef inline int64_t transport_unsent(const Transport* t) noexcept nogil:
    """Bytes in the socket that the peer hasn't taken; -1: not known."""
    cdef int n = 0
    return n if ioctl(t.fd, SIOCOUTQ, &n) == 0 else -1


cdef inline int64_t transport_room(const Transport* t, int64_t unsent) noexcept nogil:
    """What the socket takes beside bytes that are in it."""
    cdef int size = 0
    cdef socklen_t n = sizeof(int)
    getsockopt(t.fd, SOL_SOCKET, SO_SNDBUF, &size, &n)
    return size - unsent


cdef inline ssize_t transport_receive(Transport* t, void* to, size_t n) noexcept nogil:
    return recv(t.fd, to, n, 0)


cdef inline ssize_t transport_send(Transport* t, const void* source, size_t n, bint more) noexcept nogil:
    """`more`: other bytes follow at once, so that these needn't go in a packet of their own."""
    return send(t.fd, source, n, MSG_NOSIGNAL | (MSG_MORE if more else 0))


cdef inline ssize_t transport_send_file(Transport* t, int file, int64_t position, size_t n) noexcept nogil:
    cdef off_t at = position
    return sendfile(t.fd, file, &at, n)
