"""The queue between the network threads and the control plane; see control.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from penstock.pyx.linux.posix cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write, free, malloc, memcpy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock,
)
from penstock.pyx.net.admission cimport PEER_BYTES

cdef bint queue_open(ControlQueue* q) noexcept nogil:
    pthread_mutex_init(&q.lock, NULL)
    q.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    return q.fd >= 0


cdef Served queue_put(
    ControlQueue* q, uint64_t token, int32_t listener, const char* peer, const uint8_t* frame, int32_t n,
    bint handed_over
) noexcept nogil:
    """Copies a request onto the queue. A request is always taken when the queue is empty, however large it is."""
    cdef ControlRequest* request
    cdef bint was_empty
    cdef int64_t cost = n + <int64_t>sizeof(ControlRequest)
    pthread_mutex_lock(&q.lock)
    if q.bytes > 0 and q.bytes + cost > q.bytes_max:
        q.full = True
        pthread_mutex_unlock(&q.lock)
        return SERVE_STALLED
    q.bytes += cost
    pthread_mutex_unlock(&q.lock)
    request = <ControlRequest*>malloc(<size_t>cost)
    if request == NULL:
        pthread_mutex_lock(&q.lock)
        q.bytes -= cost
        pthread_mutex_unlock(&q.lock)
        return SERVE_CLOSE
    request.token = token
    request.handed_over = handed_over
    request.listener = listener
    request.n = n
    request.next = NULL
    memcpy(request.peer, peer, PEER_BYTES)
    memcpy(request.frame, frame, <size_t>n)
    pthread_mutex_lock(&q.lock)
    was_empty = q.first == NULL
    if was_empty:
        q.first = request
    else:
        q.last.next = request
    q.last = request
    pthread_mutex_unlock(&q.lock)
    if was_empty:
        eventfd_write(q.fd, 1)
    return SERVED


cdef ControlRequest* queue_take(ControlQueue* q, int32_t most, bint* unstall) noexcept nogil:
    cdef ControlRequest* first
    cdef ControlRequest* last
    cdef uint64_t count
    cdef int32_t _i
    unstall[0] = False
    # Read before the list is taken: a request that comes between the two writes the eventfd again.
    eventfd_read(q.fd, &count)
    pthread_mutex_lock(&q.lock)
    first = q.first
    last = first
    if first != NULL:
        q.bytes -= first.n + <int64_t>sizeof(ControlRequest)
        for _i in range(1, most):
            if last.next == NULL:
                break
            last = last.next
            q.bytes -= last.n + <int64_t>sizeof(ControlRequest)
        q.first = last.next
        last.next = NULL
        if q.first == NULL:
            q.last = NULL
        else:
            eventfd_write(q.fd, 1)
        if q.full and q.bytes <= q.bytes_max // 2:
            q.full = False
            unstall[0] = True
    pthread_mutex_unlock(&q.lock)
    return first


cdef void queue_clear(ControlQueue* q) noexcept nogil:
    cdef ControlRequest* request
    cdef bint unstall
    while True:
        request = queue_take(q, 1, &unstall)
        if request == NULL:
            return
        free(request)


cdef void queue_close(ControlQueue* q) noexcept nogil:
    queue_clear(q)
    close(q.fd)
    q.fd = -1
