"""Fetch requests: reading them, and their sessions' part; see fetch.pxd."""

from libc.stdint cimport INT32_MAX, uint32_t

from penstock.pyx.errorcodes cimport FETCH_SESSION_ID_NOT_FOUND
from penstock.pyx.linux.posix cimport calloc, free
from penstock.pyx.log.files cimport dropped
from penstock.pyx.log.partition cimport ISOLATION_COMMITTED, ISOLATION_LOG_END, ISOLATION_UNCOMMITTED
from penstock.pyx.log.read cimport read_release
from penstock.pyx.log.role cimport NO_BROKER, NO_EPOCH
from penstock.pyx.record.frame cimport (
    TAGS_MAX, TOPIC_ID_BYTES, Slice, read_count, read_i8, read_i32, read_i64, read_raw, read_string, read_uvarint,
    reader_fail, reader_start, skip_tags,
)
from penstock.pyx.request.fetchset cimport (
    NOWHERE, FetchPartition, set_add, set_close, set_index, set_merge, set_open, set_subtract, set_topic,
)
from penstock.pyx.request.sessions cimport (
    SESSION_EPOCH_FINAL, SESSION_EPOCH_INITIAL, session_close, session_drop, session_give_back, session_resized,
    session_take,
)
from penstock.pyx.request.versions cimport (
    FETCH_FLEXIBLE_FROM, FETCH_ISOLATION_FROM, FETCH_LAST_FETCHED_EPOCH_FROM, FETCH_LEADER_EPOCH_FROM,
    FETCH_LOG_START_OFFSET_FROM, FETCH_MAX_BYTES_FROM, FETCH_RACK_FROM, FETCH_REPLICA_STATE_FROM, FETCH_SESSIONS_FROM,
    FETCH_TOPIC_IDS_FROM,
)
from penstock.pyx.request.waiting cimport WAITING_FETCH

cdef enum:
    PARTITION_BYTES_MIN = 16
    TOPIC_BYTES_MIN = 2
    TAG_REPLICA_STATE = 1
    WAITER_BYTES = 40                 # that a partition takes while its job waits (waiting.pxd)


# --- parsing ------------------------------------------------------------------------------------------------
cdef FetchParse _parse_partition(FetchJob* job, int32_t topic, Reader* r) noexcept nogil:
    cdef int32_t at = set_add(&job.asked, topic, read_i32(r))
    cdef FetchPartition* partition
    if at == NOWHERE:
        return FETCH_NO_MEMORY
    partition = &job.asked.partitions[at]
    if job.version >= FETCH_LEADER_EPOCH_FROM:
        partition.leader_epoch = read_i32(r)
    partition.offset = read_i64(r)
    if job.version >= FETCH_LAST_FETCHED_EPOCH_FROM:
        partition.last_fetched_epoch = read_i32(r)
    if job.version >= FETCH_LOG_START_OFFSET_FROM:
        partition.log_start = read_i64(r)
    partition.max_bytes = read_i32(r)
    skip_tags(r, job.version >= FETCH_FLEXIBLE_FROM)
    return FETCH_MALFORMED if r.bad else FETCH_PARSED


cdef int32_t _parse_topic(FetchJob* job, FetchSet* to, Reader* r) noexcept nogil:
    """The topic's place in a set; NOWHERE when it can't be read (r.bad) or there is no memory."""
    cdef const uint8_t* topic_id = NULL
    cdef Slice name
    name.p = NULL
    name.n = 0
    if job.version >= FETCH_TOPIC_IDS_FROM:
        topic_id = read_raw(r, TOPIC_ID_BYTES)
    else:
        name = read_string(r, job.version >= FETCH_FLEXIBLE_FROM, False)
    return NOWHERE if r.bad else set_topic(to, name, topic_id)


cdef FetchParse _parse_topics(FetchJob* job, FetchSet* to, Reader* r) noexcept nogil:
    """The topics to fetch, or those to forget; a forgotten partition is its index alone."""
    cdef bint flexible = job.version >= FETCH_FLEXIBLE_FROM
    cdef bint forget = to == &job.forgotten
    cdef int32_t topics = read_count(r, flexible, TOPIC_BYTES_MIN)
    cdef int32_t topic, partitions, _i, _j
    cdef FetchParse result
    if topics > FETCH_PARTITIONS_MAX:
        return FETCH_MALFORMED
    for _i in range(topics):
        topic = _parse_topic(job, to, r)
        if topic == NOWHERE:
            return FETCH_MALFORMED if r.bad else FETCH_NO_MEMORY
        partitions = read_count(r, flexible, sizeof(int32_t) if forget else PARTITION_BYTES_MIN)
        if r.bad or partitions + to.count > FETCH_PARTITIONS_MAX:
            return FETCH_MALFORMED
        for _j in range(partitions):
            if not forget:
                result = _parse_partition(job, topic, r)
                if result != FETCH_PARSED:
                    return result
            elif set_add(to, topic, read_i32(r)) == NOWHERE:
                return FETCH_NO_MEMORY
        skip_tags(r, flexible)
    return FETCH_MALFORMED if r.bad else FETCH_PARSED


cdef void _read_tags(FetchJob* job, Reader* r) noexcept nogil:
    """The tags of the request itself."""
    cdef uint32_t count, tag, size, _i
    cdef Reader field
    if job.version < FETCH_FLEXIBLE_FROM:
        return
    count = read_uvarint(r)
    if count > TAGS_MAX:
        reader_fail(r)
    for _i in range(count):
        if r.bad:
            return
        tag = read_uvarint(r)
        size = read_uvarint(r)
        reader_start(&field, r.p, 0)
        if read_raw(r, size) != NULL and tag == TAG_REPLICA_STATE and job.version >= FETCH_REPLICA_STATE_FROM:
            reader_start(&field, r.p - size, size)
            job.replica = read_i32(&field)
            job.broker_epoch = read_i64(&field)
            if field.bad:
                job.replica = NO_BROKER


cdef FetchParse _parse(FetchJob* job, Reader* r, int32_t answer_bytes_max) noexcept nogil:
    cdef int32_t max_bytes = INT32_MAX
    cdef FetchParse result
    if job.version < FETCH_REPLICA_STATE_FROM:
        job.replica = read_i32(r)
    job.max_wait_ms = read_i32(r)
    job.min_bytes = read_i32(r)
    if job.version >= FETCH_MAX_BYTES_FROM:
        max_bytes = read_i32(r)
    job.max_bytes = min(max(max_bytes, 0), answer_bytes_max)
    job.isolation = ISOLATION_UNCOMMITTED
    if job.version >= FETCH_ISOLATION_FROM and read_i8(r) == ISOLATION_COMMITTED:
        job.isolation = ISOLATION_COMMITTED
    job.session_epoch = SESSION_EPOCH_FINAL
    if job.version >= FETCH_SESSIONS_FROM:
        job.session_id = read_i32(r)
        job.session_epoch = read_i32(r)
    result = _parse_topics(job, &job.asked, r)
    if result == FETCH_PARSED and job.version >= FETCH_SESSIONS_FROM:
        result = _parse_topics(job, &job.forgotten, r)
    if result != FETCH_PARSED:
        return result
    if job.version >= FETCH_RACK_FROM:
        read_string(r, job.version >= FETCH_FLEXIBLE_FROM, False)
    _read_tags(job, r)
    return FETCH_MALFORMED if r.bad else FETCH_PARSED


cdef void _believe_replica(FetchJob* job, bint between_brokers) noexcept nogil:
    cdef int32_t at = job.asked.first
    job.privileged = job.replica >= 0
    if job.replica < 0 or not between_brokers:
        job.replica = NO_BROKER
        job.broker_epoch = NO_EPOCH
        return
    job.isolation = ISOLATION_LOG_END
    while at != NOWHERE:                              # the epoch stands behind the partitions
        job.asked.partitions[at].broker_epoch = job.broker_epoch
        at = job.asked.partitions[at].next


cdef FetchParse fetch_parse(
    const RequestHead* head, Reader body, bint between_brokers, int32_t answer_bytes_max, FetchJob** out
) noexcept nogil:
    cdef FetchJob* job = <FetchJob*>calloc(1, sizeof(FetchJob))
    cdef FetchParse result
    out[0] = NULL
    if job == NULL:
        return FETCH_NO_MEMORY
    job.version = head.api_version
    job.correlation_id = head.correlation_id
    job.waiting.kind = WAITING_FETCH
    job.waiting.heap_index = -1
    job.replica = NO_BROKER
    job.broker_epoch = NO_EPOCH
    set_open(&job.asked)
    set_open(&job.forgotten)
    job.set = &job.asked
    result = _parse(job, &body, answer_bytes_max)
    if result != FETCH_PARSED:
        fetch_free(job)
        return result
    _believe_replica(job, between_brokers)
    out[0] = job
    return FETCH_PARSED


# --- sessions -----------------------------------------------------------------------------------------------
cdef bint _merge_asked(FetchJob* job) noexcept nogil:
    """Removes partitions that were named twice, as a session needs it. False: no memory, so none is made."""
    cdef FetchSet merged
    set_open(&merged)
    if not set_index(&merged) or not set_merge(&merged, &job.asked, False):
        set_close(&merged)
        return False
    set_close(&job.asked)
    job.asked = merged
    return True


cdef void _go_on(FetchJob* job) noexcept nogil:
    """The session was taken: what the request says changes it, before anything is read."""
    cdef FetchSet* set = &job.session.set
    # A follower that names a partition again may have dropped the answer that this session takes for told, as its role
    # changed meanwhile: without the log start of that answer it would keep deleted records until the next deletion.
    if not set_merge(set, &job.asked, job.replica != NO_BROKER):
        session_drop(job.sessions, job.session)
        job.error = FETCH_SESSION_ID_NOT_FOUND        # no memory: the client starts again without a session
        return
    set_subtract(set, &job.forgotten)
    if set.count == 0:
        # As Kafka: a session of nothing ends, and the request is answered as one without a session.
        session_drop(job.sessions, job.session)
        session_give_back(job.sessions, job.session)
        job.session = NULL
        return
    session_resized(job.sessions, job.session)
    set_close(&job.asked)
    set_close(&job.forgotten)
    job.set = set
    job.incremental = True


cdef void fetch_begin(FetchJob* job, LogSet* logs, SessionCache* sessions, int64_t now_ms) noexcept nogil:
    job.begun = True
    job.begun_ms = now_ms
    job.logs = logs
    job.sessions = sessions
    if job.session_epoch == SESSION_EPOCH_INITIAL or job.session_epoch == SESSION_EPOCH_FINAL:
        if job.session_id != 0:
            session_close(sessions, job.session_id)
        job.wants_session = job.session_epoch == SESSION_EPOCH_INITIAL and _merge_asked(job)
        return
    job.error = session_take(
        sessions, job.session_id, job.session_epoch, job.version >= FETCH_TOPIC_IDS_FROM, now_ms, &job.session
    )
    if job.error == 0:
        _go_on(job)


# --- memory -------------------------------------------------------------------------------------------------
cdef int64_t fetch_held_bytes(const FetchJob* job) noexcept nogil:
    """Of the request itself; what sessions hold is bounded for all of them."""
    return (
        <int64_t>sizeof(FetchJob)
        + job.asked.bytes
        + job.forgotten.bytes
        + job.range_capacity * <int64_t>sizeof(FetchRange)
        + job.asked.count * <int64_t>WAITER_BYTES
    )


cdef void range_release(FetchRange* r) noexcept nogil:
    read_release(&r.read)
    r.read.length = 0
    if r.converted != NULL:
        dropped[vector[uint8_t]](r.converted)
    r.converted = NULL


cdef void fetch_drop_ranges(FetchJob* job) noexcept nogil:
    cdef int32_t i
    for i in range(job.range_count):
        range_release(&job.ranges[i])
    job.range_count = 0


cdef void fetch_free(FetchJob* job) noexcept nogil:
    if job == NULL:
        return
    fetch_drop_ranges(job)
    free(job.ranges)
    if job.session != NULL:
        session_give_back(job.sessions, job.session)
    set_close(&job.asked)
    set_close(&job.forgotten)
    free(job)
