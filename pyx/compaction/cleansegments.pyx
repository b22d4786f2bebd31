"""Compaction of segments; see cleansegments.pxd."""

from cython.operator cimport dereference as at
from libc.stdint cimport int8_t, int16_t, int32_t, uint8_t, uint64_t
from libcpp.unordered_map cimport unordered_map

from penstock.pyx.compaction.cleaned cimport Cleaned, cleaned_begin, cleaned_end, cleaned_write
from penstock.pyx.compaction.cleaning cimport (
    CLEAN_CANCELLED, CLEAN_CHUNK, CLEAN_DONE, LastRecord, clean_check, clean_corrupt, clean_deletion,
    clean_walk_fault,
)
from penstock.pyx.compaction.offsetmap cimport offsetmap_get
from penstock.pyx.compaction.pace cimport pace_take
from penstock.pyx.compaction.txntrack cimport AbortSpan, track_control, track_data
from penstock.pyx.linux.posix cimport ENOMEM, fstat, memcpy, stat, timespec
from penstock.pyx.log.files cimport later_ms, ms_of
from penstock.pyx.log.segment cimport (
    WALK_BATCH, WALK_END, LogWalk, segment_index_abort, segment_open, walk_begin, walk_next,
)
from penstock.pyx.record.batch cimport (
    BATCH_BAD_RECORDS, CODEC_MASK, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, RECORDS_AT, BatchHeader, RecordView,
    batch_is_control, batch_last_offset, batch_parse, batch_payload, batch_write_header, record_create_time,
    record_offset, record_read,
)
from penstock.pyx.record.builder cimport batch_finish
from penstock.pyx.record.codec cimport bytes_resize
from penstock.pyx.record.messageset cimport (
    Inner, MessageView, inner_offset, inner_timestamp, message_next, message_read, message_write, wrapper_open,
    wrapper_write,
)
from penstock.pyx.record.varint cimport varint_write, varlong_size, varlong_write

cdef enum:
    LONG_RECORD = 32                   # more than what a record's length and timestamp can grow by


# --- what stays of a batch ----------------------------------------------------------------------------------
cdef inline bint _superseded(const Cleaning* c, const uint8_t* key, int32_t n, int64_t offset) noexcept nogil:
    """Whether the newest record of the key is another one."""
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
            clean_deletion(c, offset)
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


cdef int _filter_records(Cleaning* c, const uint8_t* bytes, const BatchHeader* header, Remains* out) noexcept nogil:
    """The records that stay, as they are, into c.plain behind room for a header. 0 or a CleanResult."""
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
        return clean_corrupt(c, header, result)
    if not bytes_resize(c.plain, RECORDS_AT + n):
        return ENOMEM
    c.plain.resize(RECORDS_AT)
    end = p + n
    while p < end:
        after = record_read(p, end, &record)
        if after == NULL or not 0 <= record.offset_delta <= header.last_offset_delta:
            return clean_corrupt(c, header, BATCH_BAD_RECORDS)
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


cdef inline int32_t _varint_bytes(const uint8_t* p) noexcept nogil:
    """How many bytes a number takes that was read before."""
    cdef int32_t n = 1
    while p[n - 1] & 0x80:
        n += 1
    return n


cdef int _shift_deltas(Cleaning* c, int32_t count, int64_t shift) noexcept nogil:
    """The records in c.plain with `shift` added to each timestamp delta. 0 or ENOMEM."""
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
    return later_ms(c.now_ms, c.delete_retention_ms)


cdef int _write_remains(
    Cleaning* c, Cleaned* out, const uint8_t* bytes, const BatchHeader* header, const Remains* remains, bint new_horizon
) noexcept nogil:
    """A batch of what is in c.plain, with the header's offsets and producer. 0 or a CleanResult."""
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
        return clean_corrupt(c, header, result)
    if rebuilt.size - header.size > out.spare:
        return cleaned_write(c, out, bytes, header)       # no position would be left for what comes: the next pass's
    out.spare -= rebuilt.size - header.size
    out.changed = True
    if rebuilt.attributes & CODEC_MASK:
        return cleaned_write(c, out, c.packed.data(), &rebuilt)
    return cleaned_write(c, out, c.plain.data(), &rebuilt)


cdef int _write_empty(Cleaning* c, Cleaned* out, const BatchHeader* header) noexcept nogil:
    """The header of a batch without records, for its producer's or the range's sake. 0 or a CleanResult."""
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
    return cleaned_write(c, out, bytes, &empty)


cdef bint _header_stays(const Cleaning* c, const BatchHeader* header) noexcept nogil:
    """Whether the batch's header says something that the log must not forget."""
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


cdef int _drop(Cleaning* c, Cleaned* out, const BatchHeader* header) noexcept nogil:
    out.changed = True
    out.spare += header.size
    if _header_stays(c, header):
        out.spare -= header.size       # _write_empty does its own account
        return _write_empty(c, out, header)
    return CLEAN_DONE


cdef void _index_abort(Cleaned* out, const AbortSpan* ended) noexcept nogil:
    if ended.producer_id >= 0:
        segment_index_abort(
            out.segment, ended.producer_id, ended.first_offset, ended.last_offset, ended.stable_offset
        )


cdef int _clean_batch(Cleaning* c, Cleaned* out, const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    cdef AbortSpan ended
    cdef Remains remains
    cdef bint over, gone, horizon = (header.attributes & DELETE_HORIZON_BIT) != 0
    cdef int result
    ended.producer_id = -1
    if batch_is_control(header):
        over = track_control(&c.track, bytes, header, &ended)
        gone = over and (header.record_count == 0 or (horizon and header.base_timestamp <= c.now_ms))
    else:
        over = False
        gone = track_data(&c.track, header)
    if header.base_offset > c.latest:
        _index_abort(out, &ended)
        return cleaned_write(c, out, bytes, header)
    if gone:
        if batch_is_control(header):
            clean_deletion(c, batch_last_offset(header))
        c.stats.records_read += header.record_count
        return _drop(c, out, header)
    result = _filter_records(c, bytes, header, &remains)
    if result != 0:
        return result
    if remains.count == 0:
        return _drop(c, out, header)
    _index_abort(out, &ended)
    if remains.all and (horizon or not (remains.tombstones or over)):
        return cleaned_write(c, out, bytes, header)
    return _write_remains(c, out, bytes, header, &remains, (remains.tombstones or over) and not horizon)


# --- messages of magic 0 and 1 ------------------------------------------------------------------------------
cdef int _filter_wrapper(
    Cleaning* c, const uint8_t* bytes, const BatchHeader* header, bint keep_tombstones, Remains* out,
    int64_t* last_offset
) noexcept nogil:
    """The messages of a wrapper that stay, into c.plain. 0 or a CleanResult."""
    cdef MessageView message
    cdef BatchHeader within
    cdef Inner inner
    cdef const uint8_t* p
    cdef size_t left
    cdef int64_t offset
    cdef int result = wrapper_open(bytes, header, c.inflated_max_bytes, True, c.scratch, &inner)
    if result != 0:
        return clean_corrupt(c, header, result)
    c.plain.clear()
    out.count = 0
    out.all = True
    out.max_timestamp = -1
    p = inner.data
    left = inner.n
    while left > 0:
        result = message_next(&p, &left, header.magic, &within, &message)
        if result != 0:
            return clean_corrupt(c, header, result)
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
    Cleaning* c, Cleaned* out, const uint8_t* bytes, const BatchHeader* header, bint keep_tombstones
) noexcept nogil:
    cdef MessageView message
    cdef BatchHeader rebuilt
    cdef Remains remains
    cdef int64_t last_offset = -1
    cdef int result
    if header.attributes & CODEC_MASK == 0:
        if not message_read(bytes, header, &message):
            return clean_corrupt(c, header, BATCH_BAD_RECORDS)
        if _stays(
            c, message.key, message.key_length, message.value_length < 0, keep_tombstones, header.base_offset
        ):
            return cleaned_write(c, out, bytes, header)
        out.changed = True
        out.spare += header.size
        return CLEAN_DONE
    result = _filter_wrapper(c, bytes, header, keep_tombstones, &remains, &last_offset)
    if result != 0:
        return result
    if remains.all:
        return cleaned_write(c, out, bytes, header)
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
        return clean_corrupt(c, header, result)
    if rebuilt.size - header.size > out.spare:
        return cleaned_write(c, out, bytes, header)
    out.spare -= rebuilt.size - header.size
    return cleaned_write(c, out, c.packed.data(), &rebuilt)


# --- a group ------------------------------------------------------------------------------------------------
cdef int64_t _modified_ms(int fd, timespec* times) noexcept nogil:
    cdef stat info
    if fstat(fd, &info) != 0:
        return 0
    times[0] = info.st_mtim
    times[1] = info.st_mtim
    return ms_of(&info.st_mtim)


cdef int _clean_segment(Cleaning* c, Cleaned* out, Segment* s, int64_t next_base, timespec* times) noexcept nogil:
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
    walk_begin(&walk, fd, 0, s.size, CLEAN_CHUNK)
    while True:
        result = walk_next(&walk, &header, &bytes, True)
        if result == WALK_END:
            return CLEAN_DONE
        if result != WALK_BATCH:
            return clean_walk_fault(c, expected, result)
        result = clean_check(c, bytes, &header, expected, next_base)
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


cdef int clean_segments(
    Cleaning* c, const string& folder, const vector[Segment*]& group, int64_t next_base, Segment** out, bint* changed
) noexcept nogil:
    cdef Cleaned cleaned
    cdef timespec times[2]
    cdef int64_t end
    cdef size_t i
    cdef int result = cleaned_begin(c, folder, group, &cleaned)
    for i in range(group.size()):
        if result == CLEAN_DONE:
            end = group[i + 1].base_offset if i + 1 < group.size() else next_base
            result = _clean_segment(c, &cleaned, group[i], end, times)
    if result == CLEAN_DONE:
        result = cleaned_end(c, &cleaned, next_base, times)
    cleaned.segment.next_offset = next_base
    cleaned.segment.unflushed = False
    out[0] = cleaned.segment
    changed[0] = cleaned.changed
    return result
