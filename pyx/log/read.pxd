"""What a fetch needs of a log, and the search by time."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t
from libcpp.vector cimport vector

from penstock.pyx.log.partition cimport Partition
from penstock.pyx.log.role cimport ReplicaFetch

cdef enum:
    READ_COLD = -32768                 # no error of Kafka's
    COLD_READ_BYTES = 16384            # read into memory at once to find a batch
    SEARCH_INFLATED_MAX_BYTES = 256 << 20      # what a search by time may inflate, should many headers lie

# A range of a segment file. `length` 0 and `fd` -1: nothing there yet. The fd belongs to the segment: never close it.
cdef struct ReadResult:
    int fd
    int64_t position
    int64_t length
    int64_t first_offset               # base offset of the batch at `position`; -1 when length is 0
    int64_t next_offset                # above all offsets in the range: the `to_offset` of partition_aborted
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    int64_t log_end_offset
    int64_t first_size                 # of the first batch, which may be more than `length`
    void* segment
    int8_t formats                     # of the segment: SegmentFormats
    size_t folder                      # a number of the log folder that it lies in: partition_folder

cdef struct AbortedTxn:
    int64_t producer_id
    int64_t first_offset

# The range that holds `offset` and what follows it in the same segment, at most max_bytes, never past the isolation's
# end. It starts with the batch that holds `offset` (so records below it may come first) and may end inside a batch when
# max_bytes cuts it; whole_first_batch: the first batch is whole even if larger than max_bytes.
# 0 with length 0 at the end; OFFSET_OUT_OF_RANGE; CORRUPT_MESSAGE: index files are wrong and no proof is possible;
# NOT_LEADER_OR_FOLLOWER: stopped, or another broker leads and it isn't ISOLATION_LOG_END, or a segment is `doubted`
# (proof.pxd); KAFKA_STORAGE_ERROR: offline. The offsets in `out` are filled always.
cdef int16_t partition_read(
    Partition* p, int64_t offset, int32_t max_bytes, bint whole_first_batch, int8_t isolation, ReadResult* out
) noexcept nogil
# The same for a network thread: READ_COLD instead of a wait for a disk, with a range that has to be read into memory
# before the next try (and released as any other).
cdef int16_t partition_read_cached(
    Partition* p, int64_t offset, int32_t max_bytes, bint whole_first_batch, int8_t isolation, ReadResult* out
) noexcept nogil
# Either of them for another replica, from its `fetch.offset` up to the log end; its errors are those of
# replica_fetched, too. A log that has diverged is 0 with length 0.
cdef int16_t partition_read_replica(
    Partition* p, ReplicaFetch* fetch, int32_t max_bytes, bint whole_first_batch, bint cached, ReadResult* out
) noexcept nogil
# The control plane is to find out which formats the segment of a range has, unless it is known.
cdef void partition_ask_formats(Partition* p, const ReadResult* result) noexcept nogil
# What a range begins with can't be converted, though the segment has a batch there. It is said once a segment, as in
# partition_read.
cdef void partition_tell_corrupt(Partition* p, const ReadResult* result) noexcept nogil
cdef void read_release(ReadResult* result) noexcept nogil      # safe twice, and on a result without a segment
# Aborted transactions that touch [from_offset, to_offset): what a read_committed answer has to list. `out` is
# appended to. Errors as above; KAFKA_STORAGE_ERROR: the index could not be read; OFFSET_OUT_OF_RANGE: retention has
# taken the range since it was read: answer that error for the partition, never the records without the list.
cdef int16_t partition_aborted(
    Partition* p, int64_t from_offset, int64_t to_offset, vector[AbortedTxn]& out
) noexcept nogil
# The first record whose timestamp is at or above the wanted one: WALK_BATCH, WALK_END (none), or what failed: then
# `error` says Kafka's code (NOT_LEADER_OR_FOLLOWER: a segment is `doubted` now).
cdef int partition_find_time(
    Partition* p, int64_t timestamp_ms, int64_t* offset, int64_t* timestamp, int16_t* error
) noexcept nogil
