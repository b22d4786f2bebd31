"""A compaction pass over one log, `Cleaning`: what its two halves share.

    clean_keys       (cleankeys) reads the dirty segments, from the first dirty offset on, and puts each key's newest
                     offset into the map, until the map is full or the last segment that may be cleaned is done.
                     `latest` is then the last offset that the map speaks for.
    clean_segments   (cleansegments) reads a group of segments from the log's front and writes what stays of them as one
                     segment.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from penstock.pyx.compaction.offsetmap cimport OffsetMap
from penstock.pyx.compaction.pace cimport CleanPace
from penstock.pyx.compaction.txntrack cimport TxnTrack
from penstock.pyx.linux.posix cimport ENOMEM
from penstock.pyx.record.batch cimport (
    BATCH_BAD_OFFSET, BATCH_BAD_RECORDS, BATCH_NO_MEMORY, CHECK_STORED, BatchHeader, batch_check, batch_last_offset,
)

cdef enum:
    CLEAN_CHUNK = 1 << 20              # one read, and about one write

# What ends a step. Above 0: errno.
cdef enum CleanResult:
    CLEAN_DONE = 0
    CLEAN_FULL = -1                    # the map has no room: what lies past `latest` is the next pass's
    CLEAN_CANCELLED = -2
    CLEAN_CORRUPT = -3                  # a batch that can't be read: `fault` and `fault_offset` say which

cdef struct LastRecord:                # of a producer that the log knows
    int64_t data_offset                # -1: a marker came last
    int16_t epoch

cdef struct CleanStats:
    int64_t batches_read
    int64_t records_read
    int64_t records_kept
    int64_t records_without_key
    int64_t bytes_read
    int64_t bytes_written
    int64_t bytes_indexed

cdef struct Cleaning:
    # Set by the caller.
    OffsetMap* map
    CleanPace* pace
    const int32_t* cancelled           # the partition's
    TxnTrack track                     # its aborted transactions, of the whole log
    unordered_map[int64_t, LastRecord] last_records
    int64_t first_dirty
    int64_t upper_bound                # the first offset that may not be cleaned
    int64_t now_ms
    int64_t min_lag_ms
    int64_t delete_retention_ms
    int64_t legacy_horizon_ms          # files older than this lose their magic 0 and 1 tombstones
    int64_t index_interval_bytes
    size_t inflated_max_bytes
    # The pass's own.
    int64_t latest
    int64_t removed_below              # past the last tombstone or marker that doesn't stay
    CleanStats stats
    int fault                          # a BatchFault
    int64_t fault_offset
    vector[uint8_t] plain
    vector[uint8_t] packed
    vector[uint8_t] scratch
    vector[uint8_t] written            # bytes on their way into the cleaned file

# A batch that can't be read ends the pass.
cdef inline int clean_corrupt(Cleaning* c, const BatchHeader* header, int fault) noexcept nogil:
    c.fault = fault
    c.fault_offset = header.base_offset
    return ENOMEM if fault == BATCH_NO_MEMORY else <int>CLEAN_CORRUPT

# A tombstone, or a marker, that goes: log/removals.pxd says who has to know.
cdef inline void clean_deletion(Cleaning* c, int64_t offset) noexcept nogil:
    c.removed_below = max(c.removed_below, offset + 1)

# What a walk says that isn't a batch: garbage where the batch at `expected` should be, or an error.
cdef inline int clean_walk_fault(Cleaning* c, int64_t expected, int result) noexcept nogil:
    if result < 0:
        return -result
    c.fault = BATCH_BAD_RECORDS
    c.fault_offset = expected
    return CLEAN_CORRUPT

# A batch's bytes, and that its offsets lie between what came before and the next segment.
cdef inline int clean_check(
    Cleaning* c, const uint8_t* bytes, const BatchHeader* header, int64_t expected, int64_t next_base
) noexcept nogil:
    cdef int fault = batch_check(bytes, header, 0, CHECK_STORED)
    if fault == 0 and not expected <= batch_last_offset(header) < next_base:
        fault = BATCH_BAD_OFFSET
    return clean_corrupt(c, header, fault) if fault != 0 else <int>CLEAN_DONE
