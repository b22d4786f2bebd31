"""The partitions that one client fetches; see fetchset.pxd."""

from penstock.pyx.errorcodes cimport UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
from penstock.pyx.linux.posix cimport free, malloc, memcmp, memcpy, memset, realloc
from penstock.pyx.log.partition cimport partition_find, partition_find_id, partition_known_id, partition_release
from penstock.pyx.record.crc cimport crc32c_update

cdef enum:
    BUCKETS_MIN = 8
    FREE_PLACE = -1                   # a topic's `partitions` where there is none


cdef void set_open(FetchSet* s) noexcept nogil:
    memset(s, 0, sizeof(FetchSet))
    s.topics_free = NOWHERE
    s.free = NOWHERE
    s.first = NOWHERE
    s.last = NOWHERE


cdef void set_close(FetchSet* s) noexcept nogil:
    cdef int32_t at = s.first, i
    while at != NOWHERE:
        set_unresolve(&s.partitions[at])
        at = s.partitions[at].next
    for i in range(s.topics_used):
        free(s.topics[i].name)
    free(s.topics)
    free(s.partitions)
    free(s.buckets)
    set_open(s)


cdef bint _grow(FetchSet* s, void** places, int32_t* capacity, size_t place_bytes) noexcept nogil:
    """Twice the places of one of its arrays, and counts their bytes. False when there is no memory."""
    cdef int32_t wanted = capacity[0] * 2 + 1
    cdef void* grown = realloc(places[0], <size_t>wanted * place_bytes)
    if grown == NULL:
        return False
    s.bytes += (wanted - capacity[0]) * <int64_t>place_bytes
    places[0] = grown
    capacity[0] = wanted
    return True


# --- buckets ------------------------------------------------------------------------------------------------
cdef inline int32_t* _topic_bucket(FetchSet* s, uint32_t hash) noexcept nogil:
    return &s.buckets[hash & <uint32_t>(s.bucket_count - 1)]


cdef inline int32_t* _partition_bucket(FetchSet* s, int32_t topic, int32_t index) noexcept nogil:
    cdef uint32_t mixed = <uint32_t>topic * <uint32_t>0x9E3779B1 + <uint32_t>index * <uint32_t>0x85EBCA77
    mixed ^= mixed >> 15
    return &s.buckets[s.bucket_count + <int32_t>(mixed & <uint32_t>(s.bucket_count - 1))]


cdef void _fill_buckets(FetchSet* s) noexcept nogil:
    cdef int32_t at = s.first, i
    cdef int32_t* bucket
    for i in range(2 * s.bucket_count):
        s.buckets[i] = NOWHERE
    for i in range(s.topics_used):
        if s.topics[i].partitions != FREE_PLACE:
            bucket = _topic_bucket(s, s.topics[i].hash)
            s.topics[i].chain = bucket[0]
            bucket[0] = i
    while at != NOWHERE:
        bucket = _partition_bucket(s, s.partitions[at].topic, s.partitions[at].index)
        s.partitions[at].chain = bucket[0]
        bucket[0] = at
        at = s.partitions[at].next


cdef bint _make_buckets(FetchSet* s, int32_t count) noexcept nogil:
    cdef int32_t* grown = <int32_t*>realloc(s.buckets, 2 * <size_t>count * sizeof(int32_t))
    if grown == NULL:
        return False
    s.bytes += 2 * <int64_t>(count - s.bucket_count) * <int64_t>sizeof(int32_t)
    s.buckets = grown
    s.bucket_count = count
    _fill_buckets(s)
    return True


cdef bint set_index(FetchSet* s) noexcept nogil:
    return _make_buckets(s, BUCKETS_MIN)


cdef void _chain_out(int32_t* bucket, int32_t at, FetchSet* s, bint topic) noexcept nogil:
    """Takes a topic or a partition out of its bucket."""
    cdef int32_t* link = bucket
    while link[0] != at:
        link = &s.topics[link[0]].chain if topic else &s.partitions[link[0]].chain
    link[0] = s.topics[at].chain if topic else s.partitions[at].chain


# --- topics -------------------------------------------------------------------------------------------------
cdef inline uint32_t _topic_hash(Slice name, const uint8_t* topic_id) noexcept nogil:
    return crc32c_update(0, name.p, <size_t>name.n) if topic_id == NULL else crc32c_update(0, topic_id, TOPIC_ID_BYTES)


cdef bint _is_topic(const FetchTopic* topic, Slice name, const uint8_t* topic_id) noexcept nogil:
    if topic_id != NULL:
        return topic.name == NULL and memcmp(topic.topic_id, topic_id, TOPIC_ID_BYTES) == 0
    return topic.name != NULL and topic.name_n == name.n and memcmp(topic.name, name.p, <size_t>name.n) == 0


cdef int32_t _find_topic(FetchSet* s, Slice name, const uint8_t* topic_id, uint32_t hash) noexcept nogil:
    cdef int32_t i = _topic_bucket(s, hash)[0]
    while i != NOWHERE and not (s.topics[i].hash == hash and _is_topic(&s.topics[i], name, topic_id)):
        i = s.topics[i].chain
    return i


cdef int32_t _topic_place(FetchSet* s) noexcept nogil:
    cdef int32_t i = s.topics_free
    if i != NOWHERE:
        s.topics_free = s.topics[i].chain
        return i
    if s.topics_used == s.topics_capacity and not _grow(
        s, <void**>&s.topics, &s.topics_capacity, sizeof(FetchTopic)
    ):
        return NOWHERE
    s.topics_used += 1
    return s.topics_used - 1


cdef int32_t set_topic(FetchSet* s, Slice name, const uint8_t* topic_id) noexcept nogil:
    cdef uint32_t hash = _topic_hash(name, topic_id) if s.buckets != NULL else 0
    cdef int32_t i = NOWHERE
    cdef FetchTopic* topic
    cdef uint8_t* copy = NULL
    if s.buckets != NULL:
        i = _find_topic(s, name, topic_id, hash)
    if i != NOWHERE:
        return i
    if topic_id == NULL:
        copy = <uint8_t*>malloc(<size_t>name.n + 1)
        if copy == NULL:
            return NOWHERE
        memcpy(copy, name.p, <size_t>name.n)
        s.bytes += name.n + 1
    i = _topic_place(s)
    if i == NOWHERE:
        free(copy)
        return NOWHERE
    topic = &s.topics[i]
    memset(topic, 0, sizeof(FetchTopic))
    topic.name = copy
    topic.name_n = name.n if topic_id == NULL else 0
    topic.hash = hash
    if topic_id != NULL:
        memcpy(topic.topic_id, topic_id, TOPIC_ID_BYTES)
    if s.buckets != NULL:
        topic.chain = _topic_bucket(s, hash)[0]
        _topic_bucket(s, hash)[0] = i
    return i


cdef void _forget_topic(FetchSet* s, int32_t i) noexcept nogil:
    cdef FetchTopic* topic = &s.topics[i]
    _chain_out(_topic_bucket(s, topic.hash), i, s, True)
    if topic.name != NULL:
        s.bytes -= topic.name_n + 1
        free(topic.name)
        topic.name = NULL
    topic.partitions = FREE_PLACE
    topic.chain = s.topics_free
    s.topics_free = i


# --- partitions ---------------------------------------------------------------------------------------------
cdef int32_t _find_partition(FetchSet* s, int32_t topic, int32_t index) noexcept nogil:
    cdef int32_t at = _partition_bucket(s, topic, index)[0]
    while at != NOWHERE and not (s.partitions[at].topic == topic and s.partitions[at].index == index):
        at = s.partitions[at].chain
    return at


cdef int32_t _partition_place(FetchSet* s) noexcept nogil:
    cdef int32_t at = s.free
    if at != NOWHERE:
        s.free = s.partitions[at].chain
        return at
    if s.used == s.capacity and not _grow(s, <void**>&s.partitions, &s.capacity, sizeof(FetchPartition)):
        return NOWHERE
    s.used += 1
    return s.used - 1


cdef void _order_out(FetchSet* s, int32_t at) noexcept nogil:
    cdef FetchPartition* p = &s.partitions[at]
    if p.previous != NOWHERE:
        s.partitions[p.previous].next = p.next
    else:
        s.first = p.next
    if p.next != NOWHERE:
        s.partitions[p.next].previous = p.previous
    else:
        s.last = p.previous


cdef void _order_last(FetchSet* s, int32_t at) noexcept nogil:
    cdef FetchPartition* p = &s.partitions[at]
    p.previous = s.last
    p.next = NOWHERE
    if s.last != NOWHERE:
        s.partitions[s.last].next = at
    else:
        s.first = at
    s.last = at


cdef int32_t set_add(FetchSet* s, int32_t topic, int32_t index) noexcept nogil:
    cdef int32_t at
    cdef FetchPartition* p
    if s.buckets != NULL and s.count >= s.bucket_count and not _make_buckets(s, s.bucket_count * 2):
        return NOWHERE
    at = _partition_place(s)
    if at == NOWHERE:
        return NOWHERE
    p = &s.partitions[at]
    memset(p, 0, sizeof(FetchPartition))
    p.topic = topic
    p.index = index
    p.leader_epoch = -1
    p.last_fetched_epoch = -1
    p.log_start = -1
    p.broker_epoch = -1
    p.cached_high_watermark = -1
    p.cached_log_start = -1
    _order_last(s, at)
    s.count += 1
    s.topics[topic].partitions += 1
    if s.buckets != NULL:
        p.chain = _partition_bucket(s, topic, index)[0]
        _partition_bucket(s, topic, index)[0] = at
    return at


cdef void set_remove(FetchSet* s, int32_t at) noexcept nogil:
    cdef FetchPartition* p = &s.partitions[at]
    set_unresolve(p)
    _order_out(s, at)
    _chain_out(_partition_bucket(s, p.topic, p.index), at, s, False)
    s.count -= 1
    s.topics[p.topic].partitions -= 1
    if s.topics[p.topic].partitions == 0:
        _forget_topic(s, p.topic)
    p.chain = s.free
    s.free = at


cdef void set_move_last(FetchSet* s, int32_t at) noexcept nogil:
    _order_out(s, at)
    _order_last(s, at)


# --- sets ---------------------------------------------------------------------------------------------------
cdef inline Slice _name_of(const FetchTopic* topic) noexcept nogil:
    cdef Slice name
    name.p = topic.name
    name.n = topic.name_n
    return name


cdef inline const uint8_t* _id_of(const FetchTopic* topic) noexcept nogil:
    if topic.name != NULL:
        return NULL
    return topic.topic_id


cdef bint set_merge(FetchSet* s, const FetchSet* asked, bint tells_again) noexcept nogil:
    cdef int32_t from_at = asked.first, at, topic
    cdef const FetchPartition* wanted
    cdef FetchPartition* p
    while from_at != NOWHERE:
        wanted = &asked.partitions[from_at]
        topic = set_topic(s, _name_of(&asked.topics[wanted.topic]), _id_of(&asked.topics[wanted.topic]))
        if topic == NOWHERE:
            return False
        at = _find_partition(s, topic, wanted.index)
        if at == NOWHERE:
            at = set_add(s, topic, wanted.index)
        if at == NOWHERE:
            return False
        p = &s.partitions[at]
        p.leader_epoch = wanted.leader_epoch
        p.last_fetched_epoch = wanted.last_fetched_epoch
        p.max_bytes = wanted.max_bytes
        p.offset = wanted.offset
        p.log_start = wanted.log_start
        p.broker_epoch = wanted.broker_epoch
        if tells_again:
            p.cached_high_watermark = -1
            p.cached_log_start = -1
        from_at = wanted.next
    return True


cdef void set_subtract(FetchSet* s, const FetchSet* forgotten) noexcept nogil:
    cdef int32_t from_at = forgotten.first, at, topic
    cdef const FetchTopic* named
    while from_at != NOWHERE:
        named = &forgotten.topics[forgotten.partitions[from_at].topic]
        topic = _find_topic(s, _name_of(named), _id_of(named), _topic_hash(_name_of(named), _id_of(named)))
        at = NOWHERE if topic == NOWHERE else _find_partition(s, topic, forgotten.partitions[from_at].index)
        if at != NOWHERE:
            set_remove(s, at)
        from_at = forgotten.partitions[from_at].next


# --- logs ---------------------------------------------------------------------------------------------------
cdef int16_t set_resolve(FetchSet* s, LogSet* logs, FetchPartition* partition) noexcept nogil:
    cdef const FetchTopic* topic = &s.topics[partition.topic]
    if partition.partition != NULL:
        return 0
    if topic.name != NULL:
        partition.partition = partition_find(logs, <const char*>topic.name, <size_t>topic.name_n, partition.index)
        return 0 if partition.partition != NULL else UNKNOWN_TOPIC_OR_PARTITION
    partition.partition = partition_find_id(logs, topic.topic_id, partition.index)
    if partition.partition != NULL:
        return 0
    return UNKNOWN_TOPIC_OR_PARTITION if partition_known_id(logs, topic.topic_id) else UNKNOWN_TOPIC_ID


cdef void set_unresolve(FetchPartition* partition) noexcept nogil:
    if partition.partition != NULL:
        partition_release(partition.partition)
    partition.partition = NULL
