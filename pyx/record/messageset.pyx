"""Message sets of magic 0 and 1; see messageset.pxd."""

from libc.stdint cimport INT32_MAX, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.pyx.record.batch cimport (
    BATCH_BAD_CODEC, BATCH_BAD_COUNT, BATCH_BAD_CRC, BATCH_BAD_MAGIC, BATCH_BAD_PAYLOAD, BATCH_BAD_RECORDS,
    BATCH_BAD_TIMESTAMP, BATCH_NO_MEMORY, BATCH_OK, BATCH_TOO_LARGE, CODEC_MASK, LENGTH_AT, LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD, MAGIC_2, MAGIC_AT, MESSAGE_ATTRIBUTES_AT, MESSAGE_CODEC_MAX, MESSAGE_CRC_AT, MESSAGE_TIMESTAMP_AT,
    batch_parse, payload_fault,
)
from penstock.pyx.record.codec cimport (
    CODEC_LZ4, bytes_grow, bytes_resize, codec_compress, codec_decompress_validated, lz4_seal_header,
)
from penstock.pyx.record.crc cimport crc32_zlib
from penstock.pyx.record.endian cimport get_i32, get_u32, put_i32, put_i64, put_u32

cdef enum:
    MESSAGE_SIZE_MAX = 34                      # of a message whose key and value have no bytes


cdef const uint8_t* _sized_field(
    const uint8_t* p, const uint8_t* end, const uint8_t** out, int32_t* length
) noexcept nogil:
    if p == NULL or end - p < 4:
        return NULL
    length[0] = get_i32(p)
    p += 4
    out[0] = p
    if length[0] < -1 or length[0] > end - p:
        return NULL
    return p + (length[0] if length[0] > 0 else 0)


cdef bint message_read(const uint8_t* p, const BatchHeader* header, MessageView* out) noexcept nogil:
    cdef const uint8_t* end = p + header.size
    out.offset = header.base_offset
    out.timestamp = header.max_timestamp
    out.magic = header.magic
    out.attributes = <int8_t>header.attributes
    p += MESSAGE_TIMESTAMP_AT if header.magic == 0 else MESSAGE_TIMESTAMP_AT + 8
    p = _sized_field(p, end, &out.key, &out.key_length)
    p = _sized_field(p, end, &out.value, &out.value_length)
    return p == end


cdef int message_next(
    const uint8_t** p, size_t* left, int8_t magic, BatchHeader* header, MessageView* out
) noexcept nogil:
    cdef int fault = batch_parse(p[0], left[0], header)
    if fault != BATCH_OK:
        return fault
    if header.magic != magic or header.magic >= MAGIC_2:
        return BATCH_BAD_MAGIC
    if not message_read(p[0], header, out):
        return BATCH_BAD_RECORDS
    p[0] += header.size
    left[0] -= <size_t>header.size
    return BATCH_OK


cdef inline uint32_t _message_crc(const uint8_t* p, int64_t size) noexcept nogil:
    return crc32_zlib(0, p + MAGIC_AT, <size_t>(size - MAGIC_AT))


cdef int _inflate(
    const BatchHeader* header, const MessageView* outer, size_t limit_bytes, vector[uint8_t]& scratch, bint* common
) noexcept nogil:
    # A wrapper's set into `scratch`. Magic 0 has lz4 frames whose header checksum is wrong: made right in a copy.
    cdef vector[uint8_t] copy
    cdef const uint8_t* value = outer.value
    cdef size_t n = <size_t>outer.value_length
    cdef int codec = header.attributes & CODEC_MASK
    scratch.clear()
    if codec == 0 or codec > MESSAGE_CODEC_MAX:
        return BATCH_BAD_CODEC
    if outer.value_length < 0:
        return BATCH_BAD_PAYLOAD
    if codec == CODEC_LZ4 and header.magic == 0:
        if not bytes_resize(copy, n):
            return BATCH_NO_MEMORY
        if n > 0:                                     # an empty vector has no address
            memcpy(copy.data(), value, n)
        if not lz4_seal_header(copy.data(), n, False):
            return BATCH_BAD_PAYLOAD
        value = copy.data()
    return payload_fault(codec_decompress_validated(codec, value, n, limit_bytes, scratch, common))


cdef int wrapper_open(
    const uint8_t* p, const BatchHeader* header, size_t limit_bytes, bint check_crc, vector[uint8_t]& scratch,
    Inner* out
) noexcept nogil:
    cdef MessageView message
    cdef BatchHeader inner
    cdef const uint8_t* at
    cdef const uint8_t* before
    cdef size_t left
    cdef int fault = BATCH_OK
    if not message_read(p, header, &message):
        return BATCH_BAD_RECORDS
    fault = _inflate(header, &message, limit_bytes, scratch, &out.common)
    if fault != BATCH_OK:
        return fault
    out.data = scratch.data()
    out.n = left = scratch.size()
    out.count = 0
    out.max_timestamp = -1
    out.dense = True
    at = out.data
    while left:
        before = at
        fault = message_next(&at, &left, header.magic, &inner, &message)
        if fault != BATCH_OK:
            return fault if fault == BATCH_BAD_MAGIC else BATCH_BAD_RECORDS
        if inner.attributes & CODEC_MASK:
            return BATCH_BAD_RECORDS            # a wrapper in a wrapper
        if check_crc and _message_crc(before, inner.size) != inner.crc:
            return BATCH_BAD_CRC
        out.dense = out.dense and inner.base_offset == out.count
        out.max_timestamp = max(out.max_timestamp, inner.max_timestamp)
        out.count += 1                          # of at least 26 bytes each: the limit bounds it
    if out.count == 0:
        return BATCH_BAD_COUNT
    # A producer's wrapper may say 0; only a broker's says where its last message is.
    out.shift = 0
    if header.magic == 1 and header.base_offset > inner.base_offset:
        out.shift = <int64_t>(<uint64_t>header.base_offset - <uint64_t>inner.base_offset)
    return BATCH_OK


cdef int64_t inner_timestamp(const BatchHeader* wrapper, const MessageView* message) noexcept nogil:
    if wrapper.magic == 1 and wrapper.attributes & LOG_APPEND_TIME_BIT:
        return wrapper.max_timestamp
    return message.timestamp


cdef inline size_t _before_key(int8_t magic) noexcept nogil:
    return MESSAGE_TIMESTAMP_AT if magic == 0 else MESSAGE_TIMESTAMP_AT + 8


cdef void _finish(
    uint8_t* p, int64_t size, int64_t offset, int8_t magic, int8_t attributes, int64_t timestamp
) noexcept nogil:
    # The fields before the key, the CRC last: all that follows it is there.
    put_i64(p, offset)
    put_i32(p + LENGTH_AT, <int32_t>(size - LOG_OVERHEAD))
    p[MAGIC_AT] = <uint8_t>magic
    p[MESSAGE_ATTRIBUTES_AT] = <uint8_t>attributes
    if magic == 1:
        put_i64(p + MESSAGE_TIMESTAMP_AT, timestamp)
    put_u32(p + MESSAGE_CRC_AT, _message_crc(p, size))


cdef inline uint8_t* _sized_write(uint8_t* p, const uint8_t* data, int32_t length) noexcept nogil:
    put_i32(p, length)
    if length > 0:
        memcpy(p + 4, data, <size_t>length)
    return p + 4 + (length if length > 0 else 0)


cdef bint message_write(const MessageView* message, vector[uint8_t]& out) noexcept nogil:
    cdef size_t before = out.size()
    cdef int64_t size = <int64_t>_before_key(message.magic) + 8 + max(message.key_length, 0)
    cdef uint8_t* p
    size += max(message.value_length, 0)
    if size > INT32_MAX or not bytes_grow(out, before + <size_t>size):
        return False
    p = out.data() + before
    _sized_write(
        _sized_write(p + _before_key(message.magic), message.key, message.key_length), message.value,
        message.value_length
    )
    _finish(p, size, message.offset, message.magic, message.attributes, message.timestamp)
    return True


cdef int wrapper_write(
    int8_t magic, int codec, int level, int8_t attribute_bits, int64_t last_offset, int64_t timestamp, const uint8_t* p,
    size_t n, vector[uint8_t]& out
) noexcept nogil:
    cdef size_t before = out.size()
    cdef size_t value_at = before + _before_key(magic) + 8
    cdef size_t length
    cdef int fault
    if codec < 1 or codec > MESSAGE_CODEC_MAX:
        return BATCH_BAD_CODEC
    if not bytes_grow(out, value_at):
        return BATCH_NO_MEMORY
    fault = codec_compress(codec, level, p, n, out)
    length = out.size() - value_at
    if fault or length > <size_t>(INT32_MAX - MESSAGE_SIZE_MAX):
        bytes_resize(out, before)
        return BATCH_NO_MEMORY if fault else BATCH_TOO_LARGE
    if codec == CODEC_LZ4 and magic == 0:
        lz4_seal_header(out.data() + value_at, length, True)
    put_i32(out.data() + value_at - 8, -1)
    put_i32(out.data() + value_at - 4, <int32_t>length)
    _finish(
        out.data() + before, <int64_t>(out.size() - before), last_offset, magic, <int8_t>(codec | attribute_bits),
        timestamp
    )
    return BATCH_OK


cdef void message_set_timestamp(uint8_t* p, int64_t size, int64_t timestamp_ms, bint log_append_time) noexcept nogil:
    put_i64(p + MESSAGE_TIMESTAMP_AT, timestamp_ms)
    if log_append_time:
        p[MESSAGE_ATTRIBUTES_AT] |= LOG_APPEND_TIME_BIT
    put_u32(p + MESSAGE_CRC_AT, _message_crc(p, size))


cdef void messages_number(uint8_t* p, size_t n, int64_t first) noexcept nogil:
    cdef uint8_t* end = p + n
    while p < end:
        put_i64(p, first)
        first += 1
        p += LOG_OVERHEAD + <size_t>get_u32(p + LENGTH_AT)


cdef int message_at_time(
    const uint8_t* p, const BatchHeader* header, int64_t timestamp_ms, int64_t from_offset, size_t limit_bytes,
    vector[uint8_t]& scratch, int64_t* offset, int64_t* timestamp
) noexcept nogil:
    cdef BatchHeader inner
    cdef MessageView message
    cdef Inner found
    cdef const uint8_t* at
    cdef size_t left
    cdef int fault
    if not header.attributes & CODEC_MASK:
        offset[0] = header.base_offset
        timestamp[0] = header.max_timestamp
        return BATCH_OK if timestamp[0] >= timestamp_ms and offset[0] >= from_offset else BATCH_BAD_TIMESTAMP
    fault = wrapper_open(p, header, limit_bytes, False, scratch, &found)
    if fault != BATCH_OK:
        return fault
    at = found.data
    left = found.n
    while left and message_next(&at, &left, header.magic, &inner, &message) == BATCH_OK:
        offset[0] = inner_offset(&found, &message)
        timestamp[0] = inner_timestamp(header, &message)
        if timestamp[0] >= timestamp_ms and offset[0] >= from_offset:
            return BATCH_OK
    return BATCH_BAD_TIMESTAMP
