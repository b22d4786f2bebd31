# Produce, versions 0 to 13, served in place: the records are checked, given offsets and appended out of the
# connection's own buffer, and the answer is written. Nothing waits: on a single node the high watermark is
# the log end, so acks=all is answered at once.
#
# Requests that a connection brought together are appended together: what they have for one partition goes into its log
# with one write, which costs little more than a write for each. A group is filled by produce_take, appended, answered
# request by request, and used again.
#
# Versions 0 to 2 bring message sets (magic 0 and 1; Kafka takes one batch of magic 2 there, too), later ones exactly
# one batch of magic 2 for each partition.
#
# A request that begins a transaction in a partition has to wait for its coordinator (KIP-890, verification.pxd): it is
# handed over to the control plane whole, which asks and then serves it by the same function.
#
# Not done here: the tags that name a new leader (KIP-951).
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from penstock.pyx.frame cimport (
    TOPIC_ID_BYTES, Reader, RequestHead, Slice, Writer, read_bytes, read_count, read_i32, read_raw, read_string,
    skip_tags,
)
from penstock.pyx.partition cimport LogSet, Partition, partition_find, partition_find_id

cdef enum:
    PRODUCE_KEY = 0
    PRODUCE_VERSION_MIN = 0
    PRODUCE_VERSION_MAX = 13
    PRODUCE_FLEXIBLE_FROM = 9
    PRODUCE_TOPIC_IDS_FROM = 13
    PRODUCE_TRANSACTIONS_FROM = 3     # and batches of magic 2, one for each partition
    PRODUCE_TOPIC_BYTES_MIN = 2
    PRODUCE_PART_BYTES_MIN = 5        # index and the length of the records
    PRODUCE_PARTITIONS_MAX = 100000   # of one request; more closes the connection, as answers are larger than requests

cdef enum ProduceResult:
    PRODUCE_ANSWERED = 0              # a whole answer, size first, was written
    PRODUCE_SILENT = 1                # acks=0: there is none
    PRODUCE_HAND_OVER = 2             # nothing was appended: the control plane has to ask the transaction coordinator
    PRODUCE_CLOSE = -1                # acks=0 and something failed: only a closed connection can tell (as in Kafka)
    PRODUCE_MALFORMED = -2            # nothing was appended; the connection is closed
    PRODUCE_TAKEN = 3                 # it is in the group
    PRODUCE_NO_MEMORY = -3            # the answer couldn't be written; the connection is closed

# What one thread appended; read by Python without a lock.
cdef struct ProduceTally:
    int64_t batches
    int64_t bytes
    int64_t errors                    # partitions answered with an error

cdef struct ProduceGroup
cdef ProduceGroup* produce_group_new() noexcept nogil            # for a network thread, which keeps it

# One more request, whose reader stands at the body: its partitions are found and what the request alone says is judged.
# PRODUCE_TAKEN, or PRODUCE_HAND_OVER, PRODUCE_MALFORMED, PRODUCE_NO_MEMORY: the group is as before then.
# `verdicts`: what the transaction coordinator says to each partition, in the order of the request: 0, or the error that
# it is answered with. NULL on the network threads: nobody was asked.
cdef ProduceResult produce_take(
    ProduceGroup* g, LogSet* logs, const RequestHead* head, Reader body, const int16_t* verdicts
) noexcept nogil
# Whether it may take another request that it is appended with.
cdef bint produce_group_open(const ProduceGroup* g) noexcept nogil
# Appends all. The records behind the readers are written to (offsets, epochs).
cdef void produce_append(ProduceGroup* g) noexcept nogil
# The answer to request `i`, in the order in which they were taken. When the result isn't PRODUCE_ANSWERED, `out` is as
# it was before.
cdef ProduceResult produce_answer(ProduceGroup* g, size_t i, Writer* out, ProduceTally* tally) noexcept nogil
cdef void produce_clear(ProduceGroup* g) noexcept nogil

# All of that for one request.
cdef ProduceResult produce_serve(
    LogSet* logs, const RequestHead* head, Reader body, Writer* out, ProduceTally* tally, const int16_t* verdicts
) noexcept nogil
# Whether a partition that it names is synced before it is answered (flush.messages): the control plane then serves the
# request in a thread of its own, so that nobody else on this network thread waits for a disk.
cdef bint produce_flushes(LogSet* logs, const RequestHead* head, Reader body) noexcept nogil
# How many partitions a request names; -1 if it is malformed.
cdef int64_t produce_partitions(const RequestHead* head, Reader body) noexcept nogil

# --- walking a request's topics, for everybody who looks into one
cdef struct ProduceTopic:
    Slice name
    const uint8_t* id                 # NULL in versions that name topics
    int32_t partitions

cdef inline void produce_topic(Reader* r, int16_t version, ProduceTopic* out) noexcept nogil:
    cdef bint flexible = version >= PRODUCE_FLEXIBLE_FROM
    out.name.p = NULL
    out.name.n = 0
    out.id = NULL
    if version >= PRODUCE_TOPIC_IDS_FROM:
        out.id = read_raw(r, TOPIC_ID_BYTES)
    else:
        out.name = read_string(r, flexible, False)
    out.partitions = read_count(r, flexible, PRODUCE_PART_BYTES_MIN)

# The records for the next partition of a topic.
cdef inline Slice produce_part(Reader* r, int16_t version, int32_t* index) noexcept nogil:
    cdef bint flexible = version >= PRODUCE_FLEXIBLE_FROM
    cdef Slice records
    index[0] = read_i32(r)
    records = read_bytes(r, flexible, True)
    skip_tags(r, flexible)
    return records

# partition_find by whatever the request gives.
cdef inline Partition* produce_find(LogSet* logs, const ProduceTopic* topic, int32_t index) noexcept nogil:
    if topic.id != NULL:
        return partition_find_id(logs, topic.id, index)
    return partition_find(logs, <const char*>topic.name.p, <size_t>topic.name.n, index)
