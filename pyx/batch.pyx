"""Record batches: read, judged, split, built. The format is drawn in batch.pxd.

Below the line "Python" nothing of the C functions touches an object; above it nothing decides about bytes.
"""
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from libc.stdint cimport INT32_MAX, uint64_t
from libc.string cimport memcpy, memset

from penstock.pyx.codec cimport (
    CODEC_OVER_LIMIT, CODEC_ROTTEN, CODEC_UNKNOWN, bytes_grow, bytes_resize, codec_compress, codec_decompress,
)
from penstock.pyx.crc cimport crc32_zlib, crc32c, crc32c_combine
from penstock.pyx.endian cimport get_i16, get_i32, get_i64, get_u32, put_i16, put_i32, put_i64, put_u32
from penstock.pyx.varint cimport (
    varint_read, varint_size, varint_write, varlong_read, varlong_size, varlong_write,
)

from collections import namedtuple

cdef enum:
    MAGIC_MOST = 2
    RECORD_SIZE_LEAST = 7                       # length, attributes, two deltas, two lengths, header count
    VARINT_MOST = 5
    MARKER_KEY_SIZE = 4                         # version i16, type i16 (0 abort, 1 commit)
    MARKER_VALUE_SIZE = 6                       # version i16, coordinator epoch i32
    MARKER_RECORD_SIZE = 16                     # of one record without its length


cdef int batch_parse(const uint8_t* p, size_t left, BatchHeader* out) noexcept nogil:
    cdef int64_t length
    memset(out, 0, sizeof(BatchHeader))
    if left < LOG_OVERHEAD:
        return BATCH_PARTIAL
    length = get_i32(p + LENGTH_AT)
    if length < MESSAGE_SIZE_LEAST - LOG_OVERHEAD:
        return BATCH_BAD_LENGTH
    out.size = LOG_OVERHEAD + length
    if left <= MAGIC_AT:
        return BATCH_PARTIAL
    out.magic = <int8_t>p[MAGIC_AT]
    if out.magic < 0 or out.magic > MAGIC_MOST:
        return BATCH_BAD_MAGIC
    if out.magic == 1 and out.size < MESSAGE_SIZE_LEAST + 8:
        return BATCH_BAD_LENGTH
    if out.magic == MAGIC_MOST and out.size < RECORDS_AT:
        return BATCH_BAD_LENGTH
    if <size_t>out.size > left:
        return BATCH_PARTIAL
    return batch_parse_header(p, RECORDS_AT if out.magic == MAGIC_MOST else left, out)


cdef int batch_parse_header(const uint8_t* p, size_t left, BatchHeader* out) noexcept nogil:
    cdef int64_t length
    memset(out, 0, sizeof(BatchHeader))
    if left <= MAGIC_AT:
        return BATCH_PARTIAL
    out.magic = <int8_t>p[MAGIC_AT]
    if out.magic < 0 or out.magic > MAGIC_MOST:
        return BATCH_BAD_MAGIC
    length = get_i32(p + LENGTH_AT)
    out.base_offset = get_i64(p)
    out.size = LOG_OVERHEAD + length
    if out.magic < MAGIC_MOST:
        return message_parse_header(p, left, out)
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


cdef int message_parse_header(const uint8_t* p, size_t left, BatchHeader* out) noexcept nogil:
    cdef int64_t least = MESSAGE_SIZE_LEAST if out.magic == 0 else MESSAGE_SIZE_LEAST + 8
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


cdef int batch_check(const uint8_t* p, const BatchHeader* header, int64_t max_bytes,
                     int flags) noexcept nogil:
    cdef uint32_t crc
    if header.size > max_bytes > 0:
        return BATCH_TOO_LARGE
    if header.magic < MAGIC_MOST:
        crc = crc32_zlib(0, p + MAGIC_AT, <size_t>(header.size - MAGIC_AT))
    else:
        crc = crc32c(0, p + ATTRIBUTES_AT, <size_t>(header.size - ATTRIBUTES_AT))
    if crc != header.crc:
        return BATCH_BAD_CRC
    return batch_check_header(header, max_bytes, flags)


cdef int batch_check_header(const BatchHeader* header, int64_t max_bytes, int flags) noexcept nogil:
    cdef int codec = header.attributes & CODEC_MASK
    if header.size > max_bytes > 0:
        return BATCH_TOO_LARGE
    if codec > (CODEC_MOST if header.magic == MAGIC_MOST else MESSAGE_CODEC_MOST):
        return BATCH_BAD_CODEC
    if flags & CHECK_CLEAN:
        if header.magic != MAGIC_MOST:
            return BATCH_BAD_MAGIC
        if header.attributes & (<int>UNUSED_BITS | DELETE_HORIZON_BIT):
            return BATCH_BAD_ATTRIBUTES
        if header.attributes & LOG_APPEND_TIME_BIT:
            return BATCH_BAD_TIMESTAMP_TYPE
    elif header.base_offset < 0:
        return BATCH_BAD_OFFSET
    if header.magic != MAGIC_MOST:
        return BATCH_OK
    if flags & CHECK_NO_CONTROL and header.attributes & CONTROL_BIT:
        return BATCH_CONTROL
    if not count_fits(header, codec, flags):
        return BATCH_BAD_COUNT
    if flags & CHECK_CLEAN and not producer_fits(header, flags):
        return BATCH_BAD_PRODUCER
    return BATCH_OK


cdef inline bint count_fits(const BatchHeader* header, int codec, int flags) noexcept nogil:
    cdef int64_t span = <int64_t>header.last_offset_delta + 1
    cdef int64_t count = header.record_count
    if span < 1 or count < 0 or count > span:
        return False
    if flags & CHECK_DENSE and count != span:
        return False
    if codec == 0 and count * RECORD_SIZE_LEAST > header.size - RECORDS_AT:
        return False
    return True


cdef inline bint producer_fits(const BatchHeader* header, int flags) noexcept nogil:
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
    cdef uint32_t change = crc32c(0, p + ATTRIBUTES_AT, RECORDS_AT - ATTRIBUTES_AT)
    if log_append_time:
        put_i16(p + ATTRIBUTES_AT, get_i16(p + ATTRIBUTES_AT) | <int16_t>LOG_APPEND_TIME_BIT)
    put_i64(p + MAX_TIMESTAMP_AT, max_ms)
    change ^= crc32c(0, p + ATTRIBUTES_AT, RECORDS_AT - ATTRIBUTES_AT)
    put_u32(p + CRC_AT, crc32c_combine(change, get_u32(p + CRC_AT), <uint64_t>(size - RECORDS_AT)))


cdef int batch_marker_type(const uint8_t* p, const BatchHeader* header,
                           int32_t* coordinator_epoch) noexcept nogil:
    cdef RecordView record
    cdef int kind
    if header.magic != MAGIC_MOST or header.attributes & CODEC_MASK or header.record_count != 1:
        return BATCH_BAD_RECORDS
    if record_read(p + RECORDS_AT, p + header.size, &record) == NULL or record.key_length < MARKER_KEY_SIZE:
        return BATCH_BAD_RECORDS
    kind = get_i16(record.key + 2)
    if get_i16(record.key) < 0 or kind < 0 or kind > 1:
        return BATCH_BAD_RECORDS
    if coordinator_epoch != NULL:
        coordinator_epoch[0] = get_i32(record.value + 2) if record.value_length >= MARKER_VALUE_SIZE else -1
    return kind


cdef inline const uint8_t* sized_read(const uint8_t* p, const uint8_t* end, const uint8_t** out,
                                      int32_t* length) noexcept nogil:
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
    p = varlong_read(p + 1, end, &out.timestamp_delta)
    p = varint_read(p, end, &out.offset_delta)
    p = sized_read(p, end, &out.key, &out.key_length)
    p = sized_read(p, end, &out.value, &out.value_length)
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


cdef const uint8_t* record_header(const uint8_t* p, const uint8_t* end, HeaderView* out) noexcept nogil:
    p = sized_read(p, end, &out.key, &out.key_length)
    if p == NULL or out.key_length < 0:
        return NULL
    return sized_read(p, end, &out.value, &out.value_length)


cdef int inflate_fault(int codec_fault) noexcept nogil:
    if codec_fault == CODEC_UNKNOWN:
        return BATCH_BAD_CODEC
    if codec_fault == CODEC_ROTTEN:
        return BATCH_BAD_PAYLOAD
    if codec_fault == CODEC_OVER_LIMIT:
        return BATCH_OVER_LIMIT
    return BATCH_NO_MEMORY if codec_fault else BATCH_OK


cdef int batch_payload(const uint8_t* p, const BatchHeader* header, size_t limit_bytes,
                       vector[uint8_t]& scratch,
                       const uint8_t** data, size_t* n) noexcept nogil:
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
        fault = inflate_fault(codec_decompress(codec, p + RECORDS_AT, length, limit_bytes, scratch))
    data[0] = scratch.data()
    n[0] = scratch.size()
    return fault


cdef void batch_write_header(uint8_t* p, const BatchHeader* header) noexcept nogil:
    put_i64(p + BASE_OFFSET_AT, header.base_offset)
    put_i32(p + LENGTH_AT, <int32_t>(header.size - LOG_OVERHEAD))
    put_i32(p + LEADER_EPOCH_AT, header.leader_epoch)
    p[MAGIC_AT] = MAGIC_MOST
    put_i16(p + ATTRIBUTES_AT, header.attributes)
    put_i32(p + LAST_OFFSET_DELTA_AT, header.last_offset_delta)
    put_i64(p + BASE_TIMESTAMP_AT, header.base_timestamp)
    put_i64(p + MAX_TIMESTAMP_AT, header.max_timestamp)
    put_i64(p + PRODUCER_ID_AT, header.producer_id)
    put_i16(p + PRODUCER_EPOCH_AT, header.producer_epoch)
    put_i32(p + BASE_SEQUENCE_AT, header.base_sequence)
    put_i32(p + RECORD_COUNT_AT, header.record_count)
    put_u32(p + CRC_AT, crc32c(0, p + ATTRIBUTES_AT, <size_t>(header.size - ATTRIBUTES_AT)))


cdef int batch_write_marker(uint8_t* out, bint commit, int64_t producer_id, int16_t producer_epoch,
                            int32_t coordinator_epoch, int64_t timestamp_ms) noexcept nogil:
    cdef BatchHeader header
    cdef uint8_t* p = varint_write(out + RECORDS_AT, MARKER_RECORD_SIZE)
    p[0] = 0
    p = varlong_write(p + 1, 0)
    p = varint_write(p, 0)
    p = varint_write(p, MARKER_KEY_SIZE)
    put_i16(p, 0)
    put_i16(p + 2, 1 if commit else 0)
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


cdef int64_t record_body_size(int64_t timestamp_delta, int32_t offset_delta, int64_t key_length,
                              int64_t value_length,
                              int32_t header_count, int64_t headers_size) noexcept nogil:
    # Of a record without its own length; lengths of -1 are null.
    return (1 + varlong_size(timestamp_delta) + varint_size(offset_delta)
            + varlong_size(key_length) + (key_length if key_length > 0 else 0)
            + varlong_size(value_length) + (value_length if value_length > 0 else 0)
            + varint_size(header_count) + headers_size)


cdef uint8_t* sized_write(uint8_t* p, const uint8_t* data, int32_t length) noexcept nogil:
    p = varint_write(p, length)
    if length > 0:
        memcpy(p, data, <size_t>length)
        p += length
    return p


cdef uint8_t* record_write(uint8_t* p, int64_t body_size, const RecordView* record,
                           size_t headers_size) noexcept nogil:
    p = varint_write(p, <int32_t>body_size)
    p[0] = 0
    p = varlong_write(p + 1, record.timestamp_delta)
    p = varint_write(p, record.offset_delta)
    p = sized_write(p, record.key, record.key_length)
    p = sized_write(p, record.value, record.value_length)
    p = varint_write(p, record.header_count)
    if headers_size:
        memcpy(p, record.headers, headers_size)
    return p + headers_size


# Python

HEADER_SIZE = RECORDS_AT

Record = namedtuple("Record", ["offset", "timestamp_ms", "key", "value", "headers"], defaults=[()])


class BatchError(ValueError):
    """See batch.pyi."""

    def __init__(self, text, code=CORRUPT_MESSAGE, offset=-1):
        super().__init__(text)
        self.code = code
        self.offset = offset


cdef object raise_fault(int fault, int64_t offset):
    text = batch_error_text(fault).decode()
    raise BatchError(f"batch at offset {offset}: {text}", batch_error_code(fault), offset)


cdef class RawBatch:
    """See batch.pyi."""

    def __init__(self, buffer):
        cdef object view = PyMemoryView_FromObject(buffer)
        cdef Py_buffer* raw = contiguous(view)
        cdef int fault = batch_parse(<const uint8_t*>raw.buf, <size_t>raw.len, &self.header)
        if fault != BATCH_OK:
            raise_fault(fault, self.header.base_offset)
        self.owner = view
        self.data = <const uint8_t*>raw.buf

    @staticmethod
    cdef RawBatch at(object view, const uint8_t* data, const BatchHeader* header):
        cdef RawBatch raw = RawBatch.__new__(RawBatch)
        raw.owner = view
        raw.data = data
        raw.header = header[0]
        return raw

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.data, <Py_ssize_t>self.header.size, 1, flags)

    def __len__(self):
        return self.header.size

    def __eq__(self, other):
        if not isinstance(other, RawBatch):
            return NotImplemented
        return memoryview(self) == memoryview(other)

    def __hash__(self):
        return hash((self.header.base_offset, self.header.size, self.header.crc))

    def __repr__(self):
        return (f"RawBatch(base_offset={self.header.base_offset}, record_count={self.header.record_count}, "
                f"size_in_bytes={self.header.size}, magic={self.header.magic})")

    @property
    def base_offset(self):
        return self.header.base_offset

    @property
    def last_offset(self):
        return batch_last_offset(&self.header)

    @property
    def next_offset(self):
        return batch_last_offset(&self.header) + 1

    @property
    def last_offset_delta(self):
        return self.header.last_offset_delta

    @property
    def leader_epoch(self):
        return self.header.leader_epoch

    @property
    def magic(self):
        return self.header.magic

    @property
    def crc(self):
        return self.header.crc

    @property
    def codec(self):
        return self.header.attributes & CODEC_MASK

    @property
    def attributes(self):
        return self.header.attributes

    @property
    def base_timestamp(self):
        return self.header.base_timestamp

    @property
    def max_timestamp(self):
        return self.header.max_timestamp

    @property
    def producer_id(self):
        return self.header.producer_id

    @property
    def producer_epoch(self):
        return self.header.producer_epoch

    @property
    def base_sequence(self):
        return self.header.base_sequence

    @property
    def last_sequence(self):
        return batch_last_sequence(&self.header)

    @property
    def record_count(self):
        return self.header.record_count

    @property
    def is_transactional(self):
        return bool(batch_is_transactional(&self.header))

    @property
    def is_control(self):
        return bool(batch_is_control(&self.header))

    @property
    def is_log_append_time(self):
        return self.header.magic > 0 and self.header.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def size_in_bytes(self):
        return self.header.size

    @property
    def payload(self):
        return memoryview(self)[RECORDS_AT if self.header.magic == MAGIC_MOST else MAGIC_AT + 2:]

    def check(self, *, int64_t max_bytes=0, bint client=False):
        """See batch.pyi."""
        cdef int fault
        cdef int flags = CHECK_CLIENT if client else CHECK_STORED
        with nogil:
            fault = batch_check(self.data, &self.header, max_bytes, flags)
        if fault != BATCH_OK:
            raise_fault(fault, self.header.base_offset)


cdef Py_buffer* contiguous(object view) except NULL:
    cdef Py_buffer* raw = PyMemoryView_GET_BUFFER(view)
    if not view.c_contiguous:
        raise BufferError("the buffer must be contiguous")
    return raw


def split(buffer):
    """See batch.pyi."""
    cdef object view = PyMemoryView_FromObject(buffer)
    cdef Py_buffer* raw = contiguous(view)
    cdef const uint8_t* p = <const uint8_t*>raw.buf
    cdef size_t left = <size_t>raw.len
    cdef BatchHeader header
    cdef int fault
    cdef list batches = []
    while left:
        fault = batch_parse(p, left, &header)
        if fault == BATCH_PARTIAL:
            break
        if fault != BATCH_OK:
            raise_fault(fault, get_i64(p))
        batches.append(RawBatch.at(view, p, &header))
        p += header.size
        left -= <size_t>header.size
    return batches


cdef object some_bytes(const uint8_t* p, int64_t length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char*>p, <Py_ssize_t>length)


cdef tuple headers_of(const RecordView* record):
    cdef const uint8_t* p = record.headers
    cdef HeaderView header
    cdef list out = []
    cdef int32_t _i
    for _i in range(record.header_count):
        p = record_header(p, record.end, &header)
        key = PyBytes_FromStringAndSize(<const char*>header.key, header.key_length)
        out.append((key.decode("utf-8", "surrogateescape"), some_bytes(header.value, header.value_length)))
    return tuple(out)


def records(RawBatch raw, size_t limit_bytes=1 << 28):
    """See batch.pyi."""
    cdef vector[uint8_t] scratch
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef size_t n
    cdef RecordView record
    cdef int32_t last = -1
    cdef int32_t _i
    cdef int64_t timestamp
    cdef int fault
    cdef BatchHeader* header = &raw.header
    cdef list out = []
    if header.magic < MAGIC_MOST:
        # Looked up here and not above: that module stands on this one.
        from penstock.pyx.messageset import messages
        return messages(raw, limit_bytes)
    with nogil:
        fault = batch_payload(raw.data, header, limit_bytes, scratch, &p, &n)
    if fault != BATCH_OK:
        raise_fault(fault, header.base_offset)
    end = p + n
    for _i in range(header.record_count):
        p = record_read(p, end, &record)
        if p == NULL or record.offset_delta <= last or record.offset_delta > header.last_offset_delta:
            raise_fault(BATCH_BAD_RECORDS, header.base_offset)
        last = record.offset_delta
        timestamp = record_create_time(header, &record)
        if header.attributes & LOG_APPEND_TIME_BIT:
            timestamp = header.max_timestamp
        out.append(Record(
            record_offset(header, &record), timestamp, some_bytes(record.key, record.key_length),
            some_bytes(record.value, record.value_length), headers_of(&record)))
    if p != end or header.record_count < 0:
        raise_fault(BATCH_BAD_RECORDS, header.base_offset)
    return out


def marker(bint commit, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
           int64_t timestamp_ms):
    """See batch.pyi."""
    cdef uint8_t out[MARKER_SIZE]
    cdef int n = batch_write_marker(out, commit, producer_id, producer_epoch, coordinator_epoch, timestamp_ms)
    return PyBytes_FromStringAndSize(<const char*>out, n)


def marker_type(RawBatch raw):
    """See batch.pyi."""
    cdef int kind
    if not batch_is_control(&raw.header):
        raise BatchError(f"batch at offset {raw.base_offset}: not a control batch", INVALID_RECORD,
                         raw.base_offset)
    kind = batch_marker_type(raw.data, &raw.header, NULL)
    if kind < 0:
        raise_fault(kind, raw.header.base_offset)
    return "commit" if kind else "abort"


cdef class BatchBuilder:
    """See batch.pyi."""

    def __init__(self, int codec=0, int level=-1, int64_t max_bytes=1_048_576):
        if not 0 <= codec <= CODEC_MOST:
            raise ValueError(f"codec {codec} is not one of 0..{CODEC_MOST}")
        if not RECORDS_AT < max_bytes <= INT32_MAX:
            raise ValueError(f"max_bytes {max_bytes} is not in {RECORDS_AT + 1}..{INT32_MAX}")
        self.codec = codec
        self.level = level
        self.max_bytes = max_bytes
        self.clear()

    cpdef clear(self):
        """See batch.pyi."""
        self.taken = 0
        self.base_timestamp = self.max_timestamp = -1
        if not bytes_resize(self.buffer, RECORDS_AT):
            raise MemoryError()

    @property
    def count(self):
        return self.taken

    @property
    def size_in_bytes(self):
        return self.buffer.size()

    def append(self, bytes key, bytes value, int64_t timestamp_ms, headers=()):
        """See batch.pyi."""
        cdef RecordView record
        cdef bytes packed = pack_headers(headers, &record.header_count) if headers else b""
        cdef int taken
        if timestamp_ms < -1:
            raise_timestamp(timestamp_ms)
        if not headers:
            record.header_count = 0
        key_value(&record, key, value)
        record.headers = <const uint8_t*>PyBytes_AS_STRING(packed)
        taken = self.take(&record, timestamp_ms, PyBytes_GET_SIZE(packed))
        if taken < 0:
            raise_taking(taken)
        return bool(taken)

    cdef int take(self, RecordView* record, int64_t timestamp_ms, size_t headers_size) noexcept nogil:
        cdef int64_t base = self.base_timestamp if self.taken else timestamp_ms
        cdef int64_t before = <int64_t>self.buffer.size()
        cdef int64_t body, size
        if self.taken == INT32_MAX:
            return 0
        record.timestamp_delta = timestamp_ms - base
        record.offset_delta = self.taken
        body = record_body_size(record.timestamp_delta, record.offset_delta, record.key_length,
                                record.value_length,
                                record.header_count, <int64_t>headers_size)
        size = varlong_size(body) + body
        if before + size > (self.max_bytes if self.taken else <int64_t>INT32_MAX):
            return 0 if self.taken else BATCH_TOO_LARGE
        if not bytes_grow(self.buffer, <size_t>(before + size)):
            return BATCH_NO_MEMORY
        record_write(self.buffer.data() + before, body, record, headers_size)
        if self.taken == 0 or timestamp_ms > self.max_timestamp:
            self.max_timestamp = timestamp_ms
        self.base_timestamp = base
        self.taken += 1
        return 1

    def append_columns(self, *, timestamps, key_data=None, key_starts=None, key_null=None, value_data=None,
                       value_starts=None, value_null=None, Py_ssize_t first=0):
        """See batch.pyi."""
        cdef ColumnBuffers columns = ColumnBuffers(timestamps, key_data, key_starts, key_null, value_data,
                                                   value_starts,
                                                   value_null)
        cdef RecordView record
        cdef Py_ssize_t i = first
        cdef int taken = 1
        if not 0 <= first <= columns.count:
            raise ValueError(f"first {first} is not in 0..{columns.count}")
        with nogil:
            while i < columns.count and columns.timestamps[i] >= -1:
                columns.view(i, &record)
                taken = self.take(&record, columns.timestamps[i], 0)
                if taken <= 0:
                    break
                i += 1
        if taken < 0:
            raise_taking(taken)
        if i < columns.count and columns.timestamps[i] < -1:
            raise_timestamp(columns.timestamps[i])
        return i - first

    def build(self, int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1,
              bint transactional=False):
        """See batch.pyi."""
        cdef vector[uint8_t] packed
        cdef BatchHeader header
        cdef int fault = BATCH_OK
        if self.taken == 0:
            raise ValueError("a batch needs at least one record")
        memset(&header, 0, sizeof(header))
        header.leader_epoch = -1
        header.attributes = <int16_t>(self.codec | (TRANSACTIONAL_BIT if transactional else 0))
        header.last_offset_delta = self.taken - 1
        header.base_timestamp = self.base_timestamp
        header.max_timestamp = self.max_timestamp
        header.producer_id = producer_id
        header.producer_epoch = producer_epoch
        header.base_sequence = base_sequence
        header.record_count = self.taken
        with nogil:
            fault = batch_finish(self.buffer, self.level, &header, packed)
        if fault != BATCH_OK:
            raise_fault(fault, 0)
        if self.codec:
            return PyBytes_FromStringAndSize(<const char*>packed.data(), <Py_ssize_t>packed.size())
        return PyBytes_FromStringAndSize(<const char*>self.buffer.data(), <Py_ssize_t>self.buffer.size())


cdef int batch_finish(vector[uint8_t]& plain, int level, BatchHeader* header,
                      vector[uint8_t]& packed) noexcept nogil:
    cdef int codec = header.attributes & CODEC_MASK
    cdef int fault
    if codec == 0:
        header.size = <int64_t>plain.size()
        batch_write_header(plain.data(), header)
        return BATCH_OK
    if not bytes_resize(packed, RECORDS_AT):
        return BATCH_NO_MEMORY
    fault = codec_compress(codec, level, plain.data() + RECORDS_AT, plain.size() - RECORDS_AT, packed)
    if fault:
        return inflate_fault(fault)
    if packed.size() > INT32_MAX:
        return BATCH_TOO_LARGE
    header.size = <int64_t>packed.size()
    batch_write_header(packed.data(), header)
    return BATCH_OK


cdef inline void key_value(RecordView* record, bytes key, bytes value) noexcept:
    record.key_length = record.value_length = -1
    record.key = record.value = NULL
    if key is not None:
        record.key = <const uint8_t*>PyBytes_AS_STRING(key)
        record.key_length = clipped(PyBytes_GET_SIZE(key))
    if value is not None:
        record.value = <const uint8_t*>PyBytes_AS_STRING(value)
        record.value_length = clipped(PyBytes_GET_SIZE(value))


cdef inline int32_t clipped(int64_t length) noexcept nogil:
    # A field of 2 GiB or more makes a record that is too large, whatever else is in it.
    return <int32_t>length if length < INT32_MAX else INT32_MAX


cdef object raise_timestamp(int64_t timestamp_ms):
    raise ValueError(f"timestamp {timestamp_ms} is negative")


cdef object raise_taking(int reason):
    if reason == BATCH_TOO_LARGE:
        raise BatchError("the record is too large for any batch", MESSAGE_TOO_LARGE)
    raise MemoryError()


cdef bytes pack_headers(object headers, int32_t* count):
    # As they stand in a record. Headers are few and rare, so they may cost objects.
    cdef uint8_t room[VARINT_MOST]
    cdef bytearray out = bytearray()
    cdef bytes key, data
    count[0] = 0
    for name, value in headers:
        key = name.encode("utf-8", "surrogateescape")
        out += room[:varint_write(room, clipped(len(key))) - room]
        out += key
        data = value
        out += room[:varint_write(room, -1 if data is None else clipped(len(data))) - room]
        if data is not None:
            out += data
        count[0] += 1
    return bytes(out)


cdef class ColumnBuffers:
    # The arrays of append_columns, checked so that `view` needs no checks, and held until it is done.
    cdef Py_buffer buffers[7]
    cdef bint held[7]
    cdef Py_ssize_t count
    cdef const int64_t* timestamps

    def __cinit__(self):
        memset(self.held, 0, sizeof(self.held))

    def __init__(self, timestamps, key_data, key_starts, key_null, value_data, value_starts, value_null):
        self.hold(0, timestamps, 8)
        self.count = self.buffers[0].len // 8
        self.timestamps = <const int64_t*>self.buffers[0].buf
        self.side(1, key_data, key_starts, key_null)
        self.side(4, value_data, value_starts, value_null)

    cdef int hold(self, int which, object array, Py_ssize_t item_size) except -1:
        PyObject_GetBuffer(array, &self.buffers[which], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        self.held[which] = True
        if self.buffers[which].itemsize != item_size or self.buffers[which].ndim != 1:
            raise ValueError(f"an array of one dimension and {item_size} bytes an item is needed")
        return 0

    cdef int side(self, int at, object data, object starts, object null) except -1:
        cdef const int64_t* place
        cdef Py_ssize_t i
        if starts is None:
            if data is not None or null is not None:
                raise ValueError("data needs starts")
            return 0
        self.hold(at, data, 1)
        self.hold(at + 1, starts, 8)
        if self.buffers[at + 1].len // 8 != self.count + 1:
            raise ValueError("starts must be one longer than timestamps")
        if null is not None:
            self.hold(at + 2, null, 1)
            if self.buffers[at + 2].len != self.count:
                raise ValueError("null must be as long as timestamps")
        place = <const int64_t*>self.buffers[at + 1].buf
        if place[0] < 0 or place[self.count] > self.buffers[at].len:
            raise ValueError("starts reach outside of the data")
        for i in range(self.count):
            if place[i + 1] < place[i]:
                raise ValueError("starts must not go down")
        return 0

    cdef inline void view(self, Py_ssize_t i, RecordView* record) noexcept nogil:
        record.header_count = 0
        record.headers = NULL
        self.field(1, i, &record.key, &record.key_length)
        self.field(4, i, &record.value, &record.value_length)

    cdef inline void field(self, int at, Py_ssize_t i, const uint8_t** out, int32_t* length) noexcept nogil:
        cdef const int64_t* starts = <const int64_t*>self.buffers[at + 1].buf
        if not self.held[at + 1] or self.held[at + 2] and (<const uint8_t*>self.buffers[at + 2].buf)[i]:
            out[0] = NULL
            length[0] = -1
            return
        out[0] = <const uint8_t*>self.buffers[at].buf + starts[i]
        length[0] = clipped(starts[i + 1] - starts[i])

    def __dealloc__(self):
        cdef int i
        for i in range(7):
            if self.held[i]:
                PyBuffer_Release(&self.buffers[i])
