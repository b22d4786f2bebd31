"""The pool of threads for expensive requests; see workers.pxd."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from penstock.pyx.linux.posix cimport (
    atomic_load32, block_signals, calloc, free, give_way, malloc, memcpy, monotonic_ns, pthread_cond_broadcast,
    pthread_cond_destroy, pthread_cond_init, pthread_cond_wait, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock, thread_cpu_us,
)
from penstock.pyx.net.busytime cimport busy_begin, busy_end
from penstock.pyx.record.endian cimport get_i16
from penstock.pyx.record.frame cimport API_VERSION_AT, Reader, RequestHead, read_head, reader_start, writer_free
from penstock.pyx.request.acks cimport acks_free
from penstock.pyx.request.fetch cimport fetch_free
from penstock.pyx.request.fetchread cimport fetch_convert_ranges
from penstock.pyx.request.produce cimport (
    PRODUCE_MALFORMED, PRODUCE_NO_MEMORY, PRODUCE_TAKEN, ProduceGroup, produce_answer, produce_append, produce_clear,
    produce_group_free, produce_group_new, produce_take, produce_topic_number, produce_work,
)
from penstock.pyx.request.versions cimport PRODUCE_FLEXIBLE_FROM

cdef enum:
    WORKER_NICE = 5


cdef WorkerPool* workers_new(
    LogSet* logs, int64_t bytes_max, void* plane, WorkHook hook, RoomHook has_room
) noexcept nogil:
    cdef WorkerPool* pool = <WorkerPool*>calloc(1, sizeof(WorkerPool))
    if pool == NULL:
        return NULL
    pthread_mutex_init(&pool.lock, NULL)
    pthread_cond_init(&pool.ready, NULL)
    pool.logs = logs
    pool.bytes_max = bytes_max
    pool.plane = plane
    pool.hook = hook
    pool.has_room = has_room
    return pool


cdef Work* work_new(const uint8_t* frame, int32_t n, FetchJob* fetch) noexcept nogil:
    cdef Work* work = <Work*>calloc(1, sizeof(Work))
    if work == NULL:
        return NULL
    work.fetch = fetch
    if frame != NULL:
        work.frame = <uint8_t*>malloc(<size_t>n)
        if work.frame == NULL:
            free(work)
            return NULL
        memcpy(work.frame, frame, <size_t>n)
        work.n = n
    return work


cdef void work_free(Work* work) noexcept nogil:
    writer_free(&work.answer)
    acks_free(work.acks)
    fetch_free(work.fetch)
    free(work.frame)
    free(work.mail)
    free(work)


cdef inline int64_t _cost(const Work* work) noexcept nogil:
    return work.n + <int64_t>sizeof(Work)


cdef void _push(WorkList* jobs, Work* work) noexcept nogil:
    if jobs.last == NULL:
        jobs.first = work
    else:
        jobs.last.next = work
    jobs.last = work


cdef Work* _pop(WorkList* jobs) noexcept nogil:
    """NULL: there is none."""
    cdef Work* work = jobs.first
    if work != NULL:
        jobs.first = work.next
        if jobs.first == NULL:
            jobs.last = NULL
        work.next = NULL
    return work


cdef bint workers_submit(WorkerPool* pool, Work* work) noexcept nogil:
    cdef bint taken, fits
    pthread_mutex_lock(&pool.lock)
    fits = work.frame == NULL or pool.bytes == 0 or pool.bytes + _cost(work) <= pool.bytes_max
    taken = fits and not pool.stopping
    if taken:
        pool.bytes += _cost(work)
        _push(&pool.heavy if work.heavy else &pool.light, work)
        pthread_cond_broadcast(&pool.ready)           # one of them doesn't serve all
    else:
        pool.full = True
    pthread_mutex_unlock(&pool.lock)
    return taken


cdef Work* _take(WorkerPool* pool, bint light, bint heavy_first) noexcept nogil:
    """The next job, `light`: that isn't heavy; NULL when the pool stops."""
    cdef Work* work = NULL
    pthread_mutex_lock(&pool.lock)
    while not pool.stopping:
        if heavy_first and not light:
            work = _pop(&pool.heavy)
        if work == NULL:
            work = _pop(&pool.light)
        if work == NULL and not light:
            work = _pop(&pool.heavy)
        if work != NULL:
            break
        pthread_cond_wait(&pool.ready, &pool.lock)
    pthread_mutex_unlock(&pool.lock)
    return work


cdef void _give_back(WorkerPool* pool, Work* work) noexcept nogil:
    cdef bint has_room
    pthread_mutex_lock(&pool.lock)
    pool.bytes -= _cost(work)
    has_room = pool.full and pool.bytes <= pool.bytes_max // 2
    if has_room:
        pool.full = False
    pthread_mutex_unlock(&pool.lock)
    pool.hook(work)                    # it isn't this thread's any more
    if has_room:
        pool.has_room(pool.plane)


cdef void _produce(WorkerPool* pool, ProduceGroup* g, Work* work) noexcept nogil:
    cdef int16_t version = get_i16(work.frame + API_VERSION_AT)
    cdef RequestHead head
    cdef Reader body
    work.result = PRODUCE_MALFORMED
    reader_start(&body, work.frame, <size_t>work.n)
    read_head(&body, version >= PRODUCE_FLEXIBLE_FROM, &head)
    if body.bad:
        return
    work.result = produce_take(g, pool.logs, &work.sender, &head, body, NULL, 0)
    if work.result == PRODUCE_TAKEN:
        work.topic = produce_topic_number(g, 0)
        produce_append(g, &work.dropped)
        work.spent = produce_work(g)
        work.result = produce_answer(g, 0, &work.answer, &work.acks, &work.tally)
    produce_clear(g)


cdef void workers_loop(WorkerPool* pool, bint light, BusyTime* busy) noexcept nogil:
    cdef ProduceGroup* g = produce_group_new(False)
    cdef Work* work
    cdef int64_t begun_us
    cdef bint heavy_first = False
    block_signals()
    give_way(WORKER_NICE)
    while True:
        work = _take(pool, light, heavy_first)
        if work == NULL:
            break
        heavy_first = not work.heavy
        begun_us = thread_cpu_us()
        work.begun_ns = monotonic_ns()
        busy_begin(busy, work.begun_ns)
        if atomic_load32(&work.dropped):
            pass
        elif work.frame == NULL:
            fetch_convert_ranges(work.fetch)
        elif g == NULL:
            work.result = PRODUCE_NO_MEMORY
        else:
            _produce(pool, g, work)
        work.cpu_us = thread_cpu_us() - begun_us
        work.done_ns = monotonic_ns()
        busy_end(busy, work.done_ns)
        _give_back(pool, work)
    produce_group_free(g)


cdef void workers_stop(WorkerPool* pool) noexcept nogil:
    pthread_mutex_lock(&pool.lock)
    pool.stopping = True
    pthread_cond_broadcast(&pool.ready)
    pthread_mutex_unlock(&pool.lock)


cdef void _free_all(WorkList* jobs) noexcept nogil:
    cdef Work* work = _pop(jobs)
    while work != NULL:
        work_free(work)
        work = _pop(jobs)


cdef void workers_clear(WorkerPool* pool) noexcept nogil:
    _free_all(&pool.light)
    _free_all(&pool.heavy)


cdef void workers_free(WorkerPool* pool) noexcept nogil:
    workers_clear(pool)
    pthread_cond_destroy(&pool.ready)
    pthread_mutex_destroy(&pool.lock)
    free(pool)
