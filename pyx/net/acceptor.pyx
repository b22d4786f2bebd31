"""New connections; see acceptor.pxd."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from penstock.pyx.linux.descriptors cimport connection_may_come, in_reserve
from penstock.pyx.linux.posix cimport (
    AF_INET6, EAGAIN, ECONNABORTED, EINTR, EPROTO, SOCK_CLOEXEC, SOCK_NONBLOCK, accept4, atomic_load32, calloc,
    close, errno, inet_ntop, memchr, memcpy, memset, ntohs, snprintf, sockaddr, sockaddr_in, sockaddr_in6,
    sockaddr_storage, socklen_t, strncmp,
)
from penstock.pyx.net.admission cimport PEER_BYTES, admission_enter, admission_leave, admission_wait_ms
from penstock.pyx.net.closures cimport CLOSED_ADDRESS_LIMIT, closures_note
from penstock.pyx.net.connection cimport connection_open
from penstock.pyx.net.counters cimport counters_closed
from penstock.pyx.net.mailbox cimport MAIL_SOCKET, Mail, mail_post
from penstock.pyx.net.plane cimport ACCEPTS_MAX, Reactor

cdef enum:
    ACCEPT_AGAIN_MS = 100


cdef void _describe_peer(const sockaddr_storage* address, char* out) noexcept nogil:
    cdef char text[48]
    cdef const sockaddr_in6* six = <const sockaddr_in6*>address
    cdef const sockaddr_in* four = <const sockaddr_in*>address
    text[0] = 0
    memset(out, 0, PEER_BYTES)
    if address.ss_family == AF_INET6:
        inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text))
        if strncmp(text, b"::ffff:", 7) == 0 and memchr(text, c".", sizeof(text)) != NULL:
            # An address of version 4 that came to a socket of both.
            snprintf(out, PEER_BYTES, b"%s:%u", text + 7, <unsigned int>ntohs(six.sin6_port))
            return
        snprintf(out, PEER_BYTES, b"[%s]:%u", text, <unsigned int>ntohs(six.sin6_port))
    else:
        inet_ntop(address.ss_family, &four.sin_addr, text, sizeof(text))
        snprintf(out, PEER_BYTES, b"%s:%u", text, <unsigned int>ntohs(four.sin_port))


cdef void _hand_over(Reactor* r, int fd, int32_t listener, const char* peer) noexcept nogil:
    """Gives a new socket to the next reactor in turn."""
    cdef Reactor* owner = r.plane.reactors[r.next_reactor % <uint32_t>r.plane.reactor_count]
    cdef Mail* mail
    r.next_reactor += 1
    if owner == r:
        connection_open(r, fd, listener, peer)
        return
    mail = <Mail*>calloc(1, sizeof(Mail))
    if mail == NULL:
        close(fd)
        admission_leave(r.plane.admission, listener, peer)
        return
    mail.kind = MAIL_SOCKET
    mail.fd = fd
    mail.listener = listener
    memcpy(mail.peer, peer, PEER_BYTES)
    mail_post(&owner.mailbox, mail)


cdef void _accept_again(Reactor* r, int64_t wait_ms) noexcept nogil:
    if r.accept_ms == 0 or r.now_ms + wait_ms < r.accept_ms:
        r.accept_ms = r.now_ms + wait_ms


cdef void _short_of_descriptors(Reactor* r) noexcept nogil:
    r.descriptors_short = True
    r.counters.accepts_without_descriptor += 1
    _accept_again(r, ACCEPT_AGAIN_MS)


cdef void accept_all(Reactor* r, int32_t listener) noexcept nogil:
    cdef sockaddr_storage address
    cdef socklen_t n
    cdef char peer[PEER_BYTES]
    cdef int32_t _i
    cdef int64_t wait_ms
    cdef int fd
    if r.listeners[listener] < 0 or r.draining:
        return
    if r.descriptors_short and not connection_may_come(r.listeners[listener]):
        _accept_again(r, ACCEPT_AGAIN_MS)
        return
    r.descriptors_short = False
    for _i in range(ACCEPTS_MAX):
        wait_ms = admission_wait_ms(r.plane.admission, listener, r.now_ms)
        if wait_ms:
            r.counters.accepts_delayed += 1
            _accept_again(r, wait_ms)
            return
        n = sizeof(sockaddr_storage)
        fd = accept4(r.listeners[listener], <sockaddr*>&address, &n, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if fd >= 0:
            # The last one that is let in for now, unless files of logs can be closed.
            r.descriptors_short = in_reserve(fd)
            _describe_peer(&address, peer)
            if atomic_load32(&r.plane.is_shut):
                close(fd)
            elif admission_enter(r.plane.admission, listener, peer):
                _hand_over(r, fd, listener, peer)
            else:
                counters_closed(&r.counters, CLOSED_ADDRESS_LIMIT)
                closures_note(&r.plane.closed, CLOSED_ADDRESS_LIMIT, listener, peer, 0, NULL)
                close(fd)
            if r.descriptors_short and not connection_may_come(r.listeners[listener]):
                _short_of_descriptors(r)
                return
        elif errno == EAGAIN:
            return
        elif errno != EINTR and errno != ECONNABORTED and errno != EPROTO:
            _short_of_descriptors(r)                   # or of memory: some may be freed
            return
    _accept_again(r, 0)                                # more than one turn's worth
