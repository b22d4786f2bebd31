"""How long requests take; see requesttimes.pxd."""

from penstock.pyx.linux.posix cimport (
    atomic_load64, atomic_load_pointer, atomic_store64, atomic_store_pointer, calloc, malloc, memcpy, memset,
)
from penstock.pyx.log.files cimport wall_ms
from penstock.pyx.net.histogram cimport histogram_add

cdef enum:
    TIMINGS_MIN = 4


cdef bint timings_grow(Timings* t) noexcept nogil:
    cdef uint32_t capacity = t.capacity * 2 if t.capacity else TIMINGS_MIN
    cdef Timing* grown = <Timing*>malloc(capacity * sizeof(Timing))
    cdef uint32_t i
    if grown == NULL:
        return False
    for i in range(t.last - t.first):
        grown[(t.first + i) & (capacity - 1)] = t.ring[(t.first + i) & (t.capacity - 1)]
    free(t.ring)
    t.ring = grown
    t.capacity = capacity
    return True


cdef void _note_slow(
    RequestTimes* times, const Timing* one, int64_t send_ns, const Client* client, const char* peer
) noexcept nogil:
    cdef SlowTiming* slow
    cdef int64_t written = times.slow_written
    if times.slow == NULL:
        slow = <SlowTiming*>calloc(SLOW_KEPT, sizeof(SlowTiming))
        atomic_store_pointer(<void**>&times.slow, slow)
    if times.slow == NULL or written - atomic_load64(&times.slow_taken) == SLOW_KEPT:
        times.slow_lost += 1
        return
    slow = &times.slow[written % SLOW_KEPT]
    slow.api_key = one.api_key
    slow.topic = one.topic
    slow.bytes = one.bytes
    memcpy(slow.passed_ns, one.passed_ns, sizeof(one.passed_ns))
    slow.passed_ns[<int>PHASE_SEND] = send_ns
    slow.ended_ms = wall_ms()
    slow.client = client[0]
    memcpy(slow.peer, peer, PEER_BYTES)
    atomic_store64(&times.slow_written, written + 1)


cdef int32_t slow_take(RequestTimes* times, SlowTiming* out) noexcept nogil:
    cdef SlowTiming* slow = <SlowTiming*>atomic_load_pointer(<void**>&times.slow)
    cdef int64_t taken = times.slow_taken
    cdef int64_t written = atomic_load64(&times.slow_written)
    cdef int32_t n = 0
    while taken < written and slow != NULL:
        out[n] = slow[taken % SLOW_KEPT]
        n += 1
        taken += 1
    atomic_store64(&times.slow_taken, taken)
    return n


cdef void timing_settle(
    RequestTimes* times, const Timing* one, int64_t now_ns, const Client* client, const char* peer
) noexcept nogil:
    cdef RequestCounts* counts
    cdef int64_t send_ns = max(now_ns - timing_until(one), <int64_t>0)
    cdef int64_t total_ns
    cdef int phase
    if not 0 <= one.api_key < API_KEYS:
        return
    counts = times.counts[one.api_key]
    if counts == NULL:
        counts = <RequestCounts*>calloc(1, sizeof(RequestCounts))
        if counts == NULL:
            return
        atomic_store_pointer(<void**>&times.counts[one.api_key], counts)
    if 0 <= one.version < API_VERSIONS:
        counts.versions[one.version] += one.count
    for phase in range(PHASE_SEND):
        histogram_add(&counts.phases[phase], one.passed_ns[phase], one.count)
    histogram_add(&counts.phases[<int>PHASE_SEND], send_ns, one.count)
    total_ns = timing_until(one) - one.arrived_ns + send_ns
    histogram_add(&counts.phases[<int>PHASE_TOTAL], total_ns, one.count)
    if times.slow_ns and total_ns - one.passed_ns[<int>PHASE_WAITING] >= times.slow_ns:
        counts.slow += one.count
        _note_slow(times, one, send_ns, client, peer)


cdef void timings_settle(
    RequestTimes* times, Timings* t, int64_t sent_at, int64_t sent_pieces, int64_t now_ns, const Client* client,
    const char* peer
) noexcept nogil:
    cdef Timing* one
    while t.first != t.answered:
        one = &t.ring[t.first & (t.capacity - 1)]
        if one.sent_at > sent_at or one.sent_pieces > sent_pieces:
            return
        timing_settle(times, one, now_ns, client, peer)
        t.first += 1


cdef void times_clear(RequestTimes* times) noexcept nogil:
    cdef int i
    for i in range(API_KEYS):
        free(times.counts[i])
    free(times.slow)
    memset(times, 0, sizeof(RequestTimes))
