"""Keys of dirty segments; see cleankeys.pxd."""

from libc.stdint cimport int32_t, uint8_t

from penstock.pyx.compaction.cleaning cimport (
    CLEAN_CANCELLED, CLEAN_CHUNK, CLEAN_DONE, CLEAN_FULL, clean_check, clean_corrupt, clean_walk_fault,
)
from penstock.pyx.compaction.offsetmap cimport OFFSETMAP_FULL, offsetmap_put
from penstock.pyx.compaction.pace cimport pace_take
from penstock.pyx.compaction.txntrack cimport AbortSpan, track_control, track_data
from penstock.pyx.log.segment cimport WALK_BATCH, WALK_END, LogWalk, segment_find, segment_open, walk_begin, walk_next
from penstock.pyx.record.batch cimport (
    BATCH_BAD_RECORDS, CODEC_MASK, BatchHeader, RecordView, batch_is_control, batch_last_offset, batch_payload,
    record_offset, record_read,
)
from penstock.pyx.record.messageset cimport Inner, MessageView, inner_offset, message_next, message_read, wrapper_open

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
        return clean_corrupt(c, header, result)
    end = p + n
    while p < end:
        p = record_read(p, end, &record)
        if p == NULL or not 0 <= record.offset_delta <= header.last_offset_delta:
            return clean_corrupt(c, header, BATCH_BAD_RECORDS)
        result = _put(c, record.key, record.key_length, record_offset(header, &record))
        if result != 0:
            return result
    return CLEAN_DONE


cdef int _index_messages(Cleaning* c, const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    """A message of magic 0 or 1, or the messages of a wrapper."""
    cdef MessageView message
    cdef BatchHeader within
    cdef Inner inner
    cdef const uint8_t* p
    cdef size_t left
    cdef int result
    if header.attributes & CODEC_MASK == 0:
        if not message_read(bytes, header, &message):
            return clean_corrupt(c, header, BATCH_BAD_RECORDS)
        return _put(c, message.key, message.key_length, header.base_offset)
    result = wrapper_open(bytes, header, c.inflated_max_bytes, True, c.scratch, &inner)
    if result != 0:
        return clean_corrupt(c, header, result)
    p = inner.data
    left = inner.n
    while left > 0:
        result = message_next(&p, &left, header.magic, &within, &message)
        if result != 0:
            return clean_corrupt(c, header, result)
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
        track_control(&c.track, bytes, header, &ended)
    elif not track_data(&c.track, header):
        result = _index_records(c, bytes, header)
    if result == 0 and batch_last_offset(header) > c.latest:
        c.latest = batch_last_offset(header)
    return result


cdef int clean_keys(Cleaning* c, Segment* s, int64_t next_base) noexcept nogil:
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
            return clean_walk_fault(c, expected, result)
    walk_begin(&walk, fd, position, s.size, CLEAN_CHUNK)
    while True:
        result = walk_next(&walk, &header, &bytes, True)
        if result == WALK_END:
            break
        if result != WALK_BATCH:
            return clean_walk_fault(c, expected, result)
        result = clean_check(c, bytes, &header, expected, next_base)
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
