"""Leaders of partitions, for clients that asked another broker; see leaders.pxd."""

from libc.stdint cimport uint8_t
from libc.string cimport memset

from penstock.pyx.errorcodes cimport FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER
from penstock.pyx.linux.posix cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from penstock.pyx.log.files cimport dropped, made
from penstock.pyx.log.partition cimport THIS_BROKER, partition_leader
from penstock.pyx.log.role cimport NO_BROKER
from penstock.pyx.record.frame cimport (
    Slice, answer_end, write_count, write_i32, write_no_tags, write_raw, write_string, write_uvarint, writer_free,
)

cdef enum:
    LEADER_BYTES = 4 + 4 + 1          # id, epoch, no tagged fields
    TAG_NODE_ENDPOINTS = 0
    NO_TAGS_BYTES = 1


# --- addresses ----------------------------------------------------------------------------------------------
cdef Addresses* addresses_new(int32_t node_id) noexcept nogil:
    cdef Addresses* addresses = made[Addresses]()
    addresses.node_id = node_id
    pthread_mutex_init(&addresses.lock, NULL)
    return addresses


cdef void addresses_free(Addresses* addresses) noexcept nogil:
    pthread_mutex_destroy(&addresses.lock)
    dropped[Addresses](addresses)


cdef void addresses_set(Addresses* addresses, vector[vector[Address]]& listeners) noexcept nogil:
    pthread_mutex_lock(&addresses.lock)
    addresses.listeners.swap(listeners)
    pthread_mutex_unlock(&addresses.lock)


# --- leaders ------------------------------------------------------------------------------------------------
cdef bint find_leader(
    const Addresses* addresses, Partition* partition, int16_t error, Leader* out
) noexcept nogil:
    if partition == NULL or (error != NOT_LEADER_OR_FOLLOWER and error != FENCED_LEADER_EPOCH):
        return False
    out.broker = partition_leader(partition, &out.epoch)
    if out.broker == THIS_BROKER:
        # It leads, and refuses all the same: others may lead by now. A client that knows an older epoch is right here.
        out.broker = addresses.node_id if error == FENCED_LEADER_EPOCH else <int32_t>NO_BROKER
    return out.broker != NO_BROKER


cdef void write_leader(Writer* w, uint32_t tag, const Leader* leader, ordered_set[int32_t]& brokers) noexcept nogil:
    brokers.insert(leader.broker)
    write_uvarint(w, 1)
    write_uvarint(w, tag)
    write_uvarint(w, LEADER_BYTES)
    write_i32(w, leader.broker)
    write_i32(w, leader.epoch)
    write_no_tags(w, True)


cdef Slice _text(const string& text, bint is_there) noexcept nogil:
    cdef Slice out
    out.p = <const uint8_t*>text.data() if is_there else NULL
    out.n = <int32_t>text.size()
    return out


cdef void _write_address(Writer* w, const Address& at) noexcept nogil:
    write_i32(w, at.broker)
    write_string(w, _text(at.host, True), True)
    write_i32(w, at.port)
    write_string(w, _text(at.rack, at.has_rack), True)
    write_no_tags(w, True)


cdef void write_addresses(
    Writer* w, Addresses* addresses, int32_t listener, ordered_set[int32_t]& brokers
) noexcept nogil:
    cdef size_t of = <size_t>listener
    cdef Writer found
    cdef int32_t n = 0
    cdef size_t i
    memset(&found, 0, sizeof(Writer))
    pthread_mutex_lock(&addresses.lock)
    if of < addresses.listeners.size():
        for i in range(addresses.listeners[of].size()):
            if brokers.count(addresses.listeners[of][i].broker):
                _write_address(&found, addresses.listeners[of][i])
                n += 1
    pthread_mutex_unlock(&addresses.lock)
    if n == 0 or found.failed:
        write_no_tags(w, True)
    else:
        write_uvarint(w, 1)
        write_uvarint(w, TAG_NODE_ENDPOINTS)
        write_uvarint(w, <uint32_t>found.n + _count_bytes(n))
        write_count(w, n, True)
        write_raw(w, found.p, found.n)
    writer_free(&found)


cdef uint32_t _count_bytes(int32_t n) noexcept nogil:
    """Of a count in front of so many elements."""
    cdef uint32_t left = <uint32_t>(n + 1), size = 1
    while left >= 0x80:
        left >>= 7
        size += 1
    return size


cdef void name_leaders(
    Writer* w, size_t begin, LeaderPlaces& places, uint32_t tag, Addresses* addresses, int32_t listener
) noexcept nogil:
    cdef Writer named
    cdef ordered_set[int32_t] brokers
    cdef size_t at = begin
    memset(&named, 0, sizeof(Writer))
    for place in places:
        write_raw(&named, w.p + at, place.first - at)
        write_leader(&named, tag, &place.second, brokers)
        at = place.first + NO_TAGS_BYTES
    write_raw(&named, w.p + at, w.n - NO_TAGS_BYTES - at)
    write_addresses(&named, addresses, listener, brokers)
    answer_end(&named, 0, 0)
    if not named.failed:
        w.n = begin
        write_raw(w, named.p, named.n)
    writer_free(&named)
