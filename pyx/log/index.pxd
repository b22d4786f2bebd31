"""Index files: a growing table in memory while its segment is written, a mapped file afterwards.

The offset index (`.index`) maps offsets to byte positions in the `.log` file, one entry about every
index.interval.bytes:

    entry, 8 bytes, big endian:   offset - segment's base offset  i32 | position of the batch  i32

An entry names the *last* offset of the batch at its position. Example: base 50, the batch with offsets 53..55 begins at
byte 812: the entry is (5, 812). Entries grow in both columns. A look-up takes the last entry that isn't above the
wanted offset and walks the log from there.

Crash story: an index is written to its file when its segment is flushed, so what is in the file after a crash may
be old or torn. Recovery rebuilds the indexes of every segment from the recovery point on; those before it were
flushed whole. The time index and the index of aborted transactions live the same way (timeindex.pxd, txnindex.pxd).

A file is compared with what it should be each time it is read or mapped, if that is known (checks.pxd): INDEX_WRONG
says that it is something else, and that the headers of the segment's batches have to be walked (proof.pxd).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from penstock.pyx.linux.descriptors cimport open_file
from penstock.pyx.linux.posix cimport (
    ENOENT, MAP_FAILED, MAP_SHARED, O_CLOEXEC, O_CREAT, O_RDONLY, O_WRONLY, PROT_READ, close, errno, fdatasync, fstat,
    ftruncate, mmap, munmap, stat, unlink,
)
from penstock.pyx.log.files cimport FILE_MODE, read_whole, write_at
from penstock.pyx.record.crc cimport crc32c_update
from penstock.pyx.record.endian cimport get_i32, put_i32

cdef enum:
    INDEX_ENTRY = 8
    RELATIVE_MAX = 0x7fffffff          # of an offset, less its segment's base offset
    INDEX_WRONG = 1 << 20              # where else an errno stands: the file isn't what it should be

# The content of an index file.
cdef struct IndexSum:
    int64_t size
    uint32_t crc

# One of three states: `held` (in `bytes`), mapped (`map`), or neither (on disk only).
cdef struct IndexFile:
    vector[uint8_t] bytes
    bint held
    size_t written                     # how much of `bytes` is in the file
    uint8_t* map
    size_t mapped
    bint known                         # what the file should be, while it isn't held: `sum`
    IndexSum sum

cdef inline void index_unmap(IndexFile* f) noexcept nogil:
    if f.map != NULL:
        munmap(f.map, f.mapped)
    f.map = NULL
    f.mapped = 0

cdef inline IndexSum index_sum(const uint8_t* entries, size_t n) noexcept nogil:
    return IndexSum(<int64_t>n, crc32c_update(0, entries, n))

cdef inline bint index_is_right(const IndexFile* f, const uint8_t* entries, size_t n) noexcept nogil:
    return not f.known or (f.sum.size == <int64_t>n and f.sum.crc == crc32c_update(0, entries, n))

# Forget the entries: the segment is new or is walked again.
cdef inline void index_reset(IndexFile* f) noexcept nogil:
    index_unmap(f)
    f.bytes.clear()
    f.held = True
    f.written = 0
    f.known = False

# Read the file into memory so that entries can be added. 0, INDEX_WRONG or errno; a missing file is an empty index.
cdef inline int index_hold(IndexFile* f, const char* path) noexcept nogil:
    cdef int result
    if f.held:
        return 0
    result = read_whole(path, f.bytes)
    if result != 0 and result != ENOENT:
        return result
    index_unmap(f)
    if result == ENOENT:
        f.bytes.clear()
    if not index_is_right(f, f.bytes.data(), f.bytes.size()):
        f.bytes.clear()
        return INDEX_WRONG
    f.held = True
    f.written = f.bytes.size()
    return 0

# The entries, wherever they are; the pointer holds until the next call on `f`. 0, INDEX_WRONG or
# errno.
cdef inline int index_view(IndexFile* f, const char* path, const uint8_t** entries, size_t* n) noexcept nogil:
    cdef int fd
    cdef stat info
    cdef void* where
    entries[0] = NULL
    n[0] = 0
    if f.held:
        entries[0] = f.bytes.data()
        n[0] = f.bytes.size()
        return 0
    if f.map == NULL:
        fd = open_file(path, O_RDONLY | O_CLOEXEC, 0)
        if fd < 0:
            return -fd if fd != -ENOENT else (0 if index_is_right(f, NULL, 0) else <int>INDEX_WRONG)
        if fstat(fd, &info) != 0:
            close(fd)
            return errno
        if info.st_size == 0:
            close(fd)
            return 0 if index_is_right(f, NULL, 0) else <int>INDEX_WRONG
        where = mmap(NULL, <size_t>info.st_size, PROT_READ, MAP_SHARED, fd, 0)
        close(fd)
        if where == MAP_FAILED:
            return errno
        f.map = <uint8_t*>where
        f.mapped = <size_t>info.st_size
        if not index_is_right(f, f.map, f.mapped):
            index_unmap(f)
            return INDEX_WRONG
    entries[0] = f.map
    n[0] = f.mapped
    return 0

# Write what isn't in the file yet, cut the file to it. 0 or errno. An empty index has an empty file, unless `optional`
# (the transaction index): then it has none, and one that is left of a log that was cut goes.
cdef inline int index_write(IndexFile* f, const char* path, bint optional, bint sync) noexcept nogil:
    cdef int fd, result = 0
    if not f.held:
        return 0
    if optional and f.bytes.size() == 0:
        return 0 if unlink(path) == 0 or errno == ENOENT else errno
    fd = open_file(path, O_WRONLY | O_CREAT | O_CLOEXEC, FILE_MODE)
    if fd < 0:
        return -fd
    result = write_at(fd, f.bytes.data() + f.written, f.bytes.size() - f.written, <int64_t>f.written)
    if result == 0 and ftruncate(fd, <int64_t>f.bytes.size()) != 0:
        result = errno
    if result == 0 and sync and fdatasync(fd) != 0:
        result = errno
    close(fd)
    if result == 0:
        f.written = f.bytes.size()
    return result

# Give the memory back; the file has it all, and has to have the same when it is read again, if that is `proved`.
cdef inline void index_release(IndexFile* f, bint proved) noexcept nogil:
    cdef vector[uint8_t] nothing
    if f.held and f.written == f.bytes.size():
        f.sum = index_sum(f.bytes.data(), f.bytes.size())
        f.known = proved
        f.bytes.swap(nothing)
        f.held = False
        f.written = 0

cdef inline void index_add(IndexFile* f, int32_t relative_offset, int32_t position) noexcept nogil:
    cdef size_t at = f.bytes.size()
    f.bytes.resize(at + INDEX_ENTRY)
    put_i32(f.bytes.data() + at, relative_offset)
    put_i32(f.bytes.data() + at + 4, position)

# The position of the last entry that isn't above `offset`, and which offset it names; 0 when there is none. `n` in
# bytes.
cdef inline int64_t index_floor(
    const uint8_t* entries, size_t n, int64_t base_offset, int64_t offset, int64_t* named
) noexcept nogil:
    cdef size_t low = 0, high = n // INDEX_ENTRY, middle
    while low < high:
        middle = (low + high) // 2
        if base_offset + get_i32(entries + middle * INDEX_ENTRY) <= offset:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return 0
    named[0] = base_offset + get_i32(entries + (low - 1) * INDEX_ENTRY)
    return get_i32(entries + (low - 1) * INDEX_ENTRY + 4)

# The offset of the first entry at or after `position`; -1 when there is none. Every record before `position` is
# below it.
cdef inline int64_t index_bound(const uint8_t* entries, size_t n, int64_t base_offset, int64_t position) noexcept nogil:
    cdef size_t low = 0, high = n // INDEX_ENTRY, middle
    while low < high:
        middle = (low + high) // 2
        if get_i32(entries + middle * INDEX_ENTRY + 4) < position:
            low = middle + 1
        else:
            high = middle
    return -1 if low == n // INDEX_ENTRY else base_offset + get_i32(entries + low * INDEX_ENTRY)
