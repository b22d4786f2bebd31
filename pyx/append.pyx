"""Appending batches: judged, given their offsets, written, indexed; see append.pxd."""

from cython.operator cimport dereference as at
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector
from penstock.pyx.batch cimport (
    CHECK_CLIENT, CHECK_DENSE, CHECK_STORED, BatchHeader, batch_check, batch_error_code, batch_is_control,
    batch_last_offset, batch_marker_type, batch_parse, batch_set_log_append_time, batch_set_offset,
)
from penstock.pyx.epochs cimport epochs_assign
from penstock.pyx.files cimport wall_ms
from penstock.pyx.logconfig cimport LogConfig
from penstock.pyx.partition cimport wake_reactors
from penstock.pyx.partitionlog cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER, RECORD_LIST_TOO_LARGE, PartitionLog, fail_log, log_of, settle_stable, write_epochs,
)
from penstock.pyx.posix cimport EIO, pthread_mutex_lock, pthread_mutex_unlock
from penstock.pyx.producerstate cimport (
    NO_OFFSET, EndedTxn, ProducerEntry, producer_clear, producer_data, producer_marker,
)
from penstock.pyx.recovery cimport replay_batch
from penstock.pyx.segment cimport (
    Segment, segment_hold_indexes, segment_index_batch, segment_index_full, segment_write,
)
from penstock.pyx.upkeep cimport flush_log, roll

cdef enum:
    RELATIVE_MAX = 0x7fffffff          # offsets in an index are 32 bits


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
        or waited > p.config.segment_ms
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
            batch_set_offset(records, offset, p.leader_epoch)
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
    if epochs_changed:
        write_epochs(p, False)
    p.log.log_end = s.next_offset
    p.high_watermark = p.log.log_end
    settle_stable(p)


# Under the lock. `wake` gets who has to be woken after it.
cdef int16_t _append_locked(
    PartitionLog* p, uint8_t* records, size_t n, vector[BatchHeader]& batches, int origin, int64_t now_ms,
    Appended* out, uint64_t* wake
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
        result = roll(p, now_ms)
    s = p.log.segments.back()
    if result == 0:
        result = segment_write(s, records, n, &broken)
    if result != 0:
        if broken or result == EIO:
            wake[0] = fail_log(p)
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
cdef int16_t _flush_before_answer(PartitionLog* p, int64_t end, int64_t now_ms) noexcept nogil:
    cdef int result = 0
    cdef bint wanted
    pthread_mutex_lock(&p.upkeep)
    pthread_mutex_lock(&p.lock)
    wanted = p.log_end_flushed < end and not p.stopped
    if p.offline:
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
    wake_reactors(wake)
    return out.error
