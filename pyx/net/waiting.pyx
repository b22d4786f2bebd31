"""Requests that wait: by partition, to be found when it moved, and on a heap by the time that each has."""

from cython.operator cimport dereference as at

from penstock.pyx.linux.posix cimport free, malloc, realloc
from penstock.pyx.log.files cimport made
from penstock.pyx.log.partition cimport partition_watch
from penstock.pyx.request.acks cimport ProduceWait
from penstock.pyx.request.fetch cimport FetchJob
from penstock.pyx.request.fetchset cimport NOWHERE, FetchPartition
from penstock.pyx.request.waiting cimport WAITING_ACKS

cdef Waits* waits_new(int32_t reactor) noexcept nogil:
    cdef Waits* waits = made[Waits]()
    waits.reactor = reactor
    waits.heap = NULL
    waits.heap_n = 0
    waits.heap_capacity = 0
    return waits


# --- deadlines ----------------------------------------------------------------------------------------------
cdef void _heap_set(Waits* waits, int32_t place, Waiting* who) noexcept nogil:
    waits.heap[place] = who
    who.heap_index = place


cdef void _heap_sift(Waits* waits, int32_t place, Waiting* who) noexcept nogil:
    """Puts it at or near its place, so that every parent is due before its children."""
    cdef int32_t other
    while place > 0 and waits.heap[(place - 1) // 2].deadline_ms > who.deadline_ms:
        _heap_set(waits, place, waits.heap[(place - 1) // 2])
        place = (place - 1) // 2
    while True:
        other = 2 * place + 1
        if other >= waits.heap_n:
            break
        if other + 1 < waits.heap_n and waits.heap[other + 1].deadline_ms < waits.heap[other].deadline_ms:
            other += 1
        if waits.heap[other].deadline_ms >= who.deadline_ms:
            break
        _heap_set(waits, place, waits.heap[other])
        place = other
    _heap_set(waits, place, who)


cdef bint _heap_room(Waits* waits) noexcept nogil:
    cdef Waiting** grown
    cdef int32_t capacity
    if waits.heap_n < waits.heap_capacity:
        return True
    capacity = waits.heap_capacity * 2 + 64
    grown = <Waiting**>realloc(waits.heap, <size_t>capacity * sizeof(Waiting*))
    if grown == NULL:
        return False
    waits.heap = grown
    waits.heap_capacity = capacity
    return True


cdef void _heap_remove(Waits* waits, Waiting* who) noexcept nogil:
    cdef int32_t place = who.heap_index
    cdef Waiting* last
    who.heap_index = -1
    waits.heap_n -= 1
    last = waits.heap[waits.heap_n]
    if last != who:
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


cdef int32_t _list_fetch(Waits* waits, FetchJob* job, Waiter* waiters) noexcept nogil:
    """How many there are."""
    cdef int32_t place = job.set.first, n = 0
    while place != NOWHERE:
        # A fetch with a missing partition is answered at once, so normally none is NULL here.
        if job.set.partitions[place].partition != NULL:
            waiters[n].who = &job.waiting
            waiters[n].partition = job.set.partitions[place].partition
            waiters[n].at = place
            _waiter_in(waits, &waiters[n])
            n += 1
        place = job.set.partitions[place].next
    return n


cdef int32_t _list_acks(Waits* waits, ProduceWait* acks, Waiter* waiters) noexcept nogil:
    cdef int32_t i, n = 0
    for i in range(acks.n):
        if not acks.parts[i].settled:
            waiters[n].who = &acks.waiting
            waiters[n].partition = acks.parts[i].partition
            waiters[n].at = i
            _waiter_in(waits, &waiters[n])
            n += 1
    return n


cdef bint park(Waits* waits, Waiting* who) noexcept nogil:
    cdef bint acks = who.kind == WAITING_ACKS
    cdef int32_t most = (<ProduceWait*>who).n if acks else (<FetchJob*>who).set.count
    cdef Waiter* waiters = <Waiter*>malloc(<size_t>(most + 1) * sizeof(Waiter))
    if waiters == NULL or not _heap_room(waits):
        free(waiters)
        return False
    waits.heap_n += 1
    _heap_sift(waits, waits.heap_n - 1, who)
    if acks:
        most = _list_acks(waits, <ProduceWait*>who, waiters)
    else:
        most = _list_fetch(waits, <FetchJob*>who, waiters)
    waiters[most].who = NULL
    who.waiters = waiters
    return True


cdef void unpark(Waits* waits, Waiting* who) noexcept nogil:
    cdef Waiter* w = <Waiter*>who.waiters
    if who.heap_index < 0:
        return
    _heap_remove(waits, who)
    while w.who != NULL:
        _waiter_out(waits, w)
        w += 1
    free(who.waiters)
    who.waiters = NULL


cdef bint _has_moved(const Waits* waits, const Waiter* w) noexcept nogil:
    cdef FetchJob* job = <FetchJob*>w.who
    cdef const FetchPartition* waited
    if w.who.due or w.who.kind == WAITING_ACKS:
        return True
    waited = &job.set.partitions[w.at]
    return partition_watch(w.partition, waits.reactor, job.isolation, waited.known_end)


cdef void retry_moved(Waits* waits, Partition* partition, Retry retry, void* context) noexcept nogil:
    cdef unordered_map[size_t, Waiter*].iterator found = waits.by_partition.find(<size_t>partition)
    cdef Waiter* w
    if found == waits.by_partition.end():
        return
    w = at(found).second
    while w != NULL:
        if _has_moved(waits, w):
            retry(context, w.who)
        w = w.next
