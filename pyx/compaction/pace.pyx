"""The pace of cleaners; see pace.pxd."""

from penstock.pyx.linux.posix cimport (
    CLOCK_MONOTONIC, atomic_load32, atomic_store32, clock_gettime, nanosleep, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, timespec,
)

cdef enum:
    SLICE_NS = 100_000_000             # the longest sleep before the end is checked again

cdef double UNLIMITED = 1e15           # bytes a second: Kafka's default is the largest number there is


cdef inline int64_t _monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef bint pace_take(CleanPace* pace, const int32_t* cancelled, int64_t bytes) noexcept nogil:
    cdef int64_t now, until = 0
    cdef timespec pause
    pthread_mutex_lock(&pace.lock)
    if pace.bytes_per_second > 0:
        now = _monotonic_ns()
        if pace.free_ns < now:
            pace.free_ns = now
        until = pace.free_ns           # what came before is waited for, so that small steps don't sleep
        pace.free_ns += <int64_t>(<double>bytes * 1e9 / pace.bytes_per_second)
    pthread_mutex_unlock(&pace.lock)
    while True:
        if atomic_load32(&pace.cancelled) or atomic_load32(cancelled):
            return False
        now = _monotonic_ns() if until > 0 else 0
        if now >= until:
            return True
        pause.tv_sec = 0
        pause.tv_nsec = <long>(until - now if until - now < SLICE_NS else SLICE_NS)
        nanosleep(&pause, NULL)


cdef class Pace:
    """See pace.pyi."""

    def __cinit__(self, double bytes_per_second=0):
        pthread_mutex_init(&self.pace.lock, NULL)
        self.pace.cancelled = 0
        self.limit(bytes_per_second)

    def limit(self, double bytes_per_second):
        """Change the limit; see pace.pyi."""
        pthread_mutex_lock(&self.pace.lock)
        self.pace.bytes_per_second = bytes_per_second if bytes_per_second < UNLIMITED else 0
        self.pace.free_ns = 0
        pthread_mutex_unlock(&self.pace.lock)

    def end(self):
        """End what is under way; see pace.pyi."""
        atomic_store32(&self.pace.cancelled, 1)
