"""How fast all cleaners of a broker together may read and write, and whether they should end."""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.linux.posix cimport pthread_mutex_t

cdef struct CleanPace:
    pthread_mutex_t lock
    double bytes_per_second            # 0: no limit
    int64_t free_ns                    # when what was taken so far is paid for, by the monotonic clock
    int32_t cancelled

# Pays for bytes by sleeping; False when the pace or `cancelled` says to end.
cdef bint pace_take(CleanPace* pace, const int32_t* cancelled, int64_t bytes) noexcept nogil

cdef class Pace:
    cdef CleanPace pace
