"""The partition log as the network threads see it.

A `Partition` is one log: a chain of segments, its producers, its transactions, its leader epochs, and the fetches that
wait for its end to move. Everything here is `noexcept nogil`; functions that can fail answer Kafka's error codes (0 =
done).

Order of calls, produce:   partition_find[_id] -> partition_append (append.pxd) -> partition_release
Order of calls, fetch:     partition_find[_id] -> partition_read (read.pxd) -> (sendfile from result.fd)
                           -> read_release -> partition_release
When a read found too little: partition_watch with the end that the read saw; if it answers True read again, else the
wake hook says when to.

What readers may rely on: bytes below `high_watermark` never change; a segment that retention deletes stays readable
through a ReadResult until read_release.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport memcmp
from penstock.pyx.log.topictally cimport PartitionTally, TopicTally

cdef enum:
    ISOLATION_UNCOMMITTED = 0          # Fetch's isolation_level: up to the high watermark
    ISOLATION_COMMITTED = 1            # up to the last stable offset
    ISOLATION_LOG_END = 2              # replicas and this broker's own loaders: up to the log end

cdef enum:
    THIS_BROKER = -2                   # in place of a broker's number

cdef enum:
    COMMITTED_NOT_YET = -32767         # no error of Kafka's
    CONTROL_PLANE = -1                 # no reactor: LogManager.take_moved has it

cdef struct Partition                  # opaque (partitionlog.pxd); reference counted
cdef struct LogSet                     # all that one broker leads

# --- finding ------------------------------------------------------------------------------------------------
# One more reference for the caller, who must partition_release it. NULL: this broker doesn't lead it.
cdef Partition* partition_find(LogSet* logs, const char* topic, size_t n, int32_t index) noexcept nogil
cdef Partition* partition_find_id(LogSet* logs, const uint8_t* topic_id16, int32_t index) noexcept nogil
cdef void partition_retain(Partition* p) noexcept nogil
cdef void partition_release(Partition* p) noexcept nogil
# Whether the topic is known at all (then a missing partition is UNKNOWN_TOPIC_OR_PARTITION, not UNKNOWN_TOPIC_ID).
cdef bint partition_known_id(LogSet* logs, const uint8_t* topic_id16) noexcept nogil
# Whether a producer's batch of this sequence is in the log, or one behind it, or one of a later epoch.
cdef bint partition_took(Partition* partition, int64_t producer_id, int16_t epoch, int32_t sequence) noexcept nogil

# Whether an append is synced to the disk before it is answered (flush.messages), which no network thread waits for; and
# whether any partition of the set is so, kept by logmanager.pyx.
cdef bint partition_flushes(Partition* p) noexcept nogil
# A number that its log folder has in this process; 0 while it isn't open.
cdef size_t partition_folder(Partition* p) noexcept nogil
cdef bint logset_flushes(LogSet* logs) noexcept nogil
cdef void logset_count_flushing(LogSet* logs, int32_t change) noexcept nogil

# Until when its broker surely leads (lease.pxd): atomic, for as long as the set is there.
cdef const int64_t* logset_lease(LogSet* logs) noexcept nogil
cdef void logset_set_lease(LogSet* logs, int64_t until_ms) noexcept nogil

# Constant while the reference is held; the name is NUL-terminated as well.
cdef const char* partition_topic(Partition* p, size_t* n) noexcept nogil
# Topics that only the coordinators of this broker write to.
cdef inline bint is_internal(const char* name, size_t n) noexcept nogil:
    return (n == 18 and memcmp(name, b"__consumer_offsets", 18) == 0) or (
        n == 19 and memcmp(name, b"__transaction_state", 19) == 0
    )

cdef int32_t partition_index(Partition* p) noexcept nogil
# May change while the reference is held (a new lead() with a higher epoch).
cdef int32_t partition_leader_epoch(Partition* p) noexcept nogil
# Who leads it and in which epoch, as this broker was told: NO_BROKER, THIS_BROKER, or another one's number.
cdef int32_t partition_leader(Partition* p, int32_t* epoch) noexcept nogil

# --- counting -----------------------------------------------------------------------------------------------
# What is counted of a partition while the reference is held; and of those that aren't here.
cdef PartitionTally* partition_tally(Partition* p) noexcept nogil
cdef PartitionTally* logset_nobody(LogSet* logs) noexcept nogil
# The number of its topic, and the topic's name by that; empty if it is gone.
cdef uint32_t partition_topic_number(Partition* p) noexcept nogil
cdef void logset_topic_name(LogSet* logs, uint32_t number, string& out) noexcept nogil
# Counts a produce that brought nothing, which is no error.
cdef void partition_tally_empty(Partition* p) noexcept nogil

# Where a log begins and ends, and the bytes of its segments.
cdef struct Extent:
    TopicTally* topic                  # a reference, whose name is the topic's
    int32_t index
    int64_t size
    int64_t log_start
    int64_t log_end

# Those of all partitions that are open. The caller releases the references.
cdef void logset_extents(LogSet* logs, vector[Extent]& out) noexcept nogil
# All topics, each with a reference for the caller, and their sums; the sum of those that are gone, and of `nobody`.
cdef void logset_tallies(
    LogSet* logs, vector[TopicTally*]& topics, vector[PartitionTally]& sums, PartitionTally* others
) noexcept nogil
# A topic was deleted; no effect while the set has one of its partitions.
cdef void logset_drop_topic(LogSet* logs, const char* topic, size_t n) noexcept nogil

# --- moves between log folders ------------------------------------------------------------------------------
# A partition is held while its move is being finished. A network thread then keeps a produce or a fetch where it is,
# with nothing done, until the wake hook is called with all reactors. A move waits for those that have entered before.
# Whether it is held. The caller has entered in any case, and has to leave when its append is over.
cdef bint partition_enter(Partition* p) noexcept nogil
cdef void partition_leave(Partition* p) noexcept nogil
cdef bint partition_held(Partition* p) noexcept nogil
# Produce requests that were held since the set was made.
cdef void logset_count_held(LogSet* logs) noexcept nogil
cdef int64_t logset_held(LogSet* logs) noexcept nogil

# --- keeping the set, for logmanager.pyx --------------------------------------------------------------------
# Whoever finds partitions in `set` keeps its owner alive.
cdef class LogSetOwner:
    cdef LogSet* set

# The set holds no reference of its own: the caller that adds a partition keeps one until it was removed.
# `before` (NULL: none) goes in the same moment, so that a caller always finds one.
cdef void logset_add(LogSet* logs, Partition* p, Partition* before) noexcept nogil
cdef void logset_remove(LogSet* logs, Partition* p) noexcept nogil
# Calls `visit` with every partition of every set of the process. It must not wait, as it holds up those that add or
# remove one. False: somebody was just adding or removing, and the partitions of that set were passed over.
ctypedef void (*Visit)(Partition* p, void* given) noexcept nogil
cdef bint partitions_visit(Visit visit, void* given) noexcept nogil
# With one reference and an empty log; the set doesn't have it yet, and counts what it does.
cdef Partition* partition_new(
    LogSet* logs, const char* topic, size_t n, const uint8_t* topic_id16, int32_t index
) noexcept nogil

# None of these waits for a disk.
# --- ends ---------------------------------------------------------------------------------------------------
cdef void partition_offsets(
    Partition* p, int64_t* log_start, int64_t* last_stable, int64_t* high_watermark, int64_t* log_end
) noexcept nogil
# The end of an older epoch (OffsetForLeaderEpoch, Fetch's last_fetched_epoch): the largest epoch <= `epoch` and the
# offset where it ends; both -1 if unknown.
cdef void partition_epoch_end(Partition* p, int32_t epoch, int32_t* found, int64_t* end_offset) noexcept nogil

# --- waiting ------------------------------------------------------------------------------------------------
# True: the end (by isolation) is past known_end already, or the partition was stopped or failed, or another broker
# leads it, or it is isolated and a client waits: look again. False: bit `reactor` (0..63) is now in the wake mask; the
# hook will be called with it once, when the end moves, and the mask is then empty again. An end that moves between the
# caller's read and this call is never lost (same lock).
cdef bint partition_watch(Partition* p, int reactor, int8_t isolation, int64_t known_end) noexcept nogil
# Whether all below `needed`, appended in a leader epoch, is in all in-sync replicas: 0; NOT_LEADER_OR_FOLLOWER: this
# broker has lost the lead since then, though it lead again, or its disk; COMMITTED_NOT_YET: bit `reactor` is now in
# the wake mask, as above, or the control plane hears of it by mail, once. `last`: its time is up: REQUEST_TIMED_OUT
# instead, or NOT_ENOUGH_REPLICAS_AFTER_APPEND if too few are in sync.
cdef int16_t partition_committed(
    Partition* p, int reactor, int64_t needed, int32_t leader_epoch, bint last
) noexcept nogil
# Called by the appending thread, without any lock held. NULL = none. Set once, before the first append.
ctypedef void (*WakeHook)(Partition* p, uint64_t reactor_mask) noexcept nogil
cdef void set_wake_hook(WakeHook hook) noexcept nogil
cdef void wake_reactors(Partition* p, uint64_t reactor_mask) noexcept nogil
