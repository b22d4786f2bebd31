"""Finding partitions, holding them, waiting for their ends; see partition.pxd."""

from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport INT64_MAX, int16_t, int64_t, uint32_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map

from penstock.pyx.errorcodes cimport (
    NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT,
)
from penstock.pyx.linux.posix cimport (
    atomic_add32, atomic_add64, atomic_load32, atomic_load64, atomic_store64, memcmp, memcpy, memset,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_trylock,
    pthread_mutex_unlock, pthread_rwlock_destroy, pthread_rwlock_init, pthread_rwlock_rdlock, pthread_rwlock_t,
    pthread_rwlock_tryrdlock, pthread_rwlock_unlock, pthread_rwlock_wrlock,
)
from penstock.pyx.log.epochs cimport epochs_end
from penstock.pyx.log.files cimport dropped, made
from penstock.pyx.log.logconfig cimport config_flushes
from penstock.pyx.log.partitionlog cimport (
    PartitionLog, amendment_clear, end_of, folder_release, is_offline, log_of,
)
from penstock.pyx.log.producerstate cimport ProducerEntry, producers_clear, sequence_is_after
from penstock.pyx.log.role cimport NO_BROKER, NO_EPOCH, ROLE_LEADER
from penstock.pyx.log.segment cimport segment_release
from penstock.pyx.log.topictally cimport (
    PartitionTally, Tallies, TopicTally, tallies_close, tallies_drop, tallies_open, tallies_sum_others, tallies_take,
    topic_tally_release, topic_tally_retain, topic_tally_sum,
)
from penstock.pyx.record.crc cimport crc32c_update
from penstock.pyx.record.frame cimport TOPIC_ID_BYTES

# Keyed by a checksum of name (or id) and index; those that share one are told apart by comparing.
cdef struct LogSet:
    pthread_rwlock_t lock
    unordered_map[uint32_t, vector[PartitionLog*]] by_name
    unordered_map[uint32_t, vector[PartitionLog*]] by_id
    unordered_map[string, int32_t] topic_ids       # partitions led of each topic id
    int32_t flushing                               # atomic: partitions with flush.messages
    int64_t held                                   # atomic: produce requests that were held
    int64_t lease_until_ms                         # atomic
    Tallies tallies

cdef WakeHook wake_hook = NULL


# Every set of the process. Never freed: threads may outlive the interpreter.
cdef struct Sets:
    vector[LogSet*] all

cdef Sets* sets = made[Sets]()
cdef pthread_mutex_t sets_lock
pthread_mutex_init(&sets_lock, NULL)


cdef void _forget_set(LogSet* gone) noexcept nogil:
    cdef size_t i
    pthread_mutex_lock(&sets_lock)
    for i in range(sets.all.size()):
        if sets.all[i] == gone:
            sets.all.erase(sets.all.begin() + i)
            break
    pthread_mutex_unlock(&sets_lock)


cdef bint partitions_visit(Visit visit, void* given) noexcept nogil:
    cdef size_t i, j
    cdef LogSet* logs
    cdef bint all = True
    if pthread_mutex_trylock(&sets_lock) != 0:
        return False
    for i in range(sets.all.size()):
        logs = sets.all[i]
        if pthread_rwlock_tryrdlock(&logs.lock) != 0:
            all = False
            continue
        one = logs.by_name.begin()
        while one != logs.by_name.end():
            for j in range(at(one).second.size()):
                visit(<Partition*>at(one).second[j], given)
            step(one)
        pthread_rwlock_unlock(&logs.lock)
    pthread_mutex_unlock(&sets_lock)
    return all


# --- finding ------------------------------------------------------------------------------------------------
cdef class LogSetOwner:
    """Keeps a LogSet for as long as it lives; `LogManager` of logmanager.pyx is one."""

    def __cinit__(self):
        self.set = made[LogSet]()
        pthread_rwlock_init(&self.set.lock, NULL)
        tallies_open(&self.set.tallies)
        self.set.lease_until_ms = INT64_MAX
        with nogil:
            pthread_mutex_lock(&sets_lock)
            sets.all.push_back(self.set)
            pthread_mutex_unlock(&sets_lock)

    def __dealloc__(self):
        with nogil:
            _forget_set(self.set)
        pthread_rwlock_destroy(&self.set.lock)
        tallies_close(&self.set.tallies)
        dropped[LogSet](self.set)


cdef inline uint32_t _key(const void* name, size_t n, int32_t index) noexcept nogil:
    return crc32c_update(<uint32_t>index, <const uint8_t*>name, n)


cdef Partition* partition_find(LogSet* logs, const char* topic, size_t n, int32_t index) noexcept nogil:
    cdef PartitionLog* p = NULL
    cdef size_t i
    pthread_rwlock_rdlock(&logs.lock)
    found = logs.by_name.find(_key(topic, n, index))
    if found != logs.by_name.end():
        for i in range(at(found).second.size()):
            p = at(found).second[i]
            if p.index == index and p.topic.size() == n and memcmp(p.topic.data(), topic, n) == 0:
                atomic_add32(&p.refs, 1)
                break
            p = NULL
    pthread_rwlock_unlock(&logs.lock)
    return <Partition*>p


cdef Partition* partition_find_id(LogSet* logs, const uint8_t* topic_id16, int32_t index) noexcept nogil:
    cdef PartitionLog* p = NULL
    cdef size_t i
    pthread_rwlock_rdlock(&logs.lock)
    found = logs.by_id.find(_key(topic_id16, TOPIC_ID_BYTES, index))
    if found != logs.by_id.end():
        for i in range(at(found).second.size()):
            p = at(found).second[i]
            if p.index == index and memcmp(p.topic_id, topic_id16, TOPIC_ID_BYTES) == 0:
                atomic_add32(&p.refs, 1)
                break
            p = NULL
    pthread_rwlock_unlock(&logs.lock)
    return <Partition*>p


cdef bint partition_known_id(LogSet* logs, const uint8_t* topic_id16) noexcept nogil:
    cdef string topic_id
    cdef bint known
    topic_id.assign(<const char*>topic_id16, TOPIC_ID_BYTES)
    pthread_rwlock_rdlock(&logs.lock)
    known = logs.topic_ids.count(topic_id) != 0
    pthread_rwlock_unlock(&logs.lock)
    return known


cdef bint partition_took(Partition* partition, int64_t producer_id, int16_t epoch, int32_t sequence) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef const ProducerEntry* entry
    cdef bint took = False
    pthread_mutex_lock(&p.lock)
    found = p.log.producers.entries.find(producer_id)
    if found != p.log.producers.entries.end():
        entry = &at(found).second
        took = entry.epoch > epoch or (
            entry.epoch == epoch and entry.count > 0
            and not sequence_is_after(sequence, entry.batches[entry.count - 1].last_sequence)
        )
    pthread_mutex_unlock(&p.lock)
    return took


cdef void logset_add(LogSet* logs, Partition* partition, Partition* before) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    pthread_rwlock_wrlock(&logs.lock)
    if before != NULL:
        _forget_all(logs, log_of(before))
    _know(logs, p)
    pthread_rwlock_unlock(&logs.lock)


cdef void _know(LogSet* logs, PartitionLog* p) noexcept nogil:
    cdef string topic_id
    topic_id.assign(<const char*>p.topic_id, TOPIC_ID_BYTES)
    logs.by_name[_key(p.topic.data(), p.topic.size(), p.index)].push_back(p)
    logs.by_id[_key(p.topic_id, TOPIC_ID_BYTES, p.index)].push_back(p)
    logs.topic_ids[topic_id] += 1
    p.topic_tally.led += 1


cdef void _forget(unordered_map[uint32_t, vector[PartitionLog*]]& table, uint32_t key, PartitionLog* p) noexcept nogil:
    cdef size_t i
    found = table.find(key)
    if found == table.end():
        return
    for i in range(at(found).second.size()):
        if at(found).second[i] == p:
            at(found).second.erase(at(found).second.begin() + i)
            break
    if at(found).second.empty():
        table.erase(found)


cdef void _forget_all(LogSet* logs, PartitionLog* p) noexcept nogil:
    cdef string topic_id
    topic_id.assign(<const char*>p.topic_id, TOPIC_ID_BYTES)
    _forget(logs.by_name, _key(p.topic.data(), p.topic.size(), p.index), p)
    _forget(logs.by_id, _key(p.topic_id, TOPIC_ID_BYTES, p.index), p)
    logs.topic_ids[topic_id] -= 1
    if logs.topic_ids[topic_id] <= 0:
        logs.topic_ids.erase(topic_id)
    p.topic_tally.led -= 1


cdef void logset_remove(LogSet* logs, Partition* partition) noexcept nogil:
    pthread_rwlock_wrlock(&logs.lock)
    _forget_all(logs, log_of(partition))
    pthread_rwlock_unlock(&logs.lock)


cdef bint logset_flushes(LogSet* logs) noexcept nogil:
    return atomic_load32(&logs.flushing) > 0


cdef void logset_count_flushing(LogSet* logs, int32_t change) noexcept nogil:
    atomic_add32(&logs.flushing, change)


cdef const int64_t* logset_lease(LogSet* logs) noexcept nogil:
    return &logs.lease_until_ms


cdef void logset_set_lease(LogSet* logs, int64_t until_ms) noexcept nogil:
    atomic_store64(&logs.lease_until_ms, until_ms)


cdef bint partition_flushes(Partition* partition) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef bint flushes
    pthread_mutex_lock(&p.seldom)
    flushes = config_flushes(&p.wanted)
    pthread_mutex_unlock(&p.seldom)
    return flushes


cdef size_t partition_folder(Partition* partition) noexcept nogil:
    return <size_t>log_of(partition).folder


# --- counting -----------------------------------------------------------------------------------------------
cdef PartitionTally* partition_tally(Partition* partition) noexcept nogil:
    return log_of(partition).tally


cdef void partition_tally_empty(Partition* partition) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    pthread_mutex_lock(&p.lock)
    p.tally.appends += 1
    pthread_mutex_unlock(&p.lock)


cdef PartitionTally* logset_nobody(LogSet* logs) noexcept nogil:
    return &logs.tallies.nobody


cdef uint32_t partition_topic_number(Partition* partition) noexcept nogil:
    return log_of(partition).topic_tally.number


cdef void logset_topic_name(LogSet* logs, uint32_t number, string& out) noexcept nogil:
    pthread_rwlock_rdlock(&logs.lock)
    one = logs.tallies.topics.begin()
    while one != logs.tallies.topics.end():
        if at(one).second.number == number:
            out = at(one).first
            break
        step(one)
    pthread_rwlock_unlock(&logs.lock)


cdef void logset_drop_topic(LogSet* logs, const char* topic, size_t n) noexcept nogil:
    cdef string name
    name.assign(topic, n)
    pthread_mutex_lock(&logs.tallies.lock)
    pthread_rwlock_wrlock(&logs.lock)
    tallies_drop(&logs.tallies, name)
    pthread_rwlock_unlock(&logs.lock)
    pthread_mutex_unlock(&logs.tallies.lock)


cdef void logset_tallies(
    LogSet* logs, vector[TopicTally*]& topics, vector[PartitionTally]& sums, PartitionTally* others
) noexcept nogil:
    cdef PartitionTally sum
    pthread_mutex_lock(&logs.tallies.lock)            # a topic that goes meanwhile would be missed
    pthread_rwlock_rdlock(&logs.lock)
    topics.reserve(logs.tallies.topics.size())
    sums.reserve(logs.tallies.topics.size())
    one = logs.tallies.topics.begin()
    while one != logs.tallies.topics.end():
        memset(&sum, 0, sizeof(PartitionTally))
        topic_tally_sum(at(one).second, &sum)
        topic_tally_retain(at(one).second)
        topics.push_back(at(one).second)
        sums.push_back(sum)
        step(one)
    pthread_rwlock_unlock(&logs.lock)
    memset(others, 0, sizeof(PartitionTally))
    tallies_sum_others(&logs.tallies, others)
    pthread_mutex_unlock(&logs.tallies.lock)


cdef void _add_extent(PartitionLog* p, vector[Extent]& out) noexcept nogil:
    cdef Extent extent
    cdef size_t i
    if atomic_load32(&p.stopped) or is_offline(p):
        return
    extent.topic = p.topic_tally
    topic_tally_retain(p.topic_tally)
    extent.index = p.index
    extent.size = 0
    pthread_mutex_lock(&p.seldom)
    for i in range(p.log.segments.size()):
        extent.size += atomic_load64(&p.log.segments[i].size)
    pthread_mutex_unlock(&p.seldom)
    extent.log_start = atomic_load64(&p.log.log_start)
    extent.log_end = atomic_load64(&p.log.log_end)
    out.push_back(extent)


cdef void logset_extents(LogSet* logs, vector[Extent]& out) noexcept nogil:
    cdef size_t i
    pthread_rwlock_rdlock(&logs.lock)
    one = logs.by_name.begin()
    while one != logs.by_name.end():
        for i in range(at(one).second.size()):
            _add_extent(at(one).second[i], out)
        step(one)
    pthread_rwlock_unlock(&logs.lock)


# --- moves --------------------------------------------------------------------------------------------------
cdef bint partition_enter(Partition* partition) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    # In this order: a move sets `held` first, then waits until nobody is in.
    atomic_add32(&p.appending, 1)
    return atomic_load32(&p.held) != 0


cdef void partition_leave(Partition* partition) noexcept nogil:
    atomic_add32(&log_of(partition).appending, -1)


cdef bint partition_held(Partition* partition) noexcept nogil:
    return atomic_load32(&log_of(partition).held) != 0


cdef void logset_count_held(LogSet* logs) noexcept nogil:
    atomic_add64(&logs.held, 1)


cdef int64_t logset_held(LogSet* logs) noexcept nogil:
    return atomic_load64(&logs.held)


# --- holding ------------------------------------------------------------------------------------------------
cdef Partition* partition_new(
    LogSet* logs, const char* topic, size_t n, const uint8_t* topic_id16, int32_t index
) noexcept nogil:
    cdef PartitionLog* p = made[PartitionLog]()
    p.refs = 1
    pthread_mutex_init(&p.lock, NULL)
    pthread_mutex_init(&p.seldom, NULL)
    pthread_mutex_init(&p.upkeep, NULL)
    pthread_mutex_init(&p.cleaning, NULL)
    p.topic.assign(topic, n)
    p.index = index
    memcpy(p.topic_id, topic_id16, TOPIC_ID_BYTES)
    p.role = ROLE_LEADER
    p.leader_id = NO_BROKER
    p.broker_epoch = p.partition_epoch = p.leads_since = p.unclean_epoch = NO_EPOCH
    amendment_clear(&p.amendment)
    pthread_rwlock_wrlock(&logs.lock)
    p.topic_tally = tallies_take(&logs.tallies, p.topic, index, &p.tally)
    pthread_rwlock_unlock(&logs.lock)
    return <Partition*>p


cdef void partition_retain(Partition* partition) noexcept nogil:
    atomic_add32(&log_of(partition).refs, 1)


cdef void partition_release(Partition* partition) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef size_t i
    if atomic_add32(&p.refs, -1) != 0:
        return
    for i in range(p.log.segments.size()):
        segment_release(p.log.segments[i])
    for i in range(p.expired.size()):
        segment_release(p.expired[i])
    producers_clear(&p.log.producers)
    pthread_mutex_destroy(&p.lock)
    pthread_mutex_destroy(&p.seldom)
    pthread_mutex_destroy(&p.upkeep)
    pthread_mutex_destroy(&p.cleaning)
    folder_release(p.folder)
    topic_tally_release(p.topic_tally)
    dropped[PartitionLog](p)


cdef const char* partition_topic(Partition* partition, size_t* n) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    n[0] = p.topic.size()
    return p.topic.c_str()


cdef int32_t partition_index(Partition* partition) noexcept nogil:
    return log_of(partition).index


cdef int32_t partition_leader_epoch(Partition* partition) noexcept nogil:
    return atomic_load32(&log_of(partition).leader_epoch)


cdef int32_t partition_leader(Partition* partition, int32_t* epoch) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef int32_t leader
    pthread_mutex_lock(&p.lock)
    epoch[0] = p.leader_epoch
    leader = p.leader_id
    if p.role == ROLE_LEADER:
        leader = NO_BROKER if p.isolated else <int32_t>THIS_BROKER
    pthread_mutex_unlock(&p.lock)
    return leader


# --- waiting ------------------------------------------------------------------------------------------------
cdef void set_wake_hook(WakeHook hook) noexcept nogil:
    global wake_hook
    wake_hook = hook


cdef void wake_reactors(Partition* p, uint64_t reactors) noexcept nogil:
    if reactors != 0 and wake_hook != NULL:
        wake_hook(p, reactors)


cdef bint partition_watch(Partition* partition, int reactor, int8_t isolation, int64_t known_end) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef bint moved
    pthread_mutex_lock(&p.lock)
    moved = (
        p.stopped
        or p.role != ROLE_LEADER
        or (p.isolated and isolation != ISOLATION_LOG_END)
        or is_offline(p)
        or end_of(p, isolation) > known_end
    )
    if not moved:
        if isolation == ISOLATION_COMMITTED:
            p.waiting_stable |= <uint64_t>1 << reactor
        elif isolation == ISOLATION_UNCOMMITTED:
            p.waiting_high |= <uint64_t>1 << reactor
        else:
            p.waiting_log_end |= <uint64_t>1 << reactor
    pthread_mutex_unlock(&p.lock)
    return moved


cdef int16_t partition_committed(
    Partition* partition, int reactor, int64_t needed, int32_t leader_epoch, bint last
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef int16_t answer = COMMITTED_NOT_YET
    pthread_mutex_lock(&p.lock)
    if p.stopped or p.role != ROLE_LEADER or p.leads_since > leader_epoch:
        answer = NOT_LEADER_OR_FOLLOWER
    elif p.high_watermark >= needed:
        answer = 0
    elif is_offline(p) or p.isolated:
        answer = NOT_LEADER_OR_FOLLOWER
    elif last:
        answer = REQUEST_TIMED_OUT if p.isr_n >= p.enough else NOT_ENOUGH_REPLICAS_AFTER_APPEND
    elif reactor == CONTROL_PLANE:
        p.awaited = True
    else:
        p.waiting_high |= <uint64_t>1 << reactor
    pthread_mutex_unlock(&p.lock)
    return answer


cdef void partition_offsets(
    Partition* partition, int64_t* log_start, int64_t* last_stable, int64_t* high_watermark, int64_t* log_end
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    # They grow, and are set in the opposite order: so none is seen above the next, but for a log start that moves, or
    # while the log is cut.
    log_start[0] = atomic_load64(&p.log.log_start)
    last_stable[0] = atomic_load64(&p.last_stable)
    high_watermark[0] = atomic_load64(&p.high_watermark)
    log_end[0] = max(atomic_load64(&p.log.log_end), log_start[0])
    high_watermark[0] = min(max(high_watermark[0], log_start[0]), log_end[0])
    last_stable[0] = min(max(last_stable[0], log_start[0]), high_watermark[0])


cdef void partition_epoch_end(Partition* partition, int32_t epoch, int32_t* found, int64_t* end_offset) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    pthread_mutex_lock(&p.seldom)
    epochs_end(&p.log.epochs, epoch, atomic_load64(&p.log.log_end), found, end_offset)
    pthread_mutex_unlock(&p.seldom)
