"""Fetches that wait: by partition, to be found when it grew, and on a heap by the time when each has to be answered."""

from cython.operator cimport dereference as at

from penstock.pyx.log.files cimport made
from penstock.pyx.log.partition cimport partition_watch
from penstock.pyx.posix cimport free, malloc, realloc
from penstock.pyx.request.fetchset cimport NOWHERE, FetchPartition

cdef bint wait_open(Reactor* r) noexcept nogil:
    if r.waits == NULL:
        r.waits = made[WaitTable]()
    return r.waits != NULL


# --- deadlines ----------------------------------------------------------------------------------------------
cdef void heap_set(Reactor* r, int32_t place, FetchJob* job) noexcept nogil:
    r.heap[place] = job
    job.heap_index = place


cdef void heap_settle(Reactor* r, int32_t place, FetchJob* job) noexcept nogil:
    """Puts the job at or near its place, so that every parent is due before its children."""
    cdef int32_t other
    while place > 0 and r.heap[(place - 1) // 2].deadline_ms > job.deadline_ms:
        heap_set(r, place, r.heap[(place - 1) // 2])
        place = (place - 1) // 2
    while True:
        other = 2 * place + 1
        if other >= r.heap_n:
            break
        if other + 1 < r.heap_n and r.heap[other + 1].deadline_ms < r.heap[other].deadline_ms:
            other += 1
        if r.heap[other].deadline_ms >= job.deadline_ms:
            break
        heap_set(r, place, r.heap[other])
        place = other
    heap_set(r, place, job)


cdef bint heap_room(Reactor* r) noexcept nogil:
    cdef FetchJob** grown
    cdef int32_t capacity
    if r.heap_n < r.heap_capacity:
        return True
    capacity = r.heap_capacity * 2 + 64
    grown = <FetchJob**>realloc(r.heap, <size_t>capacity * sizeof(FetchJob*))
    if grown == NULL:
        return False
    r.heap = grown
    r.heap_capacity = capacity
    return True


cdef void heap_remove(Reactor* r, FetchJob* job) noexcept nogil:
    cdef int32_t place = job.heap_index
    cdef FetchJob* last
    job.heap_index = -1
    r.heap_n -= 1
    last = r.heap[r.heap_n]
    if last != job:
        heap_settle(r, place, last)


# --- lists --------------------------------------------------------------------------------------------------
cdef void waiter_in(Reactor* r, Waiter* w) noexcept nogil:
    cdef Waiter** head = &(<WaitTable*>r.waits).by_partition[<size_t>w.partition]
    w.previous = NULL
    w.next = head[0]
    if w.next != NULL:
        w.next.previous = w
    head[0] = w


cdef void waiter_out(Reactor* r, Waiter* w) noexcept nogil:
    if w.next != NULL:
        w.next.previous = w.previous
    if w.previous != NULL:
        w.previous.next = w.next
    elif w.next != NULL:
        (<WaitTable*>r.waits).by_partition[<size_t>w.partition] = w.next
    else:
        (<WaitTable*>r.waits).by_partition.erase(<size_t>w.partition)


cdef bint park(Reactor* r, FetchJob* job) noexcept nogil:
    cdef Waiter* waiters
    cdef int32_t place = job.set.first, n = 0
    if job.heap_index >= 0:
        return True
    waiters = <Waiter*>malloc(<size_t>(job.set.count + 1) * sizeof(Waiter))
    if waiters == NULL or not heap_room(r):
        free(waiters)
        return False
    r.heap_n += 1
    heap_settle(r, r.heap_n - 1, job)
    while place != NOWHERE:
        # One that waits has found all its partitions: a missing one is an answer.
        if job.set.partitions[place].partition != NULL:
            waiters[n].job = job
            waiters[n].partition = job.set.partitions[place].partition
            waiters[n].at = place
            waiter_in(r, &waiters[n])
            n += 1
        place = job.set.partitions[place].next
    waiters[n].job = NULL                             # the end
    job.waiters = waiters
    r.counters.fetch_waits += 1
    return True


cdef void unpark(Reactor* r, FetchJob* job) noexcept nogil:
    cdef Waiter* w = <Waiter*>job.waiters
    if job.heap_index < 0:
        return
    heap_remove(r, job)
    while w.job != NULL:
        waiter_out(r, w)
        w += 1
    free(job.waiters)
    job.waiters = NULL


cdef void look_moved(Reactor* r, Partition* partition, Look look) noexcept nogil:
    cdef unordered_map[size_t, Waiter*].iterator found = (<WaitTable*>r.waits).by_partition.find(<size_t>partition)
    cdef Waiter* w
    cdef FetchPartition* waited
    if found == (<WaitTable*>r.waits).by_partition.end():
        return
    w = at(found).second
    while w != NULL:
        waited = &w.job.set.partitions[w.at]
        if w.job.look or partition_watch(partition, r.id, w.job.isolation, waited.known_end):
            look(r, w.job)
        w = w.next
