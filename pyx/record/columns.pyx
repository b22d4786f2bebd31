"""Many batches to numpy columns, and a batch to a smaller one.

Record bytes go from the batch (or from where it was inflated to) into the columns in one copy, without Python
objects and without the GIL. The arrays refer to memory that the Store owns.
"""

import numpy
from collections import namedtuple
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t
from libc.string cimport memcmp, memcpy, memset

from penstock.pyx.record.batch cimport (
    BATCH_BAD_COUNT, BATCH_BAD_MAGIC, BATCH_BAD_RECORDS, BATCH_CONTROL, BATCH_NO_MEMORY, BATCH_OK, BATCH_OVER_LIMIT,
    CODEC_MASK, LOG_APPEND_TIME_BIT, MAGIC_2, RECORD_SIZE_MIN, HeaderView, batch_is_control, batch_payload,
    record_create_time, record_header, record_offset, record_read,
)
from penstock.pyx.record.builder cimport BatchBuilder, batch_finish
from penstock.pyx.record.codec cimport bytes_grow
from penstock.pyx.record.messageset cimport (
    Inner, MessageView, inner_offset, inner_timestamp, message_next, wrapper_open,
)
from penstock.pyx.record.rawbatch cimport RawBatch, raise_fault

Column = namedtuple("Column", ["data", "starts", "null"])
HeaderColumns = namedtuple("HeaderColumns", ["starts", "names", "values"])

cdef extern from *:
    """
    #include <algorithm>
    template <typename T> static inline bool push(std::vector<T>& out, T value) noexcept {
        try { out.push_back(value); return true; } catch (...) { return false; }
    }
    template <typename T> static inline bool room(std::vector<T>& out, size_t n) noexcept {
        try {
            if (out.size() + n > out.capacity()) out.reserve(std::max(out.size() + n, 2 * out.capacity()));
            return true;
        } catch (...) { return false; }
    }
    """
    bint push[T](vector[T]& out, T value) noexcept nogil
    bint room[T](vector[T]& out, size_t n) noexcept nogil


cdef inline bint _put(
    vector[uint8_t]& data, vector[int64_t]& starts, vector[uint8_t]& null, const uint8_t* p, int64_t length
) noexcept nogil:
    cdef size_t before = data.size()
    if length > 0:
        if not bytes_grow(data, before + <size_t>length):
            return False
        memcpy(data.data() + before, p, <size_t>length)
    return push(starts, <int64_t>data.size()) and push(null, <uint8_t>(length < 0))


cdef inline int64_t _record_timestamp(const BatchHeader* header, const RecordView* record) noexcept nogil:
    if header.attributes & LOG_APPEND_TIME_BIT:
        return header.max_timestamp
    return record_create_time(header, record)


cdef class Store:
    def __cinit__(self, size_t limit_bytes):
        self.left_bytes = limit_bytes
        if not (push(self.key_starts, <int64_t>0) and push(self.value_starts, <int64_t>0)
                and push(self.header_starts, <int64_t>0)):
            raise MemoryError()

    cdef bint add(self, const RecordView* record, int64_t offset, int64_t timestamp, int32_t batch) noexcept nogil:
        cdef size_t before = self.header_data.size()
        cdef size_t length = <size_t>(record.end - record.headers) if record.header_count else 0
        if length:
            if not bytes_grow(self.header_data, before + length):
                return False
            memcpy(self.header_data.data() + before, record.headers, length)
        return (
            push(self.header_starts, <int64_t>(before + length))
            and _put(self.key_data, self.key_starts, self.key_null, record.key, record.key_length)
            and _put(self.value_data, self.value_starts, self.value_null, record.value, record.value_length)
            and push(self.offsets, offset) and push(self.timestamps, timestamp) and push(self.batch_index,
                                                                                         batch)
        )

    cdef int add_batch(self, const uint8_t* p, const BatchHeader* header, int32_t batch) noexcept nogil:
        cdef const uint8_t* end
        cdef RecordView record
        cdef size_t n
        cdef int32_t last = -1
        cdef int32_t _i
        cdef int fault
        if header.magic < MAGIC_2:
            return self.add_messages(p, header, batch)
        fault = batch_payload(p, header, self.left_bytes, self.scratch, &p, &n)
        if fault != BATCH_OK:
            return fault
        self.left_bytes -= n
        end = p + n
        # The count is believed only as far as the bytes that are there could hold it.
        if header.record_count < 0 or <size_t>header.record_count > n // RECORD_SIZE_MIN:
            return BATCH_BAD_COUNT
        if not (room(self.offsets, header.record_count) and room(self.timestamps, header.record_count)):
            return BATCH_NO_MEMORY
        for _i in range(header.record_count):
            p = record_read(p, end, &record)
            if p == NULL or record.offset_delta <= last or record.offset_delta > header.last_offset_delta:
                return BATCH_BAD_RECORDS
            last = record.offset_delta
            if not self.add(&record, record_offset(header, &record), _record_timestamp(header, &record), batch):
                return BATCH_NO_MEMORY
        return BATCH_OK if p == end else BATCH_BAD_COUNT

    cdef int add_messages(self, const uint8_t* p, const BatchHeader* header, int32_t batch) noexcept nogil:
        cdef MessageView message
        cdef BatchHeader inner
        cdef Inner found
        cdef size_t left = <size_t>header.size
        cdef int fault = BATCH_OK
        found.shift = 0
        if header.attributes & CODEC_MASK:
            fault = wrapper_open(p, header, self.left_bytes, False, self.scratch, &found)
            p = found.data
            left = found.n
        elif left > self.left_bytes:
            fault = BATCH_OVER_LIMIT
        if fault != BATCH_OK:
            return fault
        self.left_bytes -= left
        while left:
            fault = message_next(&p, &left, header.magic, &inner, &message)
            if fault != BATCH_OK:
                return fault
            if not self.add_message(header, &message, &found, batch):
                return BATCH_NO_MEMORY
        return BATCH_OK

    cdef bint add_message(
        self, const BatchHeader* wrapper, const MessageView* message, const Inner* inner, int32_t batch
    ) noexcept nogil:
        cdef RecordView record
        record.key = message.key
        record.key_length = message.key_length
        record.value = message.value
        record.value_length = message.value_length
        record.header_count = 0
        return self.add(&record, inner_offset(inner, message), inner_timestamp(wrapper, message), batch)

    cdef object values(self):
        return Column(
            self.array(self.value_data.data(), self.value_data.size(), _UINT8),
            self.array(self.value_starts.data(), self.value_starts.size(), _INT64),
            self.array(self.value_null.data(), self.value_null.size(), _BOOL))

    cdef object array(self, void* data, size_t count, object dtype):
        # numpy keeps the Piece, the Piece keeps the Store.
        cdef Piece piece
        if count == 0:
            return numpy.empty(0, dtype)
        piece = Piece.__new__(Piece)
        piece.store = self
        piece.data = data
        piece.size = <Py_ssize_t>(count * <size_t>dtype.itemsize)
        return numpy.frombuffer(piece, dtype)


cdef class Piece:
    # A stretch of a Store's memory, for numpy.
    cdef Store store
    cdef void* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)


_INT64 = numpy.dtype(numpy.int64)
_INT32 = numpy.dtype(numpy.int32)
_UINT8 = numpy.dtype(numpy.uint8)
_BOOL = numpy.dtype(numpy.bool_)


cdef class Columns:
    """See columns.pyi."""

    cdef Store store
    cdef readonly object offsets
    cdef readonly object timestamps
    cdef readonly object key_data
    cdef readonly object key_starts
    cdef readonly object key_null
    cdef readonly object value_data
    cdef readonly object value_starts
    cdef readonly object value_null
    cdef readonly object header_data
    cdef readonly object header_starts
    cdef readonly object batch_index

    @staticmethod
    cdef Columns over(Store store):
        cdef Columns self = Columns.__new__(Columns)
        self.store = store
        self.offsets = store.array(store.offsets.data(), store.offsets.size(), _INT64)
        self.timestamps = store.array(store.timestamps.data(), store.timestamps.size(), _INT64)
        self.key_data = store.array(store.key_data.data(), store.key_data.size(), _UINT8)
        self.key_starts = store.array(store.key_starts.data(), store.key_starts.size(), _INT64)
        self.key_null = store.array(store.key_null.data(), store.key_null.size(), _BOOL)
        self.value_data = store.array(store.value_data.data(), store.value_data.size(), _UINT8)
        self.value_starts = store.array(store.value_starts.data(), store.value_starts.size(), _INT64)
        self.value_null = store.array(store.value_null.data(), store.value_null.size(), _BOOL)
        self.header_data = store.array(store.header_data.data(), store.header_data.size(), _UINT8)
        self.header_starts = store.array(store.header_starts.data(), store.header_starts.size(), _INT64)
        self.batch_index = store.array(store.batch_index.data(), store.batch_index.size(), _INT32)
        return self

    def __init__(self):
        raise TypeError("use columns.decode")

    def __len__(self):
        return <Py_ssize_t>self.store.offsets.size()

    def key(self, Py_ssize_t i):
        """See columns.pyi."""
        i = self.place(i)
        return _field(self.store.key_data, self.store.key_starts, self.store.key_null, i)

    def value(self, Py_ssize_t i):
        """See columns.pyi."""
        i = self.place(i)
        return _field(self.store.value_data, self.store.value_starts, self.store.value_null, i)

    cdef Py_ssize_t place(self, Py_ssize_t i) except -1:
        cdef Py_ssize_t count = <Py_ssize_t>self.store.offsets.size()
        if i < 0:
            i += count
        if not 0 <= i < count:
            raise IndexError("record number out of range")
        return i

    def headers(self, Py_ssize_t i):
        """See columns.pyi."""
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef HeaderView header
        cdef list out = []
        i = self.place(i)
        p = self.store.header_data.data() + self.store.header_starts[i]
        end = self.store.header_data.data() + self.store.header_starts[i + 1]
        while p < end:
            p = record_header(p, end, &header)
            key = PyBytes_FromStringAndSize(<const char*>header.key, header.key_length)
            value = None
            if header.value_length >= 0:
                value = PyBytes_FromStringAndSize(<const char*>header.value, header.value_length)
            out.append((key.decode("utf-8", "surrogateescape"), value))
        return tuple(out)

    def header_column(self, str name):
        """See columns.pyi."""
        cdef bytes wanted = name.encode("utf-8", "surrogateescape")
        cdef const uint8_t* key = <const uint8_t*>PyBytes_AS_STRING(wanted)
        cdef int64_t length = PyBytes_GET_SIZE(wanted)
        cdef Store out = Store(0)
        cdef bint good
        with nogil:
            good = _header_values(self.store, key, length, out)
        if not good:
            raise MemoryError()
        return out.values()

    def header_columns(self):
        """See columns.pyi."""
        cdef Store out = Store(0)
        cdef bint good
        with nogil:
            good = _all_headers(self.store, out)
        if not good:
            raise MemoryError()
        names = Column(
            out.array(out.key_data.data(), out.key_data.size(), _UINT8),
            out.array(out.key_starts.data(), out.key_starts.size(), _INT64),
            out.array(out.key_null.data(), out.key_null.size(), _BOOL))
        starts = out.array(out.header_starts.data(), out.header_starts.size(), _INT64)
        return HeaderColumns(starts, names, out.values())


cdef bint _all_headers(Store store, Store out) noexcept nogil:
    # A header's name becomes a key of `out`, its value a value. The headers were walked when they were stored.
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef HeaderView header
    cdef size_t i
    for i in range(store.offsets.size()):
        p = store.header_data.data() + store.header_starts[i]
        end = store.header_data.data() + store.header_starts[i + 1]
        while p < end:
            p = record_header(p, end, &header)
            if not (_put(out.key_data, out.key_starts, out.key_null, header.key, header.key_length)
                    and _put(out.value_data, out.value_starts, out.value_null, header.value, header.value_length)):
                return False
        if not push(out.header_starts, <int64_t>out.key_null.size()):
            return False
    return True


cdef object _field(vector[uint8_t]& data, vector[int64_t]& starts, vector[uint8_t]& null, Py_ssize_t i):
    if null[i]:
        return None
    return PyBytes_FromStringAndSize(<const char*>data.data() + starts[i],
                                     <Py_ssize_t>(starts[i + 1] - starts[i]))


cdef bint _header_values(Store store, const uint8_t* key, int64_t length, Store out) noexcept nogil:
    # The last header of that name in each record, as Kafka's `lastHeader`. The headers were walked when they
    # were stored.
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef const uint8_t* value
    cdef int32_t value_length
    cdef HeaderView header
    cdef size_t i
    for i in range(store.offsets.size()):
        p = store.header_data.data() + store.header_starts[i]
        end = store.header_data.data() + store.header_starts[i + 1]
        value = NULL
        value_length = -1
        while p < end:
            p = record_header(p, end, &header)
            if header.key_length == length and memcmp(header.key, key, <size_t>length) == 0:
                value = header.value
                value_length = header.value_length
        if not _put(out.value_data, out.value_starts, out.value_null, value, value_length):
            return False
    return True


def decode(batches, size_t limit_bytes=1 << 28):
    """See columns.pyi."""
    cdef Store store = Store(limit_bytes)
    cdef list given = list(batches)
    cdef vector[const uint8_t*] places
    cdef vector[BatchHeader] headers
    cdef vector[int32_t] numbers
    cdef RawBatch raw
    cdef size_t at = 0
    cdef int fault = BATCH_OK
    for i in range(len(given)):
        raw = given[i]
        if batch_is_control(&raw.header):
            continue
        places.push_back(raw.data)
        headers.push_back(raw.header)
        numbers.push_back(<int32_t>i)
    with nogil:
        while at < places.size():
            fault = store.add_batch(places[at], &headers[at], numbers[at])
            if fault != BATCH_OK:
                break
            at += 1
    if fault != BATCH_OK:
        raise_fault(fault, headers[at].base_offset)
    return Columns.over(store)


def keep(RawBatch raw, mask, size_t limit_bytes=1 << 28, bint append_time=False):
    """See columns.pyi."""
    cdef Py_buffer view
    cdef Py_ssize_t kept = 0
    cdef Py_ssize_t i
    if raw.header.magic < MAGIC_2:
        raise_fault(BATCH_BAD_MAGIC, raw.header.base_offset)
    if batch_is_control(&raw.header):
        raise_fault(BATCH_CONTROL, raw.header.base_offset)
    PyObject_GetBuffer(mask, &view, PyBUF_C_CONTIGUOUS)
    try:
        if view.itemsize != 1 or view.len != raw.header.record_count:
            raise ValueError(f"the mask must be {raw.header.record_count} booleans")
        for i in range(view.len):
            kept += (<const uint8_t*>view.buf)[i] != 0
        append_time = append_time and raw.header.attributes & LOG_APPEND_TIME_BIT != 0
        if kept == view.len and not append_time:
            return PyBytes_FromStringAndSize(<const char*>raw.data, <Py_ssize_t>raw.header.size)
        if kept == 0:
            raise ValueError("a batch can't be without records")
        return _rebuild(raw, <const uint8_t*>view.buf, limit_bytes, append_time)
    finally:
        PyBuffer_Release(&view)


cdef bytes _rebuild(RawBatch raw, const uint8_t* mask, size_t limit_bytes, bint append_time):
    cdef BatchBuilder builder = BatchBuilder(raw.header.attributes & CODEC_MASK, max_bytes=INT32_MAX)
    cdef vector[uint8_t] packed
    cdef BatchHeader header
    cdef int fault
    with nogil:
        fault = _take_kept(raw.data, &raw.header, mask, limit_bytes, append_time, builder)
        if fault == BATCH_OK:
            memset(&header, 0, sizeof(header))
            header.leader_epoch = -1
            header.attributes = raw.header.attributes & <int16_t>CODEC_MASK
            header.last_offset_delta = builder.taken - 1
            header.base_timestamp = builder.base_timestamp
            header.max_timestamp = builder.max_timestamp
            header.producer_id = header.producer_epoch = header.base_sequence = -1
            header.record_count = builder.taken
            fault = batch_finish(builder.buffer, builder.level, &header, packed)
    if fault != BATCH_OK:
        raise_fault(fault, raw.header.base_offset)
    if header.attributes & CODEC_MASK:
        return PyBytes_FromStringAndSize(<const char*>packed.data(), <Py_ssize_t>packed.size())
    return PyBytes_FromStringAndSize(<const char*>builder.buffer.data(), <Py_ssize_t>builder.buffer.size())


cdef int _take_kept(
    const uint8_t* p, const BatchHeader* header, const uint8_t* mask, size_t limit_bytes, bint append_time,
    BatchBuilder builder
) noexcept nogil:
    # Every record is read, kept or not: a corrupt batch is found out whatever the mask says.
    cdef vector[uint8_t] scratch
    cdef const uint8_t* end
    cdef RecordView record
    cdef int64_t timestamp
    cdef size_t n
    cdef int32_t last = -1
    cdef int32_t i
    cdef int status = batch_payload(p, header, limit_bytes, scratch, &p, &n)
    if status != BATCH_OK:
        return status
    end = p + n
    for i in range(header.record_count):
        p = record_read(p, end, &record)
        if p == NULL or record.offset_delta <= last or record.offset_delta > header.last_offset_delta:
            return BATCH_BAD_RECORDS
        last = record.offset_delta
        if mask[i] == 0:
            continue
        timestamp = _record_timestamp(header, &record) if append_time else record_create_time(header, &record)
        status = builder.take(&record, timestamp, <size_t>(record.end - record.headers))
        if status < 0:
            return status
        if status == 0:
            return BATCH_BAD_RECORDS
    return BATCH_OK if p == end else BATCH_BAD_COUNT
