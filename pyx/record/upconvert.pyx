"""Messages of magic 0 and 1 to batches of magic 2; see upconvert.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.pyx.record.batch cimport (
    BATCH_BAD_RECORDS, BATCH_NO_MEMORY, BATCH_OK, BATCH_PARTIAL, BATCH_TOO_LARGE, CODEC_MASK, LOG_APPEND_TIME_BIT,
    MAGIC_2, RECORDS_AT, RecordView, batch_last_offset, batch_parse,
)
from penstock.pyx.record.builder cimport batch_append, record_append, record_body_size
from penstock.pyx.record.codec cimport bytes_grow
from penstock.pyx.record.convert cimport CONVERT_OPENED_ENOUGH_BYTES, convert_error_code, convert_limit
from penstock.pyx.record.messageset cimport (
    Inner, MessageView, inner_offset, inner_timestamp, message_next, message_read, wrapper_open,
)
from penstock.pyx.record.rawbatch import BatchError
from penstock.pyx.record.varint cimport varlong_size

cdef enum:
    STORED_FILL_BYTES = 1 << 20                 # of a batch that plain messages of a log share
    RECORD_MAX_BYTES = 0x7ffffc00               # a batch of one such record still has a length


cdef void upconversion_begin(
    Upconversion* u, int codec, int level, int64_t fill_bytes, size_t batches_max, vector[BatchHeader]* headers
) noexcept nogil:
    u.codec = codec
    u.level = level
    u.fill_bytes = fill_bytes
    u.batches_max = batches_max
    u.headers = headers
    u.records.clear()
    u.header.record_count = 0


cdef int _give(Upconversion* u, vector[uint8_t]& out) noexcept nogil:
    """Ends the batch that is being filled, if there is one."""
    cdef int fault
    if u.header.record_count == 0:
        return BATCH_OK
    if u.headers != NULL and u.headers.size() == u.batches_max:
        return BATCH_TOO_LARGE
    fault = batch_append(u.records.data(), u.records.size(), u.level, &u.header, out)
    if fault == BATCH_OK and u.headers != NULL:
        u.headers.push_back(u.header)
    u.records.clear()
    u.header.record_count = 0
    return fault


cdef void _begin_batch(Upconversion* u, const MessageView* message) noexcept nogil:
    memset(&u.header, 0, sizeof(BatchHeader))
    u.header.base_offset = message.offset
    u.header.leader_epoch = -1
    u.header.magic = MAGIC_2
    u.header.attributes = <int16_t>(u.codec | (message.attributes & LOG_APPEND_TIME_BIT))
    u.header.base_timestamp = message.timestamp
    # Of what a broker's clock has stamped the largest is the time of all.
    u.header.max_timestamp = message.timestamp if message.attributes & LOG_APPEND_TIME_BIT else -1
    u.header.producer_id = u.header.producer_epoch = u.header.base_sequence = -1


cdef inline bint _fits(const Upconversion* u, const MessageView* message, int64_t size) noexcept nogil:
    """Whether a message may join the batch that is being filled. One of LogAppendTime has one time for all."""
    return (
        RECORDS_AT + <int64_t>u.records.size() + size <= u.fill_bytes
        and (message.attributes ^ u.header.attributes) & LOG_APPEND_TIME_BIT == 0
        and (message.attributes & LOG_APPEND_TIME_BIT == 0 or message.timestamp == u.header.max_timestamp)
        and <uint64_t>message.offset - <uint64_t>u.header.base_offset <= INT32_MAX
    )


cdef int _take(Upconversion* u, const MessageView* message, vector[uint8_t]& out) noexcept nogil:
    """`message` has its absolute offset, its time, and the attributes that say whose clock that is of."""
    cdef RecordView record
    cdef int64_t body, size
    cdef int fault
    cdef bint again = u.header.record_count > 0
    if again and message.offset <= batch_last_offset(&u.header):
        return BATCH_BAD_RECORDS
    record.key = message.key
    record.key_length = message.key_length
    record.value = message.value
    record.value_length = message.value_length
    record.headers = NULL
    record.header_count = 0
    while True:
        if not again:
            _begin_batch(u, message)
        # By way of unsigned numbers, as hostile ones overflow.
        record.timestamp_delta = <int64_t>(<uint64_t>message.timestamp - <uint64_t>u.header.base_timestamp)
        record.offset_delta = <int32_t>(<uint64_t>message.offset - <uint64_t>u.header.base_offset)
        body = record_body_size(&record, 0)
        size = varlong_size(body) + body
        if not again or _fits(u, message, size):
            break
        fault = _give(u, out)
        if fault != BATCH_OK:
            return fault
        again = False
    if body > RECORD_MAX_BYTES:
        u.header.record_count = 0
        return BATCH_TOO_LARGE
    if not record_append(u.records, &record, 0, body):
        return BATCH_NO_MEMORY
    u.header.last_offset_delta = record.offset_delta
    u.header.max_timestamp = max(u.header.max_timestamp, message.timestamp)
    u.header.record_count += 1
    return BATCH_OK


cdef int set_upconvert(Upconversion* u, const uint8_t* p, size_t n, int8_t magic, vector[uint8_t]& out) noexcept nogil:
    cdef BatchHeader header
    cdef MessageView message
    cdef int64_t number = 0
    cdef int fault = BATCH_OK
    while n and fault == BATCH_OK:
        fault = message_next(&p, &n, magic, &header, &message)
        if fault == BATCH_OK:
            message.offset = number
            number += 1
            fault = _take(u, &message, out)
    return fault if fault != BATCH_OK else _give(u, out)


# --- what is stored -----------------------------------------------------------------------------------------
cdef int _take_wrapper(
    Upconversion* u, const uint8_t* p, const BatchHeader* header, vector[uint8_t]& scratch, size_t* opened,
    vector[uint8_t]& out
) noexcept nogil:
    cdef Inner found
    cdef BatchHeader inner
    cdef MessageView message
    cdef size_t left
    cdef int fault = wrapper_open(p, header, convert_limit(header), False, scratch, &found)
    if fault != BATCH_OK:
        return fault
    opened[0] += found.n
    u.codec = header.attributes & CODEC_MASK
    u.fill_bytes = INT32_MAX
    p = found.data
    left = found.n
    while left and fault == BATCH_OK:
        fault = message_next(&p, &left, header.magic, &inner, &message)
        if fault == BATCH_OK:
            message.offset = inner_offset(&found, &message)
            message.timestamp = inner_timestamp(header, &message)
            message.attributes = <int8_t>header.attributes
            fault = _take(u, &message, out)
    return fault if fault != BATCH_OK else _give(u, out)


cdef int _take_stored(
    Upconversion* u, const uint8_t* p, const BatchHeader* header, vector[uint8_t]& scratch, size_t* opened,
    vector[uint8_t]& out
) noexcept nogil:
    cdef MessageView message
    cdef size_t before
    cdef int fault
    if header.magic < MAGIC_2 and header.attributes & CODEC_MASK == 0:
        if not message_read(p, header, &message):
            return BATCH_BAD_RECORDS
        opened[0] += <size_t>header.size
        u.codec = 0
        u.fill_bytes = STORED_FILL_BYTES
        return _take(u, &message, out)
    fault = _give(u, out)
    if fault != BATCH_OK:
        return fault
    before = out.size()
    if header.magic < MAGIC_2:
        fault = _take_wrapper(u, p, header, scratch, opened, out)
        if fault != BATCH_OK:
            out.resize(before)                  # shorter than it is: takes no memory
            u.records.clear()
            u.header.record_count = 0
        return fault
    if not bytes_grow(out, before + <size_t>header.size):
        return BATCH_NO_MEMORY
    memcpy(out.data() + before, p, <size_t>header.size)
    return BATCH_OK


cdef int16_t convert_up(const uint8_t* p, size_t n, size_t* opened, vector[uint8_t]& out) noexcept nogil:
    cdef Upconversion u
    cdef BatchHeader header
    cdef vector[uint8_t] scratch
    cdef size_t counted = 0 if opened == NULL else opened[0]
    cdef int given, fault = BATCH_OK
    upconversion_begin(&u, 0, -1, STORED_FILL_BYTES, 0, NULL)
    while n and not (opened != NULL and counted >= CONVERT_OPENED_ENOUGH_BYTES and out.size()):
        fault = batch_parse(p, n, &header)
        if fault == BATCH_OK:
            fault = _take_stored(&u, p, &header, scratch, &counted, out)
        if fault != BATCH_OK:
            break
        p += header.size
        n -= <size_t>header.size
    given = _give(&u, out)                      # what came before a bad one, too
    if opened != NULL:
        opened[0] = counted
    if fault == BATCH_OK or fault == BATCH_PARTIAL:
        fault = given
    return 0 if fault == BATCH_OK else convert_error_code(fault)


# Python

def up(batches):
    """See upconvert.pyi."""
    cdef Py_buffer view
    cdef vector[uint8_t] out
    cdef int16_t error
    PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            error = convert_up(<const uint8_t*>view.buf, <size_t>view.len, NULL, out)
    finally:
        PyBuffer_Release(&view)
    if error:
        raise BatchError("the batches can't be given as magic 2", error)
    return PyBytes_FromStringAndSize(<const char*>out.data(), <Py_ssize_t>out.size())
