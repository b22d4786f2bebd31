"""Fetches that wait: by partition, to be found when it grew, and on a heap by the time when each has to be answered."""

from cython.operator cimport dereference as at

from penstock.pyx.linux.posix cimport free, malloc, realloc
from penstock.pyx.log.files cimport made
from penstock.pyx.log.partition cimport partition_watch
from penstock.pyx.request.fetchset cimport NOWHERE, FetchPartition

cdef Waits* waits_new(int32_t reactor) noexcept nogil:
    cdef Waits* waits = made[Waits]()
    waits.reactor = reactor
    waits.heap = NULL
    waits.heap_n = 0
    waits.heap_capacity = 0
    return waits


# --- deadlines ----------------------------------------------------------------------------------------------
cdef void _heap_set(Waits* waits, int32_t place, FetchJob* job) noexcept nogil:
    waits.heap[place] = job
    job.heap_index = place


cdef void _heap_sift(Waits* waits, int32_t place, FetchJob* job) noexcept nogil:
    """Puts the job at or near its place, so that every parent is due before its children."""
    cdef int32_t other
    while place > 0 and waits.heap[(place - 1) // 2].deadline_ms > job.deadline_ms:
        _heap_set(waits, place, waits.heap[(place - 1) // 2])
        place = (place - 1) // 2
    while True:
        other = 2 * place + 1
        if other >= waits.heap_n:
            break
        if other + 1 < waits.heap_n and waits.heap[other + 1].deadline_ms < waits.heap[other].deadline_ms:
            other += 1
        if waits.heap[other].deadline_ms >= job.deadline_ms:
            break
        _heap_set(waits, place, waits.heap[other])
        place = other
    _heap_set(waits, place, job)


cdef bint _heap_room(Waits* waits) noexcept nogil:
    cdef FetchJob** grown
    cdef int32_t capacity
    if waits.heap_n < waits.heap_capacity:
        return True
    capacity = waits.heap_capacity * 2 + 64
    grown = <FetchJob**>realloc(waits.heap, <size_t>capacity * sizeof(FetchJob*))
    if grown == NULL:
        return False
    waits.heap = grown
    waits.heap_capacity = capacity
    return True


cdef void _heap_remove(Waits* waits, FetchJob* job) noexcept nogil:
    cdef int32_t place = job.heap_index
    cdef FetchJob* last
    job.heap_index = -1
    waits.heap_n -= 1
    last = waits.heap[waits.heap_n]
    if last != job:
        _heap_sift(waits, place, last)


# --- lists --------------------------------------------------------------------------------------------------
cdef void _waiter_in(Waits* waits, Waiter* w) noexcept nogil:
    cdef Waiter** head = &waits.by_partition[<size_t>w.partition]
    w.previous = NULL
    w.next = head[0]
    if w.next != NULL:
        w.next.previous = w
    head[0] = w


cdef void _waiter_out(Waits* waits, Waiter* w) noexcept nogil:
    if w.next != NULL:
        w.next.previous = w.previous
    if w.previous != NULL:
        w.previous.next = w.next
    elif w.next != NULL:
        waits.by_partition[<size_t>w.partition] = w.next
    else:
        waits.by_partition.erase(<size_t>w.partition)


cdef bint park(Waits* waits, FetchJob* job) noexcept nogil:
    cdef Waiter* waiters
    cdef int32_t place = job.set.first, n = 0
    waiters = <Waiter*>malloc(<size_t>(job.set.count + 1) * sizeof(Waiter))
    if waiters == NULL or not _heap_room(waits):
        free(waiters)
        return False
    waits.heap_n += 1
    _heap_sift(waits, waits.heap_n - 1, job)
    while place != NOWHERE:
        # A fetch with a missing partition is answered at once, so normally none is NULL here.
        if job.set.partitions[place].partition != NULL:
            waiters[n].job = job
            waiters[n].partition = job.set.partitions[place].partition
            waiters[n].at = place
            _waiter_in(waits, &waiters[n])
            n += 1
        place = job.set.partitions[place].next
    waiters[n].job = NULL                             # the end
    job.waiters = waiters
    return True


cdef void unpark(Waits* waits, FetchJob* job) noexcept nogil:
    cdef Waiter* w = <Waiter*>job.waiters
    if job.heap_index < 0:
        return
    _heap_remove(waits, job)
    while w.job != NULL:
        _waiter_out(waits, w)
        w += 1
    free(job.waiters)
    job.waiters = NULL


cdef void retry_moved(Waits* waits, Partition* partition, Retry retry, void* context) noexcept nogil:
    cdef unordered_map[size_t, Waiter*].iterator found = waits.by_partition.find(<size_t>partition)
    cdef Waiter* w
    cdef FetchPartition* waited
    if found == waits.by_partition.end():
        return
    w = at(found).second
    while w != NULL:
        waited = &w.job.set.partitions[w.at]
        if w.job.due or partition_watch(partition, waits.reactor, w.job.isolation, waited.known_end):
            retry(context, w.job)
        w = w.next
