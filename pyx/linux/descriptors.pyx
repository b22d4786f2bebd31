"""File descriptors, which the whole process shares; see descriptors.pxd."""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.linux.posix cimport (
    EMFILE, ENFILE, RLIMIT_NOFILE, atomic_add64, atomic_load64, atomic_store64, close, dup, errno, getrlimit, memcpy,
    open, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, rlimit, strnlen, usleep,
)

cdef enum:
    RESERVE_MIN = 32
    RESERVE_MAX = 256
    TRIES = 16
    BUSY_TRIES = 50
    BUSY_US = 1000
    LIMIT_MAX = 1 << 30
    PATH_BYTES = 512

cdef CloseFiles close_files = NULL
cdef int64_t _closed = 0                              # atomic: files of logs, to have their descriptors
cdef int64_t _files_until = LIMIT_MAX                # atomic: where the half of the reserve begins that logs don't get
cdef int64_t _refused = 0                             # atomic: opens that found none
cdef pthread_mutex_t _lock
cdef char _last[PATH_BYTES]                           # what was to be opened last, under the lock
pthread_mutex_init(&_lock, NULL)
_last[0] = 0


cdef int64_t _reserve_of(int64_t most) noexcept nogil:
    return min(max(most // 8, <int64_t>RESERVE_MIN), <int64_t>RESERVE_MAX)


cdef int64_t _limit() noexcept nogil:
    """Asked each time that something is opened: it may be changed while the process runs."""
    cdef rlimit now
    cdef int64_t most = LIMIT_MAX
    if getrlimit(RLIMIT_NOFILE, &now) == 0 and now.rlim_cur < LIMIT_MAX:
        most = <int64_t>now.rlim_cur
    atomic_store64(&_files_until, most - _reserve_of(most) // 2)
    return most


cdef bint is_last_file(int fd) noexcept nogil:
    return fd >= atomic_load64(&_files_until)


cdef void set_close_files(CloseFiles hook) noexcept nogil:
    global close_files
    close_files = hook


cdef int32_t _make_room() noexcept nogil:
    cdef int32_t closed = 0
    if close_files != NULL:
        closed = close_files()
        if closed > 0:
            atomic_add64(&_closed, closed)
    return closed


cdef void _note_refused(const char* path) noexcept nogil:
    cdef size_t n = strnlen(path, PATH_BYTES - 1)
    atomic_add64(&_refused, 1)
    pthread_mutex_lock(&_lock)
    memcpy(_last, path, n)
    _last[n] = 0
    pthread_mutex_unlock(&_lock)


cdef int open_file(const char* path, int flags, int mode) noexcept nogil:
    cdef int fd = -1
    cdef int32_t closed
    cdef int tries = 0, busy = 0
    while tries < TRIES and busy < BUSY_TRIES:
        fd = open(path, flags, mode)
        if fd >= 0:
            return fd
        fd = -errno
        if fd != -EMFILE and fd != -ENFILE:
            return fd
        closed = _make_room()
        if closed == 0:
            break
        if closed == FILES_BUSY:
            busy += 1
            usleep(BUSY_US)
        else:
            tries += 1                 # others may be faster to take what was closed
    _note_refused(path)
    return fd


cdef void spare_descriptors(int fd) noexcept nogil:
    _limit()
    if is_last_file(fd):
        _make_room()


cdef bint in_reserve(int fd) noexcept nogil:
    cdef int64_t most = _limit()
    return fd >= most - _reserve_of(most)


cdef bint _is_room(int fd) noexcept nogil:
    cdef int probe = dup(fd)
    cdef bint room = probe >= 0 and not in_reserve(probe)
    if probe >= 0:
        close(probe)
    return room


cdef bint connection_may_come(int fd) noexcept nogil:
    if _is_room(fd):
        return True
    return _make_room() > 0 and _is_room(fd)


def allowed() -> tuple:
    """How many descriptors the process may have, and how many of them are kept in reserve; see descriptors.pyi."""
    cdef int64_t most = _limit()
    return most, _reserve_of(most)


def counters() -> dict:
    """What was done for want of descriptors; see descriptors.pyi."""
    return {"log_files_closed_early": atomic_load64(&_closed), "opens_without_descriptor": atomic_load64(&_refused)}


def last_refused() -> str:
    """The file that couldn't be opened; see descriptors.pyi."""
    pthread_mutex_lock(&_lock)
    path = <bytes>_last
    pthread_mutex_unlock(&_lock)
    return path.decode(errors="replace")
