"""A histogram of durations: eight buckets for each power of two, from 1 us to 67 s, and one for what is longer. One
thread writes; others may read at any time, and are one behind at most: each number is written by one store.

Bucket i = 8k + j counts durations up to (9 + j) * 2^k units of 125 ns, that bound included. The first one has all that
is shorter, too.
"""

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    BUCKETS = 208
    BUCKET_UNIT_NS = 125

cdef struct Histogram:
    int64_t sum_ns
    int64_t counts[BUCKETS + 1]       # the last one: longer than every bound

cdef extern from *:
    """
    static inline int highest_bit(uint64_t v) { return 63 - __builtin_clzll(v); }
    """
    int highest_bit(uint64_t value) noexcept nogil    # its number; the value isn't 0

cdef inline int bucket_of(int64_t ns) noexcept nogil:
    cdef uint64_t units = <uint64_t>(ns - 1) // BUCKET_UNIT_NS if ns > 0 else 0
    cdef int k
    if units < 8:
        return 0
    k = highest_bit(units) - 3
    return min(8 * k + <int>(units >> k) - 8, <int>BUCKETS)

cdef inline double bucket_bound_s(int bucket) noexcept nogil:
    return <double>(<int64_t>(9 + bucket % 8) << (bucket // 8)) * BUCKET_UNIT_NS / 1e9

# `times` durations of `ns` each. A phase that a request never was in is counted without a bucket being looked for.
cdef inline void histogram_add(Histogram* h, int64_t ns, int64_t times) noexcept nogil:
    if ns <= 0:
        h.counts[0] += times
        return
    h.counts[bucket_of(ns)] += times
    h.sum_ns += ns * times
