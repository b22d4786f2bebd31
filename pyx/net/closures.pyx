"""Connections that were closed for what their peers did; see closures.pxd."""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.net.admission cimport PEER_BYTES
from penstock.pyx.posix cimport memcpy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock

cdef void closures_open(Closures* closures) noexcept nogil:
    pthread_mutex_init(&closures.lock, NULL)
    closures.n = 0


cdef void closures_note(Closures* closures, Reason reason, const char* peer, int64_t held_bytes) noexcept nogil:
    cdef Closure* one
    pthread_mutex_lock(&closures.lock)
    if closures.n < CLOSURES_KEPT:
        one = &closures.kept[closures.n]
        closures.n += 1
        one.reason = reason
        one.held_bytes = held_bytes
        memcpy(one.peer, peer, PEER_BYTES)
    pthread_mutex_unlock(&closures.lock)


cdef int32_t closures_take(Closures* closures, Closure* out) noexcept nogil:
    cdef int32_t n
    pthread_mutex_lock(&closures.lock)
    n = closures.n
    memcpy(out, closures.kept, <size_t>n * sizeof(Closure))
    closures.n = 0
    pthread_mutex_unlock(&closures.lock)
    return n
