"""Produce in place; see produce.pxd. A request is walked three times: to see that it is whole and right, so that a
malformed one appends nothing; to find its partitions and what there is for them; and to answer. (Before that by
produceflush if any topic has flush.messages, and by verification if it is transactional.)
"""

from libc.stdint cimport INT64_MAX, int32_t, uint8_t, uint32_t
from libc.string cimport memset, strlen
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport (
    INVALID_RECORD, INVALID_REQUIRED_ACKS, INVALID_TOPIC_EXCEPTION, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_COMPRESSION_TYPE,
)
from penstock.pyx.linux.posix cimport atomic_load32, calloc, free, monotonic_ns, realloc, usleep
from penstock.pyx.log.append cimport (
    STORAGE_FAILED, STORAGE_FULL, STORAGE_SHORTAGE, Append, Appended, partition_append, partition_validate,
)
from penstock.pyx.log.files cimport dropped as deleted, later_ms, made
from penstock.pyx.log.origin cimport ADDED, CLIENT, VERIFIED, Origin
from penstock.pyx.log.partition cimport (
    LogSet, Partition, is_internal, logset_lease, logset_nobody, partition_enter, partition_held, partition_known_id,
    partition_leave, partition_release, partition_retain, partition_tally, partition_tally_empty, partition_took,
    partition_topic, partition_topic_number,
)
from penstock.pyx.log.role cimport NO_EPOCH
from penstock.pyx.log.topictally cimport tally_refusals
from penstock.pyx.log.validator cimport INFLATED_MAX_BYTES, INFLATED_PER_BYTE, Refusal, Validated
from penstock.pyx.record.batch cimport (
    ATTRIBUTES_AT, CODEC_MASK, CONTROL_BIT, LAST_OFFSET_DELTA_AT, LENGTH_AT, LOG_OVERHEAD, MAGIC_2, MAGIC_AT,
    TRANSACTIONAL_BIT, batch_error_text,
)
from penstock.pyx.record.codec cimport CODEC_ZSTD
from penstock.pyx.record.endian cimport get_i16, get_i32
from penstock.pyx.record.frame cimport (
    TOPIC_ID_BYTES, Slice, answer_begin, answer_end, reader_left, skip_tags, write_count, write_i16, write_i32,
    write_i64, write_no_tags, write_raw, write_string,
)
from penstock.pyx.request.acks cimport ProduceWait, acks_add, acks_cut, acks_name_leaders, acks_new
from penstock.pyx.request.leaders cimport Leader, LeaderPlaces, find_leader, name_leaders
from penstock.pyx.request.producerequest cimport (
    ProduceTerms, ProduceTopic, produce_find, produce_part, produce_partitions, produce_terms, produce_topic,
)
from penstock.pyx.request.refusals cimport Sender, SentBatch, refusals_find, refusals_note, refusals_parse
from penstock.pyx.request.verification cimport find_unverified
from penstock.pyx.request.versions cimport (
    PRODUCE_ADDS_PARTITIONS_FROM, PRODUCE_APPEND_TIME_FROM, PRODUCE_LEADERS_FROM, PRODUCE_LOG_START_OFFSET_FROM,
    PRODUCE_RECORD_ERRORS_FROM, PRODUCE_STORAGE_ERROR_FROM, PRODUCE_THROTTLE_FROM, PRODUCE_TOPIC_IDS_FROM,
    PRODUCE_TRANSACTIONS_FROM, PRODUCE_ZSTD_FROM,
)

cdef extern from *:
    """
    #include <vector>
    template <typename T> static inline bool vector_grow(std::vector<T>& v, size_t n) noexcept {
        try { v.resize(n); return true; } catch (...) { return false; }
    }
    """
    bint vector_grow[T](vector[T]& v, size_t n) noexcept nogil     # False: no memory. Without the GIL, unlike resize

cdef enum:
    ACKS_ALL = -1
    INDEX_BYTES = 4                   # of a partition in an answer: its error code is behind that
    TAG_CURRENT_LEADER = 0
    GROUP_ASKED_MAX = 64
    GROUP_TOGETHER_MAX = 64           # for one partition
    GROUP_PARTS_MAX = 256             # of several requests: what the comparing of all with all is cheap for
    PARTS_KEPT = 1024                 # a group that was larger gives its memory back
    CHECKED_KEPT = 16                 # and where a part had more batches

# A partition of a request.
cdef struct Part:
    Partition* partition              # NULL: there is nothing to append; `append.done.error` says whether that is right
    Partition* refused                # before its log was asked, or as it is empty: a reference, until it is answered
    Partition* waits                  # for other replicas: a reference, until it is answered
    bint appended                     # or the log has refused it: it is counted
    Append append
    SentBatch sent

cdef struct Asked:
    ProduceTerms terms
    Sender sender
    Origin origin                     # of what is appended
    int32_t correlation_id
    Reader topics                     # where the first begins
    int64_t may_inflate
    int64_t may_work
    int64_t work_left                 # of that
    size_t first                      # of its parts
    uint32_t topic                    # the first part's; 0: it isn't here

cdef struct ProduceGroup:
    Asked asked[GROUP_ASKED_MAX]
    size_t asked_n
    Part* parts
    size_t n
    size_t capacity
    LogSet* logs
    bint in_line                      # a network thread's: each request is validated when it is taken
    bint worker                       # a worker's: partitions are entered when their batches have been validated
    vector[Validated]* checked        # in line, by part
    bint rewrote                      # some of them hold more than they need
    bint waits                        # some part does


cdef int64_t _count_batches(const uint8_t* p, int64_t n) noexcept nogil:
    """Batches in records that were appended, so that their lengths are right."""
    cdef int64_t count = 0
    while n >= LOG_OVERHEAD:
        count += 1
        n -= LOG_OVERHEAD + get_i32(p + LENGTH_AT)
        p += LOG_OVERHEAD + get_i32(p + LENGTH_AT)
    return count


cdef int16_t _validate_for_version(const uint8_t* p, size_t n, int16_t version) noexcept nogil:
    """What the request's version alone says against the records."""
    cdef int64_t size = <int64_t>LOG_OVERHEAD + get_i32(p + LENGTH_AT) if n >= LOG_OVERHEAD else LOG_OVERHEAD
    if version >= PRODUCE_TRANSACTIONS_FROM and size > <int64_t>n:
        return INVALID_RECORD                         # no whole batch
    if n < LAST_OFFSET_DELTA_AT:
        return 0                                      # too short for a batch of magic 2: the log says what it is
    if p[MAGIC_AT] != MAGIC_2:
        return INVALID_RECORD if version >= PRODUCE_TRANSACTIONS_FROM else 0
    if version < PRODUCE_ZSTD_FROM and get_i16(p + ATTRIBUTES_AT) & CODEC_MASK == CODEC_ZSTD:
        return UNSUPPORTED_COMPRESSION_TYPE
    if LOG_OVERHEAD < size < <int64_t>n - LOG_OVERHEAD:
        return INVALID_RECORD                         # a second batch; a few bytes too many the log refuses
    return 0


cdef bint _is_transactional(const uint8_t* p, int32_t n) noexcept nogil:
    """Whether the first batch says that it is part of a transaction (no client may send its marker)."""
    return (
        n >= LAST_OFFSET_DELTA_AT
        and p[MAGIC_AT] >= MAGIC_2
        and get_i16(p + ATTRIBUTES_AT) & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT
    )


cdef int16_t _validate(Partition* partition, const uint8_t* p, int32_t n, const ProduceTerms* terms) noexcept nogil:
    """What can be said without the log."""
    cdef size_t name_bytes
    cdef int16_t error
    cdef const char* name = partition_topic(partition, &name_bytes)
    if is_internal(name, name_bytes):
        return INVALID_TOPIC_EXCEPTION
    if n == 0:
        # An empty message set of the oldest clients appends nothing, and that is fine.
        return INVALID_RECORD if terms.version >= PRODUCE_TRANSACTIONS_FROM or p == NULL else 0
    error = _validate_for_version(p, <size_t>n, terms.version)
    if error == 0 and not terms.transactional and _is_transactional(p, n):
        return TRANSACTIONAL_ID_AUTHORIZATION_FAILED      # nobody could be asked about its transaction
    return error


cdef int16_t _find_partition(
    LogSet* logs, const ProduceTerms* terms, const ProduceTopic* topic, int32_t index, Partition** out
) noexcept nogil:
    if terms.acks < -1 or terms.acks > 1:
        return INVALID_REQUIRED_ACKS
    out[0] = produce_find(logs, topic, index)
    if out[0] != NULL:
        return 0
    if topic.id != NULL:
        return UNKNOWN_TOPIC_OR_PARTITION if partition_known_id(logs, topic.id) else UNKNOWN_TOPIC_ID
    # The name alone decides for the internal ones, also where another broker leads them.
    if is_internal(<const char*>topic.name.p, <size_t>topic.name.n):
        return INVALID_TOPIC_EXCEPTION
    return UNKNOWN_TOPIC_OR_PARTITION


cdef int16_t _find_refusal(
    LogSet* logs, const Sender* sender, const ProduceTopic* topic, int32_t index, const SentBatch* sent
) noexcept nogil:
    """The error of an earlier batch that has to come before this one: it isn't in the log, by way of no leader."""
    cdef SentBatch earlier = sent[0]
    cdef Partition* partition
    cdef int16_t error = refusals_find(sender, sent, &earlier.sequence)
    if error == 0:
        return 0
    partition = produce_find(logs, topic, index)
    if partition == NULL:
        return error
    if partition_took(partition, earlier.producer_id, earlier.epoch, earlier.sequence):
        refusals_note(sender, &earlier, 0)
        error = 0
    partition_release(partition)
    return error


cdef ProduceGroup* produce_group_new(bint in_line) noexcept nogil:
    cdef ProduceGroup* g = <ProduceGroup*>calloc(1, sizeof(ProduceGroup))
    if g == NULL:
        return NULL
    g.in_line = in_line
    g.worker = not in_line
    if in_line:
        g.checked = made[vector[Validated]]()
    return g


cdef void produce_group_free(ProduceGroup* g) noexcept nogil:
    if g == NULL:
        return
    free(g.parts)
    if g.checked != NULL:
        deleted[vector[Validated]](g.checked)
    free(g)


cdef inline void _let_go(const ProduceGroup* g, Partition* partition) noexcept nogil:
    if not g.worker:
        partition_leave(partition)
    partition_release(partition)


cdef inline void _let_refused_go(Part* part) noexcept nogil:
    if part.refused != NULL:
        partition_release(part.refused)
        part.refused = NULL
    if part.waits != NULL:
        partition_release(part.waits)
        part.waits = NULL


cdef bint _has_room(ProduceGroup* g, size_t more) noexcept nogil:
    cdef Part* grown
    cdef size_t capacity = max(g.n + more, g.capacity)
    if capacity > g.capacity:
        grown = <Part*>realloc(g.parts, capacity * sizeof(Part))
        if grown == NULL:
            return False
        g.parts = grown
        g.capacity = capacity
    if g.in_line and g.checked.size() < g.n + more:
        return vector_grow[Validated](g.checked[0], g.n + more)
    return True


cdef void produce_clear(ProduceGroup* g) noexcept nogil:
    cdef size_t i
    for i in range(g.n):
        _let_refused_go(&g.parts[i])
    g.asked_n = 0
    g.n = 0
    g.waits = False
    if g.capacity > PARTS_KEPT:
        free(g.parts)
        g.parts = NULL
        g.capacity = 0
    if g.rewrote:
        g.checked.clear()                             # their memory with them
        g.rewrote = False


cdef int64_t produce_work(const ProduceGroup* g) noexcept nogil:
    cdef int64_t work = 0
    cdef size_t i
    for i in range(g.asked_n):
        work += g.asked[i].may_work - g.asked[i].work_left
    return work


cdef inline uint32_t _topic_of(const Part* part) noexcept nogil:
    if part.partition != NULL:
        return partition_topic_number(<Partition*>part.partition)
    return partition_topic_number(<Partition*>part.refused) if part.refused != NULL else 0


cdef uint32_t produce_topic_number(const ProduceGroup* g, size_t i) noexcept nogil:
    return g.asked[i].topic


cdef bint produce_group_open(const ProduceGroup* g) noexcept nogil:
    # Of requests without an answer one that fails closes the connection, and nothing behind it may be appended.
    return g.asked_n == 0 or (
        g.asked_n < GROUP_ASKED_MAX
        and g.n < GROUP_PARTS_MAX
        and g.asked[g.asked_n - 1].terms.acks != 0
        and produce_work(g) < IN_LINE_WORK
    )


cdef bint _check_in_line(ProduceGroup* g, const Asked* asked) noexcept nogil:
    """Validates what the request has for each partition. False: that takes too long here."""
    cdef Part* part
    cdef Validated* checked
    cdef size_t i
    for i in range(asked.first, g.n):
        part = &g.parts[i]
        if part.partition == NULL:
            continue
        checked = &g.checked[0][i]
        if not partition_validate(part.partition, &part.append, checked):
            return False
        g.rewrote = g.rewrote or not checked.rebuilt.empty() or checked.batches.size() > CHECKED_KEPT
    return True


cdef void _untake(ProduceGroup* g, const Asked* asked) noexcept nogil:
    while g.n > asked.first:
        g.n -= 1
        _let_refused_go(&g.parts[g.n])
        if g.parts[g.n].partition != NULL:
            _let_go(g, g.parts[g.n].partition)


cdef inline void _name_sent(const ProduceTopic* topic, int32_t index, Slice records, SentBatch* out) noexcept nogil:
    refusals_parse(records.p, records.n, out)
    out.index = index
    out.topic = topic.id if topic.id != NULL else topic.name.p
    out.topic_n = <size_t>TOPIC_ID_BYTES if topic.id != NULL else <size_t>max(topic.name.n, 0)


cdef ProduceResult produce_take(
    ProduceGroup* g, LogSet* logs, const Sender* sender, const RequestHead* head, Reader body, const int16_t* verdicts,
    int64_t guard
) noexcept nogil:
    cdef Reader whole = body
    cdef Reader* r = &body
    cdef Asked* asked = &g.asked[g.asked_n]
    cdef ProduceTerms* terms = &asked.terms
    cdef Part* part
    cdef ProduceTopic topic
    cdef Slice records
    cdef int32_t index, _i, _j
    cdef int64_t place = 0, total = produce_partitions(head, body)
    if total < 0:
        return PRODUCE_MALFORMED
    if g.in_line and (total > IN_LINE_PARTITIONS or reader_left(r) > IN_LINE_BYTES):
        return PRODUCE_COSTLY
    if not _has_room(g, <size_t>total):
        return PRODUCE_NO_MEMORY
    g.logs = logs
    asked.correlation_id = head.correlation_id
    asked.first = g.n
    # A request of batches that are nearly nothing compressed would keep its network thread busy for minutes.
    asked.may_inflate = INFLATED_MAX_BYTES + <int64_t>reader_left(r) * INFLATED_PER_BYTE
    asked.may_work = IN_LINE_WORK if g.in_line else INT64_MAX
    asked.work_left = asked.may_work
    produce_terms(r, head, terms)
    asked.sender = sender[0]
    asked.origin = CLIENT
    if verdicts != NULL:
        asked.origin = ADDED if terms.version >= PRODUCE_ADDS_PARTITIONS_FROM else VERIFIED
    elif terms.transactional and find_unverified(logs, head, whole, NULL):
        return PRODUCE_HAND_OVER
    asked.topics = body
    for _i in range(terms.topics):
        produce_topic(r, terms.version, &topic)
        for _j in range(topic.partitions):
            records = produce_part(r, terms.version, &index)
            part = &g.parts[g.n]
            g.n += 1
            memset(part, 0, sizeof(Part))
            part.append.records = <uint8_t*>records.p
            part.append.n = <size_t>max(records.n, 0)
            part.append.origin = asked.origin
            part.append.acks_all = terms.acks == ACKS_ALL
            part.append.led_since = NO_EPOCH
            part.append.guard = guard
            if not part.append.acks_all:              # else NULL
                part.append.lease_until_ms = logset_lease(logs)
            part.append.may_inflate = &asked.may_inflate
            part.append.work_left = &asked.work_left
            part.append.done.base_offset = -1
            part.append.done.log_append_time_ms = -1
            part.append.done.log_start_offset = -1
            part.append.done.error = verdicts[place] if verdicts != NULL else 0
            place += 1
            _name_sent(&topic, index, records, &part.sent)
            if part.append.done.error == 0:
                part.append.done.error = _find_refusal(logs, sender, &topic, index, &part.sent)
                if part.append.done.error != 0 and g.asked_n > 0:
                    _untake(g, asked)     # the group may have the batch that it waits for
                    return PRODUCE_HELD
            if part.append.done.error == 0:
                part.append.done.error = _find_partition(logs, terms, &topic, index, &part.partition)
            else:
                part.refused = produce_find(logs, &topic, index)
            if part.partition != NULL:
                if not g.worker and partition_enter(part.partition) and verdicts == NULL:
                    _untake(g, asked)
                    return PRODUCE_HELD
                part.append.done.error = _validate(part.partition, records.p, records.n, terms)
                if part.append.done.error != 0 or part.append.n == 0:
                    if not g.worker:
                        partition_leave(part.partition)
                    part.refused = part.partition
                    part.partition = NULL
            if part.append.done.error != 0:
                refusals_note(sender, &part.sent, part.append.done.error)
        skip_tags(r, terms.flexible)
    if g.in_line and not _check_in_line(g, asked):
        _untake(g, asked)
        return PRODUCE_COSTLY
    # Now, as the partitions are released when they have been appended to.
    asked.topic = _topic_of(&g.parts[asked.first]) if g.n > asked.first else 0
    g.asked_n += 1
    return PRODUCE_TAKEN


cdef void _note_outcomes(ProduceGroup* g) noexcept nogil:
    cdef size_t i, k
    cdef Part* part
    for k in range(g.asked_n):
        for i in range(g.asked[k].first, g.asked[k + 1].first if k + 1 < g.asked_n else g.n):
            part = &g.parts[i]
            if part.sent.producer_id >= 0:
                refusals_note(&g.asked[k].sender, &part.sent, part.append.done.error)


cdef bint _find_again(ProduceGroup* g, Part* part) noexcept nogil:
    """Whether another log has taken the place of the part's by now, which is the part's then."""
    cdef bint by_id = g.asked[0].terms.version >= PRODUCE_TOPIC_IDS_FROM
    cdef ProduceTopic topic
    cdef Partition* found
    cdef bint another
    topic.id = NULL
    topic.name.p = part.sent.topic
    topic.name.n = <int32_t>part.sent.topic_n
    if by_id:
        topic.id = part.sent.topic
    found = produce_find(g.logs, &topic, part.sent.index)
    if found == NULL:
        return False
    another = found != part.partition
    partition_release(part.partition)
    part.partition = found
    return another


cdef void _append_alone(ProduceGroup* g, Part* part) noexcept nogil:
    """Of a worker. What takes long comes first, so that no move of the partition has to wait for it."""
    cdef vector[Validated] checked
    cdef Append* one = &part.append
    cdef int32_t waited_ms = 0
    cdef bint valid = False
    if not vector_grow[Validated](checked, 1):
        one.done.error = KAFKA_STORAGE_ERROR
        one.done.storage = STORAGE_SHORTAGE
        return
    while True:
        if not valid:
            partition_validate(part.partition, one, &checked[0])
            valid = one.done.error == 0
        if valid:
            if partition_enter(part.partition):
                one.done.error = NOT_LEADER_OR_FOLLOWER   # it is held
            else:
                one.done.error = 0
                partition_append(part.partition, &one, 1)
            partition_leave(part.partition)
        if one.done.error != NOT_LEADER_OR_FOLLOWER or waited_ms == WORKER_WAITS_MS:
            break
        if not partition_held(part.partition) and not _find_again(g, part):
            break
        usleep(1000)
        waited_ms += 1
    one.checked = NULL


cdef inline void _count_untallied(Partition* partition, const Append* part) noexcept nogil:
    """A part that the log didn't count, and that nobody tries again."""
    if not part.done.tallied:
        tally_refusals(partition_tally(partition), 1)


cdef inline void _note_waits(ProduceGroup* g, Part* part, Partition* partition) noexcept nogil:
    if part.append.done.waits:
        partition_retain(partition)
        part.waits = partition
        g.waits = True


cdef void _append_each(ProduceGroup* g, const int32_t* dropped) noexcept nogil:
    """Of a worker."""
    cdef Part* part
    cdef size_t i
    for i in range(g.n):
        part = &g.parts[i]
        if part.partition == NULL:
            continue
        if atomic_load32(dropped):
            part.append.done.error = NOT_LEADER_OR_FOLLOWER
        else:
            _append_alone(g, part)
            _count_untallied(part.partition, &part.append)
            _note_waits(g, part, part.partition)
        part.appended = True
        partition_release(part.partition)


cdef void produce_append(ProduceGroup* g, const int32_t* dropped) noexcept nogil:
    cdef Append* together[GROUP_TOGETHER_MAX]
    cdef size_t places[GROUP_TOGETHER_MAX]
    cdef Partition* partition
    cdef size_t i, j, n
    if g.worker:
        _append_each(g, dropped)
        if not atomic_load32(dropped):                # of a connection that is gone nothing is remembered
            _note_outcomes(g)
        return
    for i in range(g.n if g.in_line else 0):
        g.parts[i].append.checked = &g.checked[0][i]      # the vector has moved as the group grew
    for i in range(g.n):
        partition = g.parts[i].partition
        if partition == NULL:
            continue
        together[0] = &g.parts[i].append
        places[0] = i
        g.parts[i].appended = True
        n = 1
        if g.asked_n > 1:
            for j in range(i + 1, g.n):
                if g.parts[j].partition == partition and n < GROUP_TOGETHER_MAX:
                    together[n] = &g.parts[j].append
                    places[n] = j
                    n += 1
                    g.parts[j].partition = NULL
                    g.parts[j].appended = True
                    _let_go(g, partition)
        partition_append(partition, together, n)
        for j in range(n):
            _count_untallied(partition, together[j])
            _note_waits(g, &g.parts[places[j]], partition)
        _let_go(g, partition)
    _note_outcomes(g)


cdef const char* _storage_text(int fault) noexcept nogil:
    if fault == STORAGE_FULL:
        return b"the disk is full; the same records are taken once it has room again"
    if fault == STORAGE_FAILED:
        return b"the partition is offline: its disk failed, or its files are gone or damaged"
    if fault == STORAGE_SHORTAGE:
        return b"the broker is short of memory or file descriptors"
    return NULL


cdef void _write_refusal(Writer* w, bint flexible, const Refusal* refusal, int storage) noexcept nogil:
    """record_errors and error_message: one reason for all records that are named."""
    cdef const char* text = batch_error_text(refusal.fault) if refusal.fault else _storage_text(storage)
    cdef Slice reason
    cdef int32_t i
    reason.p = <const uint8_t*>text
    reason.n = <int32_t>strlen(text) if text != NULL else 0
    write_count(w, refusal.count, flexible)
    for i in range(refusal.count):
        write_i32(w, refusal.records[i])
        write_string(w, reason, flexible)
        write_no_tags(w, flexible)
    write_string(w, reason, flexible)


cdef void _write_partition(
    Writer* w, const ProduceTerms* terms, int32_t index, int16_t error, const Appended* done
) noexcept nogil:
    write_i32(w, index)
    write_i16(w, error)
    write_i64(w, done.base_offset if error == 0 else -1)
    if terms.version >= PRODUCE_APPEND_TIME_FROM:
        write_i64(w, done.log_append_time_ms if error == 0 else -1)
    if terms.version >= PRODUCE_LOG_START_OFFSET_FROM:
        write_i64(w, done.log_start_offset if error == 0 else -1)
    if terms.version >= PRODUCE_RECORD_ERRORS_FROM:
        _write_refusal(w, terms.flexible, &done.refusal, done.storage if error == KAFKA_STORAGE_ERROR else 0)
    write_no_tags(w, terms.flexible)


cdef void _tally_part(ProduceGroup* g, const Part* part) noexcept nogil:
    """Of a request that is answered."""
    if part.appended:
        return
    if part.append.done.error == 0:
        if part.refused != NULL:
            partition_tally_empty(part.refused)
    else:
        tally_refusals(partition_tally(part.refused) if part.refused != NULL else logset_nobody(g.logs), 1)


cdef bint produce_waits(const ProduceGroup* g) noexcept nogil:
    return g.waits


cdef inline int32_t _numbers_after_error(int16_t version) noexcept nogil:
    """Of a partition in an answer, as _write_partition writes them: what an error has -1 for."""
    return 1 + (version >= PRODUCE_APPEND_TIME_FROM) + (version >= PRODUCE_LOG_START_OFFSET_FROM)


cdef bint _keep_waiting(
    const ProduceTerms* terms, const Part* part, size_t at, size_t end, ProduceWait** acks
) noexcept nogil:
    """`at`: where the partition's answer begins, which ends with its tagged fields. False: no memory."""
    cdef int64_t deadline_ms = later_ms(monotonic_ns() // 1_000_000, max(terms.timeout_ms, 0))
    if acks[0] == NULL:
        acks[0] = acks_new(_numbers_after_error(terms.version), deadline_ms)
    if acks[0] == NULL:
        return False
    acks[0].waiting.deadline_ms = min(acks[0].waiting.deadline_ms, deadline_ms)
    return acks_add(
        acks[0], part.waits, part.append.done.needed, part.append.done.leader_epoch, at + INDEX_BYTES, end - 1
    )


cdef bint _find_leader(
    const ProduceGroup* g, const Asked* asked, const ProduceTopic* topic, int32_t index, int16_t error, Leader* out
) noexcept nogil:
    """Whether the client is to be told who leads a partition of its request."""
    cdef Partition* partition
    cdef bint found
    if error != NOT_LEADER_OR_FOLLOWER or asked.terms.version < PRODUCE_LEADERS_FROM:
        return False
    partition = produce_find(g.logs, topic, index)
    if partition == NULL:
        return False
    found = find_leader(asked.sender.addresses, partition, error, out)
    partition_release(partition)
    return found


cdef ProduceResult produce_answer(
    ProduceGroup* g, size_t i, Writer* out, ProduceWait** acks, ProduceTally* tally
) noexcept nogil:
    cdef const ProduceTerms* terms = &g.asked[i].terms
    cdef Reader body = g.asked[i].topics
    cdef Reader* r = &body
    cdef Append* part
    cdef ProduceTopic topic
    cdef LeaderPlaces leaders
    cdef Leader leader
    cdef size_t before = out.n, at, begun, place = g.asked[i].first
    cdef int32_t index, _i, _j
    cdef int32_t waited = acks[0].n if acks[0] != NULL else 0
    cdef int16_t error
    cdef int64_t errors = 0
    cdef bint kept = True
    at = answer_begin(out, g.asked[i].correlation_id, terms.flexible)
    write_count(out, terms.topics, terms.flexible)
    for _i in range(terms.topics):
        produce_topic(r, terms.version, &topic)
        if topic.id != NULL:
            write_raw(out, topic.id, TOPIC_ID_BYTES)
        else:
            write_string(out, topic.name, terms.flexible)
        write_count(out, topic.partitions, terms.flexible)
        for _j in range(topic.partitions):
            produce_part(r, terms.version, &index)
            part = &g.parts[place].append
            _tally_part(g, &g.parts[place])
            place += 1
            error = part.done.error
            if error == KAFKA_STORAGE_ERROR and terms.version < PRODUCE_STORAGE_ERROR_FROM:
                error = NOT_LEADER_OR_FOLLOWER
            if error:
                errors += 1
            else:
                tally.batches += _count_batches(part.records, <int64_t>part.n)
                tally.bytes += <int64_t>part.n
            begun = out.n
            _write_partition(out, terms, index, error, &part.done)
            if g.parts[place - 1].waits != NULL:
                kept = kept and _keep_waiting(terms, &g.parts[place - 1], begun, out.n, acks)
            if _find_leader(g, &g.asked[i], &topic, index, error, &leader):
                leaders[out.n - 1] = leader
        skip_tags(r, terms.flexible)
        write_no_tags(out, terms.flexible)
    if terms.version >= PRODUCE_THROTTLE_FROM:
        write_i32(out, 0)                             # throttle_time_ms
    write_no_tags(out, terms.flexible)
    tally.errors += errors
    if terms.acks == 0:
        out.n = before
        return PRODUCE_CLOSE if errors else PRODUCE_SILENT
    if out.failed or not kept:
        out.n = before
        if acks[0] != NULL:
            acks_cut(acks[0], waited)
        return PRODUCE_NO_MEMORY
    answer_end(out, at, 0)
    if acks[0] != NULL:
        if terms.version >= PRODUCE_LEADERS_FROM:
            acks_name_leaders(acks[0], leaders, g.asked[i].sender.addresses, g.asked[i].sender.listener)
    elif not leaders.empty():
        name_leaders(out, at, leaders, TAG_CURRENT_LEADER, g.asked[i].sender.addresses, g.asked[i].sender.listener)
    return PRODUCE_ANSWERED


cdef bint produce_held(LogSet* logs, const RequestHead* head, Reader body) noexcept nogil:
    cdef Reader* r = &body
    cdef ProduceTerms terms
    cdef ProduceTopic topic
    cdef Partition* partition
    cdef bint held = False
    cdef int32_t index, _i, _j
    if produce_partitions(head, body) < 0:
        return False
    produce_terms(r, head, &terms)
    for _i in range(terms.topics):
        produce_topic(r, terms.version, &topic)
        for _j in range(topic.partitions):
            produce_part(r, terms.version, &index)
            partition = produce_find(logs, &topic, index)
            if partition != NULL:
                held = held or partition_held(partition)
                partition_release(partition)
        skip_tags(r, terms.flexible)
    return held


cdef ProduceResult produce_serve(
    LogSet* logs, const Sender* sender, const RequestHead* head, Reader body, Writer* out, ProduceWait** acks,
    ProduceTally* tally, const int16_t* verdicts, int64_t guard, uint32_t* topic
) noexcept nogil:
    cdef ProduceGroup g
    cdef ProduceResult result
    memset(&g, 0, sizeof(ProduceGroup))
    result = produce_take(&g, logs, sender, head, body, verdicts, guard)
    topic[0] = 0
    if result == PRODUCE_TAKEN:
        topic[0] = produce_topic_number(&g, 0)
        produce_append(&g, NULL)
        result = produce_answer(&g, 0, out, acks, tally)
    produce_clear(&g)
    free(g.parts)
    return result
