"""The index of aborted transactions (`.txnindex`): one entry for each abort marker in the segment.

    entry, 34 bytes, big endian:
    version i16 (0) | producer id i64 | first offset i64 | last offset (the marker's) i64 | last stable offset i64

The last stable offset is the one right after the marker was written: an entry with one at or past the end of a read
says that later entries can't touch that read. The file is missing while there is nothing to list. Crash story: see
index.pxd.
"""

from libc.stdint cimport int64_t, uint8_t

from penstock.pyx.log.index cimport IndexFile
from penstock.pyx.record.endian cimport put_i16, put_i64

cdef enum:
    TXN_VERSION = 0
    TXN_PRODUCER_ID_AT = 2
    TXN_FIRST_OFFSET_AT = TXN_PRODUCER_ID_AT + 8
    TXN_LAST_OFFSET_AT = TXN_FIRST_OFFSET_AT + 8
    TXN_STABLE_OFFSET_AT = TXN_LAST_OFFSET_AT + 8
    TXNINDEX_ENTRY = TXN_STABLE_OFFSET_AT + 8

cdef inline void txnindex_add(
    IndexFile* f, int64_t producer_id, int64_t first_offset, int64_t last_offset, int64_t last_stable_offset
) noexcept nogil:
    cdef size_t at = f.bytes.size()
    cdef uint8_t* entry
    f.bytes.resize(at + TXNINDEX_ENTRY)
    entry = f.bytes.data() + at
    put_i16(entry, TXN_VERSION)
    put_i64(entry + TXN_PRODUCER_ID_AT, producer_id)
    put_i64(entry + TXN_FIRST_OFFSET_AT, first_offset)
    put_i64(entry + TXN_LAST_OFFSET_AT, last_offset)
    put_i64(entry + TXN_STABLE_OFFSET_AT, last_stable_offset)
