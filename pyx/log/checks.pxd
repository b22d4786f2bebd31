"""What the index files of a segment should be (`.checks`): written beside them once nothing is appended any more.

    version i16 (3) | crc32c u32 of all that follows | base offset i64 | bytes of the .log i64 |
    largest timestamp ms i64 (-1 none) | offset that has it i64 | next offset i64 |
    then for .index, .timeindex and .txnindex, 12 bytes each:  bytes i64 (0: there may be no file) | crc32c u32 |
    formats of the batches i8 (segment.pxd); not in version 1, of which nothing is known |
    base offset of the next segment i64 (-1: there was none, the segment was the last one); not in versions 1 and 2

Kafka ignores the file and doesn't update it: checks that name another size of the .log prove nothing. An older Penstock
takes a version that it doesn't know for no checks.

The base offset of the next segment makes a chain of a log's segments. Each keeps its base offset for as long as the one
before it is there: compaction replaces a group of segments by one that has the base offset of the first, together with
its checks. So recovery can miss a segment, or bytes of one, in the middle of a log with holes (recovery.pxd).

Crash story: it is not synced. One that is torn or old is found out by its checksum or by the .log's size, and counts as
missing; the headers of the segment's batches are then walked (proof.pxd). After an unclean end a start therefore
believes the chain below the recovery point only: the .log files there were synced after their checks had been written.
"""

from libc.stdint cimport int8_t, int16_t, int64_t, uint8_t
from libcpp.vector cimport vector

from penstock.pyx.linux.descriptors cimport open_file
from penstock.pyx.linux.posix cimport O_CLOEXEC, O_CREAT, O_TRUNC, O_WRONLY, close, unlink
from penstock.pyx.log.files cimport FILE_MODE, read_whole, write_at
from penstock.pyx.log.index cimport IndexSum
from penstock.pyx.record.crc cimport crc32c_update
from penstock.pyx.record.endian cimport get_i16, get_i64, get_u32, put_i16, put_i64, put_u32

cdef enum:
    CHECKS_VERSION = 3
    CHECKS_VERSION_FORMATS = 2                 # without the next segment
    CHECKS_VERSION_FIRST = 1                   # and without the formats
    CHECKS_INDEXES = 3
    CHECKS_CRC_AT = 2
    CHECKS_BASE_AT = CHECKS_CRC_AT + 4         # the checksum covers from here on
    CHECKS_SIZE_AT = CHECKS_BASE_AT + 8
    CHECKS_TIMESTAMP_AT = CHECKS_SIZE_AT + 8
    CHECKS_TIMESTAMP_OFFSET_AT = CHECKS_TIMESTAMP_AT + 8
    CHECKS_NEXT_AT = CHECKS_TIMESTAMP_OFFSET_AT + 8
    CHECKS_SUMS_AT = CHECKS_NEXT_AT + 8
    CHECKS_SUM = 12
    CHECKS_FORMATS_AT = CHECKS_SUMS_AT + CHECKS_INDEXES * CHECKS_SUM
    CHECKS_FOLLOWING_AT = CHECKS_FORMATS_AT + 1
    CHECKS_BYTES = CHECKS_FOLLOWING_AT + 8

cdef struct Checks:
    int64_t base_offset
    int64_t size
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t next_offset
    IndexSum sums[CHECKS_INDEXES]
    int8_t formats
    int64_t following                          # base offset of the next segment; -1: none, or not known

# 0 or errno; what is written by half is removed.
cdef inline int checks_write(const Checks* checks, const char* path) noexcept nogil:
    cdef uint8_t data[CHECKS_BYTES]
    cdef int i, result
    cdef int fd = open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, FILE_MODE)
    if fd < 0:
        return -fd
    put_i16(data, CHECKS_VERSION)
    put_i64(data + CHECKS_BASE_AT, checks.base_offset)
    put_i64(data + CHECKS_SIZE_AT, checks.size)
    put_i64(data + CHECKS_TIMESTAMP_AT, checks.max_timestamp)
    put_i64(data + CHECKS_TIMESTAMP_OFFSET_AT, checks.max_timestamp_offset)
    put_i64(data + CHECKS_NEXT_AT, checks.next_offset)
    for i in range(CHECKS_INDEXES):
        put_i64(data + CHECKS_SUMS_AT + i * CHECKS_SUM, checks.sums[i].size)
        put_u32(data + CHECKS_SUMS_AT + i * CHECKS_SUM + 8, checks.sums[i].crc)
    data[CHECKS_FORMATS_AT] = <uint8_t>checks.formats
    put_i64(data + CHECKS_FOLLOWING_AT, checks.following)
    put_u32(data + CHECKS_CRC_AT, crc32c_update(0, data + CHECKS_BASE_AT, CHECKS_BYTES - CHECKS_BASE_AT))
    result = write_at(fd, data, CHECKS_BYTES, 0)
    close(fd)
    if result != 0:
        unlink(path)
    return result

# False: there is none that can be believed.
cdef inline bint checks_read(Checks* checks, const char* path) noexcept nogil:
    cdef vector[uint8_t] content
    cdef const uint8_t* data
    cdef int16_t version
    cdef size_t n
    cdef int i
    if read_whole(path, content) != 0 or content.size() < CHECKS_FORMATS_AT:
        return False
    data = content.data()
    n = content.size()
    version = get_i16(data)
    if (
        (version != CHECKS_VERSION or n != CHECKS_BYTES)
        and (version != CHECKS_VERSION_FORMATS or n != CHECKS_FOLLOWING_AT)
        and (version != CHECKS_VERSION_FIRST or n != CHECKS_FORMATS_AT)
    ) or get_u32(data + CHECKS_CRC_AT) != crc32c_update(0, data + CHECKS_BASE_AT, n - CHECKS_BASE_AT):
        return False
    checks.formats = <int8_t>data[CHECKS_FORMATS_AT] if n > CHECKS_FORMATS_AT else 0
    checks.following = get_i64(data + CHECKS_FOLLOWING_AT) if n > CHECKS_FOLLOWING_AT else <int64_t>-1
    checks.base_offset = get_i64(data + CHECKS_BASE_AT)
    checks.size = get_i64(data + CHECKS_SIZE_AT)
    checks.max_timestamp = get_i64(data + CHECKS_TIMESTAMP_AT)
    checks.max_timestamp_offset = get_i64(data + CHECKS_TIMESTAMP_OFFSET_AT)
    checks.next_offset = get_i64(data + CHECKS_NEXT_AT)
    for i in range(CHECKS_INDEXES):
        checks.sums[i].size = get_i64(data + CHECKS_SUMS_AT + i * CHECKS_SUM)
        checks.sums[i].crc = get_u32(data + CHECKS_SUMS_AT + i * CHECKS_SUM + 8)
    return True
