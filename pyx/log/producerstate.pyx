"""Producer states; see producerstate.pxd. The rules are Kafka's (KIP-98, KIP-360), the codes those of its Produce."""

from cython.operator cimport dereference as at, postincrement as step
from libc.stdint cimport uint8_t
from libcpp.algorithm cimport nth_element
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport (
    INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, OUT_OF_ORDER_SEQUENCE_NUMBER, TRANSACTION_COORDINATOR_FENCED,
)
from penstock.pyx.linux.posix cimport atomic_add64, memmove, stat, stat_path, unlink
from penstock.pyx.log.files cimport read_whole, replace_whole, sync_file
from penstock.pyx.log.origin cimport ADDED, MARKER, REPLICA, Origin, from_client
from penstock.pyx.record.batch cimport BatchHeader, batch_is_transactional, batch_last_sequence, sequence_add
from penstock.pyx.record.crc cimport crc32c_update
from penstock.pyx.record.endian cimport get_i16, get_i32, get_i64, get_u32, put_i16, put_i32, put_i64, put_u32

cdef enum:
    SNAPSHOT_VERSION = 1
    SNAPSHOT_CRC_AT = 2
    SNAPSHOT_COUNT_AT = SNAPSHOT_CRC_AT + 4    # the checksum covers from here on
    SNAPSHOT_ENTRIES_AT = SNAPSHOT_COUNT_AT + 4
    EPOCH_AT = 8
    SEQUENCE_AT = EPOCH_AT + 2
    OFFSET_AT = SEQUENCE_AT + 4
    DELTA_AT = OFFSET_AT + 8
    TIMESTAMP_AT = DELTA_AT + 4
    SEQUENCES_ENTRY = TIMESTAMP_AT + 8
    COORDINATOR_AT = SEQUENCES_ENTRY
    TXN_AT = COORDINATOR_AT + 4
    SNAPSHOT_ENTRY = TXN_AT + 8


# The last number that was given; atomic.
cdef int64_t _guards = 0


cdef int64_t next_guard() noexcept nogil:
    return atomic_add64(&_guards, 1)


cdef void _clear(ProducerEntry* e, int64_t producer_id) noexcept nogil:
    e.producer_id = producer_id
    e.epoch = NO_EPOCH
    e.count = 0
    e.coordinator_epoch = -1
    e.last_timestamp_ms = -1
    e.seen_ms = 0
    e.txn_first_offset = NO_OFFSET
    e.ended = 0


cdef ProducerEntry producers_get(ProducerStates* states, int64_t producer_id) noexcept nogil:
    cdef ProducerEntry unknown
    found = states.entries.find(producer_id)
    if found != states.entries.end():
        return at(found).second
    _clear(&unknown, producer_id)
    return unknown


cdef inline void _add_batch(ProducerEntry* e, const BatchMark* mark) noexcept nogil:
    if e.count == PRODUCER_BATCHES:
        memmove(&e.batches[0], &e.batches[1], (PRODUCER_BATCHES - 1) * sizeof(BatchMark))
        e.count -= 1
    e.batches[e.count] = mark[0]
    e.count += 1


cdef inline void _set_epoch(ProducerEntry* e, int16_t epoch) noexcept nogil:
    if e.epoch != epoch:
        e.epoch = epoch
        e.count = 0


cdef int64_t _find_duplicate(const ProducerEntry* e, const BatchHeader* header) noexcept nogil:
    """The last offset of the same batch in the log, or NO_OFFSET."""
    cdef int i
    cdef int32_t last = batch_last_sequence(header)
    if e.epoch != header.producer_epoch or header.base_sequence < 0:
        return NO_OFFSET
    for i in range(e.count):
        if e.batches[i].last_sequence == last and e.batches[i].offset_delta == header.last_offset_delta:
            return e.batches[i].last_offset
    return NO_OFFSET


cdef int16_t _check_sequence(const ProducerEntry* e, const BatchHeader* header) noexcept nogil:
    if e.epoch == NO_EPOCH:
        return 0
    if header.producer_epoch != e.epoch or e.count == 0:
        return 0 if header.base_sequence == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER
    if header.base_sequence != sequence_add(e.batches[e.count - 1].last_sequence, 1):
        return OUT_OF_ORDER_SEQUENCE_NUMBER
    return 0


cdef int16_t producer_data(
    ProducerEntry* e, const BatchHeader* header, Origin origin, int64_t base_offset, int64_t now_ms,
    int64_t* duplicate_of
) noexcept nogil:
    cdef BatchMark mark
    cdef int64_t last_offset
    cdef int16_t error
    duplicate_of[0] = NO_OFFSET
    if origin != REPLICA:
        if header.producer_epoch < e.epoch:
            return INVALID_PRODUCER_EPOCH
        if from_client(origin):
            last_offset = _find_duplicate(e, header)
            if last_offset >= 0:
                duplicate_of[0] = last_offset - header.last_offset_delta
                return 0
            error = _check_sequence(e, header)
            if error != 0:
                return error
            # Of a producer that isn't known any sequence is taken: its state may have expired. But nothing has expired
            # from a log that never had a record (as in Kafka 4.5, KAFKA-15591): an earlier batch was refused and comes
            # again. And transactions v2 have an epoch each, so their first batch is number 0 everywhere.
            if e.epoch == NO_EPOCH and header.base_sequence != 0 and (base_offset == 0 or origin == ADDED):
                return OUT_OF_ORDER_SEQUENCE_NUMBER
        if e.txn_first_offset != NO_OFFSET and not batch_is_transactional(header):
            return INVALID_TXN_STATE
    _set_epoch(e, header.producer_epoch)
    mark.last_sequence = batch_last_sequence(header)
    mark.offset_delta = header.last_offset_delta
    mark.last_offset = base_offset + header.last_offset_delta
    mark.timestamp_ms = header.max_timestamp
    _add_batch(e, &mark)
    e.last_timestamp_ms = header.max_timestamp
    e.seen_ms = now_ms
    if batch_is_transactional(header) and e.txn_first_offset == NO_OFFSET:
        e.txn_first_offset = base_offset
    return 0


cdef int16_t producer_marker(
    ProducerEntry* e, const BatchHeader* header, bint commit, int32_t coordinator_epoch, Origin origin, int64_t offset,
    int64_t now_ms, EndedTxn* ended
) noexcept nogil:
    if origin != REPLICA:
        if header.producer_epoch < e.epoch:
            return INVALID_PRODUCER_EPOCH
        # The epoch of a marker of transactions v2 is above that of its records: these are the next transaction's.
        if origin == MARKER and header.producer_epoch == e.epoch and e.txn_first_offset != NO_OFFSET:
            return INVALID_PRODUCER_EPOCH
        if coordinator_epoch < e.coordinator_epoch:
            return TRANSACTION_COORDINATOR_FENCED
    ended.producer_id = header.producer_id
    ended.first_offset = e.txn_first_offset
    ended.last_offset = offset
    ended.aborted = not commit
    _set_epoch(e, header.producer_epoch)
    e.txn_first_offset = NO_OFFSET
    e.ended = next_guard()
    e.coordinator_epoch = coordinator_epoch
    e.last_timestamp_ms = header.max_timestamp
    e.seen_ms = now_ms
    return 0


# Entries of all logs; atomic.
cdef int64_t _all_entries = 0


cdef void _make_room(ProducerStates* states, int64_t kept_id) noexcept nogil:
    """Forget the older half of the producers that have no open transaction; not the one that has just come."""
    cdef vector[int64_t] seen
    cdef int64_t oldest_kept
    cdef size_t drop
    cdef unordered_map[int64_t, ProducerEntry].iterator i = states.entries.begin()
    while i != states.entries.end():
        if at(i).second.txn_first_offset == NO_OFFSET and at(i).first != kept_id:
            seen.push_back(at(i).second.seen_ms)
        step(i)
    if seen.empty():
        return
    void_guards(states)                # an entry that is made again doesn't know of its markers
    drop = (seen.size() + 1) // 2
    nth_element(seen.begin(), seen.begin() + (drop - 1), seen.end())
    oldest_kept = seen[drop - 1]
    i = states.entries.begin()
    while i != states.entries.end() and drop > 0:
        if (
            at(i).second.txn_first_offset == NO_OFFSET
            and at(i).first != kept_id
            and at(i).second.seen_ms <= oldest_kept
        ):
            i = states.entries.erase(i)
            atomic_add64(&_all_entries, -1)
            drop -= 1
        else:
            step(i)


cdef void producers_put(
    ProducerStates* states, const ProducerEntry* e, int64_t segment_base, int64_t position
) noexcept nogil:
    cdef OpenTxn txn
    cdef int64_t before = NO_OFFSET
    cdef size_t most
    cdef unordered_map[int64_t, ProducerEntry].iterator found = states.entries.find(e.producer_id)
    if found != states.entries.end():
        before = at(found).second.txn_first_offset
        at(found).second = e[0]
    else:
        states.entries[e.producer_id] = e[0]
        most = PRODUCERS_SPARED if atomic_add64(&_all_entries, 1) > PRODUCERS_ALL_MAX else PRODUCERS_MAX
        if states.entries.size() > most:
            _make_room(states, e.producer_id)
    if before == e.txn_first_offset:
        return
    if before != NO_OFFSET:
        states.open_txns.erase(before)
    if e.txn_first_offset != NO_OFFSET:
        txn.producer_id = e.producer_id
        txn.segment_base = segment_base
        txn.position = position
        states.open_txns[e.txn_first_offset] = txn


cdef int64_t producers_first_open(const ProducerStates* states, int64_t otherwise) noexcept nogil:
    if states.open_txns.empty():
        return otherwise
    cdef int64_t first = at(states.open_txns.begin()).first
    return first if first < otherwise else otherwise


cdef void producers_expire(ProducerStates* states, int64_t now_ms, int64_t expiration_ms) noexcept nogil:
    cdef unordered_map[int64_t, ProducerEntry].iterator i = states.entries.begin()
    cdef bint expired = False
    while i != states.entries.end():
        if at(i).second.txn_first_offset == NO_OFFSET and now_ms - at(i).second.seen_ms >= expiration_ms:
            i = states.entries.erase(i)
            atomic_add64(&_all_entries, -1)
            expired = True
        else:
            step(i)
    if expired:
        void_guards(states)


cdef void producers_clear(ProducerStates* states) noexcept nogil:
    atomic_add64(&_all_entries, -<int64_t>states.entries.size())
    states.entries.clear()
    states.open_txns.clear()


cdef inline void _put_batch(uint8_t* p, int64_t producer_id, int16_t epoch, const BatchMark* mark) noexcept nogil:
    put_i64(p, producer_id)
    put_i16(p + EPOCH_AT, epoch)
    put_i32(p + SEQUENCE_AT, mark.last_sequence)
    put_i64(p + OFFSET_AT, mark.last_offset)
    put_i32(p + DELTA_AT, mark.offset_delta)
    put_i64(p + TIMESTAMP_AT, mark.timestamp_ms)


cdef int _write_table(vector[uint8_t]& bytes, int32_t count, const string& path, bint sync) noexcept nogil:
    put_i16(bytes.data(), SNAPSHOT_VERSION)
    put_i32(bytes.data() + SNAPSHOT_COUNT_AT, count)
    put_u32(bytes.data() + SNAPSHOT_CRC_AT,
            crc32c_update(0, bytes.data() + SNAPSHOT_COUNT_AT, bytes.size() - SNAPSHOT_COUNT_AT))
    return replace_whole(path.c_str(), bytes.data(), bytes.size(), sync)


cdef int producers_write(const ProducerStates* states, const string& stem, bint sync) noexcept nogil:
    cdef vector[uint8_t] entries, older
    cdef string path
    cdef const ProducerEntry* e
    cdef BatchMark mark
    cdef uint8_t* p
    cdef int32_t older_count = 0
    cdef int j, result
    cdef unordered_map[int64_t, ProducerEntry].const_iterator i = states.entries.const_begin()
    entries.reserve(SNAPSHOT_ENTRIES_AT + states.entries.size() * SNAPSHOT_ENTRY)
    entries.resize(SNAPSHOT_ENTRIES_AT)
    older.resize(SNAPSHOT_ENTRIES_AT)
    while i != states.entries.const_end():
        e = &at(i).second
        mark.last_sequence = -1
        mark.offset_delta = 0
        mark.last_offset = -1
        if e.count > 0:
            mark = e.batches[e.count - 1]
        mark.timestamp_ms = e.last_timestamp_ms
        entries.resize(entries.size() + SNAPSHOT_ENTRY)
        p = entries.data() + entries.size() - SNAPSHOT_ENTRY
        _put_batch(p, e.producer_id, e.epoch, &mark)
        put_i32(p + COORDINATOR_AT, e.coordinator_epoch)
        put_i64(p + TXN_AT, e.txn_first_offset)
        for j in range(e.count - 1):
            older.resize(older.size() + SEQUENCES_ENTRY)
            _put_batch(older.data() + older.size() - SEQUENCES_ENTRY, e.producer_id, e.epoch, &e.batches[j])
            older_count += 1
        step(i)
    # The companion first: a snapshot must never find the companion of another one beside it.
    path = stem
    path.append(b".sequences")
    result = _write_table(older, older_count, path, sync) if older_count > 0 else 0
    if older_count == 0:
        unlink(path.c_str())
    path = stem
    path.append(b".snapshot")
    return result if result != 0 else _write_table(entries, <int32_t>states.entries.size(), path, sync)


cdef int producers_sync(const string& stem) noexcept nogil:
    cdef int result
    cdef string path = stem
    path.append(b".sequences")
    result = sync_file(path.c_str())
    path = stem
    path.append(b".snapshot")
    return result if result != 0 else sync_file(path.c_str())


cdef const uint8_t* _read_table(
    const string& path, size_t entry, vector[uint8_t]& bytes, int32_t* count
) noexcept nogil:
    """The entries of a table whose version, size and checksum are right; NULL otherwise."""
    if read_whole(path.c_str(), bytes) != 0 or bytes.size() < SNAPSHOT_ENTRIES_AT:
        return NULL
    count[0] = get_i32(bytes.data() + SNAPSHOT_COUNT_AT)
    if (
        get_i16(bytes.data()) != SNAPSHOT_VERSION
        or count[0] < 0
        or bytes.size() != SNAPSHOT_ENTRIES_AT + <size_t>count[0] * entry
        or get_u32(bytes.data() + SNAPSHOT_CRC_AT)
        != crc32c_update(0, bytes.data() + SNAPSHOT_COUNT_AT, bytes.size() - SNAPSHOT_COUNT_AT)
    ):
        return NULL
    return bytes.data() + SNAPSHOT_ENTRIES_AT


cdef inline void _get_batch(const uint8_t* p, BatchMark* mark) noexcept nogil:
    mark.last_sequence = get_i32(p + SEQUENCE_AT)
    mark.last_offset = get_i64(p + OFFSET_AT)
    mark.offset_delta = get_i32(p + DELTA_AT)
    mark.timestamp_ms = get_i64(p + TIMESTAMP_AT)


cdef bint _read_older(ProducerStates* states, const string& stem) noexcept nogil:
    """Puts the older batches before the last one, where they belong to the same producer and epoch and lie before it.
    False: the file is there and can't be read."""
    cdef stat info
    cdef vector[uint8_t] bytes
    cdef int32_t count = 0, _i
    cdef BatchMark mark, last
    cdef ProducerEntry* e
    cdef unordered_map[int64_t, ProducerEntry].iterator found
    cdef string path = stem
    path.append(b".sequences")
    cdef const uint8_t* p = _read_table(path, SEQUENCES_ENTRY, bytes, &count)
    if p == NULL:
        return stat_path(path.c_str(), &info) != 0
    for _i in range(count):
        found = states.entries.find(get_i64(p))
        if found != states.entries.end():
            e = &at(found).second
            _get_batch(p, &mark)
            if e.count > 0 and e.epoch == get_i16(p + EPOCH_AT):
                last = e.batches[e.count - 1]
                if mark.last_offset < last.last_offset:
                    e.count -= 1
                    _add_batch(e, &mark)
                    _add_batch(e, &last)
        p += SEQUENCES_ENTRY
    return True


cdef bint producers_read(ProducerStates* states, const string& stem, int64_t now_ms) noexcept nogil:
    cdef vector[uint8_t] bytes
    cdef int32_t count = 0, _i
    cdef ProducerEntry e
    cdef BatchMark mark
    cdef string path = stem
    path.append(b".snapshot")
    producers_clear(states)
    cdef const uint8_t* p = _read_table(path, SNAPSHOT_ENTRY, bytes, &count)
    if p == NULL:
        return False
    for _i in range(count):
        _clear(&e, get_i64(p))
        e.epoch = get_i16(p + EPOCH_AT)
        e.coordinator_epoch = get_i32(p + COORDINATOR_AT)
        e.txn_first_offset = get_i64(p + TXN_AT)
        e.seen_ms = now_ms
        _get_batch(p, &mark)
        e.last_timestamp_ms = mark.timestamp_ms
        if mark.last_offset >= 0:
            _add_batch(&e, &mark)
        producers_put(states, &e, -1, -1)
        p += SNAPSHOT_ENTRY
    if not _read_older(states, stem):
        producers_clear(states)
        return False
    return True


cdef void producers_remove(const string& stem) noexcept nogil:
    cdef string path = stem
    path.append(b".sequences")
    unlink(path.c_str())
    path = stem
    path.append(b".snapshot")
    unlink(path.c_str())
