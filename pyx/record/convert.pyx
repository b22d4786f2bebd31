"""Stored batches to older formats; see convert.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t
from libc.string cimport memcpy

from penstock.pyx.errorcodes cimport (
    CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE,
)
from penstock.pyx.record.batch cimport (
    BATCH_BAD_CODEC, BATCH_BAD_RECORDS, BATCH_NO_MEMORY, BATCH_OK, BATCH_OVER_LIMIT, BATCH_PARTIAL, BATCH_TOO_LARGE,
    CODEC_MASK, LOG_APPEND_TIME_BIT, MAGIC_2, MESSAGE_CODEC_MAX, BatchHeader, RecordView, batch_is_control, batch_parse,
    batch_payload, record_create_time, record_offset, record_read,
)
from penstock.pyx.record.codec cimport bytes_grow
from penstock.pyx.record.messageset cimport (
    Inner, MessageView, inner_offset, inner_timestamp, message_next, message_read, message_write, wrapper_open,
    wrapper_write,
)
from penstock.pyx.record.rawbatch import BatchError

# What all batches of a call share; the vectors keep their room from one to the next.
cdef struct Conversion:
    int8_t to_magic
    int64_t from_offset
    size_t opened                               # bytes of records
    vector[uint8_t] scratch                     # an inflated payload
    vector[uint8_t] plain                       # messages that are wrapped next

# The messages of one batch on their way out: straight to the answer, or to `plain` first.
cdef struct Run:
    int codec
    int8_t attribute_bits
    int64_t base                                # of relative offsets; -1: none was taken
    int64_t last_offset
    int64_t max_timestamp


cdef int _take(Conversion* conversion, Run* run, MessageView* message, vector[uint8_t]& out) noexcept nogil:
    # `message` has its absolute offset.
    if message.offset < conversion.from_offset:
        return BATCH_OK
    if run.base < 0:
        run.base = message.offset
    run.last_offset = message.offset
    run.max_timestamp = max(run.max_timestamp, message.timestamp)
    message.magic = conversion.to_magic
    message.attributes = run.attribute_bits
    if run.codec == 0:
        return BATCH_OK if message_write(message, out) else BATCH_NO_MEMORY
    if conversion.to_magic == 1:
        message.offset -= run.base
    return BATCH_OK if message_write(message, conversion.plain) else BATCH_NO_MEMORY


cdef int _give(Conversion* conversion, Run* run, vector[uint8_t]& out) noexcept nogil:
    # Codecs at their default level, as the wrapper says nothing of the one that was used.
    if run.codec == 0 or run.base < 0:
        return BATCH_OK
    return wrapper_write(conversion.to_magic, run.codec, -1, run.attribute_bits, run.last_offset, run.max_timestamp,
                         conversion.plain.data(), conversion.plain.size(), out)


cdef void _begin(Conversion* conversion, const BatchHeader* header, Run* run) noexcept nogil:
    conversion.plain.clear()
    run.codec = header.attributes & CODEC_MASK
    run.attribute_bits = 0
    if conversion.to_magic == 1:
        run.attribute_bits = <int8_t>(header.attributes & LOG_APPEND_TIME_BIT)
    run.base = run.last_offset = run.max_timestamp = -1


cdef int _convert_batch(
    Conversion* conversion, const uint8_t* p, const BatchHeader* header, vector[uint8_t]& out
) noexcept nogil:
    cdef const uint8_t* end
    cdef RecordView record
    cdef MessageView message
    cdef Run run
    cdef size_t n
    cdef int32_t last = -1
    cdef int32_t _i
    cdef int fault
    _begin(conversion, header, &run)
    if run.codec > MESSAGE_CODEC_MAX:
        return BATCH_BAD_CODEC
    fault = batch_payload(p, header, convert_limit(header), conversion.scratch, &p, &n)
    if fault != BATCH_OK:
        return fault
    conversion.opened += n
    end = p + n
    for _i in range(header.record_count):
        p = record_read(p, end, &record)
        if p == NULL or record.offset_delta <= last or record.offset_delta > header.last_offset_delta:
            return BATCH_BAD_RECORDS
        last = record.offset_delta
        message.offset = record_offset(header, &record)
        message.timestamp = header.max_timestamp
        if not header.attributes & LOG_APPEND_TIME_BIT:
            message.timestamp = record_create_time(header, &record)
        message.key = record.key
        message.key_length = record.key_length
        message.value = record.value
        message.value_length = record.value_length
        fault = _take(conversion, &run, &message, out)
        if fault != BATCH_OK:
            return fault
    return _give(conversion, &run, out)


cdef int _convert_message(
    Conversion* conversion, const uint8_t* p, const BatchHeader* header, vector[uint8_t]& out
) noexcept nogil:
    # Magic 1 to 0: one message, or a wrapper, whose offsets become absolute.
    cdef MessageView message
    cdef BatchHeader inner
    cdef Inner found
    cdef Run run
    cdef size_t left
    cdef int fault
    _begin(conversion, header, &run)
    if run.codec == 0:
        if not message_read(p, header, &message):
            return BATCH_BAD_RECORDS
        return _take(conversion, &run, &message, out)
    fault = wrapper_open(p, header, convert_limit(header), False, conversion.scratch, &found)
    if fault != BATCH_OK:
        return fault
    conversion.opened += found.n
    p = found.data
    left = found.n
    while left:
        fault = message_next(&p, &left, header.magic, &inner, &message)
        if fault != BATCH_OK:
            return fault
        message.offset = inner_offset(&found, &message)
        message.timestamp = inner_timestamp(header, &message)
        fault = _take(conversion, &run, &message, out)
        if fault != BATCH_OK:
            return fault
    return _give(conversion, &run, out)


cdef int _convert_one(
    Conversion* conversion, const uint8_t* p, const BatchHeader* header, vector[uint8_t]& out
) noexcept nogil:
    cdef size_t before = out.size()
    cdef int fault
    if batch_is_control(header):
        return BATCH_OK
    if header.magic <= conversion.to_magic:
        if not bytes_grow(out, before + <size_t>header.size):
            return BATCH_NO_MEMORY
        memcpy(out.data() + before, p, <size_t>header.size)
        return BATCH_OK
    if header.magic == MAGIC_2:
        fault = _convert_batch(conversion, p, header, out)
    else:
        fault = _convert_message(conversion, p, header, out)
    if fault != BATCH_OK:
        out.resize(before)                      # shorter than it is: takes no memory
    return fault


cdef int16_t convert_error_code(int fault) noexcept nogil:
    if fault == BATCH_BAD_CODEC:
        return UNSUPPORTED_COMPRESSION_TYPE
    if fault == BATCH_OVER_LIMIT or fault == BATCH_TOO_LARGE:
        return MESSAGE_TOO_LARGE
    return KAFKA_STORAGE_ERROR if fault == BATCH_NO_MEMORY else CORRUPT_MESSAGE


cdef int16_t convert_down(
    const uint8_t* p, size_t n, int8_t to_magic, int64_t from_offset, size_t* opened, vector[uint8_t]& out
) noexcept nogil:
    cdef Conversion conversion
    cdef BatchHeader header
    cdef int fault = BATCH_OK
    conversion.to_magic = to_magic
    conversion.from_offset = from_offset
    conversion.opened = 0 if opened == NULL else opened[0]
    while n and not (opened != NULL and conversion.opened >= CONVERT_OPENED_ENOUGH_BYTES and out.size()):
        fault = batch_parse(p, n, &header)
        if fault == BATCH_OK:
            fault = _convert_one(&conversion, p, &header, out)
        if fault != BATCH_OK:
            break
        p += header.size
        n -= <size_t>header.size
    if opened != NULL:
        opened[0] = conversion.opened
    return 0 if fault == BATCH_OK or fault == BATCH_PARTIAL else convert_error_code(fault)


# Python

OPENED_ENOUGH_BYTES = CONVERT_OPENED_ENOUGH_BYTES


def down(batches, int to_magic, int64_t from_offset=0):
    """See convert.pyi."""
    cdef Py_buffer view
    cdef vector[uint8_t] out
    cdef int16_t error
    if to_magic not in (0, 1):
        raise ValueError(f"message sets have magic 0 or 1, not {to_magic}")
    PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            error = convert_down(<const uint8_t*>view.buf, <size_t>view.len, <int8_t>to_magic, from_offset, NULL, out)
    finally:
        PyBuffer_Release(&view)
    if error:
        raise BatchError(f"the batches can't be given as magic {to_magic}", error)
    return PyBytes_FromStringAndSize(<const char*>out.data(), <Py_ssize_t>out.size())
