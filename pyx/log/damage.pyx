"""Corrupt bytes of .log files; see damage.pxd."""

import os
from collections import namedtuple
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport (
    O_CLOEXEC, O_CREAT, O_TRUNC, O_WRONLY, close, errno, fsync, memcmp, open, snprintf, unlink,
)
from penstock.pyx.log.files cimport FILE_MODE, read_at, sync_folder, write_at
from penstock.pyx.log.index cimport RELATIVE_MAX
from penstock.pyx.log.room cimport room_is_zeros
from penstock.pyx.log.segment cimport WALK_BATCH, WALK_END, WALK_GARBAGE, LogWalk, walk_begin, walk_next
from penstock.pyx.record.batch cimport (
    ATTRIBUTES_AT, BATCH_OK, CHECK_STORED, MAGIC_AT, RECORDS_AT, BatchHeader, batch_check, batch_check_header,
    batch_last_offset, batch_parse_header,
)
from penstock.pyx.record.crc cimport crc32c_update
from penstock.pyx.record.endian cimport get_i64

cdef enum:
    CHUNK_BYTES = 1 << 20
    ONE_BATCH = 4096                   # one read that finds a header
    # What is read for checksums of what only looks like a batch, in sizes of the range, and at least.
    TRIES = 4
    TRIES_MIN_BYTES = 64 << 20

CorruptRange = namedtuple("CorruptRange", "position end first_offset next_offset leader_epoch")


cdef int _sum_is_right(int fd, const BatchHeader* header, int64_t position, vector[uint8_t]& buffer) noexcept nogil:
    """Whether a batch's checksum is right, by pieces. 1, 0 or -errno."""
    cdef uint32_t crc = 0
    cdef int64_t at = position + ATTRIBUTES_AT, end = position + header.size, got
    while at < end:
        got = read_at(fd, buffer.data(), <size_t>min(end - at, <int64_t>CHUNK_BYTES), at)
        if got <= 0:
            return <int>got
        crc = crc32c_update(crc, buffer.data(), <size_t>got)
        at += got
    return crc == header.crc


cdef bint _looks_right(
    const uint8_t* p, size_t n, int64_t left, int64_t least, int64_t most, BatchHeader* header
) noexcept nogil:
    """Whether what is at `p` looks like a batch that would fit."""
    return (
        p[MAGIC_AT] == 2
        and least <= get_i64(p) <= most
        and batch_parse_header(p, n, header) == BATCH_OK
        and header.size <= left
        and header.last_offset_delta >= 0
        and batch_last_offset(header) <= most
        and batch_check_header(header, 0, CHECK_STORED) == BATCH_OK
    )


cdef int find_batch(
    int fd, int64_t position, int64_t end, int64_t least, int64_t most, BatchHeader* header, int64_t* found
) noexcept nogil:
    cdef vector[uint8_t] bytes, piece
    cdef int64_t got, i, tried = 0
    cdef int64_t most_tried = max(TRIES * (end - position), <int64_t>TRIES_MIN_BYTES)
    cdef int right
    bytes.resize(CHUNK_BYTES)
    piece.resize(CHUNK_BYTES)
    while end - position >= RECORDS_AT:
        got = read_at(fd, bytes.data(), <size_t>min(end - position, <int64_t>CHUNK_BYTES), position)
        if got < 0:
            return <int>got
        if got < RECORDS_AT:
            break
        for i in range(got - RECORDS_AT + 1):
            if not _looks_right(bytes.data() + i, <size_t>(got - i), end - position - i, least, most, header):
                continue
            tried += header.size
            if tried > most_tried:
                return WALK_GARBAGE
            right = _sum_is_right(fd, header, position + i, piece)
            if right != 0:
                found[0] = position + i
                return right if right < 0 else <int>WALK_BATCH
        position += got - RECORDS_AT + 1
    return WALK_END


cdef bint _is_zeros(const uint8_t* p, int64_t n) noexcept nogil:
    return n == 0 or (p[0] == 0 and memcmp(p, p + 1, <size_t>(n - 1)) == 0)


cdef int _copy(int fd, int to, int64_t position, int64_t end, vector[uint8_t]& bytes) noexcept nogil:
    cdef int64_t at = position, got
    cdef int result = 0
    while at < end and result == 0:
        got = read_at(fd, bytes.data(), <size_t>min(end - at, <int64_t>CHUNK_BYTES), at)
        if got <= 0:
            return <int>-got
        result = write_at(to, bytes.data(), <size_t>got, at - position)
        at += got
    return errno if result == 0 and fsync(to) != 0 else result


cdef int set_aside(int fd, const string& log_path, int64_t position, int64_t end, bint* kept) noexcept nogil:
    cdef vector[uint8_t] bytes
    cdef char suffix[40]
    cdef string path = log_path
    cdef int64_t at = position, got
    cdef int to, result
    cdef bint zeros = True
    kept[0] = False
    bytes.resize(CHUNK_BYTES)
    while at < end and zeros:
        got = read_at(fd, bytes.data(), <size_t>min(end - at, <int64_t>CHUNK_BYTES), at)
        if got <= 0:
            return <int>-got
        zeros = _is_zeros(bytes.data(), got)
        at += got
    if zeros:
        return 0
    snprintf(suffix, sizeof(suffix), b".cut-%lld", <long long>position)
    path.append(<const char*>suffix)
    to = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, FILE_MODE)
    if to < 0:
        return errno
    result = _copy(fd, to, position, end, bytes)
    close(to)
    if result == 0:
        result = sync_folder(path.substr(0, path.rfind(b"/")).c_str())
    if result != 0:
        unlink(path.c_str())
    kept[0] = result == 0
    return result


cdef bint _next_fits(const LogWalk* walk, const BatchHeader* header, bint without) noexcept nogil:
    """Whether the batch after this one fits, too: a base offset, which no checksum covers, may lie. `without`: whether
    there may be none."""
    cdef LogWalk peek
    cdef BatchHeader after
    cdef const uint8_t* bytes
    walk_begin(&peek, walk.fd, walk.position, walk.end, ONE_BATCH)
    if walk_next(&peek, &after, &bytes, False) != WALK_BATCH:
        return without
    return after.base_offset > batch_last_offset(header)


def corrupt_ranges(str path, int64_t base_offset, bint dense, int64_t limit=-1, int64_t known_end=-1):
    """Ranges of a segment's bytes that are no right batches; see damage.pyi."""
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int64_t end, at, found = 0, expected = base_offset
    cdef int64_t most = base_offset + RELATIVE_MAX
    cdef bint without
    cdef int result, room, epoch = 0
    cdef bint right
    ranges = []
    if limit >= 0:
        most = min(most, limit - 1)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = os.fstat(fd).st_size
        walk_begin(&walk, fd, 0, end, CHUNK_BYTES)
        while True:
            at = walk.position
            result = walk_next(&walk, &header, &bytes, True)
            if result == WALK_END:
                break
            right = (
                result == WALK_BATCH
                and (header.base_offset >= expected or header.magic < 2)
                and expected <= batch_last_offset(&header) <= most
                and batch_check(bytes, &header, 0, CHECK_STORED) == BATCH_OK
            )
            # Nothing follows the last batch that shows whether its offset is right: it stays where it says it is,
            # unless the log is known to have ended where the batch would end without the gap.
            without = limit >= 0 or not dense or expected + header.last_offset_delta + 1 != known_end
            if right and (header.magic < 2 or header.base_offset == expected or (
                not dense and _next_fits(&walk, &header, without)
            )):
                expected = batch_last_offset(&header) + 1
                epoch = header.leader_epoch
                continue
            found = at
            if not right or not _next_fits(&walk, &header, without):
                room = room_is_zeros(fd, at, end)
                if room != 0:
                    result = -room if room < 0 else <int>WALK_END
                    if result < 0:
                        raise OSError(-result, os.strerror(-result), path)
                    break
                result = find_batch(fd, at + 1, end, expected, most, &header, &found)
            if result < 0:
                raise OSError(-result, os.strerror(-result), path)
            if result != WALK_BATCH:
                ranges.append(CorruptRange(at, end, expected, -1, epoch))
                break
            ranges.append(CorruptRange(at, found, expected, header.base_offset, epoch))
            walk_begin(&walk, fd, found, end, CHUNK_BYTES)
            expected = header.base_offset
    finally:
        os.close(fd)
    return ranges, expected, epoch, at
