"""Produce requests that begin transactions; see verification.pxd."""

from cython.operator cimport dereference as at
from libcpp.unordered_map cimport unordered_map
from libc.stdint cimport uint8_t
from penstock.pyx.batch cimport BatchHeader, batch_is_transactional, batch_parse
from penstock.pyx.frame cimport (
    TOPIC_ID_BYTES,
    Slice,
    read_bytes,
    read_count,
    read_i16,
    read_i32,
    read_raw,
    read_string,
    skip_tags,
)
from penstock.pyx.partition cimport partition_find, partition_find_id, partition_release, partition_topic
from penstock.pyx.partitionlog cimport PartitionLog, log_of
from penstock.pyx.posix cimport pthread_mutex_lock, pthread_mutex_unlock
from penstock.pyx.produce cimport PRODUCE_FLEXIBLE_FROM, PRODUCE_TOPIC_IDS_FROM
from penstock.pyx.producerstate cimport ProducerEntry, producer_clear, would_begin

cdef enum:
    TRANSACTIONS_FROM = 3
    PARTITION_BYTES_MIN = 5            # index and the length of the records
    TOPIC_BYTES_MIN = 2


# Under no lock. The entry of the producer, empty if there is none; False: this partition isn't asked about.
cdef bint _entry(PartitionLog* p, int16_t version, int64_t producer_id, ProducerEntry* e) noexcept nogil:
    cdef unordered_map[int64_t, ProducerEntry].iterator found
    cdef bint asked
    producer_clear(e, producer_id)
    pthread_mutex_lock(&p.lock)
    asked = version >= ADDS_PARTITIONS_FROM or p.config.verify_transactions
    found = p.log.producers.entries.find(producer_id)
    if found != p.log.producers.entries.end():
        e[0] = at(found).second
    pthread_mutex_unlock(&p.lock)
    return asked


# Whether the records begin a transaction; `header` becomes their first batch that does. Records that can't be parsed
# begin none: the append refuses them.
cdef bint _begins(PartitionLog* p, int16_t version, Slice records, BatchHeader* header) noexcept nogil:
    cdef const uint8_t* place = records.p
    cdef size_t left = <size_t>max(records.n, 0)
    cdef ProducerEntry e
    while left > 0 and batch_parse(place, left, header) == 0 and <size_t>header.size <= left:
        if batch_is_transactional(header) and header.producer_id >= 0:
            if _entry(p, version, header.producer_id, &e) and would_begin(&e, header):
                return True
        place += header.size
        left -= <size_t>header.size
    return False


cdef bint find_unverified(
    LogSet* logs, const RequestHead* head, Reader body, vector[Unverified]* out
) noexcept nogil:
    cdef Reader* r = &body
    cdef int16_t version = head.api_version
    cdef bint flexible = version >= PRODUCE_FLEXIBLE_FROM
    cdef bint by_id = version >= PRODUCE_TOPIC_IDS_FROM
    cdef bint found = False
    cdef int32_t topics, partitions, index, place = 0, _i, _j
    cdef const uint8_t* topic_id = NULL
    cdef Slice name, records
    cdef const char* topic
    cdef size_t n
    cdef Unverified one
    cdef BatchHeader header
    if version < TRANSACTIONS_FROM or read_string(r, flexible, True).p == NULL:
        return False
    read_i16(r)
    read_i32(r)
    topics = read_count(r, flexible, TOPIC_BYTES_MIN)
    for _i in range(topics):
        if by_id:
            topic_id = read_raw(r, TOPIC_ID_BYTES)
        else:
            name = read_string(r, flexible, False)
        partitions = read_count(r, flexible, PARTITION_BYTES_MIN)
        for _j in range(partitions):
            index = read_i32(r)
            records = read_bytes(r, flexible, True)
            skip_tags(r, flexible)
            if r.bad:
                return found
            place += 1
            if by_id:
                one.partition = partition_find_id(logs, topic_id, index)
            else:
                one.partition = partition_find(logs, <const char*>name.p, <size_t>name.n, index)
            if one.partition == NULL:
                continue
            topic = partition_topic(one.partition, &n)
            # The append refuses the coordinators' topics, so no transaction may get to know them.
            if is_internal(topic, n) or not _begins(log_of(one.partition), version, records, &header):
                partition_release(one.partition)
                continue
            found = True
            if out == NULL:
                partition_release(one.partition)
                return True
            one.place = place - 1
            one.producer_id = header.producer_id
            one.producer_epoch = header.producer_epoch
            out.push_back(one)
        skip_tags(r, flexible)
    return found


cdef void unverified_free(vector[Unverified]& found) noexcept nogil:
    cdef size_t i
    for i in range(found.size()):
        partition_release(found[i].partition)
    found.clear()
