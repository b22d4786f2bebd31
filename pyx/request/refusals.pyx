"""Refused batches that will come again; see refusals.pxd."""

from cython.operator cimport dereference as at
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map

from penstock.pyx.errorcodes cimport (
    CONCURRENT_TRANSACTIONS, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from penstock.pyx.linux.posix cimport (
    atomic_add32, atomic_load32, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_t, pthread_mutex_unlock,
)
from penstock.pyx.log.files cimport dropped, made
from penstock.pyx.log.producerstate cimport sequence_is_after
from penstock.pyx.record.batch cimport (
    BASE_SEQUENCE_AT, MAGIC_2, MAGIC_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT,
)
from penstock.pyx.record.endian cimport get_i16, get_i32, get_i64

cdef struct Refusal:
    int16_t epoch
    int16_t error
    int32_t sequence

ctypedef unordered_map[string, Refusal] OfConnection       # by partition and producer id

cdef struct Refusals:
    pthread_mutex_t lock
    unordered_map[uint64_t, OfConnection] by_connection
    int32_t count                      # atomic; changed under the lock


cdef Refusals* refusals_new() noexcept nogil:
    cdef Refusals* refusals = made[Refusals]()
    pthread_mutex_init(&refusals.lock, NULL)
    return refusals


cdef void refusals_free(Refusals* refusals) noexcept nogil:
    pthread_mutex_destroy(&refusals.lock)
    dropped[Refusals](refusals)


cdef void refusals_parse(const uint8_t* records, int32_t n, SentBatch* out) noexcept nogil:
    out.producer_id = -1
    if n < RECORDS_AT or records[MAGIC_AT] != MAGIC_2:
        return
    out.producer_id = get_i64(records + PRODUCER_ID_AT)
    out.epoch = get_i16(records + PRODUCER_EPOCH_AT)
    out.sequence = get_i32(records + BASE_SEQUENCE_AT)
    if out.sequence < 0:
        out.producer_id = -1


cdef inline bint _is_tried_again(int16_t error) noexcept nogil:
    """Whether clients send a batch again, as it is, that was refused with this error. After CORRUPT_MESSAGE they do,
    too, but the sequence isn't to be believed then."""
    return (
        error == NOT_LEADER_OR_FOLLOWER
        or error == KAFKA_STORAGE_ERROR
        or error == UNKNOWN_TOPIC_OR_PARTITION
        or error == UNKNOWN_TOPIC_ID
        or error == NOT_ENOUGH_REPLICAS
        or error == CONCURRENT_TRANSACTIONS
    )


cdef string _key(const SentBatch* sent) noexcept nogil:
    cdef string key
    key.append(<const char*>&sent.producer_id, sizeof(int64_t))
    key.append(<const char*>&sent.index, sizeof(int32_t))
    key.append(<const char*>sent.topic, sent.topic_n)
    return key


cdef inline bint _may_be_known(const Sender* sender, const SentBatch* sent) noexcept nogil:
    return sender.refusals != NULL and sent.producer_id >= 0 and sent.topic_n <= TOPIC_BYTES_MAX


cdef inline bint _is_idle(const Sender* sender, const SentBatch* sent) noexcept nogil:
    return not _may_be_known(sender, sent) or atomic_load32(&sender.refusals.count) == 0


cdef int16_t refusals_find(const Sender* sender, const SentBatch* sent, int32_t* first) noexcept nogil:
    cdef Refusals* refusals = sender.refusals
    cdef Refusal* known
    cdef int16_t error = 0
    if _is_idle(sender, sent):
        return 0
    pthread_mutex_lock(&refusals.lock)
    of = refusals.by_connection.find(sender.connection)
    if of != refusals.by_connection.end():
        found = at(of).second.find(_key(sent))
        if found != at(of).second.end():
            known = &at(found).second
            if known.epoch == sent.epoch and sequence_is_after(sent.sequence, known.sequence):
                error = known.error
                first[0] = known.sequence
    pthread_mutex_unlock(&refusals.lock)
    return error


cdef void _remember(Refusals* refusals, const Sender* sender, const SentBatch* sent, int16_t error) noexcept nogil:
    """Under the lock."""
    cdef Refusal* known
    cdef OfConnection* of = &refusals.by_connection[sender.connection]
    cdef size_t before
    if of.size() >= CONNECTION_REFUSALS_MAX or atomic_load32(&refusals.count) >= REFUSALS_MAX:
        atomic_add32(&refusals.count, -<int32_t>of.size())
        of.clear()
        if atomic_load32(&refusals.count) >= REFUSALS_MAX:     # others have all of it
            refusals.by_connection.erase(sender.connection)
            return
    before = of.size()
    known = &at(of)[_key(sent)]
    if of.size() > before:
        atomic_add32(&refusals.count, 1)
    elif known.epoch == sent.epoch and sequence_is_after(sent.sequence, known.sequence):
        return                         # it is refused because of an earlier one
    known.epoch = sent.epoch
    known.sequence = sent.sequence
    known.error = error


cdef void _forget_one(Refusals* refusals, const Sender* sender, const SentBatch* sent) noexcept nogil:
    """Under the lock: the batch, or one before it, was taken, or won't come again."""
    of = refusals.by_connection.find(sender.connection)
    if of == refusals.by_connection.end():
        return
    found = at(of).second.find(_key(sent))
    if found == at(of).second.end():
        return
    if at(found).second.epoch == sent.epoch and sequence_is_after(sent.sequence, at(found).second.sequence):
        return
    at(of).second.erase(found)
    atomic_add32(&refusals.count, -1)
    if at(of).second.empty():
        refusals.by_connection.erase(of)


cdef void refusals_note(const Sender* sender, const SentBatch* sent, int16_t error) noexcept nogil:
    cdef Refusals* refusals = sender.refusals
    cdef bint again = _is_tried_again(error)
    if not _may_be_known(sender, sent) or (not again and _is_idle(sender, sent)):
        return
    pthread_mutex_lock(&refusals.lock)
    if again:
        _remember(refusals, sender, sent, error)
    else:
        _forget_one(refusals, sender, sent)
    pthread_mutex_unlock(&refusals.lock)


cdef void refusals_forget(Refusals* refusals, uint64_t connection) noexcept nogil:
    if refusals == NULL or atomic_load32(&refusals.count) == 0:
        return
    pthread_mutex_lock(&refusals.lock)
    of = refusals.by_connection.find(connection)
    if of != refusals.by_connection.end():
        atomic_add32(&refusals.count, -<int32_t>at(of).second.size())
        refusals.by_connection.erase(of)
    pthread_mutex_unlock(&refusals.lock)
