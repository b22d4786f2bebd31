"""What of a file is in the page cache.

Checking the page cache must not trigger readahead: preadv2 with RWF_NOWAIT makes the kernel read ahead what isn't
there, megabytes of it, in the calling thread, for a millisecond in which no other thread gets that processor. So
cachestat is called first (Linux 6.5 on); an older kernel can't answer it, and preadv2 alone is left.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from penstock.pyx.linux.posix cimport (
    EAGAIN, EINTR, EOPNOTSUPP, RWF_NOWAIT, cached_pages, errno, getpagesize, iovec, preadv2,
)
from penstock.pyx.log.files cimport read_at

cdef enum CacheState:
    CACHE_UNKNOWN = 0
    CACHE_ALL = 1                      # all pages are there, though some may still be on their way from the disk
    CACHE_NOT_ALL = 2                  # some aren't, and none has to be written first
    CACHE_UNWRITTEN = 3                # some aren't, and the disk doesn't have all of the others yet

cdef inline CacheState cache_state(int fd, int64_t position, int64_t n) noexcept nogil:
    cdef int64_t page = getpagesize()
    cdef uint64_t pages = 0, unwritten = 0
    if n <= 0:
        return CACHE_ALL
    if cached_pages(fd, <uint64_t>position, <uint64_t>n, &pages, &unwritten) != 0:
        return CACHE_UNKNOWN
    if <int64_t>pages > (position + n - 1) // page - position // page:
        return CACHE_ALL
    return CACHE_NOT_ALL if unwritten == 0 else CACHE_UNWRITTEN

# Bytes read (fewer where the rest isn't in the page cache), -EAGAIN if the first isn't, or -errno. -EOPNOTSUPP: the
# file system can't tell.
cdef inline int64_t read_nowait_at(int fd, void* to, size_t n, int64_t position) noexcept nogil:
    cdef iovec part
    cdef ssize_t got
    part.iov_base = to
    part.iov_len = n
    got = preadv2(fd, &part, 1, position, RWF_NOWAIT)
    while got < 0 and errno == EINTR:
        got = preadv2(fd, &part, 1, position, RWF_NOWAIT)
    return got if got >= 0 else -errno

# The same without starting a read, where the kernel can tell; where the file system can't, the file is read anyway.
cdef inline int64_t read_cached_at(int fd, void* to, size_t n, int64_t position) noexcept nogil:
    cdef int64_t page = getpagesize(), got
    cdef size_t front = <size_t>(page - position % page)
    if cache_state(fd, position, <int64_t>n) > CACHE_ALL:
        if front >= n or cache_state(fd, position, <int64_t>front) > CACHE_ALL:
            return -EAGAIN
        n = front
    got = read_nowait_at(fd, to, n, position)
    return read_at(fd, to, n, position) if got == -EOPNOTSUPP else got

cdef inline bint byte_is_cached(int fd, int64_t position) noexcept nogil:
    cdef uint8_t byte
    return read_nowait_at(fd, &byte, 1, position) != -EAGAIN

# Of a range whose state is `state`: whether it can be sent without waiting for the disk, as far as its first and last
# page tell which of them have come.
cdef inline bint range_is_cached(int fd, int64_t position, int64_t n, CacheState state) noexcept nogil:
    return state <= CACHE_ALL and byte_is_cached(fd, position) and (n <= 1 or byte_is_cached(fd, position + n - 1))
