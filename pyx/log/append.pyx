"""Appending batches: validated, given their offsets, written, indexed; see append.pxd."""

from cython.operator cimport dereference as at, preincrement
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER, OUT_OF_ORDER_SEQUENCE_NUMBER,
)
from penstock.pyx.linux.posix cimport (
    atomic_load32, atomic_load64, atomic_store32, atomic_store64, iovec, monotonic_ns, pthread_mutex_lock,
    pthread_mutex_unlock, relaxed_add64,
)
from penstock.pyx.log.endslots cimport note_end
from penstock.pyx.log.epochs cimport epochs_assign
from penstock.pyx.log.files cimport is_full, is_passing, wall_ms
from penstock.pyx.log.followerask cimport ask_fits
from penstock.pyx.log.index cimport INDEX_WRONG, RELATIVE_MAX
from penstock.pyx.log.lease cimport lease_is_over
from penstock.pyx.log.logconfig cimport LogConfig
from penstock.pyx.log.origin cimport ADDED, CLIENT, REPLICA, VERIFIED, Origin, flushed_by_caller, from_client
from penstock.pyx.log.partition cimport wake_reactors
from penstock.pyx.log.partitionlog cimport (
    FOLDER_HAS_SPACE, FOLDER_RESERVED, PartitionLog, advance_high_watermark, doubt_segment, fail_log, folder_ran_full,
    folder_tell, is_flush_due, is_offline, log_of, serves_clients, take_config, take_waiting_log_end, tell_doubt,
    write_epochs,
)
from penstock.pyx.log.producerstate cimport (
    NO_OFFSET, EndedTxn, ProducerEntry, guard_counts, producer_data, producer_marker, producers_get, would_begin,
)
from penstock.pyx.log.recovery cimport replay_batch
from penstock.pyx.log.role cimport NO_EPOCH
from penstock.pyx.log.room cimport room_is_ahead
from penstock.pyx.log.segment cimport (
    BatchPlace, Segment, segment_hold_indexes, segment_index_batch, segment_index_full, segment_write,
)
from penstock.pyx.log.upkeep cimport flush_until, roll
from penstock.pyx.log.validator cimport (
    VALIDATE_TOO_MUCH_WORK, Validated, place_validated, stamp_validated, validate_records,
)
from penstock.pyx.record.batch cimport (
    MARKER_COMMIT, BatchHeader, batch_is_control, batch_is_transactional, batch_last_offset, batch_marker_type,
    batch_set_offset,
)
from penstock.pyx.record.endian cimport put_i64

cdef enum:
    REWRITTEN_MAX_BYTES = 16 << 20     # of records inflated or compressed again: more aren't held for one write

cdef struct GatheredPart:
    Append* part
    const Validated* taken
    size_t first                       # batch of it that isn't in the log already

# What was validated under the lock and waits to be written, all to the active segment, in one go.
cdef struct Gathered:
    vector[GatheredPart] parts
    vector[iovec] pieces
    int64_t bytes
    size_t batches
    int64_t end                        # the offset behind them: the log end when there are none
    unordered_map[int64_t, ProducerEntry] producers    # as they will be
    bint alone                         # nothing more is coming that would ask for them
    # The error of a part that its client will send again. Those after it came over the same connection, and are refused
    # like it: a log that doesn't know their producer would take them before it.
    int16_t refused


cdef ProducerEntry _producer(
    PartitionLog* p, unordered_map[int64_t, ProducerEntry]& tried, Gathered* gathered, int64_t producer_id
) noexcept nogil:
    cdef unordered_map[int64_t, ProducerEntry].iterator found
    found = tried.find(producer_id)
    if found != tried.end():
        return at(found).second
    found = gathered.producers.find(producer_id)
    if found != gathered.producers.end():
        return at(found).second
    return producers_get(&p.log.producers, producer_id)


cdef int16_t _check_beginning(const PartitionLog* p, const Append* part, const ProducerEntry* e) noexcept nogil:
    """Under the lock: whether a producer's batch may begin a transaction. 0 or Kafka's code."""
    if part.origin == CLIENT:
        return INVALID_TXN_STATE if p.config.verify_transactions else 0
    if part.origin == ADDED or (part.origin == VERIFIED and p.config.verify_transactions):
        return 0 if guard_counts(&p.log.producers, e, part.guard) else NOT_ENOUGH_REPLICAS
    return 0


cdef int16_t _validate_producers(
    PartitionLog* p, Gathered* gathered, const Validated* taken, const Append* part, int64_t now_ms,
    unordered_map[int64_t, ProducerEntry]& tried, size_t* repeated, int64_t* repeated_at, int64_t* repeated_end
) noexcept nogil:
    """Under the lock: what the producer states say to the batches, without changing them; how they would be goes to
    `tried`. How many at the front are in the log already goes to `repeated`, the offset of the first one to
    `repeated_at`, that behind the last one to `repeated_end`. 0 or Kafka's code."""
    cdef ProducerEntry e
    cdef EndedTxn ended
    cdef int64_t duplicate_of, offset = gathered.end
    cdef int32_t coordinator_epoch = -1
    cdef size_t i
    cdef int16_t error
    cdef int marker
    cdef bint begins
    cdef const uint8_t* records = taken.records
    cdef const BatchHeader* header
    repeated[0] = 0
    for i in range(taken.batches.size()):
        header = &taken.batches[i]
        if header.producer_id >= 0 and part.origin != REPLICA:
            e = _producer(p, tried, gathered, header.producer_id)
            duplicate_of = NO_OFFSET
            if batch_is_control(header):
                marker = batch_marker_type(records, header, &coordinator_epoch)
                error = producer_marker(
                    &e, header, marker == MARKER_COMMIT, coordinator_epoch, part.origin, offset, now_ms, &ended
                )
            else:
                begins = batch_is_transactional(header) and would_begin(&e, header)
                error = producer_data(&e, header, part.origin, offset, now_ms, &duplicate_of)
                if begins and error == 0 and duplicate_of == NO_OFFSET:
                    error = _check_beginning(p, part, &e)
            if error != 0:
                return error
            if duplicate_of != NO_OFFSET:
                if repeated[0] != i:
                    return OUT_OF_ORDER_SEQUENCE_NUMBER
                repeated[0] += 1
                if i == 0:
                    repeated_at[0] = duplicate_of
                repeated_end[0] = duplicate_of + header.last_offset_delta + 1
                records += header.size
                continue
            if not gathered.alone or taken.batches.size() > 1:
                tried[header.producer_id] = e
        offset += header.last_offset_delta + 1
        records += header.size
    return 0


cdef bint _roll_wanted(
    PartitionLog* p, const Gathered* gathered, int64_t n, int64_t max_timestamp, int64_t last_offset, int64_t now_ms
) noexcept nogil:
    """Kafka's rule: size, time between the first batch's timestamp and these (without timestamps: the clock), a full
    index, or offsets that don't fit one."""
    cdef Segment* s = p.log.segments.back()
    cdef int64_t waited
    if s.size == 0:
        return False
    if s.first_timestamp >= 0 and max_timestamp >= 0:
        waited = max_timestamp - s.first_timestamp
    else:
        waited = now_ms - s.created_ms
    return (
        s.size + gathered.bytes > p.config.segment_bytes - n
        or waited > p.config.segment_ms - p.roll_jitter_ms
        or segment_index_full(s, p.config.segment_index_bytes, gathered.batches)
        or last_offset - s.base_offset > RELATIVE_MAX
    )


cdef bint _assign(
    PartitionLog* p, uint8_t* records, vector[BatchHeader]& batches, size_t first, Origin origin, int64_t offset,
    int64_t* end, int64_t* newest
) noexcept nogil:
    """Under the lock: offsets and leader epochs into the batches from `first` on. False: a replica's offsets don't
    follow the log."""
    cdef size_t i
    newest[0] = -1
    for i in range(first, batches.size()):
        if origin == REPLICA:
            if (batches[i].base_offset if batches[i].magic >= 2 else batch_last_offset(&batches[i])) < offset:
                return False
            if p.log.dense and batches[i].magic >= 2 and batches[i].base_offset > offset:
                return False               # the next start would take the hole for damage
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


cdef void _note_ended(PartitionLog* p, const BatchHeader* marker) noexcept nogil:
    """Under the lock, before the producers forget it: the transaction that a marker ends is open for readers until the
    high watermark is past the marker."""
    cdef EndedTxn txn
    if marker.magic < 2 or marker.producer_id < 0:
        return
    txn.producer_id = marker.producer_id
    txn.first_offset = producers_get(&p.log.producers, marker.producer_id).txn_first_offset
    txn.last_offset = marker.base_offset
    txn.aborted = False
    if txn.first_offset != NO_OFFSET:
        p.ended.push_back(txn)


cdef uint64_t _take_in(
    PartitionLog* p, Segment* s, const GatheredPart* gathered, int64_t now_ms
) noexcept nogil:
    """Under the lock: the batches are in the file; the indexes, producers, epochs and offsets follow. Gives the network
    threads to be woken."""
    cdef const Validated* taken = gathered.taken
    cdef size_t first = gathered.first
    cdef const BatchHeader* header
    cdef const uint8_t* records = taken.records
    cdef int64_t began_at = s.size, position = s.size, offset = p.log.log_end
    cdef bint epochs_changed = False
    cdef size_t i
    s.tail = BatchPlace(taken.batches[first].base_offset, position, taken.batches[first].size)
    for i in range(taken.batches.size()):
        header = &taken.batches[i]
        if i >= first:
            segment_index_batch(s, header, position, p.config.index_interval_bytes)
            if batch_is_control(header):
                _note_ended(p, header)
            replay_batch(&p.log, s, header, records, position, True, now_ms)
            if p.log.epochs.entries.empty() or header.leader_epoch > p.log.epochs.entries.back().epoch:
                pthread_mutex_lock(&p.seldom)
                if epochs_assign(&p.log.epochs, header.leader_epoch, header.base_offset):
                    epochs_changed = True
                pthread_mutex_unlock(&p.seldom)
            position += header.size
        records += header.size
    p.changed = True
    if epochs_changed or p.epochs_unwritten:
        write_epochs(p, False)
    atomic_store64(&p.log.log_end, s.next_offset)
    note_end(p.end_slot, s.next_offset)
    if gathered.part.origin != REPLICA:
        p.tally.messages_in += s.next_offset - offset
        p.tally.bytes_in += <int64_t>gathered.part.n if first == 0 else position - began_at
    # What has to be flushed is shown by the flush, and nothing before what lies in front of it, whatever flush.messages
    # is by then.
    p.owes_flush = p.owes_flush or is_flush_due(p)
    return take_waiting_log_end(p) | advance_high_watermark(p)


cdef int16_t _refused_by_disk(PartitionLog* p, int result, bint broken, uint64_t* wake) noexcept nogil:
    """Under the lock: a disk that failed takes the partition's folder with it, a full one only refuses. `wake` gets who
    has to be woken after the lock."""
    if broken or not is_passing(result):
        wake[0] |= fail_log(p, result)
    elif is_full(result):
        folder_ran_full(p.folder)
    return KAFKA_STORAGE_ERROR


cdef void _tell_ahead(PartitionLog* p) noexcept nogil:
    """Under the lock: somebody has to give back what the active segment's file has ahead, once nothing is appended any
    more."""
    p.ahead_end = -1
    atomic_store32(&p.ahead, True)
    if atomic_load32(&p.folder.ahead) == 0:
        atomic_store32(&p.folder.ahead, 1)
        folder_tell(p.folder)


cdef void _write(PartitionLog* p, Gathered* gathered, int64_t now_ms, uint64_t* wake) noexcept nogil:
    """Under the lock: what was gathered goes into the file and then into all that is known of the log."""
    cdef Segment* s = p.log.segments.back()
    cdef bint broken = False
    cdef int16_t error = 0
    cdef int result
    cdef size_t i
    if gathered.parts.empty():
        return
    result = segment_write(s, gathered.pieces, gathered.bytes, &broken)
    if result != 0:
        error = _refused_by_disk(p, result, broken, wake)
        gathered.refused = error
    elif room_is_ahead(&s.room, s.size) and not p.ahead:
        _tell_ahead(p)
    for i in range(gathered.parts.size()):
        gathered.parts[i].part.done.error = error
        if error == 0:
            wake[0] |= _take_in(p, s, &gathered.parts[i], now_ms)
    gathered.parts.clear()
    gathered.pieces.clear()
    gathered.producers.clear()
    gathered.bytes = 0
    gathered.batches = 0
    gathered.end = p.log.log_end


cdef int16_t _gather(
    PartitionLog* p, Gathered* gathered, Append* part, Validated* taken, int64_t now_ms, uint64_t* wake
) noexcept nogil:
    """Under the lock: validates a part and gives it its offsets; what isn't in the log already joins what was gathered,
    or begins it again in a segment that has room. 0 or Kafka's code."""
    cdef unordered_map[int64_t, ProducerEntry] tried
    cdef unordered_map[int64_t, ProducerEntry].iterator each
    cdef uint8_t* records
    cdef int64_t n, repeated_at = -1, end = 0, newest = -1
    cdef size_t first = 0, i
    cdef int16_t error
    cdef int result
    cdef bint roll_wanted
    cdef iovec piece
    if gathered.refused != 0:
        return gathered.refused
    if p.stopped or p.cutting:
        return NOT_LEADER_OR_FOLLOWER
    if part.origin == REPLICA:
        if part.ask != NULL and not ask_fits(p, part.ask):
            return NOT_LEADER_OR_FOLLOWER
    elif not serves_clients(p) or (part.led_since != NO_EPOCH and p.leads_since > part.led_since):
        return NOT_LEADER_OR_FOLLOWER
    elif part.lease_until_ms != NULL and not p.sole and lease_is_over(part.lease_until_ms):
        return NOT_LEADER_OR_FOLLOWER
    if part.acks_all and p.isr_n < p.enough:
        return NOT_ENOUGH_REPLICAS
    if is_offline(p) or (from_client(part.origin) and atomic_load32(&p.folder.space) == FOLDER_RESERVED):
        return KAFKA_STORAGE_ERROR
    error = place_validated(&p.config, taken, gathered.end)
    if error == 0:
        error = _validate_producers(p, gathered, taken, part, now_ms, tried, &first, &repeated_at, &end)
    if error != 0:
        return error
    records = taken.records
    n = <int64_t>taken.n
    for i in range(first):
        records += taken.batches[i].size
        n -= taken.batches[i].size
    part.done.log_start_offset = p.log.log_start
    part.done.base_offset = repeated_at if first > 0 else gathered.end
    part.done.leader_epoch = p.leader_epoch
    part.done.needed = end
    roll_wanted = False
    if first < taken.batches.size():
        if not _assign(p, records, taken.batches, first, part.origin, gathered.end, &end, &newest):
            return CORRUPT_MESSAGE
        part.done.needed = end
        if end - 1 - gathered.end > RELATIVE_MAX:
            return INVALID_RECORD          # counts that lie: an index couldn't hold the offsets
        if part.origin == REPLICA:
            part.done.base_offset = taken.batches[0].base_offset
        result = segment_hold_indexes(p.log.segments.back())
        if result == INDEX_WRONG:
            doubt_segment(p, p.log.segments.back())
            tell_doubt(p)
            return NOT_LEADER_OR_FOLLOWER
        if result != 0:
            return _refused_by_disk(p, result, False, wake)
        roll_wanted = _roll_wanted(p, gathered, n, newest, end - 1, now_ms)
    if not gathered.parts.empty() and (first > 0 or roll_wanted or p.log.segments.back().size == 0):
        # A repeated batch may be among those that aren't written yet, and a segment's first batch says when it is to be
        # rolled: these are written before this one is looked at.
        _write(p, gathered, now_ms, wake)
        return _gather(p, gathered, part, taken, now_ms, wake)
    if first == taken.batches.size():
        return 0
    if roll_wanted:
        result = roll(p, now_ms)
        if result != 0:
            return _refused_by_disk(p, result, False, wake)
    piece.iov_base = records
    piece.iov_len = <size_t>n
    gathered.pieces.push_back(piece)
    gathered.parts.push_back(GatheredPart(part, taken, first))
    gathered.bytes += n
    gathered.batches += taken.batches.size() - first
    gathered.end = end
    each = tried.begin()
    while each != tried.end() and not gathered.alone:
        gathered.producers[at(each).first] = at(each).second
        preincrement(each)
    return 0


cdef int16_t _validate(
    const LogConfig* config, Append* part, Validated* taken, int64_t end, int64_t now_ms
) noexcept nogil:
    """Without the lock: what can be said of the records alone. `end` is the offset that they will likely have."""
    cdef int16_t error
    taken.may_inflate = part.may_inflate[0]
    taken.work_left = part.work_left[0]
    error = validate_records(config, part.records, part.n, part.origin, now_ms, taken)
    part.may_inflate[0] = taken.may_inflate
    part.work_left[0] = taken.work_left
    return error if error != 0 else place_validated(config, taken, end)


cdef inline void _wanted_config(PartitionLog* p, LogConfig* config) noexcept nogil:
    pthread_mutex_lock(&p.seldom)
    config[0] = p.wanted
    pthread_mutex_unlock(&p.seldom)


cdef inline int16_t _is_closed(PartitionLog* p) noexcept nogil:
    """One that isn't open has no settings either, so nothing is validated. 0 or Kafka's code."""
    return NOT_LEADER_OR_FOLLOWER if atomic_load32(&p.stopped) else (KAFKA_STORAGE_ERROR if is_offline(p) else 0)


cdef void _done_nothing(Appended* done, int16_t error) noexcept nogil:
    done.error = error
    done.tallied = False
    done.base_offset = -1
    done.log_append_time_ms = -1
    done.log_start_offset = -1
    done.needed = -1
    done.leader_epoch = -1
    done.waits = False
    done.refusal.fault = 0
    done.refusal.count = 0


cdef bint partition_validate(Partition* partition, Append* part, Validated* into) noexcept nogil:
    cdef PartitionLog* p = log_of(partition)
    cdef LogConfig config
    _done_nothing(&part.done, _is_closed(p))
    part.checked = into
    into.batches.clear()
    into.rebuilt.clear()
    into.inner.clear()
    into.refusal.fault = 0
    into.refusal.count = 0
    if part.done.error == 0:
        _wanted_config(p, &config)
        part.done.error = _validate(&config, part, into, atomic_load64(&p.log.log_end), wall_ms())
    return part.done.error != VALIDATE_TOO_MUCH_WORK


cdef inline Validated* _taken(Append** parts, size_t i, vector[Validated]& own) noexcept nogil:
    return parts[i].checked if parts[i].checked != NULL else &own[i]


cdef size_t _append_some(Partition* partition, Append** parts, size_t count, int16_t* refused) noexcept nogil:
    """As many of the parts as may be held together, at least one. How many they were. `refused`: as Gathered has it."""
    cdef PartitionLog* p = log_of(partition)
    cdef vector[Validated] own
    cdef Validated* taken
    cdef Gathered gathered
    cdef LogConfig config
    cdef int64_t now_ms = wall_ms()
    cdef int64_t end
    cdef uint64_t wake = 0
    cdef int16_t error
    cdef size_t i, j, rewritten = 0
    cdef int64_t failed = 0
    cdef bint counts = parts[0].origin != REPLICA
    cdef bint due = False, sole = False
    cdef Appended* done
    # All of this may have changed when the lock is taken, and is looked at again.
    _wanted_config(p, &config)
    end = atomic_load64(&p.log.log_end)
    error = _is_closed(p)
    if parts[0].checked == NULL:
        own.resize(count)
    for i in range(count):
        done = &parts[i].done
        taken = _taken(parts, i, own)
        if error != 0 or parts[i].checked == NULL:
            _done_nothing(done, error)
        if error == 0:
            if parts[i].checked == NULL:
                done.error = _validate(&config, parts[i], taken, end, now_ms)
            elif done.error == 0:
                done.error = place_validated(&config, taken, end)
            if done.error == 0:
                stamp_validated(taken, now_ms)
            for j in range(taken.batches.size()):
                end += taken.batches[j].last_offset_delta + 1
            rewritten += taken.rebuilt.capacity() + taken.inner.capacity()
            if rewritten > REWRITTEN_MAX_BYTES:
                count = i + 1
                break
    if error != 0:
        return count
    gathered.bytes = 0
    gathered.batches = 0
    gathered.alone = count == 1
    gathered.refused = refused[0]
    pthread_mutex_lock(&p.lock)
    atomic_store64(&p.writing_since_ms, monotonic_ns() // 1_000_000)
    take_config(p)
    gathered.end = p.log.log_end
    for i in range(count):
        if parts[i].done.error == 0:
            parts[i].done.error = _gather(p, &gathered, parts[i], _taken(parts, i, own), now_ms, &wake)
        if (
            parts[i].done.error == NOT_LEADER_OR_FOLLOWER
            or parts[i].done.error == NOT_ENOUGH_REPLICAS
            or parts[i].done.error == KAFKA_STORAGE_ERROR
        ):
            gathered.refused = parts[i].done.error
    _write(p, &gathered, now_ms, &wake)
    refused[0] = gathered.refused
    end = p.log.log_end
    for i in range(count):
        due = due or (parts[i].done.error == 0 and not flushed_by_caller(parts[i].origin))
        parts[i].done.tallied = parts[i].done.error != NOT_LEADER_OR_FOLLOWER
        p.tally.appends += parts[i].done.tallied and counts
        if parts[i].acks_all and parts[i].done.error == 0 and not p.marks.empty():
            parts[i].done.waits = p.high_watermark < parts[i].done.needed
    due = due and p.owes_flush
    sole = p.sole
    atomic_store64(&p.writing_since_ms, 0)
    pthread_mutex_unlock(&p.lock)
    wake_reactors(partition, wake)     # before a flush, which may take long
    if due and flush_until(p, end, now_ms) != 0:
        error = KAFKA_STORAGE_ERROR
    for i in range(count):
        done = &parts[i].done
        taken = _taken(parts, i, own)
        done.refusal = taken.refusal
        if done.error == 0:
            done.error = error
        # After the append: whoever had been elected before it would have been without these records.
        if done.error == 0 and not sole and parts[i].lease_until_ms != NULL and lease_is_over(parts[i].lease_until_ms):
            done.error = NOT_LEADER_OR_FOLLOWER
        if done.error != 0:
            done.base_offset = -1
            failed += done.tallied and counts
        elif taken.stamps:
            done.log_append_time_ms = now_ms
    if failed:
        relaxed_add64(&p.tally.appends_failed, failed)
    return count


cdef StorageFault _storage_fault(const PartitionLog* p) noexcept nogil:
    """Why the partition's disk has refused something just now."""
    if is_offline(p):
        return STORAGE_FAILED
    if p.folder != NULL and atomic_load32(&p.folder.space) != FOLDER_HAS_SPACE:
        return STORAGE_FULL
    return STORAGE_SHORTAGE


cdef void partition_append(Partition* partition, Append** parts, size_t count) noexcept nogil:
    cdef size_t i, done = 0
    cdef int16_t refused = 0
    while done < count:
        done += _append_some(partition, parts + done, count - done, &refused)
    for i in range(count):
        if parts[i].done.error == KAFKA_STORAGE_ERROR:
            parts[i].done.storage = _storage_fault(log_of(partition))
