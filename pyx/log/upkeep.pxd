"""What a log needs besides appends and reads while it is open. Answers are 0 or errno."""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.log.partitionlog cimport PartitionLog
from penstock.pyx.log.segment cimport Segment

cdef enum:
    SEALED_FLUSH_DELAY_MS = 1000              # a sealed segment's time before it is flushed

# Why retention lets a segment go.
cdef enum Reason:
    KEPT = 0
    BY_LOG_START = 1                          # DeleteRecords
    BY_TIME = 2                               # retention.ms
    BY_BYTES = 3                              # retention.bytes
    REASONS = 4

cdef struct Upkeep:
    int32_t segments_deleted
    int64_t bytes_deleted
    int64_t newest_ms                         # the largest timestamp among those; -1: none
    int32_t by[REASONS]                       # how many of them for each reason
    bint rolled
    bint flushed

# Under the lock: segments of partitions that were made together are not all rolled together.
cdef void choose_jitter(PartitionLog* p, int64_t now_ms) noexcept nogil
# The empty file of a segment in which the log is to go on. 0 or errno.
cdef int make_file(PartitionLog* p, Segment* s) noexcept nogil
# Under the lock: a new segment at the log end; after an error (INDEX_WRONG: it is doubted now) the old one goes on.
cdef int roll(PartitionLog* p, int64_t now_ms) noexcept nogil
# Whether a segment that is to be flushed then isn't yet.
cdef bint is_flush_deferred(int64_t due_ms, int64_t now_ms) noexcept nogil
# With `upkeep` held: flushes segments that were sealed SEALED_FLUSH_DELAY_MS ago, or all and the active one too if
# `all`; of that, `log_only`, not the indexes.
cdef int flush_log(PartitionLog* p, bint all, int64_t now_ms, bint log_only) noexcept nogil
# Without locks: what lies before that offset is on the disk afterwards. A thread that waited for the
# lock returns at once if another's flush covered its bytes. 0 or errno.
cdef int flush_until(PartitionLog* p, int64_t end, int64_t now_ms) noexcept nogil
# With `upkeep` held: roll by age, retention (if `retain`), flush by policy, expiry of producers, idle files. Retention
# only takes segments out of the log, and the caller writes its new beginning to the checkpoints before remove_expired.
cdef int upkeep_log(PartitionLog* p, int64_t now_ms, bint retain, Upkeep* out) noexcept nogil
# With `upkeep` held: the files of those segments go (file.delete.delay.ms later). 0 or errno.
cdef int remove_expired(PartitionLog* p, int64_t now_ms) noexcept nogil
# If nothing was appended since the last call: cuts the active segment's file to its batches. True if so, or if there is
# nothing more to do.
cdef bint give_back_if_idle(PartitionLog* p) noexcept nogil
# With `upkeep` held: what is in memory goes into its files, which the caller then syncs for all logs together.
cdef int prepare_log_sync(PartitionLog* p) noexcept nogil
