"""The pool of threads that wait for the disk; see coldreader.pxd."""

from libc.stdint cimport int64_t, uint8_t

from penstock.pyx.linux.posix cimport (
    EAGAIN, EINTR, EINVAL, EIO, F_DUPFD_CLOEXEC, O_CLOEXEC, O_DIRECT, O_RDONLY, O_WRONLY, POSIX_FADV_RANDOM,
    block_signals, calloc, close, errno, fcntl, free, give_way, memset, monotonic_ns, off_t, open, posix_fadvise,
    posix_memalign, pread, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal,
    pthread_cond_wait,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, sendfile, snprintf,
)
from penstock.pyx.net.busytime cimport busy_begin, busy_end
from penstock.pyx.net.transport cimport (
    transport_close, transport_is_open, transport_room, transport_send, transport_send_file, transport_share,
    transport_unsent, transport_wait,
)
from penstock.pyx.record.batch cimport BATCH_OK, RECORDS_AT, BatchHeader, batch_parse_header

cdef enum:
    DIRECT_ALIGNMENT = 4096           # of file position, memory and length: no disk wants more
    DIRECT_BUFFER_BYTES = READER_DIRECT_BYTES + 2 * DIRECT_ALIGNMENT
    KEEPS_UP_BYTES = 4096             # on their way to a peer that has taken what there was


cdef ReaderPool* reader_new(ReaderHook hook) noexcept nogil:
    cdef ReaderPool* pool = <ReaderPool*>calloc(1, sizeof(ReaderPool))
    if pool == NULL:
        return NULL
    pthread_mutex_init(&pool.lock, NULL)
    pthread_cond_init(&pool.ready, NULL)
    pool.hook = hook
    return pool


cdef ReaderQueue* _queue_of(ReaderPool* pool, size_t folder) noexcept nogil:
    """Under the lock."""
    cdef int32_t i
    for i in range(pool.queued):
        if pool.queues[i].folder == folder:
            return &pool.queues[i]
    if pool.queued < READER_FOLDERS_MAX:
        pool.queues[pool.queued].folder = folder
        pool.queued += 1
    return &pool.queues[pool.queued - 1]


cdef bint reader_submit(ReaderPool* pool, const ReaderJob* asked) noexcept nogil:
    cdef ReaderJob* job = <ReaderJob*>calloc(1, sizeof(ReaderJob))
    cdef ReaderQueue* queue
    cdef bint taken = False
    cdef bint shared
    if job == NULL:
        return False
    job[0] = asked[0]
    job.fd = fcntl(asked.fd, F_DUPFD_CLOEXEC, 0)
    shared = transport_share(&job.transport, &asked.transport)
    job.follows.position = -1
    pthread_mutex_lock(&pool.lock)
    queue = _queue_of(pool, job.folder)
    if (
        job.fd >= 0
        and shared
        and queue.waiting < READER_JOBS_MAX
        and not pool.stopping
    ):
        if queue.last == NULL:
            queue.first = job
        else:
            queue.last.next = job
        queue.last = job
        queue.waiting += 1
        taken = True
        pthread_cond_signal(&pool.ready)
    pthread_mutex_unlock(&pool.lock)
    if not taken:
        _drop(job)
    return taken


cdef void _drop(ReaderJob* job) noexcept nogil:
    if job.fd >= 0:
        close(job.fd)
    transport_close(&job.transport)
    free(job)


cdef ReaderQueue* _due(ReaderPool* pool) noexcept nogil:
    """Under the lock: a queue in which a job waits that a thread may take, each in its turn. NULL: none."""
    cdef ReaderQueue* queue
    cdef int32_t i
    for i in range(pool.queued):
        queue = &pool.queues[(pool.turn + i) % pool.queued]
        if queue.first != NULL and queue.working < READER_THREADS_A_FOLDER:
            pool.turn = (pool.turn + i + 1) % pool.queued
            return queue
    return NULL


cdef ReaderJob* _take(ReaderPool* pool, ReaderQueue** at) noexcept nogil:
    """The next job and its queue; NULL when the pool stops."""
    cdef ReaderQueue* queue
    cdef ReaderJob* job = NULL
    pthread_mutex_lock(&pool.lock)
    if at[0] != NULL:
        at[0].working -= 1
        at[0] = NULL
    queue = _due(pool)
    while queue == NULL and not pool.stopping:
        pthread_cond_wait(&pool.ready, &pool.lock)
        queue = _due(pool)
    if not pool.stopping:
        job = queue.first
        queue.first = job.next
        if queue.first == NULL:
            queue.last = NULL
        queue.waiting -= 1
        queue.working += 1
        at[0] = queue
    pthread_mutex_unlock(&pool.lock)
    return job


cdef bint _wanted(ReaderPool* pool, const ReaderQueue* queue) noexcept nogil:
    """Whether a job waits for the thread that works for this queue."""
    cdef bint yes
    pthread_mutex_lock(&pool.lock)
    yes = queue.first != NULL or pool.stopping
    pthread_mutex_unlock(&pool.lock)
    return yes


cdef int _open_again(int fd, int flags) noexcept nogil:
    """The same file with flags, a position and advice of its own, whatever it is called by now. -1: it can't be had."""
    cdef char path[32]
    snprintf(path, sizeof(path), b"/proc/self/fd/%d", fd)
    return open(path, O_RDONLY | O_CLOEXEC | flags)


# What a thread has read past the page cache.
cdef struct Direct:
    int fd                            # of the job's file, while a job is direct
    uint8_t* buffer                   # DIRECT_BUFFER_BYTES
    int64_t position
    int64_t n
    int64_t most                      # to be read at once
    int64_t batch                     # where in the file the next batch begins; -1: not known


cdef int64_t _room_of(const Transport* t) noexcept nogil:
    """What a peer will take, as far as it makes sense to read so much at once."""
    cdef int64_t unsent = transport_unsent(t)
    if unsent < KEEPS_UP_BYTES:
        return READER_DIRECT_BYTES
    return min(max(transport_room(t, unsent), <int64_t>READER_DIRECT_MIN_BYTES), <int64_t>READER_DIRECT_BYTES)


cdef void _direct_begin(Direct* d, ReaderJob* job) noexcept nogil:
    if d.buffer == NULL and posix_memalign(<void**>&d.buffer, DIRECT_ALIGNMENT, DIRECT_BUFFER_BYTES) != 0:
        d.buffer = NULL
    d.fd = _open_again(job.fd, O_DIRECT) if d.buffer != NULL else -1
    d.n = 0
    d.most = _room_of(&job.transport)
    d.batch = job.position if job.begins_batch else -1
    job.direct = d.fd >= 0


cdef void _direct_end(Direct* d, ReaderJob* job) noexcept nogil:
    close(d.fd)
    job.direct = False


cdef void _walk_batches(Direct* d, ReaderJob* job) noexcept nogil:
    """Goes from batch to batch through the buffer. The last one that begins in the range, or right behind it, is where
    the next fetch begins, and that fetch needn't look for it, which would be a read of its own."""
    cdef BatchHeader header
    cdef int64_t left = d.position + d.n - d.batch
    while d.position <= d.batch <= job.position + job.length and left >= RECORDS_AT:
        if batch_parse_header(d.buffer + (d.batch - d.position), <size_t>left, &header) != BATCH_OK:
            d.batch = -1
            return
        job.follows.offset = header.base_offset
        job.follows.position = d.batch
        job.follows.size = header.size
        d.batch += header.size
        left -= header.size


cdef ssize_t _direct_fill(Direct* d, ReaderJob* job) noexcept nogil:
    """Bytes that the buffer has of what isn't sent; 0 at the end of the file; -1 and errno."""
    cdef int64_t at = job.position + job.sent, n
    if at < d.position or at >= d.position + d.n:
        d.position = at - at % DIRECT_ALIGNMENT
        n = min(job.position + job.length - at, d.most) + (at - d.position) + DIRECT_ALIGNMENT - 1
        d.n = pread(d.fd, d.buffer, <size_t>(n - n % DIRECT_ALIGNMENT), d.position)
        if d.n < 0:
            d.n = 0
            return -1
        _walk_batches(d, job)
    return max(d.position + d.n - at, <int64_t>0)


cdef ssize_t _send_some(ReaderJob* job, Direct* d) noexcept nogil:
    """Sends of what is left of a range. Bytes that went; 0: the file ends too early; -1 and errno."""
    cdef int64_t at = job.position + job.sent
    cdef int64_t n = min(job.length - job.sent, <int64_t>READER_CHUNK_BYTES)
    cdef ssize_t there
    if job.direct:
        there = _direct_fill(d, job)
        if there > 0:
            n = min(n, <int64_t>there)
            return transport_send(&job.transport, d.buffer + (at - d.position), <size_t>n, False)
        if there == 0 or errno != EINVAL:
            return there
        _direct_end(d, job)            # this file system takes the flag and not the read
    return transport_send_file(&job.transport, job.fd, at, <size_t>n)


cdef void _send_range(ReaderPool* pool, const ReaderQueue* queue, ReaderJob* job, Direct* d) noexcept nogil:
    """Sends what the peer takes now, or takes soon while no other job waits for this thread."""
    cdef ssize_t went
    cdef bint has_more
    if job.direct:
        _direct_begin(d, job)
    while job.sent < job.length:
        went = _send_some(job, d)
        if went > 0:
            job.sent += went
        elif went < 0 and errno == EAGAIN:
            # A peer that has yet to take what was read for it alone is waited for, whichever job waits for the thread.
            has_more = job.direct and job.position + job.sent < d.position + d.n
            job.full = (_wanted(pool, queue) and not has_more) or not transport_wait(&job.transport, READER_PATIENCE_MS)
            if job.full:
                break
        elif went == 0 or errno != EINTR:
            job.failed = True
            job.unreadable = went == 0 or errno == EIO
            break


cdef void _read_range(ReaderJob* job, int nowhere) noexcept nogil:
    """Waits until the pages of what wasn't sent are there; their bytes go nowhere, without a copy."""
    cdef off_t at = job.position + job.sent
    cdef int64_t end = job.position + job.length
    cdef int fd = job.fd, own = -1
    job.ready = job.length
    if 0 < end - at <= READER_CHUNK_BYTES:
        own = _open_again(job.fd, 0)
    if own >= 0:
        posix_fadvise(own, 0, 0, POSIX_FADV_RANDOM)   # so little is wanted that nothing is to be read ahead
        fd = own
    while at < end and sendfile(nowhere, fd, &at, <size_t>min(end - at, <int64_t>READER_CHUNK_BYTES)) > 0:
        pass
    if own >= 0:
        close(own)


cdef void reader_loop(ReaderPool* pool, BusyTime* busy) noexcept nogil:
    cdef int nowhere = open(b"/dev/null", O_WRONLY | O_CLOEXEC)
    cdef ReaderQueue* queue = NULL
    cdef ReaderJob* job
    cdef Direct direct
    memset(&direct, 0, sizeof(Direct))
    block_signals()
    give_way(19)
    while True:
        job = _take(pool, &queue)
        if job == NULL:
            break
        busy_begin(busy, monotonic_ns())
        if transport_is_open(&job.transport):
            _send_range(pool, queue, job, &direct)
        if job.direct:
            job.ready = job.sent
            _direct_end(&direct, job)
        elif not job.failed:
            _read_range(job, nowhere)
        pool.hook(job)
        _drop(job)
        busy_end(busy, monotonic_ns())
    free(direct.buffer)
    if nowhere >= 0:
        close(nowhere)


cdef void reader_stop(ReaderPool* pool) noexcept nogil:
    pthread_mutex_lock(&pool.lock)
    pool.stopping = True
    pthread_cond_broadcast(&pool.ready)
    pthread_mutex_unlock(&pool.lock)


cdef void reader_free(ReaderPool* pool) noexcept nogil:
    cdef ReaderJob* job
    cdef int32_t i
    for i in range(pool.queued):
        while pool.queues[i].first != NULL:
            job = pool.queues[i].first
            pool.queues[i].first = job.next
            _drop(job)
    pthread_cond_destroy(&pool.ready)
    pthread_mutex_destroy(&pool.lock)
    free(pool)
