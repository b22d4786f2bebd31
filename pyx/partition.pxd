"""The partition log as the network threads see it.

A `Partition` is one log: a chain of segments, its producers, its transactions, its leader epochs, and who waits for
its end to move. Everything here is `noexcept nogil`; functions that can fail answer Kafka's error codes (0 = done).

Order of calls, produce:   partition_find[_id] -> partition_append -> partition_release
Order of calls, fetch:     partition_find[_id] -> partition_read -> (sendfile from result.fd) -> read_release
                           -> partition_release
When a read found too little: partition_watch with the end that the read saw; if it answers True look again, else the
wake hook tells when to.

What readers may rely on: bytes below `high_watermark` never change; a segment that retention deletes stays readable
through a ReadResult until read_release.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libcpp.vector cimport vector

cdef enum:
    # Who appends. It decides what is checked.
    ORIGIN_CLIENT = 0                  # a producer: sequences are checked, control batches are refused
    ORIGIN_COORDINATOR = 1             # this broker's coordinators: control batches allowed, no sequences
    ORIGIN_REPLICA = 2                 # bytes of the leader: offsets and leader epochs are kept as they are

    ISOLATION_UNCOMMITTED = 0          # Fetch's isolation_level: up to the high watermark
    ISOLATION_COMMITTED = 1            # up to the last stable offset
    ISOLATION_LOG_END = 2              # replicas and this broker's own loaders: up to the log end

# Per topic. Times are ms, sizes bytes; -1 = no limit for retention_ms and retention_bytes.
cdef struct LogConfig:
    int64_t segment_bytes
    int64_t segment_ms
    int64_t index_interval_bytes
    int64_t segment_index_bytes
    int64_t retention_ms
    int64_t retention_bytes
    int64_t flush_messages
    int64_t flush_ms
    int64_t max_message_bytes
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int64_t producer_id_expiration_ms
    int64_t file_delete_delay_ms       # without effect: files are unlinked at once, open ones live until released
    int8_t log_append_time
    int8_t cleanup_delete
    int8_t cleanup_compact

cdef struct Partition                  # opaque; reference counted

# What an append did. `base_offset` is the offset of the first record, also of a duplicate (error 0 then), -1 on errors.
cdef struct Appended:
    int16_t error
    int64_t base_offset
    int64_t log_append_time_ms         # -1 unless message.timestamp.type is LogAppendTime
    int64_t log_start_offset           # -1 if unknown

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
    void* segment

cdef struct AbortedTxn:
    int64_t producer_id
    int64_t first_offset

# --- finding -------------------------------------------------------------------------------------------------------
# One more reference for the caller, who must partition_release it. NULL: this broker doesn't lead it.
cdef Partition* partition_find(const char* topic, size_t n, int32_t index) noexcept nogil
cdef Partition* partition_find_id(const uint8_t* topic_id16, int32_t index) noexcept nogil
cdef void partition_retain(Partition* p) noexcept nogil
cdef void partition_release(Partition* p) noexcept nogil
# Whether the topic is known at all (then a missing partition is UNKNOWN_TOPIC_OR_PARTITION, not UNKNOWN_TOPIC_ID).
cdef bint partition_known_id(const uint8_t* topic_id16) noexcept nogil

# Constant while the reference is held; the name is NUL-terminated as well.
cdef const char* partition_topic(Partition* p, size_t* n) noexcept nogil
cdef const uint8_t* partition_topic_id(Partition* p) noexcept nogil
cdef int32_t partition_index(Partition* p) noexcept nogil
# May change while the reference is held (a new lead() with a higher epoch).
cdef int32_t partition_leader_epoch(Partition* p) noexcept nogil

# --- writing -------------------------------------------------------------------------------------------------------
# Append the batches of one partition of one produce request, all or (on an error) none of them. `records` is
# written to: base offsets, leader epochs and (LogAppendTime) timestamps and CRCs. Fills `out` and returns
# out.error:
#   2 CORRUPT_MESSAGE (CRC, length, garbage)          6 NOT_LEADER_OR_FOLLOWER (stopped)
#  10 MESSAGE_TOO_LARGE   18 RECORD_LIST_TOO_LARGE   32 INVALID_TIMESTAMP    87 INVALID_RECORD
#  45 OUT_OF_ORDER_SEQUENCE_NUMBER   46 DUPLICATE_SEQUENCE_NUMBER is not used (an old duplicate is out of order)
#  47 INVALID_PRODUCER_EPOCH   48 INVALID_TXN_STATE   52 TRANSACTION_COORDINATOR_FENCED   56 KAFKA_STORAGE_ERROR
# Waiters are woken through the hook before it returns.
cdef int16_t partition_append(Partition* p, uint8_t* records, size_t n, int origin, Appended* out) noexcept nogil

# --- reading -------------------------------------------------------------------------------------------------------
# The range that holds `offset` and what follows it in the same segment, at most max_bytes, never past the isolation's
# end. It starts with the batch that holds `offset` (so records below it may come first) and may end inside a batch when
# max_bytes cuts it; whole_first_batch: the first batch is whole even if larger than max_bytes.
# 0 with length 0 at the end; 1 OFFSET_OUT_OF_RANGE; 6 stopped; 56 offline. The offsets in `out` are filled always.
cdef int16_t partition_read(
    Partition* p, int64_t offset, int32_t max_bytes, bint whole_first_batch, int8_t isolation, ReadResult* out
) noexcept nogil
cdef void read_release(ReadResult* result) noexcept nogil      # safe twice, and on a result without a segment
# Aborted transactions that touch [from_offset, to_offset): what a read_committed answer has to list. `out` is
# appended to. 0, 56 when the index could not be read, or 1 when retention has taken the range since it was read:
# answer that error for the partition, never the records without the list.
cdef int16_t partition_aborted(
    Partition* p, int64_t from_offset, int64_t to_offset, vector[AbortedTxn]& out
) noexcept nogil
cdef void partition_offsets(
    Partition* p, int64_t* log_start, int64_t* last_stable, int64_t* high_watermark, int64_t* log_end
) noexcept nogil
# The end of an older epoch (OffsetForLeaderEpoch, Fetch's last_fetched_epoch): the largest epoch <= `epoch` and the
# offset where it ends; both -1 if unknown.
cdef void partition_epoch_end(Partition* p, int32_t epoch, int32_t* found, int64_t* end_offset) noexcept nogil

# --- waiting -------------------------------------------------------------------------------------------------------
# True: the end (by isolation) is past known_end already, or the partition was stopped or failed: look again. False:
# bit `reactor` (0..63) is now in the wake mask; the hook will be called with it once, when the end moves, and the
# mask is then empty again. An end that moves between the caller's read and this call is never lost (same lock).
cdef bint partition_watch(Partition* p, int reactor, int8_t isolation, int64_t known_end) noexcept nogil
# Called by the appending thread, without any lock held. NULL = none. Set once, before the first append.
ctypedef void (*WakeHook)(uint64_t reactor_mask) noexcept nogil
cdef void set_wake_hook(WakeHook hook) noexcept nogil
