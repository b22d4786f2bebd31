"""A follower's fetches; see fetchrequest.pxd."""

from libc.stdint cimport int32_t
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport memcmp
from penstock.pyx.record.endian cimport put_i32
from penstock.pyx.record.frame cimport (
    SIZE_BYTES, TOPIC_ID_BYTES, write_count, write_i8, write_i16, write_i32, write_i64, write_no_tags, write_raw,
    write_string, write_uvarint,
)
from penstock.pyx.request.versions cimport FETCH_KEY

cdef enum:
    FOLLOWER_FETCH_VERSION = 17
    TAG_REPLICA_STATE = 1
    REPLICA_STATE_BYTES = 4 + 8 + 1


cdef inline bint _is_of(const FetchKey* key, const FetchKey* other) noexcept nogil:
    return memcmp(key.topic_id, other.topic_id, TOPIC_ID_BYTES) == 0


cdef void _write_parts(Writer* w, const FetchTerms* terms, const vector[FetchPart]& parts) noexcept nogil:
    cdef size_t i, n = 0, topics = 0, topic = 0
    for i in range(parts.size()):
        topics += i == 0 or not _is_of(&parts[i].key, &parts[i - 1].key)
    write_count(w, <int32_t>topics, True)
    while topic < parts.size():
        n = 1
        while topic + n < parts.size() and _is_of(&parts[topic + n].key, &parts[topic].key):
            n += 1
        write_raw(w, parts[topic].key.topic_id, TOPIC_ID_BYTES)
        write_count(w, <int32_t>n, True)
        for i in range(topic, topic + n):
            write_i32(w, parts[i].key.index)
            write_i32(w, parts[i].leader_epoch)
            write_i64(w, parts[i].offset)
            write_i32(w, parts[i].last_epoch)
            write_i64(w, parts[i].log_start)
            write_i32(w, terms.partition_bytes)
            write_no_tags(w, True)
        write_no_tags(w, True)
        topic += n


cdef void _write_forgotten(Writer* w, const vector[FetchKey]& forgotten) noexcept nogil:
    cdef size_t i
    write_count(w, <int32_t>forgotten.size(), True)
    for i in range(forgotten.size()):
        write_raw(w, forgotten[i].topic_id, TOPIC_ID_BYTES)
        write_count(w, 1, True)
        write_i32(w, forgotten[i].index)
        write_no_tags(w, True)


cdef void write_fetch(
    Writer* w, int32_t correlation_id, const FetchTerms* terms, const vector[FetchPart]& parts,
    const vector[FetchKey]& forgotten
) noexcept nogil:
    cdef size_t at = w.n
    write_i32(w, 0)
    write_i16(w, FETCH_KEY)
    write_i16(w, FOLLOWER_FETCH_VERSION)
    write_i32(w, correlation_id)
    write_string(w, terms.client_id, False)           # never compact in a header
    write_no_tags(w, True)
    write_i32(w, terms.wait_ms)
    write_i32(w, terms.min_bytes)
    write_i32(w, terms.answer_bytes)
    write_i8(w, 0)                                    # isolation: of consumers
    write_i32(w, terms.session_id)
    write_i32(w, terms.session_epoch)
    _write_parts(w, terms, parts)
    _write_forgotten(w, forgotten)
    write_count(w, 0, True)                           # no rack: of consumers
    write_uvarint(w, 1)
    write_uvarint(w, TAG_REPLICA_STATE)
    write_uvarint(w, REPLICA_STATE_BYTES)
    write_i32(w, terms.node_id)
    write_i64(w, terms.broker_epoch)
    write_no_tags(w, True)
    if not w.failed:
        put_i32(w.p + at, <int32_t>(w.n - at - SIZE_BYTES))
