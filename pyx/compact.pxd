"""Compaction: of each key only the newest record stays. Kafka's rules (KIP-58, KIP-98, KIP-354, KIP-534).

A pass over one log, `Cleaning`, has two halves.

    clean_index      reads the dirty segments, from the first dirty offset on, and puts each key's newest offset into
                     the map, until the map is full or the last segment that may be cleaned is done. `latest` is then
                     the last offset that the map speaks for.
    clean_segments   reads a group of segments from the log's front and writes what stays of them as one segment.

What stays of a record at or below `latest`: it has a key, no newer record has it, and it isn't a tombstone (a null
value) whose batch's delete horizon has passed. Offsets, order and timestamps stay. A batch of which something stays
keeps its base offset, last offset delta, producer fields and codec. One that loses all its records goes, unless it is
the last of a producer that the log still knows (its sequence must not be forgotten) or the last of the range: then
its header stays.

The delete horizon (KIP-534): the first pass that finds a tombstone to be the newest of its key, or a marker to be all
that is left of its transaction, writes now + delete.retention.ms into the batch: attribute bit 6 says that the base
timestamp is this horizon, timestamp deltas are then counted from it. Messages of magic 0 and 1 have no room for it:
their tombstones go by the age of their segment's file, as in Kafka.

Transactions: data of aborted ones goes at once. The marker stays until a pass that saw no data of its transaction,
and then until its horizon. The index of aborted transactions has an entry for as long as the marker stays.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.unordered_set cimport unordered_set
from libcpp.vector cimport vector
from penstock.pyx.batch cimport BatchHeader
from penstock.pyx.offsetmap cimport OffsetMap
from penstock.pyx.posix cimport pthread_mutex_t
from penstock.pyx.segment cimport Segment

# What ends a step. Above 0: errno.
cdef enum CleanResult:
    CLEAN_DONE = 0
    CLEAN_FULL = -1                    # the map has no room: what lies past `latest` is the next pass's
    CLEAN_CANCELLED = -2
    CLEAN_ROTTEN = -3                  # a batch that can't be read: `fault` and `fault_offset` say which

# How fast all cleaners of a broker may read and write, and whether they should end.
cdef struct CleanPace:
    pthread_mutex_t lock
    double bytes_per_second            # 0: no limit
    int64_t free_ns                    # when what was taken so far is paid for, by the monotonic clock
    int32_t cancelled

cdef void pace_begin(CleanPace* pace) noexcept nogil
# Pays for bytes by sleeping; False when the pace or `cancelled` says to end.
cdef bint pace_take(CleanPace* pace, const int32_t* cancelled, int64_t bytes) noexcept nogil

cdef struct AbortSpan:                 # an entry of a .txnindex
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset
    int64_t stable_offset

cdef struct LastRecord:                # of a producer that the log knows
    int64_t data_offset                # -1: a marker came last
    int16_t epoch

cdef struct OngoingAbort:
    AbortSpan span
    bint observed                      # data of it was seen in this pass

# Which transactions a walk is in.
cdef struct TxnTrack:
    size_t next                        # of the aborted ones, the first that the walk has not reached
    unordered_map[int64_t, OngoingAbort] aborted
    unordered_set[int64_t] committed

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
    vector[AbortSpan] aborted          # by first offset
    unordered_map[int64_t, LastRecord] last_records
    int64_t first_dirty
    int64_t upper_bound                # the first offset that may not be cleaned
    int64_t now_ms
    int64_t delete_retention_ms
    int64_t legacy_horizon_ms          # files older than this lose their magic 0 and 1 tombstones
    int64_t index_interval_bytes
    size_t inflated_max_bytes
    # The pass's own.
    int64_t latest
    TxnTrack track
    CleanStats stats
    int fault                          # a BatchFault
    int64_t fault_offset
    vector[uint8_t] plain
    vector[uint8_t] packed
    vector[uint8_t] scratch
    vector[uint8_t] written            # bytes on their way into the cleaned file

# Before the first clean_index and before the first clean_segments of a pass.
cdef void clean_track(Cleaning* c) noexcept nogil
# The segment's keys into the map. `next_base`: where the next segment begins.
cdef int clean_index(Cleaning* c, Segment* s, int64_t next_base) noexcept nogil
# What stays of the group as `<stem of the first>.X.cleaned`, synced, and as a sealed segment that reads those files
# already. `changed`: False if nothing went (the files are then of no use).
cdef int clean_segments(
    Cleaning* c, const string& folder, const vector[Segment*]& group, int64_t next_base, Segment** out, bint* changed
) noexcept nogil
