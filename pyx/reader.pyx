"""The pool of threads that wait for the disk; see reader.pxd."""
from libc.stdint cimport uint8_t

from penstock.pyx.files cimport read_nowait_at
from penstock.pyx.posix cimport (
    EAGAIN,
    EINTR,
    F_DUPFD_CLOEXEC,
    O_CLOEXEC,
    O_WRONLY,
    POLLOUT,
    block_signals,
    calloc,
    close,
    errno,
    fcntl,
    free,
    give_way,
    off_t,
    open,
    poll,
    pollfd,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    sendfile,
)


cdef ReaderPool* reader_new(ReaderHook hook) noexcept nogil:
    cdef ReaderPool* pool = <ReaderPool*>calloc(1, sizeof(ReaderPool))
    if pool == NULL:
        return NULL
    pthread_mutex_init(&pool.lock, NULL)
    pthread_cond_init(&pool.ready, NULL)
    pool.hook = hook
    return pool


cdef bint reader_submit(
    ReaderPool* pool,
    int fd,
    int64_t position,
    int64_t length,
    int socket,
    void* owner,
    uint32_t place,
    uint32_t generation,
) noexcept nogil:
    cdef ReaderJob* job = <ReaderJob*>calloc(1, sizeof(ReaderJob))
    cdef bint taken = False
    if job == NULL:
        return False
    job.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)
    job.socket = fcntl(socket, F_DUPFD_CLOEXEC, 0) if socket >= 0 else -1
    job.position = position
    job.length = length
    job.owner = owner
    job.place = place
    job.generation = generation
    pthread_mutex_lock(&pool.lock)
    if job.fd >= 0 and (job.socket >= 0 or socket < 0) and pool.waiting < READER_JOBS_MAX and not pool.stopping:
        if pool.last == NULL:
            pool.first = job
        else:
            pool.last.next = job
        pool.last = job
        pool.waiting += 1
        taken = True
        pthread_cond_signal(&pool.ready)
    pthread_mutex_unlock(&pool.lock)
    if not taken:
        drop(job)
    return taken


cdef void drop(ReaderJob* job) noexcept nogil:
    if job.fd >= 0:
        close(job.fd)
    if job.socket >= 0:
        close(job.socket)
    free(job)


cdef ReaderJob* take(ReaderPool* pool) noexcept nogil:
    """The next job; NULL when the pool stops."""
    cdef ReaderJob* job = NULL
    pthread_mutex_lock(&pool.lock)
    while pool.first == NULL and not pool.stopping:
        pthread_cond_wait(&pool.ready, &pool.lock)
    if not pool.stopping:
        job = pool.first
        pool.first = job.next
        if pool.first == NULL:
            pool.last = NULL
        pool.waiting -= 1
    pthread_mutex_unlock(&pool.lock)
    return job


cdef bint wanted(ReaderPool* pool) noexcept nogil:
    """Whether somebody waits for a thread."""
    cdef bint yes
    pthread_mutex_lock(&pool.lock)
    yes = pool.first != NULL or pool.stopping
    pthread_mutex_unlock(&pool.lock)
    return yes


cdef void send_range(ReaderPool* pool, ReaderJob* job) noexcept nogil:
    """Sends what the peer takes now, or takes soon while nobody else waits for this thread."""
    cdef off_t at = job.position
    cdef pollfd peer
    cdef ssize_t went
    peer.fd = job.socket
    peer.events = POLLOUT
    while job.sent < job.length:
        went = sendfile(job.socket, job.fd, &at, <size_t>min(job.length - job.sent, <int64_t>READER_CHUNK_BYTES))
        if went > 0:
            job.sent += went
        elif went < 0 and errno == EAGAIN:
            if wanted(pool) or poll(&peer, 1, READER_PATIENCE_MS) <= 0:
                return
        elif went == 0 or errno != EINTR:
            job.failed = True
            return


cdef void read_range(const ReaderJob* job, int nowhere) noexcept nogil:
    """Waits until the pages of what wasn't sent are there; their bytes go nowhere, without a copy."""
    cdef off_t at = job.position + job.sent
    cdef int64_t end = job.position + job.length
    while at < end and sendfile(nowhere, job.fd, &at, <size_t>min(end - at, <int64_t>READER_CHUNK_BYTES)) > 0:
        pass


cdef void reader_loop(ReaderPool* pool) noexcept nogil:
    cdef int nowhere = open(b"/dev/null", O_WRONLY | O_CLOEXEC)
    cdef ReaderJob* job
    block_signals()
    give_way()
    while True:
        job = take(pool)
        if job == NULL:
            break
        job.was_cold = not range_is_cached(job.fd, job.position, job.length)
        if job.socket >= 0:
            send_range(pool, job)
        if nowhere >= 0 and not job.failed:
            read_range(job, nowhere)
        pool.hook(job)
        drop(job)
    if nowhere >= 0:
        close(nowhere)


cdef void reader_stop(ReaderPool* pool) noexcept nogil:
    pthread_mutex_lock(&pool.lock)
    pool.stopping = True
    pthread_cond_broadcast(&pool.ready)
    pthread_mutex_unlock(&pool.lock)


cdef void reader_free(ReaderPool* pool) noexcept nogil:
    cdef ReaderJob* job
    while pool.first != NULL:
        job = pool.first
        pool.first = job.next
        drop(job)
    pthread_cond_destroy(&pool.ready)
    pthread_mutex_destroy(&pool.lock)
    free(pool)


cdef bint byte_is_cached(int fd, int64_t position) noexcept nogil:
    cdef uint8_t byte
    return read_nowait_at(fd, &byte, 1, position) != -EAGAIN


cdef bint range_is_cached(int fd, int64_t position, int64_t length) noexcept nogil:
    return byte_is_cached(fd, position) and (length <= 1 or byte_is_cached(fd, position + length - 1))
