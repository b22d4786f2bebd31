# Fetch, versions 4 to 18, served in place. A request becomes a `FetchJob`, which is tried when its turn to be
# answered comes; when too little is there it waits (long poll) on its partitions, and is tried again when one
# of their ends moved or its time is up.
#
# The answer is bytes in the connection's output and, for record ranges of SENDFILE_BYTES_MIN and more,
# `FilePiece`s: ranges of segment files that go out by sendfile at their place between those bytes.
#
# Sessions (KIP-227) are refused by session id 0, so clients send full requests; an incremental request gets
# FETCH_SESSION_ID_NOT_FOUND, whereupon clients fall back to a full one. A replica id gives no view above the
# high watermark. Not done: the tags that name a new leader (KIP-951), preferred read replicas, snapshots.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from penstock.pyx.frame cimport Reader, RequestHead, Slice, Writer
from penstock.pyx.partition cimport LogSet, Partition
from penstock.pyx.read cimport ReadResult

cdef enum:
    FETCH_KEY = 1
    FETCH_VERSION_MIN = 4
    FETCH_VERSION_MAX = 18
    FETCH_FLEXIBLE_FROM = 12
    SENDFILE_BYTES_MIN = 16384        # below it, reading into the answer and one send is cheaper
    FETCH_PARTITIONS_MAX = 100000     # of one request; more closes the connection

cdef enum FetchParse:
    FETCH_PARSED = 0
    FETCH_MALFORMED = -1
    FETCH_NO_MEMORY = -2

cdef enum FetchState:
    FETCH_WAIT = 0                    # too little there: every partition is watched, the job holds no range
    FETCH_READY = 1                   # the job holds the ranges to answer with
    FETCH_AGAIN = 2                   # the ends keep moving: try again on a later turn

# A range of a segment file, to be sent before out.p[at]. `read` keeps the file; released by `piece_release`.
cdef struct FilePiece:
    size_t at
    int64_t position
    int64_t left
    int64_t warm_until                # file position up to which the reader pool has been asked already
    ReadResult read

cdef struct Pieces:
    FilePiece* p
    int32_t first                     # those before it have been sent
    int32_t n
    int32_t capacity

cdef struct FetchTopic:
    Slice name                        # up to version 12
    const uint8_t* topic_id           # from version 13 on, else NULL
    int32_t partitions

cdef struct FetchPartition:
    Partition* partition              # NULL when `error` is set by its look-up
    int32_t index
    int32_t leader_epoch              # as the client knows it; -1 doesn't ask for a check
    int32_t last_fetched_epoch        # -1 doesn't ask for a check
    int32_t max_bytes
    int64_t offset
    int16_t error
    bint diverged
    int32_t diverging_epoch
    int64_t diverging_end
    int64_t known_end                 # by the job's isolation, when `read` was made
    ReadResult read                   # its offsets are true, its range is held until it is released

cdef struct FetchJob:
    LogSet* logs
    int16_t version
    int32_t correlation_id
    int16_t error                     # of the whole answer
    int8_t isolation
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    FetchTopic* topics                # of `partitions`, in their order
    int32_t topic_count
    int32_t topic_capacity
    FetchPartition* partitions
    int32_t partition_count
    int32_t partition_capacity
    uint8_t* names                    # a copy of the request's body: the slices point into it
    int64_t held_bytes                # of all these
    # The reactor's own fields.
    void* connection
    int64_t deadline_ms
    int32_t heap_index                # in the reactor's heap of deadlines; -1 = not waiting
    bint look                         # to be tried when the connection runs next
    FetchJob* next
    FetchJob* previous

# A job from a request whose reader stands at the body; `out` is owned by the caller when FETCH_PARSED.
cdef FetchParse fetch_parse(
    LogSet* logs, const RequestHead* head, Reader body, int32_t answer_bytes_max, FetchJob** out
) noexcept nogil

# Looks for enough to answer. `must_answer`: its time is up, answer with what there is. `reactor` is who is
# woken.
cdef FetchState fetch_try(FetchJob* job, int reactor, bint must_answer) noexcept nogil

# A waiting job: whether one of its partitions moved (else they are watched again). Cheap; changes nothing
# else.
cdef bint fetch_moved(FetchJob* job, int reactor) noexcept nogil

# Writes the answer of a job that is FETCH_READY; the pieces take over its ranges. Gives the bytes of records,
# or -1 when there was no memory: the connection has to be closed then, as `out` may hold half an answer.
cdef int64_t fetch_answer(FetchJob* job, Writer* out, Pieces* pieces, int64_t* errors) noexcept nogil

cdef void fetch_free(FetchJob* job) noexcept nogil                # safe on NULL; gives back partitions and ranges
cdef void piece_release(FilePiece* piece) noexcept nogil
