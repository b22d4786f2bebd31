"""Fetch, served in place. A request becomes a `FetchJob`: read from the frame when it comes
(fetch_parse), begun when all before it on its connection are answered (fetch_begin: that is when its session is
taken), tried until there is enough to answer (fetch_try, in fetchread.pxd), answered (fetch_answer, in
fetchanswer.pxd). While too little is there it waits for its partitions' ends to move (waiting.pxd).

Versions 0 to 3 are of clients that can't read today's batches: what they get is converted, as are message sets in a log
for all others (fetchconvert.pxd).
Followers fetch on a listener between brokers. There a replica id, with the broker epoch of its registration, gives a
view up to the log end, and each partition hears how far the replica has come (log/replicas.pxd). On any other listener
everybody may claim an id (CVE-2018-1288): it only makes the session a privileged one. A rack is accepted and no other
replica is ever preferred. Not done: snapshots.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from penstock.pyx.log.partition cimport LogSet, Partition, logset_nobody, partition_tally, partition_topic_number
from penstock.pyx.log.read cimport ReadResult
from penstock.pyx.log.topictally cimport PartitionTally
from penstock.pyx.record.frame cimport Reader, RequestHead
from penstock.pyx.request.fetchset cimport NOWHERE, FetchPartition, FetchSet
from penstock.pyx.request.leaders cimport Addresses
from penstock.pyx.request.sessions cimport Session, SessionCache
from penstock.pyx.request.waiting cimport Waiting

cdef enum:
    FETCH_PARTITIONS_MAX = 100000     # that one request names; more closes the connection

cdef enum FetchParse:
    FETCH_PARSED = 0
    FETCH_MALFORMED = -1
    FETCH_NO_MEMORY = -2

# What a partition of the set has for the answer.
cdef struct FetchRange:
    int32_t at                        # of the set
    int16_t error
    bint diverged                     # the client's log has parted from this one (KIP-595)
    int32_t diverging_epoch
    int64_t diverging_end
    int64_t removed_below             # for a follower: deletions below it may be missing from the range; 0: none is
    ReadResult read                   # its offsets are true, its range is held until it is released
    vector[uint8_t]* converted        # instead of the range; NULL: it goes as it is stored

cdef struct FetchJob:
    Waiting waiting                   # the reactor's own
    int16_t version
    int32_t correlation_id
    int16_t error                     # of the whole answer
    int8_t isolation
    bint privileged                   # a follower asks, or who says that he is one
    int32_t replica                   # which follower asks; NO_BROKER: a consumer does
    int64_t broker_epoch              # of its registration
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t session_id
    int32_t session_epoch
    FetchSet asked
    FetchSet forgotten
    # From fetch_begin on.
    bint begun
    int64_t begun_ms
    bint wants_session
    bint incremental                  # only partitions with news are answered
    SessionCache* sessions
    LogSet* logs
    Session* session                  # taken; NULL: none
    FetchSet* set                     # what is read: the session's or `asked`
    FetchRange* ranges                # for the answer, in its order
    int32_t range_count
    int32_t range_capacity
    int32_t tallied                   # of the set's partitions, in its order: those that were read, and counted
    int32_t cold                      # of `ranges`, when FETCH_COLD
    int32_t cold_times
    bint urgent                       # its ranges are answered with, however little their conversion gives
    bint converted                    # fetch_convert_ranges was called for its ranges
    Addresses* addresses              # of leaders, for partitions that this broker doesn't lead
    int32_t listener                  # that the connection came by
    bint replaced                     # another log has the name of one that it read, so what it waits for isn't right

# Where a partition of the set is counted.
cdef inline PartitionTally* fetch_tally(const FetchJob* job, const FetchPartition* partition) noexcept nogil:
    return partition_tally(partition.partition) if partition.partition != NULL else logset_nobody(job.logs)

# The number of its first partition's topic; 0: that isn't here, or wasn't looked for.
cdef inline uint32_t fetch_first_topic(const FetchJob* job) noexcept nogil:
    cdef Partition* first = job.set.partitions[job.set.first].partition if job.set.first != NOWHERE else NULL
    return partition_topic_number(first) if first != NULL else 0

# A job from a request whose reader stands at the body; `out` is owned by the caller when FETCH_PARSED.
# `between_brokers`: it came on a listener where replica ids are believed.
cdef FetchParse fetch_parse(
    const RequestHead* head, Reader body, bint between_brokers, int32_t answer_bytes_max, FetchJob** out
) noexcept nogil
cdef int64_t fetch_held_bytes(const FetchJob* job) noexcept nogil
# Takes or closes its session. What is wrong with that is the job's `error`.
cdef void fetch_begin(FetchJob* job, LogSet* logs, SessionCache* sessions, int64_t now_ms) noexcept nogil
cdef void fetch_drop_ranges(FetchJob* job) noexcept nogil
cdef void range_release(FetchRange* r) noexcept nogil             # and its length is 0
cdef void fetch_free(FetchJob* job) noexcept nogil                # safe on NULL; gives back all that it holds
