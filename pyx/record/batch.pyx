"""Record batches as C views: read, validated, written. The format is drawn in batch.pxd."""

from libc.stdint cimport INT64_MAX, uint64_t
from libc.string cimport memset

from penstock.pyx.errorcodes cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE,
)
from penstock.pyx.record.codec cimport codec_decompress, codec_holds_most
from penstock.pyx.record.crc cimport crc32_zlib, crc32c_join, crc32c_update
from penstock.pyx.record.endian cimport get_i16, get_i32, get_i64, get_u32, put_i16, put_i32, put_i64, put_u32
from penstock.pyx.record.varint cimport varint_near, varint_read, varint_write, varlong_read, varlong_write

cdef enum:
    MARKER_KEY_SIZE = 4                         # version i16, type i16 (0 abort, 1 commit)
    MARKER_VALUE_SIZE = 6                       # version i16, coordinator epoch i32
    MARKER_RECORD_SIZE = 16                     # of one record without its length
    NEAR_HEAD_MAX = 13                         # a record up to its key: an attributes byte and four numbers of 3 bytes
    NEAR_NUMBER_MAX = 3


cdef int batch_parse(const uint8_t* p, size_t left, BatchHeader* out) noexcept nogil:
    cdef int64_t length
    memset(out, 0, sizeof(BatchHeader))
    if left < LOG_OVERHEAD:
        return BATCH_PARTIAL
    length = get_i32(p + LENGTH_AT)
    if length < MESSAGE_SIZE_MIN - LOG_OVERHEAD:
        return BATCH_BAD_LENGTH
    out.size = LOG_OVERHEAD + length
    if left <= MAGIC_AT:
        return BATCH_PARTIAL
    out.magic = <int8_t>p[MAGIC_AT]
    if out.magic < 0 or out.magic > MAGIC_2:
        return BATCH_BAD_MAGIC
    if out.magic == 1 and out.size < MESSAGE_SIZE_MIN + 8:
        return BATCH_BAD_LENGTH
    if out.magic == MAGIC_2 and out.size < RECORDS_AT:
        return BATCH_BAD_LENGTH
    if <size_t>out.size > left:
        return BATCH_PARTIAL
    return batch_parse_header(p, RECORDS_AT if out.magic == MAGIC_2 else left, out)


cdef int batch_parse_header(const uint8_t* p, size_t left, BatchHeader* out) noexcept nogil:
    cdef int64_t length
    memset(out, 0, sizeof(BatchHeader))
    if left <= MAGIC_AT:
        return BATCH_PARTIAL
    out.magic = <int8_t>p[MAGIC_AT]
    if out.magic < 0 or out.magic > MAGIC_2:
        return BATCH_BAD_MAGIC
    length = get_i32(p + LENGTH_AT)
    out.base_offset = get_i64(p)
    out.size = LOG_OVERHEAD + length
    if out.magic < MAGIC_2:
        return _message_parse_header(p, left, out)
    if length < RECORDS_AT - LOG_OVERHEAD:
        return BATCH_BAD_LENGTH
    if left < RECORDS_AT:
        return BATCH_PARTIAL
    out.leader_epoch = get_i32(p + LEADER_EPOCH_AT)
    out.crc = get_u32(p + CRC_AT)
    out.attributes = get_i16(p + ATTRIBUTES_AT)
    out.last_offset_delta = get_i32(p + LAST_OFFSET_DELTA_AT)
    out.base_timestamp = get_i64(p + BASE_TIMESTAMP_AT)
    out.max_timestamp = get_i64(p + MAX_TIMESTAMP_AT)
    out.producer_id = get_i64(p + PRODUCER_ID_AT)
    out.producer_epoch = get_i16(p + PRODUCER_EPOCH_AT)
    out.base_sequence = get_i32(p + BASE_SEQUENCE_AT)
    out.record_count = get_i32(p + RECORD_COUNT_AT)
    return BATCH_OK


cdef int _message_parse_header(const uint8_t* p, size_t left, BatchHeader* out) noexcept nogil:
    cdef int64_t least = MESSAGE_SIZE_MIN if out.magic == 0 else MESSAGE_SIZE_MIN + 8
    if out.size < least:
        return BATCH_BAD_LENGTH
    if left < <size_t>least:
        return BATCH_PARTIAL
    out.leader_epoch = -1
    out.crc = get_u32(p + MESSAGE_CRC_AT)
    out.attributes = <int8_t>p[MAGIC_AT + 1]
    out.base_timestamp = out.max_timestamp = -1 if out.magic == 0 else get_i64(p + MESSAGE_TIMESTAMP_AT)
    out.producer_id = out.producer_epoch = out.base_sequence = -1
    out.record_count = 1
    return BATCH_OK


cdef int batch_check(const uint8_t* p, const BatchHeader* header, int64_t max_bytes, int flags) noexcept nogil:
    cdef uint32_t crc
    if header.size > max_bytes > 0:
        return BATCH_TOO_LARGE
    if header.magic < MAGIC_2:
        crc = crc32_zlib(0, p + MAGIC_AT, <size_t>(header.size - MAGIC_AT))
    else:
        crc = crc32c_update(0, p + ATTRIBUTES_AT, <size_t>(header.size - ATTRIBUTES_AT))
    if crc != header.crc:
        return BATCH_BAD_CRC
    return batch_check_header(header, max_bytes, flags)


cdef int batch_check_header(const BatchHeader* header, int64_t max_bytes, int flags) noexcept nogil:
    cdef int codec = header.attributes & CODEC_MASK
    if header.size > max_bytes > 0:
        return BATCH_TOO_LARGE
    if codec > (CODEC_MAX if header.magic == MAGIC_2 else MESSAGE_CODEC_MAX):
        return BATCH_BAD_CODEC
    if flags & CHECK_CLEAN:
        if header.magic != MAGIC_2:
            return BATCH_BAD_MAGIC
        if header.attributes & (<int>UNUSED_BITS | DELETE_HORIZON_BIT):
            return BATCH_BAD_ATTRIBUTES
        if header.attributes & LOG_APPEND_TIME_BIT:
            return BATCH_BAD_TIMESTAMP_TYPE
    elif header.base_offset < 0:
        return BATCH_BAD_OFFSET
    if header.magic != MAGIC_2:
        return BATCH_OK
    if flags & CHECK_NO_CONTROL and header.attributes & CONTROL_BIT:
        return BATCH_CONTROL
    if not _count_fits(header, codec, flags):
        return BATCH_BAD_COUNT
    if flags & CHECK_CLEAN and not _producer_fits(header, flags):
        return BATCH_BAD_PRODUCER
    return BATCH_OK


cdef inline bint _count_fits(const BatchHeader* header, int codec, int flags) noexcept nogil:
    cdef int64_t span = <int64_t>header.last_offset_delta + 1
    cdef int64_t count = header.record_count
    if span < 1 or count < 0 or count > span:
        return False
    if codec == 0 and count * RECORD_SIZE_MIN > header.size - RECORDS_AT:
        return False
    # Of a compressed batch that stays closed the count moves the log's end by what wasn't seen.
    return not flags & CHECK_DENSE or (
        count == span and count * RECORD_SIZE_MIN <= codec_holds_most(codec, header.size - RECORDS_AT)
    )


cdef inline bint _producer_fits(const BatchHeader* header, int flags) noexcept nogil:
    # Without a producer id the epoch and the sequence mean nothing, and some clients (sarama) send 0 for the
    # sequence.
    if header.producer_id < 0:
        return header.producer_id == -1 and (header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == 0
    if header.producer_epoch < 0:
        return False
    # Control batches and what a coordinator writes in a producer's name (offsets of a transaction) have none.
    return header.base_sequence >= 0 or not flags & CHECK_NO_CONTROL


cdef int16_t batch_error_code(int fault) noexcept nogil:
    if fault == BATCH_OK:
        return 0
    if fault == BATCH_TOO_LARGE:
        return MESSAGE_TOO_LARGE
    if fault == BATCH_BAD_CODEC:
        return UNSUPPORTED_COMPRESSION_TYPE
    if fault == BATCH_BAD_TIMESTAMP_TYPE or fault == BATCH_BAD_TIMESTAMP:
        return INVALID_TIMESTAMP
    if fault in (BATCH_PARTIAL, BATCH_BAD_LENGTH, BATCH_BAD_CRC, BATCH_BAD_PAYLOAD, BATCH_BAD_OFFSET):
        return CORRUPT_MESSAGE
    return INVALID_RECORD


cdef const char* batch_error_text(int fault) noexcept nogil:
    if fault == BATCH_PARTIAL:
        return b"the batch is cut off"
    if fault == BATCH_BAD_LENGTH:
        return b"the length is too small"
    if fault == BATCH_BAD_MAGIC:
        return b"the magic byte is unknown, or too old here"
    if fault == BATCH_BAD_CRC:
        return b"the checksum is wrong"
    if fault == BATCH_BAD_CODEC:
        return b"the codec is unknown"
    if fault == BATCH_BAD_ATTRIBUTES:
        return b"attribute bits are set that mean nothing"
    if fault == BATCH_BAD_COUNT:
        return b"the record count doesn't fit the offsets or the size"
    if fault == BATCH_CONTROL:
        return b"a control batch is not allowed here"
    if fault == BATCH_BAD_PRODUCER:
        return b"producer id, epoch and sequence don't fit together"
    if fault == BATCH_TOO_LARGE:
        return b"the batch is larger than allowed"
    if fault == BATCH_BAD_TIMESTAMP_TYPE:
        return b"a producer may not set LogAppendTime"
    if fault == BATCH_BAD_RECORDS:
        return b"the records inside can't be read"
    if fault == BATCH_BAD_PAYLOAD:
        return b"the payload can't be inflated"
    if fault == BATCH_OVER_LIMIT:
        return b"the payload inflates to more than the limit"
    if fault == BATCH_NO_MEMORY:
        return b"no memory"
    if fault == BATCH_BAD_OFFSET:
        return b"the base offset is negative"
    if fault == BATCH_NO_KEY:
        return b"a record of a compacted topic needs a key"
    if fault == BATCH_BAD_TIMESTAMP:
        return b"the timestamp is too far from the broker's clock"
    return b"no fault"


cdef void batch_set_offset(uint8_t* p, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
    put_i64(p + BASE_OFFSET_AT, base_offset)
    put_i32(p + LEADER_EPOCH_AT, leader_epoch)


cdef void batch_set_max_timestamp(uint8_t* p, int64_t size, int64_t max_ms, bint log_append_time) noexcept nogil:
    cdef uint32_t change = crc32c_update(0, p + ATTRIBUTES_AT, RECORDS_AT - ATTRIBUTES_AT)
    if log_append_time:
        put_i16(p + ATTRIBUTES_AT, get_i16(p + ATTRIBUTES_AT) | <int16_t>LOG_APPEND_TIME_BIT)
    put_i64(p + MAX_TIMESTAMP_AT, max_ms)
    change ^= crc32c_update(0, p + ATTRIBUTES_AT, RECORDS_AT - ATTRIBUTES_AT)
    put_u32(p + CRC_AT, crc32c_join(change, get_u32(p + CRC_AT), <uint64_t>(size - RECORDS_AT)))


cdef int batch_marker_type(const uint8_t* p, const BatchHeader* header, int32_t* coordinator_epoch) noexcept nogil:
    cdef RecordView record
    cdef int kind
    if header.magic != MAGIC_2 or header.attributes & CODEC_MASK or header.record_count != 1:
        return BATCH_BAD_RECORDS
    if record_read(p + RECORDS_AT, p + header.size, &record) == NULL or record.key_length < MARKER_KEY_SIZE:
        return BATCH_BAD_RECORDS
    kind = get_i16(record.key + 2)
    if get_i16(record.key) < 0 or (kind != MARKER_ABORT and kind != MARKER_COMMIT):
        return BATCH_BAD_RECORDS
    if coordinator_epoch != NULL:
        coordinator_epoch[0] = get_i32(record.value + 2) if record.value_length >= MARKER_VALUE_SIZE else -1
    return kind


cdef inline const uint8_t* _sized_read(
    const uint8_t* p, const uint8_t* end, const uint8_t** out, int32_t* length
) noexcept nogil:
    length[0] = 0
    p = varint_read(p, end, length)
    if p == NULL or length[0] < -1 or length[0] > end - p:
        return NULL
    if length[0] == -1:
        out[0] = NULL
        return p
    out[0] = p
    return p + length[0]


cdef const uint8_t* record_read(const uint8_t* p, const uint8_t* end, RecordView* out) noexcept nogil:
    cdef int32_t length = 0
    cdef int32_t _i
    cdef HeaderView header
    p = varint_read(p, end, &length)
    if p == NULL or length < 1 or length > end - p:
        return NULL
    end = p + length
    out.attributes = <int8_t>p[0]
    p = varlong_read(p + 1, end, &out.timestamp_delta)
    p = varint_read(p, end, &out.offset_delta)
    p = _sized_read(p, end, &out.key, &out.key_length)
    p = _sized_read(p, end, &out.value, &out.value_length)
    p = varint_read(p, end, &out.header_count)
    if p == NULL or out.header_count < 0 or out.header_count > end - p:
        return NULL
    out.headers = p
    for _i in range(out.header_count):
        p = record_header(p, end, &header)
        if p == NULL:
            return NULL
    out.end = end
    return p if p == end else NULL


cdef inline const uint8_t* _record_read_near(const uint8_t* p, const uint8_t* end, RecordView* out) noexcept nogil:
    """What record_read gives for most records, in a fraction of its time: numbers are short, headers are missing, and
    the payload goes on behind. NULL for others, which may be right all the same. Where key and value are isn't said.
    """
    cdef const uint8_t* stop
    cdef int32_t length = 0
    cdef int32_t delta = 0
    if end - p < NEAR_HEAD_MAX:
        return NULL
    p = varint_near(p, &length)
    if p == NULL or length < 1 or length > end - p:
        return NULL
    stop = p + length
    out.attributes = <int8_t>p[0]
    # Each number lies within the payload; that it lies within the record, too, is seen by where the last one ends.
    p = varint_near(p + 1, &delta)
    if p == NULL:
        return NULL
    out.timestamp_delta = delta
    p = varint_near(p, &out.offset_delta)
    if p == NULL:
        return NULL
    p = varint_near(p, &out.key_length)
    if p == NULL or out.key_length < -1 or max(out.key_length, 0) > end - p - NEAR_NUMBER_MAX:
        return NULL
    p = varint_near(p + max(out.key_length, 0), &out.value_length)
    if p == NULL or out.value_length < -1 or max(out.value_length, 0) >= end - p:
        return NULL
    p += max(out.value_length, 0)
    return stop if p[0] == 0 and p + 1 == stop else NULL


cdef int records_walk(const BatchHeader* header, const uint8_t* p, size_t n, RecordsSeen* out) noexcept nogil:
    cdef const uint8_t* end = p + n
    cdef const uint8_t* after
    cdef int64_t oldest = INT64_MAX, newest = -1
    cdef int64_t timestamp
    cdef int32_t lengths = 0                    # negative when one was
    cdef int32_t i
    cdef RecordView record
    for i in range(header.record_count):
        after = _record_read_near(p, end, &record)
        if after == NULL:
            after = record_read(p, end, &record)
        if after == NULL or record.offset_delta != i or record.attributes < 0:
            return BATCH_BAD_RECORDS
        p = after
        lengths |= record.key_length
        timestamp = record_create_time(header, &record)
        oldest = min(oldest, timestamp)
        newest = max(newest, timestamp)
    out.oldest_ms = oldest
    out.newest_ms = newest
    out.keyless = lengths < 0
    return BATCH_OK if p == end else BATCH_BAD_COUNT


cdef const uint8_t* record_header(const uint8_t* p, const uint8_t* end, HeaderView* out) noexcept nogil:
    p = _sized_read(p, end, &out.key, &out.key_length)
    if p == NULL or out.key_length < 0:
        return NULL
    return _sized_read(p, end, &out.value, &out.value_length)


cdef int batch_payload(
    const uint8_t* p, const BatchHeader* header, size_t limit_bytes, vector[uint8_t]& scratch, const uint8_t** data,
    size_t* n
) noexcept nogil:
    cdef int codec = header.attributes & CODEC_MASK
    cdef size_t length = <size_t>(header.size - RECORDS_AT)
    cdef int fault
    if codec == 0:
        if length > limit_bytes:
            return BATCH_OVER_LIMIT
        data[0] = p + RECORDS_AT
        n[0] = length
        return BATCH_OK
    scratch.clear()
    # An empty batch that the cleaner kept for its producer's sake may have no payload at all.
    if length == 0 and header.record_count == 0:
        fault = BATCH_OK
    else:
        fault = payload_fault(codec_decompress(codec, p + RECORDS_AT, length, limit_bytes, scratch))
    data[0] = scratch.data()
    n[0] = scratch.size()
    return fault


cdef void batch_write_header(uint8_t* p, const BatchHeader* header) noexcept nogil:
    put_i64(p + BASE_OFFSET_AT, header.base_offset)
    put_i32(p + LENGTH_AT, <int32_t>(header.size - LOG_OVERHEAD))
    put_i32(p + LEADER_EPOCH_AT, header.leader_epoch)
    p[MAGIC_AT] = MAGIC_2
    put_i16(p + ATTRIBUTES_AT, header.attributes)
    put_i32(p + LAST_OFFSET_DELTA_AT, header.last_offset_delta)
    put_i64(p + BASE_TIMESTAMP_AT, header.base_timestamp)
    put_i64(p + MAX_TIMESTAMP_AT, header.max_timestamp)
    put_i64(p + PRODUCER_ID_AT, header.producer_id)
    put_i16(p + PRODUCER_EPOCH_AT, header.producer_epoch)
    put_i32(p + BASE_SEQUENCE_AT, header.base_sequence)
    put_i32(p + RECORD_COUNT_AT, header.record_count)
    put_u32(p + CRC_AT, crc32c_update(0, p + ATTRIBUTES_AT, <size_t>(header.size - ATTRIBUTES_AT)))


cdef int batch_write_marker(
    uint8_t* out, bint commit, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
    int64_t timestamp_ms
) noexcept nogil:
    cdef BatchHeader header
    cdef uint8_t* p = varint_write(out + RECORDS_AT, MARKER_RECORD_SIZE)
    p[0] = 0
    p = varlong_write(p + 1, 0)
    p = varint_write(p, 0)
    p = varint_write(p, MARKER_KEY_SIZE)
    put_i16(p, 0)
    put_i16(p + 2, MARKER_COMMIT if commit else MARKER_ABORT)
    p = varint_write(p + MARKER_KEY_SIZE, MARKER_VALUE_SIZE)
    put_i16(p, 0)
    put_i32(p + 2, coordinator_epoch)
    p = varint_write(p + MARKER_VALUE_SIZE, 0)
    memset(&header, 0, sizeof(header))
    header.size = p - out
    header.leader_epoch = header.base_sequence = -1
    header.attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    header.base_timestamp = header.max_timestamp = timestamp_ms
    header.producer_id = producer_id
    header.producer_epoch = producer_epoch
    header.record_count = 1
    batch_write_header(out, &header)
    return <int>header.size
