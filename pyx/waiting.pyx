"""Fetches that wait: a list to be walked when a partition grew, a heap by the time when each has to be answered."""
from libc.stdint cimport int32_t

from penstock.pyx.fetch cimport FetchJob
from penstock.pyx.plane cimport Reactor
from penstock.pyx.posix cimport realloc


cdef void heap_set(Reactor* r, int32_t at, FetchJob* job) noexcept nogil:
    r.heap[at] = job
    job.heap_index = at


cdef void heap_settle(Reactor* r, int32_t at, FetchJob* job) noexcept nogil:
    """Puts the job at or near place `at`, so that every parent is due before its children."""
    cdef int32_t other
    while at > 0 and r.heap[(at - 1) // 2].deadline_ms > job.deadline_ms:
        heap_set(r, at, r.heap[(at - 1) // 2])
        at = (at - 1) // 2
    while True:
        other = 2 * at + 1
        if other >= r.heap_n:
            break
        if other + 1 < r.heap_n and r.heap[other + 1].deadline_ms < r.heap[other].deadline_ms:
            other += 1
        if r.heap[other].deadline_ms >= job.deadline_ms:
            break
        heap_set(r, at, r.heap[other])
        at = other
    heap_set(r, at, job)


cdef bint park(Reactor* r, FetchJob* job) noexcept nogil:
    """Puts a job on the waiting list and its deadline on the heap. False: no memory."""
    cdef FetchJob** grown
    cdef int32_t capacity
    if job.heap_index >= 0:
        return True
    if r.heap_n == r.heap_capacity:
        capacity = r.heap_capacity * 2 + 64
        grown = <FetchJob**>realloc(r.heap, <size_t>capacity * sizeof(FetchJob*))
        if grown == NULL:
            return False
        r.heap = grown
        r.heap_capacity = capacity
    r.heap_n += 1
    heap_settle(r, r.heap_n - 1, job)
    job.previous = NULL
    job.next = r.waiting
    if job.next != NULL:
        job.next.previous = job
    r.waiting = job
    r.counters.fetch_waits += 1
    return True


cdef void unpark(Reactor* r, FetchJob* job) noexcept nogil:
    cdef int32_t at = job.heap_index
    cdef FetchJob* last
    if at < 0:
        return
    job.heap_index = -1
    r.heap_n -= 1
    last = r.heap[r.heap_n]
    if last != job:
        heap_settle(r, at, last)
    if job.previous != NULL:
        job.previous.next = job.next
    else:
        r.waiting = job.next
    if job.next != NULL:
        job.next.previous = job.previous
    job.next = NULL
    job.previous = NULL
