"""Building batches; see builder.pxd.

Records are written one behind the other; the header comes last, as it has their sum.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t
from libc.string cimport memcpy, memset

from penstock.pyx.errorcodes cimport MESSAGE_TOO_LARGE
from penstock.pyx.record.batch cimport (
    BATCH_NO_MEMORY, BATCH_OK, BATCH_TOO_LARGE, CODEC_MASK, CODEC_MAX, RECORDS_AT, TRANSACTIONAL_BIT, HeaderView,
    batch_write_header, payload_fault, record_header,
)
from penstock.pyx.record.codec cimport bytes_grow, bytes_resize, codec_compress
from penstock.pyx.record.rawbatch cimport raise_fault
from penstock.pyx.record.rawbatch import BatchError
from penstock.pyx.record.varint cimport varint_size, varint_write, varlong_size, varlong_write

cdef enum:
    VARINT_MAX = 5


cdef inline int64_t _field_size(int64_t length) noexcept nogil:
    return varlong_size(length) + max(length, <int64_t>0)


cdef int64_t record_body_size(const RecordView* record, size_t headers_size) noexcept nogil:
    return (1 + varlong_size(record.timestamp_delta) + varint_size(record.offset_delta)
            + _field_size(record.key_length) + _field_size(record.value_length)
            + varint_size(record.header_count) + <int64_t>headers_size)


cdef uint8_t* _sized_write(uint8_t* p, const uint8_t* data, int32_t length) noexcept nogil:
    p = varint_write(p, length)
    if length > 0:
        memcpy(p, data, <size_t>length)
        p += length
    return p


cdef bint record_append(
    vector[uint8_t]& out, const RecordView* record, size_t headers_size, int64_t body_size
) noexcept nogil:
    cdef size_t before = out.size()
    cdef uint8_t* p
    if not bytes_grow(out, before + <size_t>(varlong_size(body_size) + body_size)):
        return False
    p = varint_write(out.data() + before, <int32_t>body_size)
    p[0] = 0
    p = varlong_write(p + 1, record.timestamp_delta)
    p = varint_write(p, record.offset_delta)
    p = _sized_write(p, record.key, record.key_length)
    p = _sized_write(p, record.value, record.value_length)
    p = varint_write(p, record.header_count)
    if headers_size:
        memcpy(p, record.headers, headers_size)
    return True


cdef int batch_append(
    const uint8_t* records, size_t n, int level, BatchHeader* header, vector[uint8_t]& out
) noexcept nogil:
    cdef size_t before = out.size()
    cdef int fault
    if not bytes_grow(out, before + RECORDS_AT):
        return BATCH_NO_MEMORY
    fault = codec_compress(header.attributes & CODEC_MASK, level, records, n, out)
    header.size = <int64_t>(out.size() - before)
    if fault or header.size > INT32_MAX:
        bytes_resize(out, before)
        return payload_fault(fault) if fault else BATCH_TOO_LARGE
    batch_write_header(out.data() + before, header)
    return BATCH_OK


cdef int batch_finish(vector[uint8_t]& plain, int level, BatchHeader* header, vector[uint8_t]& packed) noexcept nogil:
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
        return payload_fault(fault)
    if packed.size() > INT32_MAX:
        return BATCH_TOO_LARGE
    header.size = <int64_t>packed.size()
    batch_write_header(packed.data(), header)
    return BATCH_OK


cdef class BatchBuilder:
    """See builder.pyi."""

    def __init__(self, int codec=0, int level=-1, int64_t max_bytes=1_048_576, bint any_time=False):
        if not 0 <= codec <= CODEC_MAX:
            raise ValueError(f"codec {codec} is not one of 0..{CODEC_MAX}")
        if not RECORDS_AT < max_bytes <= INT32_MAX:
            raise ValueError(f"max_bytes {max_bytes} is not in {RECORDS_AT + 1}..{INT32_MAX}")
        self.codec = codec
        self.level = level
        self.max_bytes = max_bytes
        self.any_time = any_time
        self.clear()

    cpdef clear(self):
        """See builder.pyi."""
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

    cpdef bint append(self, bytes key, bytes value, int64_t timestamp_ms, headers=()) except -1:
        """See builder.pyi."""
        cdef RecordView record
        cdef bytes packed = _packed_headers(headers, &record.header_count) if headers else b""
        cdef int taken
        if timestamp_ms < -1 and not self.any_time:
            _raise_timestamp(timestamp_ms)
        if not headers:
            record.header_count = 0
        _key_value(&record, key, value)
        record.headers = <const uint8_t*>PyBytes_AS_STRING(packed)
        taken = self.take(&record, timestamp_ms, PyBytes_GET_SIZE(packed))
        if taken < 0:
            _raise_taking(taken)
        return taken

    cdef int take(self, RecordView* record, int64_t timestamp_ms, size_t headers_size) noexcept nogil:
        cdef int64_t base = self.base_timestamp if self.taken else timestamp_ms
        cdef int64_t before = <int64_t>self.buffer.size()
        cdef int64_t body, size
        if self.taken == INT32_MAX:
            return 0
        record.timestamp_delta = timestamp_ms - base
        record.offset_delta = self.taken
        body = record_body_size(record, headers_size)
        size = varlong_size(body) + body
        if before + size > (self.max_bytes if self.taken else <int64_t>INT32_MAX):
            return 0 if self.taken else BATCH_TOO_LARGE
        if not record_append(self.buffer, record, headers_size, body):
            return BATCH_NO_MEMORY
        if self.taken == 0 or timestamp_ms > self.max_timestamp:
            self.max_timestamp = timestamp_ms
        self.base_timestamp = base
        self.taken += 1
        return 1

    def append_columns(
        self, *, timestamps, key_data=None, key_starts=None, key_null=None, value_data=None, value_starts=None,
        value_null=None, header_data=None, header_starts=None, Py_ssize_t first=0, Py_ssize_t at_most=-1
    ):
        """See builder.pyi."""
        cdef ColumnBuffers columns = ColumnBuffers(
            timestamps, key_data, key_starts, key_null, value_data, value_starts, value_null, header_data, header_starts
        )
        cdef int64_t headers_size = 0
        cdef RecordView record
        cdef Py_ssize_t i = first
        cdef Py_ssize_t end = columns.count
        cdef int taken = 1
        if not 0 <= first <= columns.count:
            raise ValueError(f"first {first} is not in 0..{columns.count}")
        if 0 <= at_most < end - first:
            end = first + at_most
        with nogil:
            while i < end and columns.timestamps[i] >= -1:
                headers_size = columns.view(i, &record)
                if headers_size < 0:
                    break
                taken = self.take(&record, columns.timestamps[i], <size_t>headers_size)
                if taken <= 0:
                    break
                i += 1
        if taken < 0:
            _raise_taking(taken)
        if headers_size < 0:
            raise ValueError(f"the headers of record {i} are no headers")
        if i < end and columns.timestamps[i] < -1:
            _raise_timestamp(columns.timestamps[i])
        return i - first

    def build(
        self, int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1, bint transactional=False
    ):
        """See builder.pyi."""
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


cdef inline void _key_value(RecordView* record, bytes key, bytes value) noexcept:
    record.key_length = record.value_length = -1
    record.key = record.value = NULL
    if key is not None:
        record.key = <const uint8_t*>PyBytes_AS_STRING(key)
        record.key_length = _clipped(PyBytes_GET_SIZE(key))
    if value is not None:
        record.value = <const uint8_t*>PyBytes_AS_STRING(value)
        record.value_length = _clipped(PyBytes_GET_SIZE(value))


cdef inline int32_t _clipped(int64_t length) noexcept nogil:
    # A field of 2 GiB or more makes a record that is too large, whatever else is in it.
    return <int32_t>length if length < INT32_MAX else INT32_MAX


cdef object _raise_timestamp(int64_t timestamp_ms):
    raise ValueError(f"timestamp {timestamp_ms} is negative")


cdef object _raise_taking(int reason):
    if reason == BATCH_TOO_LARGE:
        raise BatchError("the record is too large for any batch", MESSAGE_TOO_LARGE)
    raise MemoryError()


def pack_headers(headers):
    """See builder.pyi."""
    cdef int32_t count
    return _packed_headers(headers, &count)


cdef bint _is_header(object header) except -1:
    return (
        isinstance(header, (tuple, list)) and len(header) == 2 and isinstance(header[0], str)
        and (header[1] is None or isinstance(header[1], bytes))
    )


cdef bytes _packed_headers(object headers, int32_t* count):
    # As they stand in a record. Headers are few and rare, so they may cost objects.
    cdef uint8_t room[VARINT_MAX]
    cdef bytearray out = bytearray()
    cdef bytes key, data
    count[0] = 0
    for header in headers:
        if not _is_header(header):
            raise TypeError(f'headers are pairs of a name and bytes or None, such as [("id", b"1")], not {headers!r}')
        name, value = header
        key = name.encode("utf-8", "surrogateescape")
        out += room[:varint_write(room, _clipped(len(key))) - room]
        out += key
        data = value
        out += room[:varint_write(room, -1 if data is None else _clipped(len(data))) - room]
        if data is not None:
            out += data
        count[0] += 1
    return bytes(out)


cdef class ColumnBuffers:
    # The arrays of append_columns, checked so that `view` needs no checks, and held until it is done.
    cdef Py_buffer buffers[9]
    cdef bint held[9]
    cdef Py_ssize_t count
    cdef const int64_t* timestamps

    def __cinit__(self):
        memset(self.held, 0, sizeof(self.held))

    def __init__(
        self, timestamps, key_data, key_starts, key_null, value_data, value_starts, value_null, header_data,
        header_starts
    ):
        self.hold(0, timestamps, 8)
        self.count = self.buffers[0].len // 8
        self.timestamps = <const int64_t*>self.buffers[0].buf
        self.side(1, key_data, key_starts, key_null)
        self.side(4, value_data, value_starts, value_null)
        self.side(7, header_data, header_starts, None)

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

    cdef inline int64_t view(self, Py_ssize_t i, RecordView* record) noexcept nogil:
        # Gives the bytes of the record's headers, -1 if they are none.
        self.field(1, i, &record.key, &record.key_length)
        self.field(4, i, &record.value, &record.value_length)
        return self.headers(i, record)

    cdef inline int64_t headers(self, Py_ssize_t i, RecordView* record) noexcept nogil:
        cdef const int64_t* starts = <const int64_t*>self.buffers[8].buf
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef HeaderView header
        record.header_count = 0
        record.headers = NULL
        if not self.held[8] or starts[i] == starts[i + 1]:
            return 0
        p = record.headers = <const uint8_t*>self.buffers[7].buf + starts[i]
        end = <const uint8_t*>self.buffers[7].buf + starts[i + 1]
        while p != NULL and p < end:
            p = record_header(p, end, &header)
            record.header_count += 1
        return -1 if p == NULL else end - record.headers

    cdef inline void field(self, int at, Py_ssize_t i, const uint8_t** out, int32_t* length) noexcept nogil:
        cdef const int64_t* starts = <const int64_t*>self.buffers[at + 1].buf
        if not self.held[at + 1] or self.held[at + 2] and (<const uint8_t*>self.buffers[at + 2].buf)[i]:
            out[0] = NULL
            length[0] = -1
            return
        out[0] = <const uint8_t*>self.buffers[at].buf + starts[i]
        length[0] = _clipped(starts[i + 1] - starts[i])

    def __dealloc__(self):
        cdef int i
        for i in range(9):
            if self.held[i]:
                PyBuffer_Release(&self.buffers[i])
