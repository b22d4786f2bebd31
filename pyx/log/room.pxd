"""Room ahead: blocks and zeros behind a segment's batches, for the appends to come.

A file that has grown for a while reserves blocks, and (where that pays) a write takes zeros along that later ones
overwrite: ARCHITECTURE.md says why. Nobody reads behind the batches; the room is given back when appends cease.
"""

from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from penstock.pyx.log.files cimport LOG_MAX_BYTES
from penstock.pyx.posix cimport iovec

cdef enum:
    ROOM_BYTES = 256 << 10             # zeros behind the batches go to a multiple of this
    ROOM_FROM_BYTES = 2 << 20          # appended since the file had no room: less isn't worth it

# What a file has. `size`, wherever it is asked for, is that of the file's batches.
cdef struct Room:
    int64_t reserved                   # up to here the file has blocks, or was refused them; 0: no more than it needs
    int64_t zeroed                     # up to here the file has zeros behind the batches; 0: none
    int64_t settled                    # its size when it last had neither, or was opened
    bint writes_zeros                  # where that pays

# How far zeros go that were written behind batches which end here.
cdef inline int64_t room_bound(int64_t batches_end) noexcept nogil:
    return min((batches_end // ROOM_BYTES + 1) * ROOM_BYTES, <int64_t>LOG_MAX_BYTES)

# Whether the file has more than its batches.
cdef inline bint room_is_ahead(const Room* r, int64_t size) noexcept nogil:
    return r.reserved > size or r.zeroed > size

# Whether the file should have blocks, and zeros, before n bytes are appended. Inline, as each append asks.
cdef inline bint room_wants_blocks(const Room* r, int64_t size, int64_t n) noexcept nogil:
    return size + n > r.reserved and size - r.settled >= ROOM_FROM_BYTES

cdef inline bint room_wants_zeros(const Room* r, int64_t size, int64_t n) noexcept nogil:
    return r.writes_zeros and LOG_MAX_BYTES > size + n > r.zeroed

# Blocks for what is going to be appended, a few MiB at once.
cdef void room_reserve(Room* r, int fd, int64_t size, int64_t n) noexcept nogil
# Writes n bytes of batches with zeros behind them. False if not even the batches were written, as far as one can tell.
cdef bint room_write(Room* r, int fd, vector[iovec]& pieces, int64_t size, int64_t n) noexcept nogil
# Gives all of it back; `fd` below 0: the file isn't open, so that it has none. Nobody may append meanwhile. 0 or errno.
cdef int room_give_back(Room* r, int fd, int64_t size) noexcept nogil
# Whether what a file has between them is such zeros, and nothing else. 1, 0 or -errno.
cdef int room_is_zeros(int fd, int64_t batches_end, int64_t file_end) noexcept nogil
