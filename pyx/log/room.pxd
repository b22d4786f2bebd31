"""Room ahead: blocks and zeros behind a segment's batches, for the appends to come.

Blocks: a segment that has grown by ROOM_FROM_BYTES reserves some beyond its end, half as many again, at most 4 MiB. A
write to blocks that exist costs the kernel less on ext4; XFS reserves blocks by itself.

Zeros: the page cache takes a write in folios as large as its position is round, so appends that begin anywhere come in
single pages, which cost two to three times as much to fill, write out and free. Where the kernel has large folios (ext4
from Linux 6.16 on, XFS from 6.6 on) a write takes zeros along, up to the next multiple of ROOM_BYTES, and later appends
overwrite them.

The size of a segment is kept in memory and no thread reads beyond it; the size of its file only says how much room
there is, so a move between log folders copies by the segments' sizes. The file is cut to its batches when the segment
is sealed (at once: recovery drops what follows a segment that doesn't end with a batch), within a second of the last
append, and at a stop. After a kill recovery cuts zeros that end at such a multiple without calling them damage;
others may be what a power cut took, and are damage. Kafka's recovery cuts them, too; its dump tool complains of them at
the end of a segment that is being written.

Files of old segments aren't used again. To rename one and write over it would cost the kernel a third less while its
pages are still in memory, which they aren't after hours of retention; and old batches with right checksums would lie
behind the end.
"""

from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport iovec
from penstock.pyx.log.files cimport LOG_MAX_BYTES

cdef enum:
    ROOM_BYTES = 256 << 10             # zeros behind the batches go to a multiple of this
    ROOM_FROM_BYTES = 2 << 20          # appended since the file had no room: less isn't worth it

# What a file has. `size`, wherever it is asked for, is that of the file's batches.
cdef struct Room:
    int64_t reserved                   # up to here the file has blocks, or was refused them; 0: no more than it needs
    int64_t zeroed                     # up to here the file has zeros behind the batches; 0: none
    int64_t plain_size                 # its size when it last had neither, or was opened
    bint writes_zeros                  # where that pays

# How far zeros go that were written behind batches which end here.
cdef inline int64_t room_bound(int64_t batches_end) noexcept nogil:
    return min((batches_end // ROOM_BYTES + 1) * ROOM_BYTES, <int64_t>LOG_MAX_BYTES)

# Whether the file has more than its batches.
cdef inline bint room_is_ahead(const Room* r, int64_t size) noexcept nogil:
    return r.reserved > size or r.zeroed > size

# Whether the file should have blocks, and zeros, before n bytes are appended. Inline, as each append asks.
cdef inline bint room_wants_blocks(const Room* r, int64_t size, int64_t n) noexcept nogil:
    return size + n > r.reserved and size - r.plain_size >= ROOM_FROM_BYTES

cdef inline bint room_wants_zeros(const Room* r, int64_t size, int64_t n) noexcept nogil:
    return r.writes_zeros and LOG_MAX_BYTES > size + n > r.zeroed

# Blocks for what is going to be appended, a few MiB at once.
cdef void room_reserve(Room* r, int fd, int64_t size, int64_t n) noexcept nogil
# Writes n bytes of batches with zeros behind them. False if not even the batches were written, as far as pwritev says.
cdef bint room_write(Room* r, int fd, vector[iovec]& pieces, int64_t size, int64_t n) noexcept nogil
# Gives all of it back; `fd` below 0: the file isn't open, so that it has none. No append meanwhile. 0 or errno.
cdef int room_give_back(Room* r, int fd, int64_t size) noexcept nogil
# Whether what a file has between them is such zeros, and nothing else. 1, 0 or -errno.
cdef int room_is_zeros(int fd, int64_t batches_end, int64_t file_end) noexcept nogil
