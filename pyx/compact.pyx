"""Compaction of segments: see compact.pxd."""

from cython.operator cimport dereference as at
from libc.stdint cimport int8_t, uint64_t
from penstock.pyx.batch cimport (
    BATCH_BAD_OFFSET, BATCH_BAD_RECORDS, BATCH_NO_MEMORY, CHECK_STORED, CODEC_MASK, DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT, RECORDS_AT, RecordView, batch_check, batch_is_control, batch_is_transactional,
    batch_last_offset, batch_marker_type, batch_parse, batch_payload, batch_write_header, record_create_time,
    record_offset, record_read,
)
from penstock.pyx.builder cimport batch_finish
from penstock.pyx.codec cimport bytes_grow, bytes_resize
from penstock.pyx.files cimport FILE_MODE, write_at
from penstock.pyx.index cimport IndexFile, index_write
from penstock.pyx.messageset cimport (
    Inner, MessageView, inner_offset, inner_timestamp, message_next, message_read, message_write, wrapper_open,
    wrapper_write,
)
from penstock.pyx.offsetmap cimport OFFSETMAP_FULL, offsetmap_get, offsetmap_put
from penstock.pyx.posix cimport (
    CLOCK_MONOTONIC, ENOMEM, O_CLOEXEC, O_CREAT, O_RDWR, O_TRUNC, atomic_load32, clock_gettime, errno,
    fstat, fsync, futimens, memcpy, nanosleep, open, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
    stat, timespec,
)
from penstock.pyx.segment cimport (
    WALK_BATCH, WALK_END, LogWalk, segment_find, segment_index_abort, segment_index_batch, segment_new, segment_open,
    segment_reset_indexes, segment_seal, walk_begin, walk_next,
)
from penstock.pyx.varint cimport varint_write, varlong_size, varlong_write

cdef enum:
    CHUNK = 1 << 20                    # one read, and about one write
    SLICE_NS = 100_000_000             # the longest sleep before the end is looked at again
    LONG_RECORD = 32                   # more than what a record's length and timestamp can grow by
    POSITION_MAX = 0x7fffffff          # positions in an index are 32 bits
    COMMIT = 1
    ABORT = 0

cdef int64_t FOREVER = 0x7fffffffffffffff


# --- pace ----------------------------------------------------------------------------------------------------------

cdef void pace_begin(CleanPace* pace) noexcept nogil:
    pthread_mutex_init(&pace.lock, NULL)
    pace.bytes_per_second = 0
    pace.free_ns = 0
    pace.cancelled = 0


cdef inline int64_t _monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef bint pace_take(CleanPace* pace, const int32_t* cancelled, int64_t bytes) noexcept nogil:
    cdef int64_t now, until = 0
    cdef timespec pause
    pthread_mutex_lock(&pace.lock)
    if pace.bytes_per_second > 0:
        now = _monotonic_ns()
        if pace.free_ns < now:
            pace.free_ns = now
        until = pace.free_ns           # what came before is waited for, so that small steps don't sleep
        pace.free_ns += <int64_t>(<double>bytes * 1e9 / pace.bytes_per_second)
    pthread_mutex_unlock(&pace.lock)
    while True:
        if atomic_load32(&pace.cancelled) or atomic_load32(cancelled):
            return False
        now = _monotonic_ns() if until > 0 else 0
        if now >= until:
            return True
        pause.tv_sec = 0
        pause.tv_nsec = <long>(until - now if until - now < SLICE_NS else SLICE_NS)
        nanosleep(&pause, NULL)


# --- transactions --------------------------------------------------------------------------------------------------

cdef void clean_track(Cleaning* c) noexcept nogil:
    c.track.aborted.clear()
    c.track.committed.clear()
    c.track.next = 0


# Transactions that begin up to `offset` are under way.
cdef void _track_to(Cleaning* c, int64_t offset) noexcept nogil:
    cdef OngoingAbort ongoing
    while c.track.next < c.aborted.size() and c.aborted[c.track.next].first_offset <= offset:
        ongoing.span = c.aborted[c.track.next]
        ongoing.observed = False
        c.track.aborted[ongoing.span.producer_id] = ongoing
        c.track.next += 1


# Whether the data batch belongs to an aborted transaction.
cdef bint _track_data(Cleaning* c, const BatchHeader* header) noexcept nogil:
    cdef unordered_map[int64_t, OngoingAbort].iterator found
    _track_to(c, batch_last_offset(header))
    if not batch_is_transactional(header):
        return False
    found = c.track.aborted.find(header.producer_id)
    if found != c.track.aborted.end() and at(found).second.span.last_offset > header.base_offset:
        at(found).second.observed = True
        return True
    c.track.committed.insert(header.producer_id)
    return False


# Whether nothing is left of the control batch's transaction. `ended`: the index's entry of an abort marker, its
# producer_id -1 for anything else.
cdef bint _track_control(Cleaning* c, const uint8_t* bytes, const BatchHeader* header, AbortSpan* ended) noexcept nogil:
    cdef unordered_map[int64_t, OngoingAbort].iterator found
    cdef bint observed
    cdef int marker
    ended.producer_id = -1
    _track_to(c, batch_last_offset(header))
    if header.record_count == 0:
        return True                    # emptied before
    marker = batch_marker_type(bytes, header, NULL)
    if marker != COMMIT and marker != ABORT:
        return False
    observed = c.track.committed.erase(header.producer_id) > 0
    if marker == COMMIT:
        return not observed
    found = c.track.aborted.find(header.producer_id)
    if found != c.track.aborted.end():
        if at(found).second.span.last_offset == header.base_offset:
            ended[0] = at(found).second.span
        observed = observed or at(found).second.observed
        c.track.aborted.erase(found)
    return not observed


# --- the first half: keys ------------------------------------------------------------------------------------------

cdef int _rotten(Cleaning* c, const BatchHeader* header, int fault) noexcept nogil:
    c.fault = fault
    c.fault_offset = header.base_offset
    return ENOMEM if fault == BATCH_NO_MEMORY else <int>CLEAN_ROTTEN


# A batch's bytes, and that its offsets lie between what came before and the next segment.
cdef int _check(
    Cleaning* c, const uint8_t* bytes, const BatchHeader* header, int64_t expected, int64_t next_base
) noexcept nogil:
    cdef int fault = batch_check(bytes, header, 0, CHECK_STORED)
    if fault == 0 and not expected <= batch_last_offset(header) < next_base:
        fault = BATCH_BAD_OFFSET
    return _rotten(c, header, fault) if fault != 0 else <int>CLEAN_DONE


cdef inline int _put(Cleaning* c, const uint8_t* key, int32_t n, int64_t offset) noexcept nogil:
    cdef int result
    if n < 0 or offset < c.first_dirty:
        return CLEAN_DONE
    result = offsetmap_put(c.map, key, <size_t>n, offset)
    if result == OFFSETMAP_FULL:
        if offset - 1 > c.latest:
            c.latest = offset - 1
        return CLEAN_FULL
    return result


cdef int _index_records(Cleaning* c, const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef size_t n
    cdef RecordView record
    cdef int result = batch_payload(bytes, header, c.inflated_max_bytes, c.scratch, &p, &n)
    if result != 0:
        return _rotten(c, header, result)
    end = p + n
    while p < end:
        p = record_read(p, end, &record)
        if p == NULL or not 0 <= record.offset_delta <= header.last_offset_delta:
            return _rotten(c, header, BATCH_BAD_RECORDS)
        result = _put(c, record.key, record.key_length, record_offset(header, &record))
        if result != 0:
            return result
    return CLEAN_DONE


# A message of magic 0 or 1, or the messages of a wrapper.
cdef int _index_messages(Cleaning* c, const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    cdef MessageView message
    cdef BatchHeader within
    cdef Inner inner
    cdef const uint8_t* p
    cdef size_t left
    cdef int result
    if header.attributes & CODEC_MASK == 0:
        if not message_read(bytes, header, &message):
            return _rotten(c, header, BATCH_BAD_RECORDS)
        return _put(c, message.key, message.key_length, header.base_offset)
    result = wrapper_open(bytes, header, c.inflated_max_bytes, True, c.scratch, &inner)
    if result != 0:
        return _rotten(c, header, result)
    p = inner.data
    left = inner.n
    while left > 0:
        result = message_next(&p, &left, header.magic, &within, &message)
        if result != 0:
            return _rotten(c, header, result)
        result = _put(c, message.key, message.key_length, inner_offset(&inner, &message))
        if result != 0:
            return result
    return CLEAN_DONE


cdef int _index_batch(Cleaning* c, const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    cdef AbortSpan ended
    cdef int result = CLEAN_DONE
    if header.magic < 2:
        result = _index_messages(c, bytes, header)
    elif batch_is_control(header):
        _track_control(c, bytes, header, &ended)
    elif not _track_data(c, header):
        result = _index_records(c, bytes, header)
    if result == 0 and batch_last_offset(header) > c.latest:
        c.latest = batch_last_offset(header)
    return result


# What a walk says that isn't a batch.
cdef int _walk_fault(Cleaning* c, LogWalk* walk, BatchHeader* header, int64_t expected, int result) noexcept nogil:
    if result < 0:
        return -result
    header.base_offset = expected
    return _rotten(c, header, BATCH_BAD_RECORDS)


cdef int clean_index(Cleaning* c, Segment* s, int64_t next_base) noexcept nogil:
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int64_t position = 0, expected = s.base_offset
    cdef int result
    cdef int fd = segment_open(s, False)
    if fd < 0:
        return -fd
    if c.first_dirty > s.base_offset:
        result = segment_find(s, c.first_dirty, s.size, False, &header, &position)
        if result != WALK_BATCH and result != WALK_END:
            return _walk_fault(c, &walk, &header, expected, result)
    walk_begin(&walk, fd, position, s.size, CHUNK)
    while True:
        result = walk_next(&walk, &header, &bytes, True)
        if result == WALK_END:
            break
        if result != WALK_BATCH:
            return _walk_fault(c, &walk, &header, expected, result)
        result = _check(c, bytes, &header, expected, next_base)
        if result != 0:
            return result
        if header.base_offset >= c.upper_bound:
            return CLEAN_DONE
        expected = batch_last_offset(&header) + 1
        c.stats.bytes_indexed += header.size
        if not pace_take(c.pace, c.cancelled, header.size):
            return CLEAN_CANCELLED
        result = _index_batch(c, bytes, &header)
        if result != 0:
            return result
    # What is missing at the segment's end is known to be missing.
    expected = next_base if next_base < c.upper_bound else c.upper_bound
    if expected - 1 > c.latest:
        c.latest = expected - 1
    return CLEAN_DONE


# --- the second half: what stays -----------------------------------------------------------------------------------

# The output: a segment whose files have other names as yet.
cdef struct Output:
    Segment* segment
    int64_t position                   # of the batch that is written next
    int64_t spare                      # by how much what is left to read may grow, so that positions still fit
    bint changed


cdef int _flush(Cleaning* c, Output* out) noexcept nogil:
    cdef int64_t n = <int64_t>c.written.size()
    cdef int result
    if n == 0:
        return CLEAN_DONE
    result = write_at(out.segment.fd, c.written.data(), <size_t>n, out.position - n)
    if result != 0:
        return result
    c.written.clear()
    c.stats.bytes_written += n
    return CLEAN_DONE if pace_take(c.pace, c.cancelled, n) else <int>CLEAN_CANCELLED


cdef int _write(Cleaning* c, Output* out, const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    cdef size_t n = <size_t>header.size
    cdef size_t before = c.written.size()
    if not bytes_grow(c.written, before + n):
        return ENOMEM
    memcpy(c.written.data() + before, bytes, n)
    segment_index_batch(out.segment, header, out.position, c.index_interval_bytes)
    out.position += header.size
    return _flush(c, out) if c.written.size() >= CHUNK else CLEAN_DONE


# Whether the newest record of the key is another one.
cdef inline bint _superseded(const Cleaning* c, const uint8_t* key, int32_t n, int64_t offset) noexcept nogil:
    return offsetmap_get(c.map, key, <size_t>n) > offset


cdef bint _stays(
    Cleaning* c, const uint8_t* key, int32_t n, bint tombstone, bint keep_tombstones, int64_t offset
) noexcept nogil:
    c.stats.records_read += 1
    if offset <= c.latest:
        if n < 0:
            c.stats.records_without_key += 1
            return False
        if tombstone and not keep_tombstones:
            return False
        if _superseded(c, key, n, offset):
            return False
    c.stats.records_kept += 1
    return True


# What a batch of records has left.
cdef struct Remains:
    int32_t count
    bint all
    bint tombstones
    int64_t max_timestamp


# The records that stay, as they are, into c.plain behind room for a header. 0 or a CleanResult.
cdef int _filter_records(Cleaning* c, const uint8_t* bytes, const BatchHeader* header, Remains* out) noexcept nogil:
    cdef const uint8_t* p
    cdef const uint8_t* after
    cdef const uint8_t* end
    cdef size_t n
    cdef RecordView record
    cdef bint horizon = (header.attributes & DELETE_HORIZON_BIT) != 0
    cdef bint keep_tombstones = not horizon or header.base_timestamp > c.now_ms
    cdef bint control = batch_is_control(header)
    cdef int64_t timestamp
    cdef int result = batch_payload(bytes, header, c.inflated_max_bytes, c.scratch, &p, &n)
    out.count = 0
    out.all = True
    out.tombstones = False
    out.max_timestamp = -1
    if result != 0:
        return _rotten(c, header, result)
    if not bytes_resize(c.plain, RECORDS_AT + n):
        return ENOMEM
    c.plain.resize(RECORDS_AT)
    end = p + n
    while p < end:
        after = record_read(p, end, &record)
        if after == NULL or not 0 <= record.offset_delta <= header.last_offset_delta:
            return _rotten(c, header, BATCH_BAD_RECORDS)
        if control:
            c.stats.records_read += 1
            c.stats.records_kept += 1
        elif not _stays(
            c, record.key, record.key_length, record.value_length < 0, keep_tombstones,
            record_offset(header, &record),
        ):
            out.all = False
            p = after
            continue
        out.count += 1
        out.tombstones = out.tombstones or record.value_length < 0
        timestamp = record_create_time(header, &record)
        if timestamp > out.max_timestamp:
            out.max_timestamp = timestamp
        c.plain.insert(c.plain.end(), p, after)
        p = after
    return CLEAN_DONE


# How many bytes a number takes that was read before.
cdef inline int32_t _varint_bytes(const uint8_t* p) noexcept nogil:
    cdef int32_t n = 1
    while p[n - 1] & 0x80:
        n += 1
    return n


# The records in c.plain with `shift` added to each timestamp delta. 0 or ENOMEM.
cdef int _shift_deltas(Cleaning* c, int32_t count, int64_t shift) noexcept nogil:
    cdef const uint8_t* p = c.plain.data() + RECORDS_AT
    cdef const uint8_t* end = c.plain.data() + c.plain.size()
    cdef const uint8_t* after
    cdef uint8_t* to
    cdef RecordView record
    cdef int64_t delta
    cdef int32_t body, old
    if not bytes_resize(c.packed, c.plain.size() + <size_t>count * LONG_RECORD):
        return ENOMEM
    to = c.packed.data() + RECORDS_AT
    while p < end:
        after = record_read(p, end, &record)
        delta = <int64_t>(<uint64_t>record.timestamp_delta + <uint64_t>shift)
        p += _varint_bytes(p)          # the record's own length
        old = _varint_bytes(p + 1)
        body = <int32_t>(after - p)
        to = varint_write(to, body - old + varlong_size(delta))
        to[0] = p[0]
        to = varlong_write(to + 1, delta)
        memcpy(to, p + 1 + old, <size_t>(body - 1 - old))
        to += body - 1 - old
        p = after
    c.packed.resize(<size_t>(to - c.packed.data()))
    c.plain.swap(c.packed)
    return CLEAN_DONE


cdef inline int64_t _horizon(const Cleaning* c) noexcept nogil:
    return c.now_ms + c.delete_retention_ms if c.delete_retention_ms < FOREVER - c.now_ms else FOREVER


# A batch of what is in c.plain, with the header's offsets and producer. 0 or a CleanResult.
cdef int _write_remains(
    Cleaning* c, Output* out, const uint8_t* bytes, const BatchHeader* header, const Remains* remains, bint new_horizon
) noexcept nogil:
    cdef BatchHeader rebuilt = header[0]
    cdef int result
    rebuilt.record_count = remains.count
    if header.attributes & LOG_APPEND_TIME_BIT == 0:
        rebuilt.max_timestamp = remains.max_timestamp
    if new_horizon:
        rebuilt.base_timestamp = _horizon(c)
        rebuilt.attributes |= <int16_t>DELETE_HORIZON_BIT
        result = _shift_deltas(
            c, remains.count, <int64_t>(<uint64_t>header.base_timestamp - <uint64_t>rebuilt.base_timestamp)
        )
        if result != 0:
            return result
    result = batch_finish(c.plain, -1, &rebuilt, c.packed)
    if result != 0:
        return _rotten(c, header, result)
    if rebuilt.size - header.size > out.spare:
        return _write(c, out, bytes, header)       # no position would be left for what comes: the next pass's
    out.spare -= rebuilt.size - header.size
    out.changed = True
    if rebuilt.attributes & CODEC_MASK:
        return _write(c, out, c.packed.data(), &rebuilt)
    return _write(c, out, c.plain.data(), &rebuilt)


# The header of a batch without records, for its producer's or the range's sake. 0 or a CleanResult.
cdef int _write_empty(Cleaning* c, Output* out, const BatchHeader* header) noexcept nogil:
    cdef BatchHeader empty = header[0]
    cdef uint8_t bytes[RECORDS_AT]
    empty.size = RECORDS_AT
    empty.record_count = 0
    empty.base_timestamp = -1
    empty.attributes &= <int16_t>~(<int>CODEC_MASK | DELETE_HORIZON_BIT)
    batch_write_header(bytes, &empty)
    if header.size != RECORDS_AT:
        out.changed = True
        out.spare += header.size - RECORDS_AT
    return _write(c, out, bytes, &empty)


# Whether the batch's header says something that the log must not forget.
cdef bint _header_stays(const Cleaning* c, const BatchHeader* header) noexcept nogil:
    cdef unordered_map[int64_t, LastRecord].const_iterator found
    if batch_last_offset(header) + 1 == c.upper_bound:
        return True
    if header.producer_id < 0:
        return False
    found = c.last_records.const_find(header.producer_id)
    if found == c.last_records.const_end():
        return False
    if at(found).second.data_offset >= 0:
        return at(found).second.data_offset == batch_last_offset(header)
    return batch_is_control(header) and at(found).second.epoch == header.producer_epoch


cdef int _drop(Cleaning* c, Output* out, const BatchHeader* header) noexcept nogil:
    out.changed = True
    out.spare += header.size
    if _header_stays(c, header):
        out.spare -= header.size       # _write_empty does its own account
        return _write_empty(c, out, header)
    return CLEAN_DONE


cdef void _index_abort(Output* out, const AbortSpan* ended) noexcept nogil:
    if ended.producer_id >= 0:
        segment_index_abort(
            out.segment, ended.producer_id, ended.first_offset, ended.last_offset, ended.stable_offset
        )


cdef int _clean_batch(Cleaning* c, Output* out, const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    cdef AbortSpan ended
    cdef Remains remains
    cdef bint over, gone, horizon = (header.attributes & DELETE_HORIZON_BIT) != 0
    cdef int result
    ended.producer_id = -1
    if batch_is_control(header):
        over = _track_control(c, bytes, header, &ended)
        gone = over and (header.record_count == 0 or (horizon and header.base_timestamp <= c.now_ms))
    else:
        over = False
        gone = _track_data(c, header)
    if header.base_offset > c.latest:
        _index_abort(out, &ended)
        return _write(c, out, bytes, header)
    if gone:
        c.stats.records_read += header.record_count
        return _drop(c, out, header)
    result = _filter_records(c, bytes, header, &remains)
    if result != 0:
        return result
    if remains.count == 0:
        return _drop(c, out, header)
    _index_abort(out, &ended)
    if remains.all and (horizon or not (remains.tombstones or over)):
        return _write(c, out, bytes, header)
    return _write_remains(c, out, bytes, header, &remains, (remains.tombstones or over) and not horizon)


# --- messages of magic 0 and 1 -------------------------------------------------------------------------------------

# The messages of a wrapper that stay, into c.plain. 0 or a CleanResult.
cdef int _filter_wrapper(
    Cleaning* c, const uint8_t* bytes, const BatchHeader* header, bint keep_tombstones, Remains* out,
    int64_t* last_offset
) noexcept nogil:
    cdef MessageView message
    cdef BatchHeader within
    cdef Inner inner
    cdef const uint8_t* p
    cdef size_t left
    cdef int64_t offset
    cdef int result = wrapper_open(bytes, header, c.inflated_max_bytes, True, c.scratch, &inner)
    if result != 0:
        return _rotten(c, header, result)
    c.plain.clear()
    out.count = 0
    out.all = True
    out.max_timestamp = -1
    p = inner.data
    left = inner.n
    while left > 0:
        result = message_next(&p, &left, header.magic, &within, &message)
        if result != 0:
            return _rotten(c, header, result)
        offset = inner_offset(&inner, &message)
        if not _stays(c, message.key, message.key_length, message.value_length < 0, keep_tombstones, offset):
            out.all = False
            continue
        if not message_write(&message, c.plain):
            return ENOMEM
        out.count += 1
        last_offset[0] = offset
        if inner_timestamp(header, &message) > out.max_timestamp:
            out.max_timestamp = inner_timestamp(header, &message)
    return CLEAN_DONE


cdef int _clean_message(
    Cleaning* c, Output* out, const uint8_t* bytes, const BatchHeader* header, bint keep_tombstones
) noexcept nogil:
    cdef MessageView message
    cdef BatchHeader rebuilt
    cdef Remains remains
    cdef int64_t last_offset = -1
    cdef int result
    if header.attributes & CODEC_MASK == 0:
        if not message_read(bytes, header, &message):
            return _rotten(c, header, BATCH_BAD_RECORDS)
        if _stays(
            c, message.key, message.key_length, message.value_length < 0, keep_tombstones, header.base_offset
        ):
            return _write(c, out, bytes, header)
        out.changed = True
        out.spare += header.size
        return CLEAN_DONE
    result = _filter_wrapper(c, bytes, header, keep_tombstones, &remains, &last_offset)
    if result != 0:
        return result
    if remains.all:
        return _write(c, out, bytes, header)
    out.changed = True
    if remains.count == 0:
        out.spare += header.size
        return CLEAN_DONE
    c.packed.clear()
    result = wrapper_write(
        header.magic, header.attributes & CODEC_MASK, -1, <int8_t>(header.attributes & LOG_APPEND_TIME_BIT),
        last_offset, header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else remains.max_timestamp,
        c.plain.data(), c.plain.size(), c.packed,
    )
    if result == 0:
        result = batch_parse(c.packed.data(), c.packed.size(), &rebuilt)
    if result != 0:
        return _rotten(c, header, result)
    if rebuilt.size - header.size > out.spare:
        return _write(c, out, bytes, header)
    out.spare -= rebuilt.size - header.size
    return _write(c, out, c.packed.data(), &rebuilt)


# --- a group -------------------------------------------------------------------------------------------------------

cdef int64_t _modified_ms(int fd, timespec* times) noexcept nogil:
    cdef stat info
    if fstat(fd, &info) != 0:
        return 0
    times[0] = info.st_mtim
    times[1] = info.st_mtim
    return <int64_t>info.st_mtim.tv_sec * 1000 + info.st_mtim.tv_nsec // 1_000_000


cdef int _clean_segment(
    Cleaning* c, Output* out, Segment* s, int64_t next_base, timespec* times
) noexcept nogil:
    cdef LogWalk walk
    cdef BatchHeader header
    cdef const uint8_t* bytes
    cdef int64_t expected = s.base_offset
    cdef bint keep_tombstones
    cdef int result
    cdef int fd = segment_open(s, False)
    if fd < 0:
        return -fd
    keep_tombstones = _modified_ms(fd, times) > c.legacy_horizon_ms
    walk_begin(&walk, fd, 0, s.size, CHUNK)
    while True:
        result = walk_next(&walk, &header, &bytes, True)
        if result == WALK_END:
            return CLEAN_DONE
        if result != WALK_BATCH:
            return _walk_fault(c, &walk, &header, expected, result)
        result = _check(c, bytes, &header, expected, next_base)
        if result != 0:
            return result
        expected = batch_last_offset(&header) + 1
        c.stats.batches_read += 1
        c.stats.bytes_read += header.size
        if not pace_take(c.pace, c.cancelled, header.size):
            return CLEAN_CANCELLED
        if header.magic >= 2:
            result = _clean_batch(c, out, bytes, &header)
        else:
            result = _clean_message(c, out, bytes, &header, keep_tombstones)
        if result != 0:
            return result


cdef int _write_index(IndexFile* f, const string& stem, const char* suffix) noexcept nogil:
    cdef string path = stem
    path.append(suffix)
    return index_write(f, path.c_str(), False, True)


# The cleaned files to the disk, dated as the newest of the old ones. 0 or errno.
cdef int _settle_files(Segment* s, const timespec* times) noexcept nogil:
    cdef int result = _write_index(&s.txnindex, s.stem, b".txnindex.cleaned")
    if result == 0:
        result = _write_index(&s.timeindex, s.stem, b".timeindex.cleaned")
    if result == 0:
        result = _write_index(&s.index, s.stem, b".index.cleaned")
    if result == 0 and (futimens(s.fd, times) != 0 or fsync(s.fd) != 0):
        result = errno
    return result


cdef int clean_segments(
    Cleaning* c, const string& folder, const vector[Segment*]& group, int64_t next_base, Segment** out, bint* changed
) noexcept nogil:
    cdef Output output
    cdef timespec times[2]
    cdef string path
    cdef size_t i
    cdef int result = CLEAN_DONE
    cdef Segment* s = segment_new(folder, group[0].base_offset, group.back().created_ms)
    output.segment = s
    output.position = 0
    output.spare = POSITION_MAX
    output.changed = group.size() > 1
    for i in range(group.size()):
        output.spare -= group[i].size
    segment_reset_indexes(s)
    c.written.clear()
    path = s.stem
    path.append(b".log.cleaned")
    s.fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, FILE_MODE)
    if s.fd < 0:
        result = errno
    for i in range(group.size()):
        if result == CLEAN_DONE:
            result = _clean_segment(
                c, &output, group[i], group[i + 1].base_offset if i + 1 < group.size() else next_base, times
            )
    if result == CLEAN_DONE:
        result = _flush(c, &output)
    if result == CLEAN_DONE and output.changed:
        segment_seal(s)
        result = _settle_files(s, times)
    s.next_offset = next_base
    s.unflushed = False
    out[0] = s
    changed[0] = output.changed
    return result
