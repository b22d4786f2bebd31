"""Where each log of a log folder ends, for the start after a kill -9: `penstock-log-ends`, mapped into memory.

The checkpoints (checkpoint.py) say where a log ended when they were written last. After each append its thread also
stores the new end in the log's slot: eight bytes, one store, no system call. The page cache keeps it when the process
is killed, as it keeps the batch, which is there before. So a log that ends earlier at the next start has lost records.

The file is an array of slots of 64 bytes, a cache line each:

    first slot    `PSTKENDS`, version (4 bytes), boot id (36), CRC32C of these, little-endian like all numbers here
    other slots   topic id (16), partition (4), CRC32C of the topic's name (4), CRC32C of these three; then at byte 32
                  the end: 48 bits, and above them 16 bits that check it

A slot with anything else in it says nothing. The boot id binds the file to one start of the machine: after a power cut
a log may well end earlier. An offset that needs more than 48 bits isn't kept. Nobody syncs this file.

The file is written again, with what was known, when the first log of its folder is opened. It grows by a chunk, which
is written before it is mapped and never moves, so that threads store while it grows. A deleted log's slot serves the
next log. Where the file can't be written, or can't grow, logs are opened without slots, and that is said once.

A store to a mapped page can fail where the disk fails, or somebody cuts the file: the kernel then sends SIGBUS. The
handler puts memory of this process in the place of the chunk, and the store is done there. Logs lose no more by it than
a slot that stays behind. SIGBUS of other addresses goes to the handler that was there before.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport atomic_store64

# The mapped chunks of one folder.
cdef struct EndChunks:
    vector[char*] all

# The slot of one log; NULL: it has none.
cdef struct EndSlot:
    int64_t* word
    uint32_t salt                      # what is under its identity's checksum gives another check

# Once no thread stores in them any more.
cdef void release_chunks(EndChunks* chunks) noexcept nogil

cdef inline int64_t end_word(int64_t end, uint32_t salt) noexcept nogil:
    cdef uint64_t value = <uint64_t>end
    if value >> 48 != 0:
        return 0                       # which says nothing
    return <int64_t>(value | (((value ^ (<uint64_t>salt << 16)) * <uint64_t>0x9E3779B97F4A7C15) >> 48 << 48))

# By the thread that appends, once the batch is in the file.
cdef inline void note_end(EndSlot slot, int64_t end) noexcept nogil:
    if slot.word != NULL:
        atomic_store64(slot.word, end_word(end, slot.salt))


cdef class EndSlots:
    cdef EndChunks* chunks             # belongs to the folder's LogFolder, which goes last
    cdef object _path, _known, _growing, _lock, _inode
    cdef dict _places                  # partition and CRC32C of the topic's name -> number of its slot
    cdef list _free
    cdef bint _said

    # The slot of a log that was opened, with its end in it. No word where there is none.
    cdef EndSlot take(self, str topic, bytes topic_id, int partition, int64_t end)
    cdef int64_t* _word(self, Py_ssize_t place)
    cdef object _begin(self)
    cdef object _grow(self)
    cdef object _map(self, int fd, size_t chunk)
