"""Answers to a follower's fetch; see fetchreply.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from typing import NamedTuple

from penstock.pyx.linux.posix cimport free, malloc, memcpy, memset
from penstock.pyx.record.endian cimport get_i32
from penstock.pyx.record.frame cimport (
    SIZE_BYTES, TAGS_MAX, TOPIC_ID_BYTES, Reader, read_compact_length, read_i16, read_i32, read_i64, read_raw,
    read_uvarint, reader_left, reader_start, skip_tags,
)

cdef enum:
    HEAD_BYTES_MIN = 4 + 1 + 4 + 2 + 4 + 1 + 1
    TOPIC_BYTES_MIN = TOPIC_ID_BYTES + 1 + 1
    PARTITION_BYTES_MIN = 4 + 2 + 8 + 8 + 8 + 1 + 4 + 1 + 1
    ABORTED_BYTES_MIN = 8 + 8 + 1
    TAG_DIVERGING = 0
    TAG_REMOVED_BELOW = 10000


# --- elements -----------------------------------------------------------------------------------------------
# Each reads one element with a reader that may end within it: REPLY_BAD for what is wrong however the bytes go on; else
# the reader is bad if they end too early.

cdef int64_t _read_count(Reader* r, int64_t left, int64_t bytes_min) noexcept nogil:
    """Of an array in what is left of the answer; -1: it is null; -2: so many can't be there."""
    cdef int64_t n = read_compact_length(r)
    return n if n <= left / bytes_min else -2


cdef ReplyEvent _read_head(Reply* reply, Reader* r) noexcept nogil:
    cdef int64_t topics
    reply.correlation_id = read_i32(r)
    skip_tags(r, True)
    read_i32(r)                                       # throttle_time_ms: followers aren't throttled
    reply.error = read_i16(r)
    reply.session_id = read_i32(r)
    topics = _read_count(r, reply.left, TOPIC_BYTES_MIN)
    if not r.bad and topics < 0:
        return REPLY_BAD
    reply.topics = <int32_t>topics
    reply.step = STEP_TOPIC if topics else STEP_TAGS
    return REPLY_HEAD


cdef ReplyEvent _read_topic(Reply* reply, Reader* r) noexcept nogil:
    cdef const uint8_t* topic_id = read_raw(r, TOPIC_ID_BYTES)
    cdef int64_t partitions = _read_count(r, reply.left, PARTITION_BYTES_MIN)
    if r.bad:
        return REPLY_ON
    if partitions < 0:
        return REPLY_BAD
    memcpy(reply.topic_id, topic_id, TOPIC_ID_BYTES)
    reply.partitions = <int32_t>partitions
    reply.step = STEP_PARTITION if partitions else STEP_TOPIC_TAGS
    return REPLY_ON


cdef ReplyEvent _read_diverging(Reader* r, size_t size, ReplyPart* part) noexcept nogil:
    cdef Reader field
    cdef const uint8_t* at = read_raw(r, size)
    if at == NULL:
        return REPLY_ON
    reader_start(&field, at, size)
    part.diverging_epoch = read_i32(&field)
    part.diverging_end = read_i64(&field)
    skip_tags(&field, True)
    part.diverged = part.diverging_end >= 0
    return REPLY_BAD if field.bad else REPLY_ON


cdef ReplyEvent _read_removed_below(Reader* r, size_t size, ReplyPart* part) noexcept nogil:
    cdef Reader field
    cdef const uint8_t* at = read_raw(r, size)
    if at == NULL:
        return REPLY_ON
    reader_start(&field, at, size)
    part.removed_below = read_i64(&field)
    return REPLY_BAD if field.bad or reader_left(&field) else REPLY_ON


cdef ReplyEvent _read_part_tags(Reader* r, ReplyPart* part) noexcept nogil:
    cdef uint32_t count = read_uvarint(r), tag, size, _i
    if count > TAGS_MAX:
        return REPLY_BAD
    for _i in range(count):
        tag = read_uvarint(r)
        size = read_uvarint(r)
        if r.bad:
            return REPLY_ON
        if size > ELEMENT_BYTES_MAX:
            return REPLY_BAD
        if tag == TAG_DIVERGING:
            if _read_diverging(r, size, part) == REPLY_BAD:
                return REPLY_BAD
        elif tag == TAG_REMOVED_BELOW:
            if _read_removed_below(r, size, part) == REPLY_BAD:
                return REPLY_BAD
        else:
            read_raw(r, size)
    return REPLY_ON


cdef ReplyEvent _read_partition(Reply* reply, Reader* r, size_t records_max, ReplyPart* part) noexcept nogil:
    cdef const uint8_t* begin = r.p
    cdef int64_t aborted, _i, n
    memset(part, 0, sizeof(ReplyPart))
    part.index = read_i32(r)
    part.error = read_i16(r)
    part.leader_high_watermark = read_i64(r)
    read_i64(r)                                       # last stable offset: it follows from the log
    part.log_start = read_i64(r)
    aborted = _read_count(r, reply.left, ABORTED_BYTES_MIN)
    if not r.bad and aborted < -1:
        return REPLY_BAD
    for _i in range(aborted):
        if r.bad:
            return REPLY_ON
        read_raw(r, 8 + 8)
        skip_tags(r, True)
    read_i32(r)                                       # preferred replica: of consumers
    n = read_compact_length(r)
    if r.bad:
        return REPLY_ON
    n = max(n, <int64_t>0)                            # null: no records
    if n > <int64_t>records_max or n >= reply.left - (r.p - begin):
        return REPLY_BAD
    part.n = <size_t>n
    reply.wanted = <size_t>(r.p - begin) + part.n + 1
    part.records = <uint8_t*>read_raw(r, part.n)
    if r.bad:
        return REPLY_ON
    if _read_part_tags(r, part) == REPLY_BAD:
        return REPLY_BAD
    reply.partitions -= 1
    if reply.partitions == 0:
        reply.step = STEP_TOPIC_TAGS
    return REPLY_PARTITION


cdef ReplyEvent _read_topic_tags(Reply* reply, Reader* r) noexcept nogil:
    skip_tags(r, True)
    reply.topics -= 1
    reply.step = STEP_TOPIC if reply.topics else STEP_TAGS
    return REPLY_ON


cdef ReplyEvent _read_tags(Reply* reply, Reader* r) noexcept nogil:
    skip_tags(r, True)
    reply.step = STEP_SIZE
    return REPLY_END


cdef ReplyEvent _read_element(Reply* reply, Reader* r, size_t records_max, ReplyPart* part) noexcept nogil:
    if reply.step == STEP_HEAD:
        return _read_head(reply, r)
    if reply.step == STEP_TOPIC:
        return _read_topic(reply, r)
    if reply.step == STEP_PARTITION:
        return _read_partition(reply, r, records_max, part)
    return _read_topic_tags(reply, r) if reply.step == STEP_TOPIC_TAGS else _read_tags(reply, r)


# --- the whole ----------------------------------------------------------------------------------------------
cdef ReplyEvent reply_next(
    Reply* reply, uint8_t* p, size_t n, size_t records_max, size_t* taken, ReplyPart* part
) noexcept nogil:
    cdef Reply after
    cdef ReplyEvent event = REPLY_ON
    cdef Reader r
    cdef size_t there
    taken[0] = 0
    part.n = 0
    if reply.step == STEP_SIZE:
        if n < SIZE_BYTES:
            reply.wanted = SIZE_BYTES
            return REPLY_MORE
        if get_i32(p) < HEAD_BYTES_MIN:
            return REPLY_BAD
        memset(reply, 0, sizeof(Reply))
        reply.left = get_i32(p)
        reply.step = STEP_HEAD
        taken[0] = SIZE_BYTES
    while event == REPLY_ON:
        there = <size_t>min(<int64_t>(n - taken[0]), reply.left)
        reader_start(&r, p + taken[0], there)
        after = reply[0]
        after.wanted = 0
        event = _read_element(&after, &r, records_max, part)
        if event == REPLY_BAD:
            break
        if r.bad:
            if <int64_t>there == reply.left or there > ELEMENT_BYTES_MAX + part.n:
                return REPLY_BAD
            reply.wanted = max(after.wanted, there + 1)
            return REPLY_MORE
        after.left -= <int64_t>(there - reader_left(&r))
        taken[0] += there - reader_left(&r)
        after.wanted = 0
        reply[0] = after
        if event == REPLY_END and reply.left != 0:
            event = REPLY_BAD
    return event


# --- for tests ----------------------------------------------------------------------------------------------
class Part(NamedTuple):
    """A partition of an answer; see fetchreply.pyi."""

    topic_id: bytes
    partition: int
    error: int
    high_watermark: int
    log_start: int
    records: bytes
    diverging: tuple
    removed_below: int


class Answer(NamedTuple):
    """An answer; see fetchreply.pyi."""

    correlation_id: int
    error: int
    session_id: int
    parts: list


def read_answer(bytes answer, *, size_t piece_bytes, size_t records_max):
    """Read an answer while it comes; see fetchreply.pyi."""
    cdef const char* whole = PyBytes_AS_STRING(answer)
    cdef size_t n = <size_t>PyBytes_GET_SIZE(answer), begin = 0, there = 0, taken
    cdef ReplyEvent event = REPLY_MORE
    cdef Reply reply
    cdef ReplyPart part
    cdef uint8_t* window
    cdef list parts = []
    memset(&reply, 0, sizeof(Reply))
    while event != REPLY_END:
        if event == REPLY_MORE:
            if there == n:
                raise EOFError(f"the answer ends after {n} bytes")
            there = min(n, max(there + piece_bytes, there + 1))
        # A copy without a byte to spare, so that a sanitizer sees whoever reads on.
        window = <uint8_t*>malloc(there - begin if there > begin else 1)
        if window == NULL:
            raise MemoryError
        memcpy(window, whole + begin, there - begin)
        with nogil:
            event = reply_next(&reply, window, there - begin, records_max, &taken, &part)
        if event == REPLY_PARTITION:
            parts.append(
                Part(
                    PyBytes_FromStringAndSize(<char*>reply.topic_id, TOPIC_ID_BYTES), part.index, part.error,
                    part.leader_high_watermark, part.log_start, PyBytes_FromStringAndSize(<char*>part.records, part.n),
                    (part.diverging_epoch, part.diverging_end) if part.diverged else None,
                    part.removed_below,
                )
            )
        free(window)
        if event == REPLY_BAD:
            raise ValueError(f"no Fetch answer has such bytes after byte {begin}")
        begin += taken
    if begin != n:
        raise ValueError(f"{n - begin} bytes follow the answer")
    return Answer(reply.correlation_id, reply.error, reply.session_id, parts)
