"""The time index (`.timeindex`): how far the largest timestamp of a segment had come at which offset.

    entry, 12 bytes, big endian:   timestamp ms  i64 | offset - segment's base offset  i32

(T, O) says: T is the largest timestamp up to here and the batch that has it ends with offset O; every record with a
larger timestamp comes after O. Timestamps and offsets grow from entry to entry. The last entry of a segment that is
no longer written holds its largest timestamp. Example: base 50, (1700000000000, 5): offset 55. Crash story: see
index.pxd.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from penstock.pyx.log.index cimport IndexFile
from penstock.pyx.record.endian cimport get_i32, get_i64, put_i32, put_i64

cdef enum:
    TIMEINDEX_ENTRY = 12

# Adds an entry unless its timestamp isn't above the last one's: the same rule at each place that adds.
cdef inline void timeindex_add(IndexFile* f, int64_t timestamp_ms, int32_t relative_offset) noexcept nogil:
    cdef size_t at = f.bytes.size()
    if timestamp_ms < 0:
        return
    if at >= TIMEINDEX_ENTRY and timestamp_ms <= get_i64(f.bytes.data() + at - TIMEINDEX_ENTRY):
        return
    f.bytes.resize(at + TIMEINDEX_ENTRY)
    put_i64(f.bytes.data() + at, timestamp_ms)
    put_i32(f.bytes.data() + at + 8, relative_offset)

# The offset of the last entry whose timestamp is below `timestamp_ms`, and that timestamp; the segment's base offset
# and -1 when there is none. No record before it has a timestamp >= timestamp_ms.
cdef inline int64_t timeindex_floor(
    const uint8_t* entries, size_t n, int64_t base_offset, int64_t timestamp_ms, int64_t* named_ms
) noexcept nogil:
    cdef size_t low = 0, high = n // TIMEINDEX_ENTRY, middle
    while low < high:
        middle = (low + high) // 2
        if get_i64(entries + middle * TIMEINDEX_ENTRY) < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    named_ms[0] = -1 if low == 0 else get_i64(entries + (low - 1) * TIMEINDEX_ENTRY)
    return base_offset + (0 if low == 0 else get_i32(entries + (low - 1) * TIMEINDEX_ENTRY + 8))

# The last entry; False when there is none.
cdef inline bint timeindex_last(
    const uint8_t* entries, size_t n, int64_t base_offset, int64_t* timestamp_ms, int64_t* offset
) noexcept nogil:
    cdef size_t count = n // TIMEINDEX_ENTRY
    if count == 0:
        return False
    timestamp_ms[0] = get_i64(entries + (count - 1) * TIMEINDEX_ENTRY)
    offset[0] = base_offset + get_i32(entries + (count - 1) * TIMEINDEX_ENTRY + 8)
    return True
