"""A Produce request for everybody who looks into one: its limits, what it says before its topics, and the walk over
them.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from penstock.pyx.log.partition cimport LogSet, Partition, partition_find, partition_find_id
from penstock.pyx.record.frame cimport (
    TOPIC_ID_BYTES, Reader, RequestHead, Slice, read_bytes, read_count, read_i16, read_i32, read_raw, read_string,
    skip_tags,
)
from penstock.pyx.request.versions cimport PRODUCE_FLEXIBLE_FROM, PRODUCE_TOPIC_IDS_FROM, PRODUCE_TRANSACTIONS_FROM

cdef enum:
    PRODUCE_TOPIC_BYTES_MIN = 2
    PRODUCE_PART_BYTES_MIN = 5        # index and the length of the records
    PRODUCE_PARTITIONS_MAX = 100000   # of one request; more closes the connection, as answers are larger than requests

# What a request says before its topics.
cdef struct ProduceTerms:
    int16_t version
    bint flexible
    bint transactional                # the request names a transactional id
    int16_t acks
    int32_t timeout_ms                # how long other replicas are waited for
    int32_t topics                    # how many follow

cdef struct ProduceTopic:
    Slice name
    const uint8_t* id                 # NULL in versions that name topics
    int32_t partitions

# Reads the terms; the reader stands at the body, then at the first topic.
cdef inline void produce_terms(Reader* r, const RequestHead* head, ProduceTerms* out) noexcept nogil:
    out.version = head.api_version
    out.flexible = out.version >= PRODUCE_FLEXIBLE_FROM
    out.transactional = out.version >= PRODUCE_TRANSACTIONS_FROM and read_string(r, out.flexible, True).p != NULL
    out.acks = read_i16(r)
    out.timeout_ms = read_i32(r)
    out.topics = read_count(r, out.flexible, PRODUCE_TOPIC_BYTES_MIN)

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

# How many partitions a request names; -1 if it is malformed.
cdef int64_t produce_partitions(const RequestHead* head, Reader body) noexcept nogil
