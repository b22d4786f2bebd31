"""Produce requests that begin transactions; see verification.pxd."""

from libc.stdint cimport uint8_t

from penstock.pyx.linux.posix cimport pthread_mutex_lock, pthread_mutex_unlock
from penstock.pyx.log.partition cimport is_internal, partition_release, partition_topic
from penstock.pyx.log.partitionlog cimport PartitionLog, log_of, take_config
from penstock.pyx.log.producerstate cimport ProducerEntry, producers_get, would_begin
from penstock.pyx.record.batch cimport BatchHeader, batch_is_transactional, batch_parse
from penstock.pyx.record.frame cimport Slice, skip_tags
from penstock.pyx.request.producerequest cimport (
    ProduceTerms, ProduceTopic, produce_find, produce_part, produce_terms, produce_topic,
)
from penstock.pyx.request.versions cimport PRODUCE_ADDS_PARTITIONS_FROM

cdef bint _entry(PartitionLog* p, int16_t version, int64_t producer_id, ProducerEntry* e) noexcept nogil:
    """The producer's entry, empty if there is none; the caller has no lock. False: this partition isn't asked about."""
    cdef bint asked
    pthread_mutex_lock(&p.lock)
    take_config(p)
    asked = version >= PRODUCE_ADDS_PARTITIONS_FROM or p.config.verify_transactions
    e[0] = producers_get(&p.log.producers, producer_id)
    pthread_mutex_unlock(&p.lock)
    return asked


cdef bint _begins(PartitionLog* p, int16_t version, Slice records, BatchHeader* header) noexcept nogil:
    """Whether the records begin a transaction; `header` becomes their first batch that does. Records that can't be
    parsed begin none: the append refuses them."""
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


cdef bint find_unverified(LogSet* logs, const RequestHead* head, Reader body, vector[Unverified]* out) noexcept nogil:
    cdef Reader* r = &body
    cdef bint found = False
    cdef ProduceTerms terms
    cdef int32_t index, place = 0, _i, _j
    cdef ProduceTopic asked
    cdef Slice records
    cdef const char* topic
    cdef size_t n
    cdef Unverified one
    cdef BatchHeader header
    produce_terms(r, head, &terms)
    if not terms.transactional:
        return False
    for _i in range(terms.topics):
        produce_topic(r, terms.version, &asked)
        for _j in range(asked.partitions):
            records = produce_part(r, terms.version, &index)
            if r.bad:
                return found
            place += 1
            one.partition = produce_find(logs, &asked, index)
            if one.partition == NULL:
                continue
            topic = partition_topic(one.partition, &n)
            # produce_take refuses the coordinators' topics, so no transaction may get to know them.
            if is_internal(topic, n) or not _begins(log_of(one.partition), terms.version, records, &header):
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
        skip_tags(r, terms.flexible)
    return found


cdef void unverified_free(vector[Unverified]& found) noexcept nogil:
    cdef size_t i
    for i in range(found.size()):
        partition_release(found[i].partition)
    found.clear()
