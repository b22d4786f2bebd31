"""How long a thread works, and whether it is stuck. The thread alone writes; any thread reads, without a lock."""

from libc.stdint cimport int64_t

from penstock.pyx.linux.posix cimport atomic_load64, atomic_store64

cdef struct BusyTime:
    int64_t beats                     # atomic, as is all of it: how often it has begun to work
    int64_t busy_ns                   # of work that has ended
    int64_t since_ns                  # when the work began that goes on; 0: the thread waits for work

cdef inline void busy_begin(BusyTime* busy, int64_t now_ns) noexcept nogil:
    atomic_store64(&busy.beats, busy.beats + 1)
    atomic_store64(&busy.since_ns, now_ns)

cdef inline void busy_end(BusyTime* busy, int64_t now_ns) noexcept nogil:
    cdef int64_t since_ns = busy.since_ns
    # In this order: a reader between the two counts this work neither twice nor as going on.
    atomic_store64(&busy.since_ns, 0)
    atomic_store64(&busy.busy_ns, busy.busy_ns + now_ns - since_ns)

# It goes on with other work.
cdef inline void busy_beat(BusyTime* busy) noexcept nogil:
    atomic_store64(&busy.beats, busy.beats + 1)

# All of it up to `now_ns`, which was read before the call; it never goes back. `waits`: whether the thread has no work.
cdef inline int64_t busy_ns_until(const BusyTime* busy, int64_t now_ns, bint* waits) noexcept nogil:
    cdef int64_t before = atomic_load64(&busy.busy_ns)
    cdef int64_t since_ns = atomic_load64(&busy.since_ns)
    cdef int64_t after = atomic_load64(&busy.busy_ns)
    waits[0] = since_ns == 0
    return after + (max(now_ns - since_ns, <int64_t>0) if since_ns != 0 and before == after else 0)
