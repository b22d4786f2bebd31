"""Connections that were closed for what their peers did; see closures.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from penstock.pyx.linux.posix cimport (
    memcpy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, snprintf, strncmp,
)
from penstock.pyx.net.admission cimport PEER_BYTES
from penstock.pyx.record.endian cimport get_i32
from penstock.pyx.record.frame cimport SIZE_BYTES

cdef enum:
    HTTP_LINE_BYTES = 60              # of a request line that are logged

# The first bytes of HTTP's requests, and of HTTP/2's preface, one behind the other.
cdef const char* METHODS = b"GET HEADPOSTPUT DELECONNOPTITRACPATCPRI "

cdef void closures_open(Closures* closures) noexcept nogil:
    pthread_mutex_init(&closures.lock, NULL)
    closures.n = 0


cdef void closures_note(
    Closures* closures, Reason reason, int32_t listener, const char* peer, int64_t held_bytes, const char* detail
) noexcept nogil:
    cdef Closure* one
    if reason == CLOSED_FAILED:
        return
    pthread_mutex_lock(&closures.lock)
    if closures.n < CLOSURES_KEPT:
        one = &closures.kept[closures.n]
        closures.n += 1
        one.reason = reason
        one.listener = listener
        one.held_bytes = held_bytes
        one.detail[0] = 0
        if detail != NULL:
            snprintf(one.detail, DETAIL_BYTES, b"%s", detail)
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


cdef bint _is_http(const uint8_t* p) noexcept nogil:
    cdef const char* method = METHODS
    while method[0] != 0:
        if strncmp(<const char*>p, method, SIZE_BYTES) == 0:
            return True
        method += SIZE_BYTES
    return False


cdef void _first_line(const uint8_t* p, size_t n, char* out) noexcept nogil:
    """As far as it is printable ASCII: it goes into a log."""
    cdef size_t i = 0
    while i < n and i < HTTP_LINE_BYTES and 0x20 <= p[i] < 0x7f:
        out[i] = <char>p[i]
        i += 1
    out[i] = 0


cdef Reason closures_tell_size(const uint8_t* p, size_t n, int32_t size_max, char* detail) noexcept nogil:
    detail[0] = 0
    if p[0] == 0x16 and p[1] == 3:                    # a handshake record of SSL 3 or TLS
        return CLOSED_TLS
    if _is_http(p):
        _first_line(p, n, detail)
        return CLOSED_HTTP
    snprintf(detail, DETAIL_BYTES, b"a request of %d bytes, where %d are the most", get_i32(p), size_max)
    return CLOSED_REQUEST_SIZE
