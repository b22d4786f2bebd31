"""Partition logs: see partition.pxd for the network threads' side, partition.pyi for the control plane's.

Locks, in the order in which they may be taken: `upkeep` (one flush, retention, stop or delete of a partition at a time;
held while the disk works), the registry's, the partition's `lock` (held for checks, one write and the indexes), a
segment's.
"""

import base64
import threading
from collections import namedtuple
from pathlib import Path

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport uint32_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from penstock.pyx.batch cimport (
    CHECK_CLIENT, CHECK_DENSE, CHECK_STORED, BatchHeader, batch_check, batch_error_code, batch_is_control,
    batch_last_offset, batch_marker_type, batch_parse, batch_set_log_append_time, batch_set_offset,
)
from penstock.pyx.crc cimport crc32c
from penstock.pyx.endian cimport get_i64
from penstock.pyx.epochs cimport epochs_assign, epochs_cut_start, epochs_end, epochs_write
from penstock.pyx.files cimport dropped, is_shortage, made, read_at, sync_folder, wall_ms
from penstock.pyx.posix cimport (
    EIO, atomic_add32, free, ftruncate, malloc, memcmp, memcpy, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, pthread_rwlock_init, pthread_rwlock_rdlock,
    pthread_rwlock_t, pthread_rwlock_unlock, pthread_rwlock_wrlock,
)
from penstock.pyx.producerstate cimport (
    NO_OFFSET, EndedTxn, ProducerEntry, producer_clear, producer_data, producer_marker, producers_expire,
    producers_first_open, producers_remove, producers_sync, producers_write,
)
from penstock.pyx.recovery cimport (
    LogState, RecoveryReport, recover, remove_stray_snapshots, replay_batch, snapshot_stem,
)
from penstock.pyx.segment cimport (
    WALK_BATCH, WALK_END, Segment, segment_aborts, segment_bound, segment_delete, segment_find,
    segment_find_time, segment_flush, segment_flush_log, segment_hold_indexes, segment_index_batch,
    segment_index_full, segment_last_time, segment_new, segment_open, segment_release, segment_reset_indexes,
    segment_rest, segment_retain, segment_seal, segment_write,
)
from penstock.pyx.txnindex cimport (
    TXN_FIRST_OFFSET_AT, TXN_LAST_OFFSET_AT, TXN_PRODUCER_ID_AT, TXN_STABLE_OFFSET_AT, TXNINDEX_ENTRY,
)

import os

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.checkpoint import Checkpoints

cdef enum:
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    NOT_LEADER_OR_FOLLOWER = 6
    MESSAGE_TOO_LARGE = 10
    RECORD_LIST_TOO_LARGE = 18
    INVALID_TIMESTAMP = 32
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    INVALID_RECORD = 87

cdef enum:
    TOPIC_ID_BYTES = 16
    SEGMENT_MAX_BYTES = 0x7fffffff     # positions in an index are 32 bits
    RELATIVE_MAX = 0x7fffffff          # so are its offsets

cdef struct Partition:
    int32_t refs
    pthread_mutex_t lock
    pthread_mutex_t upkeep
    string topic
    int32_t index
    uint8_t topic_id[TOPIC_ID_BYTES]
    LogConfig config
    LogState log
    int32_t leader_epoch
    int64_t high_watermark
    int64_t last_stable
    uint64_t waiting_end               # reactors that wait for the high watermark or log end
    uint64_t waiting_stable            # reactors that wait for the last stable offset
    bint stopped
    bint offline                       # the disk failed: what is in the page cache can't be believed any more
    int64_t flushed_ms                 # when the active segment was last flushed
    int64_t log_end_flushed
    bint epochs_unsynced               # leader-epoch-checkpoint was replaced since it was last synced

cdef struct Registry:
    pthread_rwlock_t lock
    unordered_map[uint32_t, vector[Partition*]] by_name
    unordered_map[uint32_t, vector[Partition*]] by_id
    unordered_map[string, int32_t] topic_ids       # partitions led of each topic id

cdef Registry* registry = made[Registry]()
pthread_rwlock_init(&registry.lock, NULL)
cdef WakeHook wake_hook = NULL


# --- finding -------------------------------------------------------------------------------------------------------

cdef inline uint32_t _key(const void* name, size_t n, int32_t index) noexcept nogil:
    return crc32c(<uint32_t>index, <const uint8_t*>name, n)


cdef Partition* partition_find(const char* topic, size_t n, int32_t index) noexcept nogil:
    cdef Partition* p = NULL
    cdef size_t i
    pthread_rwlock_rdlock(&registry.lock)
    found = registry.by_name.find(_key(topic, n, index))
    if found != registry.by_name.end():
        for i in range(at(found).second.size()):
            p = at(found).second[i]
            if p.index == index and p.topic.size() == n and memcmp(p.topic.data(), topic, n) == 0:
                atomic_add32(&p.refs, 1)
                break
            p = NULL
    pthread_rwlock_unlock(&registry.lock)
    return p


cdef Partition* partition_find_id(const uint8_t* topic_id16, int32_t index) noexcept nogil:
    cdef Partition* p = NULL
    cdef size_t i
    pthread_rwlock_rdlock(&registry.lock)
    found = registry.by_id.find(_key(topic_id16, TOPIC_ID_BYTES, index))
    if found != registry.by_id.end():
        for i in range(at(found).second.size()):
            p = at(found).second[i]
            if p.index == index and memcmp(p.topic_id, topic_id16, TOPIC_ID_BYTES) == 0:
                atomic_add32(&p.refs, 1)
                break
            p = NULL
    pthread_rwlock_unlock(&registry.lock)
    return p


cdef bint partition_known_id(const uint8_t* topic_id16) noexcept nogil:
    cdef string topic_id
    cdef bint known
    topic_id.assign(<const char*>topic_id16, TOPIC_ID_BYTES)
    pthread_rwlock_rdlock(&registry.lock)
    known = registry.topic_ids.count(topic_id) != 0
    pthread_rwlock_unlock(&registry.lock)
    return known


# The registry's reference is the caller's.
cdef void _register(Partition* p) noexcept nogil:
    cdef string topic_id
    topic_id.assign(<const char*>p.topic_id, TOPIC_ID_BYTES)
    pthread_rwlock_wrlock(&registry.lock)
    registry.by_name[_key(p.topic.data(), p.topic.size(), p.index)].push_back(p)
    registry.by_id[_key(p.topic_id, TOPIC_ID_BYTES, p.index)].push_back(p)
    registry.topic_ids[topic_id] += 1
    pthread_rwlock_unlock(&registry.lock)


cdef void _forget(unordered_map[uint32_t, vector[Partition*]]& table, uint32_t key, Partition* p) noexcept nogil:
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


cdef void _unregister(Partition* p) noexcept nogil:
    cdef string topic_id
    topic_id.assign(<const char*>p.topic_id, TOPIC_ID_BYTES)
    pthread_rwlock_wrlock(&registry.lock)
    _forget(registry.by_name, _key(p.topic.data(), p.topic.size(), p.index), p)
    _forget(registry.by_id, _key(p.topic_id, TOPIC_ID_BYTES, p.index), p)
    registry.topic_ids[topic_id] -= 1
    if registry.topic_ids[topic_id] <= 0:
        registry.topic_ids.erase(topic_id)
    pthread_rwlock_unlock(&registry.lock)


cdef void partition_retain(Partition* p) noexcept nogil:
    atomic_add32(&p.refs, 1)


cdef void partition_release(Partition* p) noexcept nogil:
    cdef size_t i
    if atomic_add32(&p.refs, -1) != 0:
        return
    for i in range(p.log.segments.size()):
        segment_release(p.log.segments[i])
    pthread_mutex_destroy(&p.lock)
    pthread_mutex_destroy(&p.upkeep)
    dropped[Partition](p)


cdef const char* partition_topic(Partition* p, size_t* n) noexcept nogil:
    n[0] = p.topic.size()
    return p.topic.c_str()


cdef const uint8_t* partition_topic_id(Partition* p) noexcept nogil:
    return p.topic_id


cdef int32_t partition_index(Partition* p) noexcept nogil:
    return p.index


cdef int32_t partition_leader_epoch(Partition* p) noexcept nogil:
    cdef int32_t epoch
    pthread_mutex_lock(&p.lock)
    epoch = p.leader_epoch
    pthread_mutex_unlock(&p.lock)
    return epoch


# --- waiting -------------------------------------------------------------------------------------------------------

cdef void set_wake_hook(WakeHook hook) noexcept nogil:
    global wake_hook
    wake_hook = hook


cdef inline void _wake(uint64_t reactors) noexcept nogil:
    if reactors != 0 and wake_hook != NULL:
        wake_hook(reactors)


# Under the lock: everybody who waits for anything.
cdef inline uint64_t _take_all_waiting(Partition* p) noexcept nogil:
    cdef uint64_t reactors = p.waiting_end | p.waiting_stable
    p.waiting_end = 0
    p.waiting_stable = 0
    return reactors


cdef inline int64_t _end_of(const Partition* p, int8_t isolation) noexcept nogil:
    if isolation == ISOLATION_COMMITTED:
        return p.last_stable
    return p.high_watermark if isolation == ISOLATION_UNCOMMITTED else p.log.log_end


cdef bint partition_watch(Partition* p, int reactor, int8_t isolation, int64_t known_end) noexcept nogil:
    cdef bint moved
    pthread_mutex_lock(&p.lock)
    moved = p.stopped or p.offline or _end_of(p, isolation) > known_end
    if not moved:
        if isolation == ISOLATION_COMMITTED:
            p.waiting_stable |= <uint64_t>1 << reactor
        else:
            p.waiting_end |= <uint64_t>1 << reactor
    pthread_mutex_unlock(&p.lock)
    return moved


cdef void partition_offsets(
    Partition* p, int64_t* log_start, int64_t* last_stable, int64_t* high_watermark, int64_t* log_end
) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    log_start[0] = p.log.log_start
    last_stable[0] = p.last_stable
    high_watermark[0] = p.high_watermark
    log_end[0] = p.log.log_end
    pthread_mutex_unlock(&p.lock)


cdef void partition_epoch_end(Partition* p, int32_t epoch, int32_t* found, int64_t* end_offset) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    epochs_end(&p.log.epochs, epoch, p.log.log_end, found, end_offset)
    pthread_mutex_unlock(&p.lock)


# Under the lock, when the epochs changed. Should the write fail, recovery learns the epochs from the batches again.
cdef int _write_epochs(Partition* p, bint sync) noexcept nogil:
    cdef string path = p.log.folder
    path.append(b"/leader-epoch-checkpoint")
    p.epochs_unsynced = not sync
    return epochs_write(&p.log.epochs, path.c_str(), sync)


# Under the lock: the last stable offset follows from the high watermark, the open transactions and the log start.
cdef inline void _settle_stable(Partition* p) noexcept nogil:
    p.last_stable = producers_first_open(&p.log.producers, p.high_watermark)
    if p.last_stable < p.log.log_start:
        p.last_stable = p.log.log_start


# The disk can't be believed any more. Under the lock; answers who has to be woken.
cdef inline uint64_t _fail(Partition* p) noexcept nogil:
    p.offline = True
    return _take_all_waiting(p)


# --- writing -------------------------------------------------------------------------------------------------------

cdef bint _timestamp_allowed(const LogConfig* config, int64_t timestamp_ms, int64_t now_ms) noexcept nogil:
    if timestamp_ms > now_ms:
        return timestamp_ms - now_ms <= config.timestamp_after_max_ms
    return timestamp_ms == -1 or timestamp_ms >= now_ms - config.timestamp_before_max_ms


# Without the lock: cuts the request into batches and judges each by itself. 0 or Kafka's code.
cdef int16_t _judge(
    const LogConfig* config, const uint8_t* records, size_t n, int origin, int64_t now_ms, vector[BatchHeader]& batches
) noexcept nogil:
    cdef size_t done = 0
    cdef BatchHeader header
    cdef int fault
    cdef int flags = CHECK_STORED
    cdef int64_t max_bytes = 0         # our own batches and the leader's have been judged before
    if origin == ORIGIN_CLIENT:
        flags = CHECK_CLIENT
        max_bytes = config.max_message_bytes
    elif origin == ORIGIN_COORDINATOR:
        flags = CHECK_DENSE            # offset commits of a transaction have a producer id, but no sequence
    if n == 0:
        return INVALID_RECORD
    while done < n:
        fault = batch_parse(records + done, n - done, &header)
        if fault == 0:
            fault = batch_check(records + done, &header, max_bytes, flags)
        if fault != 0:
            return batch_error_code(fault)
        if origin == ORIGIN_CLIENT and header.producer_id >= 0 and header.base_sequence < 0:
            return INVALID_RECORD
        if origin == ORIGIN_COORDINATOR and (header.magic < 2 or batch_is_control(&header) and (
            header.producer_id < 0 or batch_marker_type(records + done, &header, NULL) < 0
        )):
            return INVALID_RECORD
        if origin == ORIGIN_CLIENT and not config.log_append_time and not (
            _timestamp_allowed(config, header.base_timestamp, now_ms)
            and _timestamp_allowed(config, header.max_timestamp, now_ms)
        ):
            return INVALID_TIMESTAMP
        batches.push_back(header)
        done += <size_t>header.size
    return RECORD_LIST_TOO_LARGE if <int64_t>n > config.segment_bytes else 0


# Under the lock: what the producer states say to the batches, without changing them. How many at the front are in
# the log already goes to `repeated`, the offset of the first one to `repeated_at`. 0 or Kafka's code.
cdef int16_t _judge_producers(
    Partition* p, const uint8_t* records, const vector[BatchHeader]& batches, int origin, int64_t now_ms,
    size_t* repeated, int64_t* repeated_at
) noexcept nogil:
    cdef unordered_map[int64_t, ProducerEntry] tried
    cdef unordered_map[int64_t, ProducerEntry].iterator found
    cdef ProducerEntry e
    cdef EndedTxn ended
    cdef int64_t duplicate_of, offset = p.log.log_end
    cdef int32_t coordinator_epoch = -1
    cdef size_t i
    cdef int16_t error
    cdef int marker
    cdef const BatchHeader* header
    repeated[0] = 0
    for i in range(batches.size()):
        header = &batches[i]
        if header.producer_id >= 0 and origin != ORIGIN_REPLICA:
            found = tried.find(header.producer_id)
            if found != tried.end():
                e = at(found).second
            else:
                found = p.log.producers.entries.find(header.producer_id)
                if found != p.log.producers.entries.end():
                    e = at(found).second
                else:
                    producer_clear(&e, header.producer_id)
            duplicate_of = NO_OFFSET
            if batch_is_control(header):
                marker = batch_marker_type(records, header, &coordinator_epoch)
                error = producer_marker(&e, header, marker == 1, coordinator_epoch, origin, offset, now_ms, &ended)
            else:
                error = producer_data(&e, header, origin, offset, now_ms, &duplicate_of)
            if error != 0:
                return error
            if duplicate_of != NO_OFFSET:
                if repeated[0] != i:
                    return OUT_OF_ORDER_SEQUENCE_NUMBER
                repeated[0] += 1
                if i == 0:
                    repeated_at[0] = duplicate_of
                records += header.size
                continue
            if batches.size() > 1:
                tried[header.producer_id] = e
        offset += header.last_offset_delta + 1
        records += header.size
    return 0


# Under the lock: a new segment at the log end. 0 or errno; after an error the old one goes on.
cdef int _roll(Partition* p, int64_t now_ms) noexcept nogil:
    cdef Segment* active = p.log.segments.back()
    cdef Segment* s
    cdef int fd
    cdef int result = segment_hold_indexes(active)
    if result == 0:
        result = producers_write(&p.log.producers, snapshot_stem(p.log.folder, p.log.log_end), False)
    if result != 0:
        return result
    s = segment_new(p.log.folder, p.log.log_end, now_ms)
    segment_reset_indexes(s)
    fd = segment_open(s, True)
    if fd < 0 or ftruncate(fd, 0) != 0:
        segment_release(s)
        return -fd if fd < 0 else EIO
    segment_seal(active)
    active.unflushed = True
    p.log.segments.push_back(s)
    return 0


# Kafka's rule: size, time between the first batch's timestamp and these (without timestamps: the clock), a full index,
# or offsets that don't fit one.
cdef bint _roll_wanted(
    Partition* p, int64_t n, int64_t max_timestamp, int64_t last_offset, int64_t now_ms
) noexcept nogil:
    cdef Segment* s = p.log.segments.back()
    cdef int64_t waited
    if s.size == 0:
        return False
    if s.first_timestamp >= 0 and max_timestamp >= 0:
        waited = max_timestamp - s.first_timestamp
    else:
        waited = now_ms - s.created_ms
    return (
        s.size > p.config.segment_bytes - n
        or waited > p.config.segment_ms
        or segment_index_full(s, p.config.segment_index_bytes)
        or last_offset - s.base_offset > RELATIVE_MAX
    )


# Under the lock: offsets and leader epochs into the batches from `first` on. False: a replica's offsets don't
# follow the log.
cdef bint _assign(
    Partition* p, uint8_t* records, vector[BatchHeader]& batches, size_t first, int origin, int64_t* end,
    int64_t* newest
) noexcept nogil:
    cdef size_t i
    cdef int64_t offset = p.log.log_end
    newest[0] = -1
    for i in range(first, batches.size()):
        if origin == ORIGIN_REPLICA:
            if (batches[i].base_offset if batches[i].magic >= 2 else batch_last_offset(&batches[i])) < offset:
                return False
        else:
            batches[i].base_offset = offset
            batches[i].leader_epoch = p.leader_epoch
            batch_set_offset(records, offset, p.leader_epoch)
        offset = batch_last_offset(&batches[i]) + 1
        if batches[i].max_timestamp > newest[0]:
            newest[0] = batches[i].max_timestamp
        records += batches[i].size
    end[0] = offset
    return True


# Under the lock: the batches are in the file; the indexes, producers, epochs and offsets follow.
cdef void _take_in(
    Partition* p, Segment* s, const uint8_t* records, const vector[BatchHeader]& batches, size_t first, int64_t now_ms
) noexcept nogil:
    cdef size_t i
    cdef int64_t position = s.size
    cdef bint epochs_changed = False
    s.tail_offset = batches[first].base_offset
    s.tail_position = position
    s.tail_size = batches[first].size
    for i in range(first, batches.size()):
        segment_index_batch(s, &batches[i], position, p.config.index_interval_bytes)
        replay_batch(&p.log, s, &batches[i], records, position, True, now_ms)
        if p.log.epochs.entries.empty() or batches[i].leader_epoch > p.log.epochs.entries.back().epoch:
            if epochs_assign(&p.log.epochs, batches[i].leader_epoch, batches[i].base_offset):
                epochs_changed = True
        position += batches[i].size
        records += batches[i].size
    if epochs_changed:
        _write_epochs(p, False)
    p.log.log_end = s.next_offset
    p.high_watermark = p.log.log_end
    _settle_stable(p)


# Under the lock. `wake` gets who has to be woken after it.
cdef int16_t _append_locked(
    Partition* p, uint8_t* records, size_t n, vector[BatchHeader]& batches, int origin, int64_t now_ms, Appended* out,
    uint64_t* wake
) noexcept nogil:
    cdef size_t first = 0, i
    cdef int64_t repeated_at = -1, end = 0, newest = -1, stable
    cdef int16_t error
    cdef int result
    cdef bint broken = False
    cdef Segment* s
    if p.stopped:
        return NOT_LEADER_OR_FOLLOWER
    if p.offline:
        return KAFKA_STORAGE_ERROR
    error = _judge_producers(p, records, batches, origin, now_ms, &first, &repeated_at)
    if error != 0:
        return error
    for i in range(first):
        records += batches[i].size
        n -= <size_t>batches[i].size
    out.log_start_offset = p.log.log_start
    out.base_offset = repeated_at if first > 0 else p.log.log_end
    if first == batches.size():
        return 0
    if not _assign(p, records, batches, first, origin, &end, &newest):
        return CORRUPT_MESSAGE
    if end - 1 - p.log.log_end > RELATIVE_MAX:
        return INVALID_RECORD              # counts that lie: an index couldn't hold the offsets
    if origin == ORIGIN_REPLICA:
        out.base_offset = batches[0].base_offset
    result = segment_hold_indexes(p.log.segments.back())
    if result == 0 and _roll_wanted(p, <int64_t>n, newest, end - 1, now_ms):
        result = _roll(p, now_ms)
    s = p.log.segments.back()
    if result == 0:
        result = segment_write(s, records, n, &broken)
    if result != 0:
        if broken or result == EIO:
            wake[0] = _fail(p)
        return KAFKA_STORAGE_ERROR
    stable = p.last_stable
    _take_in(p, s, records, batches, first, now_ms)
    wake[0] = p.waiting_end
    p.waiting_end = 0
    if p.last_stable > stable:
        wake[0] |= p.waiting_stable
        p.waiting_stable = 0
    return 0


# Without locks: flush.messages asks for a flush before the answer. Appenders that wait for one another's flush find
# their bytes flushed when their turn comes. 0 or KAFKA_STORAGE_ERROR.
cdef int16_t _flush_before_answer(Partition* p, int64_t end, int64_t now_ms) noexcept nogil:
    cdef int result = 0
    cdef bint wanted
    pthread_mutex_lock(&p.upkeep)
    pthread_mutex_lock(&p.lock)
    wanted = p.log_end_flushed < end and not p.stopped
    if p.offline:
        result = EIO
    pthread_mutex_unlock(&p.lock)
    if wanted and result == 0:
        result = _flush(p, True, now_ms, True)
    pthread_mutex_unlock(&p.upkeep)
    return KAFKA_STORAGE_ERROR if result != 0 else 0


cdef int16_t partition_append(Partition* p, uint8_t* records, size_t n, int origin, Appended* out) noexcept nogil:
    cdef vector[BatchHeader] batches
    cdef LogConfig config
    cdef int64_t now_ms = wall_ms()
    cdef int64_t end
    cdef uint64_t wake = 0
    cdef size_t i
    cdef bint due
    cdef uint8_t* batch = records
    out.base_offset = -1
    out.log_append_time_ms = -1
    out.log_start_offset = -1
    pthread_mutex_lock(&p.lock)
    config = p.config
    pthread_mutex_unlock(&p.lock)
    out.error = _judge(&config, records, n, origin, now_ms, batches)
    if out.error != 0:
        return out.error
    if config.log_append_time and origin != ORIGIN_REPLICA:
        out.log_append_time_ms = now_ms
        for i in range(batches.size()):
            if not batch_is_control(&batches[i]):
                batch_set_log_append_time(batch, batches[i].size, now_ms)
                batches[i].max_timestamp = now_ms
            batch += batches[i].size
    pthread_mutex_lock(&p.lock)
    out.error = _append_locked(p, records, n, batches, origin, now_ms, out, &wake)
    end = p.log.log_end
    due = end - p.log_end_flushed >= config.flush_messages
    pthread_mutex_unlock(&p.lock)
    if out.error == 0 and due:
        out.error = _flush_before_answer(p, end, now_ms)
    if out.error != 0:
        out.base_offset = -1
        out.log_append_time_ms = -1
    _wake(wake)
    return out.error


# --- reading -------------------------------------------------------------------------------------------------------

# Under the lock: the number of the segment that holds `offset` (the first one when none does).
cdef size_t _segment_of(const LogState* log, int64_t offset) noexcept nogil:
    cdef size_t low = 0, high = log.segments.size(), middle
    while low + 1 < high:
        middle = (low + high) // 2
        if log.segments[middle].base_offset <= offset:
            low = middle
        else:
            high = middle
    return low


# What a read needs to know of a segment, taken under the lock.
cdef struct Reach:
    Segment* segment                   # a reference is held
    int64_t limit                      # bytes that may be read; -1: up to the batch that holds `end`
    int64_t size
    int64_t next_offset
    int64_t end                        # offsets that may be read
    int64_t tail_offset
    int64_t tail_position
    int64_t tail_size


cdef void _reach(Partition* p, int64_t offset, int8_t isolation, Reach* out) noexcept nogil:
    cdef Segment* s = p.log.segments[_segment_of(&p.log, offset)]
    segment_retain(s)
    out.segment = s
    out.size = s.size
    out.next_offset = s.next_offset
    out.end = _end_of(p, isolation)
    out.tail_offset = s.tail_offset
    out.tail_position = s.tail_position
    out.tail_size = s.tail_size
    out.limit = s.size if out.end >= s.next_offset else -1
    if out.limit < 0 and isolation == ISOLATION_COMMITTED and not p.log.producers.open_txns.empty():
        first = p.log.producers.open_txns.begin()
        if at(first).first == out.end and at(first).second.segment_base == s.base_offset:
            out.limit = at(first).second.position


# Without the lock: the range in the segment. WALK_BATCH, WALK_END (go on in the next segment), or what failed.
cdef int _locate(Reach* reach, int64_t offset, BatchHeader* header, int64_t* position) noexcept nogil:
    cdef int result
    if reach.limit < 0:
        result = segment_find(reach.segment, reach.end, reach.size, header, position)
        if result != WALK_BATCH and result != WALK_END:
            return result
        reach.limit = position[0]          # the end of the segment, if what lay at `end` is missing
    if offset == reach.tail_offset and reach.tail_position + reach.tail_size <= reach.limit:
        header.base_offset = reach.tail_offset
        header.size = reach.tail_size
        position[0] = reach.tail_position
        return WALK_BATCH
    return segment_find(reach.segment, offset, reach.limit, header, position)


cdef int16_t partition_read(
    Partition* p, int64_t offset, int32_t max_bytes, bint whole_first_batch, int8_t isolation, ReadResult* out
) noexcept nogil:
    cdef Reach reach
    cdef BatchHeader header
    cdef int64_t position = 0
    cdef int result
    cdef int16_t error
    out.fd = -1
    out.position = 0
    out.length = 0
    out.first_offset = -1
    out.next_offset = offset
    out.segment = NULL
    while True:
        error = 0
        pthread_mutex_lock(&p.lock)
        out.high_watermark = p.high_watermark
        out.last_stable_offset = p.last_stable
        out.log_start_offset = p.log.log_start
        out.log_end_offset = p.log.log_end
        if p.stopped:
            error = NOT_LEADER_OR_FOLLOWER
        elif p.offline:
            error = KAFKA_STORAGE_ERROR
        elif offset < p.log.log_start or offset > p.log.log_end:
            error = OFFSET_OUT_OF_RANGE
        if error != 0 or offset >= _end_of(p, isolation):
            pthread_mutex_unlock(&p.lock)
            return error
        _reach(p, offset, isolation, &reach)
        pthread_mutex_unlock(&p.lock)
        result = _locate(&reach, offset, &header, &position)
        if result == WALK_BATCH:
            break
        segment_release(reach.segment)
        if result != WALK_END:
            return KAFKA_STORAGE_ERROR
        if reach.next_offset <= offset or reach.next_offset >= reach.end:
            return 0                   # holes up to the end of what may be read
        offset = reach.next_offset     # compaction has left a hole at the segment's end
    out.length = reach.limit - position
    if out.length > max_bytes:
        out.length = max_bytes
    if whole_first_batch and out.length < header.size:
        out.length = header.size
    if out.length <= 0:
        out.length = 0
        segment_release(reach.segment)
        return 0
    out.segment = reach.segment
    out.fd = segment_open(reach.segment, False)
    if out.fd < 0:
        read_release(out)
        out.fd = -1
        out.length = 0
        return KAFKA_STORAGE_ERROR
    out.position = position
    out.first_offset = header.base_offset
    out.next_offset = reach.end if reach.end < reach.next_offset else reach.next_offset
    if isolation == ISOLATION_COMMITTED and position + out.length < reach.limit:
        out.next_offset = segment_bound(reach.segment, position + out.length, out.next_offset)
    return 0


cdef void read_release(ReadResult* result) noexcept nogil:
    if result.segment != NULL:
        segment_release(<Segment*>result.segment)
    result.segment = NULL


cdef int16_t partition_aborted(
    Partition* p, int64_t from_offset, int64_t to_offset, vector[AbortedTxn]& out
) noexcept nogil:
    cdef vector[uint8_t] entries
    cdef const uint8_t* entry
    cdef size_t i
    cdef Segment* s
    cdef AbortedTxn aborted
    cdef int64_t at_offset = from_offset, next_offset
    cdef int result
    cdef bint last, done = False
    while not done:
        pthread_mutex_lock(&p.lock)
        if p.log.segments[0].base_offset > at_offset:
            pthread_mutex_unlock(&p.lock)
            return OFFSET_OUT_OF_RANGE         # retention has been here since the read
        i = _segment_of(&p.log, at_offset)
        s = p.log.segments[i]
        last = i + 1 == p.log.segments.size()
        next_offset = 0 if last else p.log.segments[i + 1].base_offset
        segment_retain(s)
        pthread_mutex_unlock(&p.lock)
        result = segment_aborts(s, entries)
        segment_release(s)
        if result != 0:
            return KAFKA_STORAGE_ERROR
        for i in range(entries.size() // TXNINDEX_ENTRY):
            entry = entries.data() + i * TXNINDEX_ENTRY
            if get_i64(entry + TXN_LAST_OFFSET_AT) >= from_offset and get_i64(entry + TXN_FIRST_OFFSET_AT) < to_offset:
                aborted.producer_id = get_i64(entry + TXN_PRODUCER_ID_AT)
                aborted.first_offset = get_i64(entry + TXN_FIRST_OFFSET_AT)
                out.push_back(aborted)
            if get_i64(entry + TXN_STABLE_OFFSET_AT) >= to_offset:
                done = True
                break
        done = done or last
        at_offset = next_offset
    return 0


# --- upkeep --------------------------------------------------------------------------------------------------------

# With `upkeep` held: flushes sealed segments, the active one too if `all`; of that, `log_only`, not the indexes. 0 or
# errno.
cdef int _flush(Partition* p, bint all, int64_t now_ms, bint log_only) noexcept nogil:
    cdef vector[Segment*] wanted
    cdef size_t i
    cdef int64_t end, believed
    cdef int result = 0
    cdef uint64_t wake = 0
    cdef bint fatal = False
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        if p.log.segments[i].unflushed and (all or i + 1 < p.log.segments.size()):
            segment_retain(p.log.segments[i])
            wanted.push_back(p.log.segments[i])
    believed = p.log.segments.back().base_offset
    end = p.log.log_end if all else believed
    # Recovery believes the indexes of segments that end at or below the recovery point. The active one's are complete
    # on disk only once it is sealed and flushed again: until then the recovery point stays inside of it.
    if end > believed:
        believed = end - 1
    pthread_mutex_unlock(&p.lock)
    for i in range(wanted.size()):
        if result == 0 and log_only and not wanted[i].sealed:
            result = segment_flush_log(wanted[i], &fatal)
        elif result == 0:
            result = segment_flush(wanted[i], &fatal)
        if result == 0 and wanted[i].sealed:
            result = producers_sync(snapshot_stem(p.log.folder, wanted[i].next_offset))
        segment_release(wanted[i])
    if result == 0 and wanted.size() > 0:
        result = sync_folder(p.log.folder.c_str())
        fatal = result != 0 and not is_shortage(result)
    pthread_mutex_lock(&p.lock)
    if result == 0:
        if believed > p.log.recovery_point:
            p.log.recovery_point = believed
        if all:
            p.flushed_ms = now_ms
            p.log_end_flushed = end
    elif fatal or result == EIO:
        # The kernel has dropped what it couldn't write, and would report the next fsync as done: never try again.
        wake = _fail(p)
    pthread_mutex_unlock(&p.lock)
    _wake(wake)
    return result


# Under the lock: whether retention lets the segment at the front go. `excess`: bytes above retention_bytes, counted
# down.
cdef bint _expired(Partition* p, Segment* s, int64_t next_base, int64_t now_ms, int64_t* excess) noexcept nogil:
    cdef int64_t newest = s.max_timestamp if s.max_timestamp >= 0 else s.created_ms
    if next_base > p.high_watermark:
        return False
    if next_base <= p.log.log_start and s.sealed:
        return True
    if not p.config.cleanup_delete:
        return False
    if p.config.retention_ms >= 0 and now_ms - newest > p.config.retention_ms:
        return True
    if p.config.retention_bytes >= 0 and excess[0] - s.size >= 0:
        excess[0] -= s.size
        return True
    return False


# Under the lock: takes expired segments off the front. An active segment that has expired is rolled first, so that the
# log keeps its end.
cdef int _take_expired(Partition* p, int64_t now_ms, vector[Segment*]& gone, bint* rolled) noexcept nogil:
    cdef Segment* s
    cdef int64_t excess = -p.config.retention_bytes, next_base
    cdef size_t i
    cdef int result
    for i in range(p.log.segments.size()):
        excess += p.log.segments[i].size
    while True:
        s = p.log.segments.front()
        next_base = p.log.segments[1].base_offset if p.log.segments.size() > 1 else p.log.log_end
        if s.size == 0 and p.log.segments.size() == 1:
            return 0
        if not _expired(p, s, next_base, now_ms, &excess):
            return 0
        if p.log.segments.size() == 1:
            result = _roll(p, now_ms)
            if result != 0:
                return result
            rolled[0] = True
        gone.push_back(s)
        p.log.segments.erase(p.log.segments.begin())
        if p.log.log_start < p.log.segments.front().base_offset:
            p.log.log_start = p.log.segments.front().base_offset
            _settle_stable(p)


cdef struct Kept:
    int32_t segments_deleted
    int64_t bytes_deleted
    bint rolled
    bint flushed


# Files of segments that nobody looks up any more. 0 or errno.
cdef int _delete_segments(Partition* p, vector[Segment*]& gone, Kept* out) noexcept nogil:
    cdef size_t i
    cdef int result = 0, error
    for i in range(gone.size()):
        out.segments_deleted += 1
        out.bytes_deleted += gone[i].size
        producers_remove(snapshot_stem(p.log.folder, gone[i].base_offset))
        error = segment_delete(gone[i])
        segment_release(gone[i])
        if error != 0:
            result = error
    return result


cdef int _housekeep(Partition* p, int64_t now_ms, Kept* out) noexcept nogil:
    cdef vector[Segment*] gone
    cdef size_t i
    cdef int result, error
    cdef bint all
    cdef Segment* s
    out.segments_deleted = 0
    out.bytes_deleted = 0
    out.rolled = False
    out.flushed = False
    pthread_mutex_lock(&p.lock)
    if p.stopped or p.offline:
        pthread_mutex_unlock(&p.lock)
        return 0
    producers_expire(&p.log.producers, now_ms, p.config.producer_id_expiration_ms)
    s = p.log.segments.back()
    result = 0
    if s.size > 0 and now_ms - s.created_ms > p.config.segment_ms:
        result = _roll(p, now_ms)
        out.rolled = result == 0
    if result == 0:
        result = _take_expired(p, now_ms, gone, &out.rolled)
    if gone.size() > 0 and epochs_cut_start(&p.log.epochs, p.log.log_start):
        _write_epochs(p, False)
    all = p.log.log_end > p.log_end_flushed and (
        p.log.log_end - p.log_end_flushed >= p.config.flush_messages or now_ms - p.flushed_ms >= p.config.flush_ms
    )
    pthread_mutex_unlock(&p.lock)
    error = _delete_segments(p, gone, out)
    result = result if result != 0 else error
    error = _flush(p, all, now_ms, False)
    result = result if result != 0 else error
    out.flushed = all and error == 0
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        segment_rest(p.log.segments[i])
    pthread_mutex_unlock(&p.lock)
    return result


# No more appends or reads; whoever waits is told.
cdef void _halt(Partition* p) noexcept nogil:
    cdef uint64_t wake
    pthread_mutex_lock(&p.lock)
    p.stopped = True
    wake = _take_all_waiting(p)
    pthread_mutex_unlock(&p.lock)
    _wake(wake)


# With `upkeep` held and the partition halted: everything to the disk, so that the next start believes it. 0 or errno.
cdef int _close(Partition* p, int64_t now_ms) noexcept nogil:
    cdef int result = 0
    if p.offline:
        return EIO
    result = segment_hold_indexes(p.log.segments.back())
    if result == 0:
        segment_last_time(p.log.segments.back())
        result = _flush(p, True, now_ms, False)
    if result == 0:
        # Not synced: a snapshot that a power cut tears is found out by its checksum, and batches are replayed instead.
        result = producers_write(&p.log.producers, snapshot_stem(p.log.folder, p.log.log_end), False)
    if result == 0:
        remove_stray_snapshots(&p.log)
        if p.epochs_unsynced:
            result = _write_epochs(p, True)
            result = sync_folder(p.log.folder.c_str()) if result == 0 else result
    return result


# Under the lock: the epoch only grows, and begins at the log end.
cdef void _raise_epoch(Partition* p, int32_t leader_epoch) noexcept nogil:
    if leader_epoch < p.leader_epoch:
        return
    p.leader_epoch = leader_epoch
    if not p.log.epochs.entries.empty() and p.log.epochs.entries.back().epoch >= leader_epoch:
        return
    if epochs_assign(&p.log.epochs, leader_epoch, p.log.log_end):
        _write_epochs(p, False)


# A partition whose folder is there, recovered and ready. 0 or errno.
cdef int _open(Partition* p, int32_t leader_epoch, bint clean, RecoveryReport* report) noexcept nogil:
    cdef size_t i
    cdef int64_t now_ms = wall_ms()
    cdef int result = recover(&p.log, clean, now_ms, report)
    if result != 0:
        return result
    p.high_watermark = p.log.log_end
    p.flushed_ms = now_ms
    p.log_end_flushed = p.log.recovery_point
    p.leader_epoch = -1
    _raise_epoch(p, leader_epoch)
    _settle_stable(p)
    # Thousands of partitions are opened before the first housekeeping: none keeps its files open.
    for i in range(p.log.segments.size()):
        p.log.segments[i].touched = False
        segment_rest(p.log.segments[i])
    return 0


# --- for the control plane -----------------------------------------------------------------------------------------

Recovered = namedtuple("Recovered", "log_start log_end batches_checked cut_bytes")
AppendedTo = namedtuple("Appended", "base_offset log_append_time_ms log_start")
Offsets = namedtuple("Offsets", "log_start last_stable high_watermark log_end leader_epoch")
Producer = namedtuple(
    "Producer", "producer_id producer_epoch last_sequence last_timestamp_ms coordinator_epoch txn_first_offset"
)
Housekept = namedtuple("Housekept", "segments_deleted bytes_deleted rolled flushed")
globals()["Appended"] = AppendedTo

DEFAULTS = {
    "segment_bytes": 1 << 30,
    "segment_ms": 604_800_000,
    "index_interval_bytes": 4096,
    "segment_index_bytes": 10 << 20,
    "retention_ms": 604_800_000,
    "retention_bytes": -1,
    "flush_messages": (1 << 63) - 1,
    "flush_ms": (1 << 63) - 1,
    "max_message_bytes": (1 << 20) + 12,
    "timestamp_before_max_ms": (1 << 63) - 1,
    "timestamp_after_max_ms": 3_600_000,
    "producer_id_expiration_ms": 86_400_000,
    "file_delete_delay_ms": 60_000,
    "log_append_time": 0,
    "cleanup_delete": 1,
    "cleanup_compact": 0,
}

_lock = threading.Lock()               # the tables below
_led = {}                              # (topic, partition) -> _Led
_opening = set()
_checkpoints = {}                      # folder -> Checkpoints


cdef class _Led:
    """Holds the registry's reference of a led partition, and what Python knows of it."""

    cdef Partition* p
    cdef object checkpoints
    cdef dict config
    cdef tuple key

    def __dealloc__(self):
        if self.p != NULL:
            partition_release(self.p)


cdef _Led _find(str topic, int partition):
    led = _led.get((topic, partition))
    if led is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not led here")
    return <_Led>led


cdef object _raise_os(int number, object what):
    raise OSError(number, os.strerror(number), str(what))


cdef object _read_config(LogConfig* out, dict config):
    unknown = set(config) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"unknown log configuration: {', '.join(sorted(unknown))}")
    merged = {**DEFAULTS, **config}
    if not 14 <= merged["segment_bytes"] <= SEGMENT_MAX_BYTES:
        raise ValueError(f"segment_bytes={merged['segment_bytes']} is not within 14..{SEGMENT_MAX_BYTES}")
    for name in ("segment_ms", "flush_messages", "producer_id_expiration_ms"):
        if merged[name] < 1:
            raise ValueError(f"{name}={merged[name]} is less than 1")
    times = ("timestamp_before_max_ms", "timestamp_after_max_ms", "flush_ms")
    for name in ("index_interval_bytes", "max_message_bytes", *times):
        if merged[name] < 0:
            raise ValueError(f"{name}={merged[name]} is negative")
    if merged["segment_index_bytes"] < 24:
        raise ValueError("segment_index_bytes is less than 24: an index must hold an entry")
    out.segment_bytes = merged["segment_bytes"]
    out.segment_ms = merged["segment_ms"]
    out.index_interval_bytes = merged["index_interval_bytes"]
    out.segment_index_bytes = merged["segment_index_bytes"]
    out.retention_ms = merged["retention_ms"]
    out.retention_bytes = merged["retention_bytes"]
    out.flush_messages = merged["flush_messages"]
    out.flush_ms = merged["flush_ms"]
    out.max_message_bytes = merged["max_message_bytes"]
    out.timestamp_before_max_ms = merged["timestamp_before_max_ms"]
    out.timestamp_after_max_ms = merged["timestamp_after_max_ms"]
    out.producer_id_expiration_ms = merged["producer_id_expiration_ms"]
    out.file_delete_delay_ms = merged["file_delete_delay_ms"]
    out.log_append_time = bool(merged["log_append_time"])
    out.cleanup_delete = bool(merged["cleanup_delete"])
    out.cleanup_compact = bool(merged["cleanup_compact"])
    return merged


def _checkpoints_of(str folder):
    with _lock:
        if folder not in _checkpoints:
            _checkpoints[folder] = Checkpoints(folder)
        return _checkpoints[folder]


def _prepare_folder(folder, topic_id):
    """Make the partition's folder; its `partition.metadata` says the topic id, and another one is refused. Answers
    whether the folder is new."""
    fresh = not folder.is_dir()
    if fresh:
        folder.mkdir()
        above = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(above)
        finally:
            os.close(above)
    metadata = folder / "partition.metadata"
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    if metadata.exists():
        known = metadata.read_text(encoding="ascii").partition("topic_id: ")[2].strip()
        if known and known != text:
            raise ValueError(f"`{folder}` belongs to a topic with the id {known}, not {text}")
    elif any(topic_id):
        beside = folder / "partition.metadata.tmp"
        beside.write_text(f"version: 0\ntopic_id: {text}\n", encoding="ascii")
        beside.replace(metadata)
    return fresh


def _raise_led_epoch(_Led led, int leader_epoch):
    cdef Partition* p = led.p
    with nogil:
        pthread_mutex_lock(&p.lock)
        _raise_epoch(p, leader_epoch)
        pthread_mutex_unlock(&p.lock)
    return Recovered(p.log.log_start, p.log.log_end, 0, 0)


def lead(str topic, bytes topic_id, int partition, int leader_epoch, str folder, dict config, bint clean=False):
    """Open (or create) a partition's log and take the lead; see partition.pyi."""
    cdef _Led led
    cdef Partition* p
    cdef LogConfig parsed
    cdef RecoveryReport report
    cdef int result
    if len(topic_id) != TOPIC_ID_BYTES:
        raise ValueError("a topic id has 16 bytes")
    if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or partition < 0:
        raise ValueError(f"`{topic}-{partition}` is not a partition's name")
    merged = _read_config(&parsed, config)
    key = (topic, partition)
    with _lock:
        if key in _led:
            if os.fsdecode((<_Led>_led[key]).p.log.folder) != str(Path(folder, f"{topic}-{partition}")):
                raise ValueError(f"`{topic}-{partition}` is led already, from another folder than `{folder}`")
            return _raise_led_epoch(_led[key], leader_epoch)
        if key in _opening:
            raise ValueError(f"`{topic}-{partition}` is being opened already")
        _opening.add(key)
    try:
        path = Path(folder, f"{topic}-{partition}")
        fresh = _prepare_folder(path, topic_id)
        led = _Led()
        led.key = key
        led.config = merged
        led.checkpoints = _checkpoints_of(folder)
        if fresh:
            led.checkpoints.drop(key)  # a deleted topic's, if the broker died before they were written
        p = led.p = made[Partition]()
        p.refs = 1
        pthread_mutex_init(&p.lock, NULL)
        pthread_mutex_init(&p.upkeep, NULL)
        p.topic = topic.encode()
        p.index = partition
        memcpy(p.topic_id, PyBytes_AS_STRING(topic_id), TOPIC_ID_BYTES)
        p.config = parsed
        p.log.folder = os.fsencode(path)
        p.log.log_start = led.checkpoints.start.get(key, 0)
        p.log.recovery_point = led.checkpoints.recovery.get(key, 0)
        p.log.index_interval_bytes = parsed.index_interval_bytes
        with nogil:
            result = _open(p, leader_epoch, clean, &report)
        if result != 0:
            _raise_os(result, path)
        with _lock:
            _led[key] = led
        with nogil:
            _register(p)
    finally:
        with _lock:
            _opening.discard(key)
    _note(led)
    return Recovered(p.log.log_start, p.log.log_end, report.batches_checked, report.cut_bytes)


cdef object _note(_Led led):
    """Give a partition's offsets to its folder's checkpoints (in memory), unless it isn't led any more: what a delete
    has dropped must not come back, a later topic of the name would begin with it."""
    with _lock:
        if _led.get(led.key) is led:
            _put(led)


cdef object _put(_Led led):
    cdef int64_t recovery_point, log_start, first_segment
    pthread_mutex_lock(&led.p.lock)
    recovery_point = led.p.log.recovery_point
    log_start = led.p.log.log_start
    first_segment = led.p.log.segments.front().base_offset
    pthread_mutex_unlock(&led.p.lock)
    led.checkpoints.put(led.key, recovery_point, log_start, first_segment)


def reconfigure(str topic, int partition, dict config):
    """Change keys of a partition's configuration; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef LogConfig parsed
    merged = _read_config(&parsed, {**led.config, **config})
    led.config = merged
    pthread_mutex_lock(&led.p.lock)
    led.p.config = parsed
    led.p.log.index_interval_bytes = parsed.index_interval_bytes
    pthread_mutex_unlock(&led.p.lock)


cdef _Led _take_out(str topic, int partition):
    """Remove a partition from the tables; what its finders hold stays valid until they release it."""
    with _lock:
        led = _led.pop((topic, partition), None)
    if led is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not led here")
    _unregister((<_Led>led).p)
    return <_Led>led


def stop(str topic, int partition):
    """Flush and close a partition; see partition.pyi."""
    cdef _Led led = _take_out(topic, partition)
    cdef Partition* p = led.p
    cdef int result
    with nogil:
        pthread_mutex_lock(&p.upkeep)
        _halt(p)
        result = _close(p, wall_ms())
        pthread_mutex_unlock(&p.upkeep)
    if result != 0:
        _raise_os(result, p.log.folder)
    _put(led)
    led.checkpoints.write()


def delete(str topic, int partition):
    """Stop a partition and remove its folder; see partition.pyi."""
    cdef _Led led = _take_out(topic, partition)
    cdef Partition* p = led.p
    with nogil:
        pthread_mutex_lock(&p.upkeep)
        _halt(p)
        pthread_mutex_unlock(&p.upkeep)
    led.checkpoints.drop(led.key)
    path = Path(os.fsdecode(p.log.folder))
    # Kafka's form: a name of at most 255 bytes that no topic can have.
    suffix = f"-{partition}.{os.urandom(16).hex()}-delete"
    gone = path.with_name(topic[: 255 - len(suffix)] + suffix)
    path.rename(gone)
    _remove_folder(gone)
    led.checkpoints.write()


def _remove_folder(folder):
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def remove_deleted(str folder):
    """Remove folders that a delete had renamed when the broker died; see partition.pyi."""
    removed = 0
    for path in Path(folder).glob("*-delete"):
        name, _, mark = path.name.rpartition(".")
        if name and len(mark) == 32 + len("-delete") and path.is_dir():
            _remove_folder(path)
            removed += 1
    return removed


cdef object _append(str topic, int partition, bytes records, int origin, int leader_epoch):
    cdef _Led led = _find(topic, partition)
    cdef Partition* p = led.p
    cdef Appended out
    cdef size_t n = <size_t>PyBytes_GET_SIZE(records)
    cdef uint8_t* writable
    if 0 <= leader_epoch != partition_leader_epoch(p):
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{topic}-{partition} is at another epoch")
    writable = <uint8_t*>malloc(n if n > 0 else 1)
    if writable == NULL:
        raise MemoryError
    memcpy(writable, PyBytes_AS_STRING(records), n)
    with nogil:
        partition_append(p, writable, n, origin, &out)
    free(writable)
    if out.error != 0:
        raise KafkaError(out.error, f"append to {topic}-{partition}")
    return AppendedTo(out.base_offset, out.log_append_time_ms, out.log_start_offset)


def append(str topic, int partition, bytes records, int leader_epoch=-1):
    """Append as a coordinator; see partition.pyi."""
    return _append(topic, partition, records, ORIGIN_COORDINATOR, leader_epoch)


def append_client(str topic, int partition, bytes records):
    """Append as a client; see partition.pyi."""
    return _append(topic, partition, records, ORIGIN_CLIENT, -1)


def append_replica(str topic, int partition, bytes records):
    """Append a leader's bytes as they are; see partition.pyi."""
    return _append(topic, partition, records, ORIGIN_REPLICA, -1)


def read(str topic, int partition, int64_t offset, int32_t max_bytes, int isolation=ISOLATION_LOG_END):
    """Whole raw batches; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef Partition* p = led.p
    cdef ReadResult result
    cdef int16_t error
    cdef int64_t got = 0
    cdef size_t whole
    with nogil:
        error = partition_read(p, offset, max_bytes, True, <int8_t>isolation, &result)
    if error != 0:
        raise KafkaError(error, f"read of {topic}-{partition} at {offset}")
    if result.length == 0:
        return b""
    out = PyBytes_FromStringAndSize(NULL, result.length)
    cdef char* to = PyBytes_AS_STRING(out)
    with nogil:
        got = read_at(result.fd, to, <size_t>result.length, result.position)
        read_release(&result)
        whole = _whole_batches(<const uint8_t*>to, <size_t>(got if got > 0 else 0))
    if got < 0:
        _raise_os(<int>-got, p.log.folder)
    return out if <int64_t>whole == result.length else out[:whole]


# How many of the n bytes are whole batches.
cdef size_t _whole_batches(const uint8_t* p, size_t n) noexcept nogil:
    cdef BatchHeader header
    cdef size_t done = 0
    while done < n and batch_parse(p + done, n - done, &header) == 0:
        done += <size_t>header.size
    return done


def aborted(str topic, int partition, int64_t from_offset, int64_t to_offset):
    """Aborted transactions of a range; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef Partition* p = led.p
    cdef vector[AbortedTxn] found
    cdef int16_t error
    cdef size_t i
    with nogil:
        error = partition_aborted(p, from_offset, to_offset, found)
    if error != 0:
        raise KafkaError(error, f"aborted transactions of {topic}-{partition}")
    return [(found[i].producer_id, found[i].first_offset) for i in range(found.size())]


def offsets(str topic, int partition):
    """Where the log begins and ends; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef int64_t log_start, last_stable, high_watermark, log_end
    partition_offsets(led.p, &log_start, &last_stable, &high_watermark, &log_end)
    return Offsets(log_start, last_stable, high_watermark, log_end, partition_leader_epoch(led.p))


# The first record at or after a time. WALK_BATCH, WALK_END, or what failed.
cdef int _find_time(Partition* p, int64_t timestamp_ms, int64_t* offset, int64_t* timestamp) noexcept nogil:
    cdef size_t i
    cdef Segment* s = NULL
    cdef int64_t log_start, size = 0, from_base = -1
    cdef int result
    while True:
        s = NULL
        pthread_mutex_lock(&p.lock)
        log_start = p.log.log_start
        for i in range(p.log.segments.size()):
            if p.log.segments[i].base_offset > from_base and p.log.segments[i].max_timestamp >= timestamp_ms:
                s = p.log.segments[i]
                size = s.size
                from_base = s.base_offset
                segment_retain(s)
                break
        pthread_mutex_unlock(&p.lock)
        if s == NULL:
            return WALK_END
        result = segment_find_time(s, timestamp_ms, log_start, size, offset, timestamp)
        segment_release(s)
        if result != WALK_END:
            return result


# By its holder: it keeps the partition alive while the GIL is released.
cdef object _answer_time(_Led led, int64_t timestamp_ms):
    cdef Partition* p = led.p
    cdef int64_t offset = -1, timestamp = -1
    cdef int result
    with nogil:
        result = _find_time(p, timestamp_ms, &offset, &timestamp)
    if result == WALK_END:
        return None
    if result != WALK_BATCH:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, os.fsdecode(p.log.folder))
    return offset, timestamp


def offset_for_timestamp(str topic, int partition, int64_t timestamp_ms):
    """The first record at or after a time; see partition.pyi."""
    return _answer_time(_find(topic, partition), timestamp_ms)


def max_timestamp(str topic, int partition):
    """The record with the largest timestamp; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef Partition* p = led.p
    cdef int64_t newest = -1
    cdef size_t i
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        if p.log.segments[i].next_offset > p.log.log_start and p.log.segments[i].max_timestamp > newest:
            newest = p.log.segments[i].max_timestamp
    pthread_mutex_unlock(&p.lock)
    return None if newest < 0 else _answer_time(led, newest)


def offset_for_epoch(str topic, int partition, int epoch):
    """Where a leader epoch ended; see partition.pyi."""
    cdef int32_t found
    cdef int64_t end_offset
    partition_epoch_end(_find(topic, partition).p, epoch, &found, &end_offset)
    return found, end_offset


def delete_records_before(str topic, int partition, int64_t offset):
    """Move the log start; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef Partition* p = led.p
    cdef int64_t log_start
    cdef bint stopped, out_of_range
    with nogil:
        pthread_mutex_lock(&p.lock)
        stopped = p.stopped
        if offset == -1:
            offset = p.high_watermark
        out_of_range = offset > p.high_watermark or offset < 0
        if not stopped and not out_of_range and offset > p.log.log_start:
            p.log.log_start = offset
            _settle_stable(p)
            if epochs_cut_start(&p.log.epochs, offset):
                _write_epochs(p, False)
        log_start = p.log.log_start
        pthread_mutex_unlock(&p.lock)
    if stopped:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} was stopped")
    if out_of_range:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"delete of records before {offset} in {topic}-{partition}")
    _note(led)
    # Before the answer: a kill must not bring deleted records back.
    led.checkpoints.write()
    return log_start


def producers(str topic, int partition):
    """What the log knows of its producers; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef vector[ProducerEntry] entries
    cdef size_t i
    pthread_mutex_lock(&led.p.lock)
    place = led.p.log.producers.entries.begin()
    while place != led.p.log.producers.entries.end():
        entries.push_back(at(place).second)
        step(place)
    pthread_mutex_unlock(&led.p.lock)
    return sorted(
        Producer(
            entries[i].producer_id,
            entries[i].epoch,
            entries[i].batches[entries[i].count - 1].last_sequence if entries[i].count > 0 else -1,
            entries[i].last_timestamp_ms,
            entries[i].coordinator_epoch,
            entries[i].txn_first_offset,
        )
        for i in range(entries.size())
    )


def sequences(str topic, int partition, int64_t producer_id):
    """(first sequence, last sequence, first offset) of the remembered batches; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef ProducerEntry e
    cdef int i
    producer_clear(&e, producer_id)
    pthread_mutex_lock(&led.p.lock)
    found = led.p.log.producers.entries.find(producer_id)
    if found != led.p.log.producers.entries.end():
        e = at(found).second
    pthread_mutex_unlock(&led.p.lock)
    return [
        (
            e.batches[i].last_sequence - e.batches[i].offset_delta,
            e.batches[i].last_sequence,
            e.batches[i].last_offset - e.batches[i].offset_delta,
        )
        for i in range(e.count)
    ]


def housekeep(str topic, int partition, int64_t now_ms):
    """Roll, retention, flush, expiry, idle files; see partition.pyi."""
    cdef _Led led = _find(topic, partition)
    cdef Partition* p = led.p
    cdef Kept kept
    cdef int result
    with nogil:
        pthread_mutex_lock(&p.upkeep)
        result = _housekeep(p, now_ms, &kept)
        pthread_mutex_unlock(&p.upkeep)
    _note(led)
    if result != 0:
        _raise_os(result, p.log.folder)
    return Housekept(kept.segments_deleted, kept.bytes_deleted, bool(kept.rolled), bool(kept.flushed))


def flush_all():
    """Flush every log; see partition.pyi."""
    cdef _Led led
    cdef Partition* p
    cdef int result
    failed = None
    with _lock:
        every = list(_led.values())
    for led in every:
        p = led.p
        with nogil:
            pthread_mutex_lock(&p.upkeep)
            if p.stopped:              # flushed by its stop, or deleted: its paths may be another log's by now
                result = 0
            else:
                result = EIO if p.offline else _flush(p, True, wall_ms(), False)
            pthread_mutex_unlock(&p.upkeep)
        if result != 0:
            failed = failed or OSError(result, os.strerror(result), os.fsdecode(p.log.folder))
    write_checkpoints()
    if failed is not None:
        raise failed


def write_checkpoints():
    """Write the checkpoint files that changed; see partition.pyi."""
    with _lock:
        every = list(_led.values())
        folders = list(_checkpoints.values())
    for led in every:
        _note(led)
    for checkpoints in folders:
        checkpoints.write()


def size_bytes(str topic, int partition):
    """Bytes of all segments; see partition.pyi."""
    cdef Partition* p = _find(topic, partition).p
    cdef int64_t size = 0
    cdef size_t i
    pthread_mutex_lock(&p.lock)
    for i in range(p.log.segments.size()):
        size += p.log.segments[i].size
    pthread_mutex_unlock(&p.lock)
    return size


def is_offline(str topic, int partition):
    """Whether the disk failed under it; see partition.pyi."""
    return bool(_find(topic, partition).p.offline)


def partitions():
    """Every partition that is led here."""
    with _lock:
        return sorted(_led)
