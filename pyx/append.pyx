"""Appending batches: judged, given their offsets, written, indexed; see append.pxd."""

from cython.operator cimport dereference as at
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector
from penstock.pyx.batch cimport (
    BatchHeader, batch_is_control, batch_is_transactional, batch_last_offset, batch_marker_type, batch_set_offset,
)
from penstock.pyx.endian cimport put_i64
from penstock.pyx.epochs cimport epochs_assign
from penstock.pyx.files cimport is_full, is_passing, wall_ms
from penstock.pyx.ingest cimport (
    INGEST_CLIENT, INGEST_COORDINATOR, INGEST_REPLICA, Ingested, ingest, ingest_place,
)
from penstock.pyx.logconfig cimport LogConfig
from penstock.pyx.partition cimport wake_reactors
from penstock.pyx.partitionlog cimport (
    CORRUPT_MESSAGE, FOLDER_RESERVED, INVALID_RECORD, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER, PartitionLog, fail_log, folder_ran_full, is_offline,
    log_of, settle_stable, write_epochs,
)
from penstock.pyx.posix cimport EIO, atomic_load32, pthread_mutex_lock, pthread_mutex_unlock
from penstock.pyx.producerstate cimport (
    NO_OFFSET, EndedTxn, ProducerEntry, producer_clear, producer_data, producer_marker, would_begin,
)
from penstock.pyx.recovery cimport replay_batch
from penstock.pyx.segment cimport (
    Segment, segment_hold_indexes, segment_index_batch, segment_index_full, segment_write,
)
from penstock.pyx.upkeep cimport flush_log, roll

cdef enum:
    RELATIVE_MAX = 0x7fffffff          # offsets in an index are 32 bits
    INVALID_TXN_STATE = 48


cdef inline int _who(int origin) noexcept nogil:
    if from_client(origin):
        return INGEST_CLIENT
    return INGEST_REPLICA if origin == ORIGIN_REPLICA else INGEST_COORDINATOR


# Under the lock: what the producer states say to the batches, without changing them. How many at the front are in
# the log already goes to `repeated`, the offset of the first one to `repeated_at`. 0 or Kafka's code.
cdef int16_t _judge_producers(
    PartitionLog* p, const uint8_t* records, const vector[BatchHeader]& batches, int origin, int64_t now_ms,
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
    cdef bint begins
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
                begins = batch_is_transactional(header) and would_begin(&e, header)
                error = producer_data(&e, header, origin, offset, now_ms, &duplicate_of)
                if begins and error == 0 and duplicate_of == NO_OFFSET and p.config.verify_transactions:
                    error = INVALID_TXN_STATE if origin == ORIGIN_CLIENT else 0
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


# Kafka's rule: size, time between the first batch's timestamp and these (without timestamps: the clock), a full index,
# or offsets that don't fit one.
cdef bint _roll_wanted(
    PartitionLog* p, int64_t n, int64_t max_timestamp, int64_t last_offset, int64_t now_ms
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
        or waited > p.config.segment_ms - p.roll_jitter_ms
        or segment_index_full(s, p.config.segment_index_bytes)
        or last_offset - s.base_offset > RELATIVE_MAX
    )


# Under the lock: offsets and leader epochs into the batches from `first` on. False: a replica's offsets don't
# follow the log.
cdef bint _assign(
    PartitionLog* p, uint8_t* records, vector[BatchHeader]& batches, size_t first, int origin, int64_t* end,
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
            if batches[i].magic >= 2:
                batch_set_offset(records, offset, p.leader_epoch)
            else:
                put_i64(records, batch_last_offset(&batches[i]))
        offset = batch_last_offset(&batches[i]) + 1
        if batches[i].max_timestamp > newest[0]:
            newest[0] = batches[i].max_timestamp
        records += batches[i].size
    end[0] = offset
    return True


# Under the lock: the batches are in the file; the indexes, producers, epochs and offsets follow.
cdef void _take_in(
    PartitionLog* p, Segment* s, const uint8_t* records, const vector[BatchHeader]& batches, size_t first,
    int64_t now_ms
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
    p.changed = True
    if epochs_changed or p.epochs_unwritten:
        write_epochs(p, False)
    p.log.log_end = s.next_offset
    p.high_watermark = p.log.log_end
    settle_stable(p)


# Under the lock. `wake` gets who has to be woken after it.
cdef int16_t _append_locked(
    PartitionLog* p, Ingested* taken, int origin, int64_t now_ms, Appended* out, uint64_t* wake
) noexcept nogil:
    cdef uint8_t* records
    cdef size_t n
    cdef size_t first = 0, i
    cdef int64_t repeated_at = -1, end = 0, newest = -1, stable
    cdef int16_t error
    cdef int result
    cdef bint broken = False
    cdef Segment* s
    if p.stopped:
        return NOT_LEADER_OR_FOLLOWER
    if is_offline(p) or (from_client(origin) and atomic_load32(&p.folder.room) == FOLDER_RESERVED):
        return KAFKA_STORAGE_ERROR
    error = ingest_place(&p.config, taken, p.log.log_end)
    records = taken.records
    n = taken.n
    if error == 0:
        error = _judge_producers(p, records, taken.batches, origin, now_ms, &first, &repeated_at)
    if error != 0:
        return error
    for i in range(first):
        records += taken.batches[i].size
        n -= <size_t>taken.batches[i].size
    out.log_start_offset = p.log.log_start
    out.base_offset = repeated_at if first > 0 else p.log.log_end
    if first == taken.batches.size():
        return 0
    if not _assign(p, records, taken.batches, first, origin, &end, &newest):
        return CORRUPT_MESSAGE
    if end - 1 - p.log.log_end > RELATIVE_MAX:
        return INVALID_RECORD              # counts that lie: an index couldn't hold the offsets
    if origin == ORIGIN_REPLICA:
        out.base_offset = taken.batches[0].base_offset
    result = segment_hold_indexes(p.log.segments.back())
    if result == 0 and _roll_wanted(p, <int64_t>n, newest, end - 1, now_ms):
        result = roll(p, now_ms)
    s = p.log.segments.back()
    if result == 0:
        result = segment_write(s, records, n, &broken)
    if result != 0:
        if broken or not is_passing(result):
            wake[0] = fail_log(p, result)
        elif is_full(result):
            folder_ran_full(p.folder)
        return KAFKA_STORAGE_ERROR
    stable = p.last_stable
    _take_in(p, s, records, taken.batches, first, now_ms)
    wake[0] = p.waiting_end
    p.waiting_end = 0
    if p.last_stable > stable:
        wake[0] |= p.waiting_stable
        p.waiting_stable = 0
    return 0


# Without locks: flush.messages asks for a flush before the answer. Appenders that wait for one another's flush find
# their bytes flushed when their turn comes. 0 or KAFKA_STORAGE_ERROR.
cdef int16_t _flush_before_answer(PartitionLog* p, int64_t end, int64_t now_ms) noexcept nogil:
    cdef int result = 0
    cdef bint wanted
    pthread_mutex_lock(&p.upkeep)
    pthread_mutex_lock(&p.lock)
    wanted = p.log_end_flushed < end and not p.stopped
    if is_offline(p):
        result = EIO
    pthread_mutex_unlock(&p.lock)
    if wanted and result == 0:
        result = flush_log(p, True, now_ms, True)
    pthread_mutex_unlock(&p.upkeep)
    return KAFKA_STORAGE_ERROR if result != 0 else 0


cdef int16_t partition_append(
    Partition* partition, uint8_t* records, size_t n, int origin, Appended* out
) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef Ingested taken
    cdef LogConfig config
    cdef int64_t now_ms = wall_ms()
    cdef int64_t end
    cdef uint64_t wake = 0
    cdef bint due
    out.base_offset = -1
    out.log_append_time_ms = -1
    out.log_start_offset = -1
    pthread_mutex_lock(&p.lock)
    config = p.config
    end = p.log.log_end
    # One that isn't open has no settings either: nothing can be judged by them.
    out.error = NOT_LEADER_OR_FOLLOWER if p.stopped else (KAFKA_STORAGE_ERROR if is_offline(p) else 0)
    pthread_mutex_unlock(&p.lock)
    out.refusal.fault = 0
    out.refusal.count = 0
    if out.error != 0:
        return out.error
    taken.may_inflate = out.may_inflate
    out.error = ingest(&config, records, n, _who(origin), now_ms, &taken)
    out.may_inflate = taken.may_inflate
    if out.error == 0:
        out.error = ingest_place(&config, &taken, end)
    out.refusal = taken.refusal
    if out.error != 0:
        return out.error
    if config.log_append_time and origin != ORIGIN_REPLICA:
        out.log_append_time_ms = now_ms
    pthread_mutex_lock(&p.lock)
    out.error = _append_locked(p, &taken, origin, now_ms, out, &wake)
    end = p.log.log_end
    due = end - p.log_end_flushed >= config.flush_messages
    pthread_mutex_unlock(&p.lock)
    if out.error == 0 and due:
        out.error = _flush_before_answer(p, end, now_ms)
    out.refusal = taken.refusal
    if out.error != 0:
        out.base_offset = -1
        out.log_append_time_ms = -1
    wake_reactors(partition, wake)
    return out.error
