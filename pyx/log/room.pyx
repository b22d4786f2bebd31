"""Room ahead; see room.pxd."""

import os
import re
from libc.stdint cimport uint8_t

from penstock.pyx.linux.posix cimport (
    EXT4_SUPER_MAGIC, FALLOC_FL_KEEP_SIZE, XFS_SUPER_MAGIC, errno, fallocate, fstatfs, ftruncate, memcmp, pwritev,
    statfs,
)
from penstock.pyx.log.files cimport read_at

cdef enum:
    RESERVE_SHARE = 2                  # of what was appended since the file had no room
    RESERVE_MAX_BYTES = 4 << 20

LINUX = [int(n) for n in re.findall(r"\d+", os.uname().release)[:2]]
# Whether what is written is taken in large folios.
cdef bint EXT4_LARGE_FOLIOS = LINUX >= [6, 16]
cdef bint XFS_LARGE_FOLIOS = LINUX >= [6, 6]
cdef uint8_t ZEROS[ROOM_BYTES]


cdef void room_reserve(Room* r, int fd, int64_t size, int64_t n) noexcept nogil:
    """ext4 takes a quarter less time for a write to blocks that it has than for one whose blocks it has to keep account
    of. The file keeps its size, so nobody sees it. XFS reserves blocks by itself. On other file systems nothing was
    measured, so nothing is done."""
    cdef int64_t ahead = n + min((size - r.plain_size) // RESERVE_SHARE, <int64_t>RESERVE_MAX_BYTES)
    cdef statfs where
    if fstatfs(fd, &where) != 0:
        pass
    elif where.f_type == EXT4_SUPER_MAGIC:
        fallocate(fd, FALLOC_FL_KEEP_SIZE, size, ahead)        # a full disk is met by the write
        r.writes_zeros = EXT4_LARGE_FOLIOS
    elif where.f_type == XFS_SUPER_MAGIC:
        r.writes_zeros = XFS_LARGE_FOLIOS
    r.reserved = size + ahead


cdef bint room_write(Room* r, int fd, vector[iovec]& pieces, int64_t size, int64_t n) noexcept nogil:
    """The zeros go up to the next round position. The page cache takes a write in folios as large as its position is
    round, and those of an append that begins anywhere are single pages; these zeros make all of them large, and writing
    them, writing them out and freeing them costs half and less."""
    cdef int64_t end = size + n
    cdef iovec zeros
    cdef ssize_t put
    zeros.iov_base = ZEROS
    zeros.iov_len = <size_t>(room_bound(end) - end)
    pieces.push_back(zeros)
    put = pwritev(fd, pieces.data(), <int>pieces.size(), size)
    pieces.pop_back()
    if put < n:
        return False
    r.zeroed = size + put
    return True


cdef int room_give_back(Room* r, int fd, int64_t size) noexcept nogil:
    if fd >= 0 and room_is_ahead(r, size) and ftruncate(fd, size) != 0:
        return errno
    r.reserved = 0
    r.zeroed = 0
    r.plain_size = size
    r.writes_zeros = False
    return 0


cdef int room_is_zeros(int fd, int64_t batches_end, int64_t file_end) noexcept nogil:
    cdef vector[uint8_t] tail
    cdef int64_t got
    if file_end != room_bound(batches_end):
        return 0
    tail.resize(<size_t>(file_end - batches_end))
    got = read_at(fd, tail.data(), tail.size(), batches_end)
    if got < 0:
        return <int>got
    return memcmp(tail.data(), ZEROS, tail.size()) == 0
