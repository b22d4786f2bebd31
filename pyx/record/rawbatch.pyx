"""Batches as Python sees them; see rawbatch.pyi."""

from collections import namedtuple
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport CORRUPT_MESSAGE, INVALID_RECORD
from penstock.pyx.record.batch cimport (
    BATCH_BAD_RECORDS, BATCH_OK, BATCH_PARTIAL, CHECK_CLIENT, CHECK_STORED, CODEC_MASK, LOG_APPEND_TIME_BIT, MAGIC_2,
    MAGIC_AT, MARKER_COMMIT, MARKER_SIZE, RECORDS_AT, HeaderView, RecordView, batch_check, batch_error_code,
    batch_error_text, batch_is_control, batch_is_transactional, batch_last_offset, batch_last_sequence,
    batch_marker_type, batch_parse, batch_payload, batch_write_marker, record_create_time, record_header, record_offset,
    record_read,
)
from penstock.pyx.record.endian cimport get_i64
from penstock.pyx.record.messageset cimport (
    Inner, MessageView, inner_offset, inner_timestamp, message_next, message_read, wrapper_open,
)

cdef extern from *:
    """
    // What `tuple.__new__` does for a subclass, without another tuple whose items it would copy.
    static inline PyObject* row_new(PyObject* kind, Py_ssize_t size) {
        PyObject* row = PyType_GenericAlloc((PyTypeObject*)kind, size);
    #if PY_VERSION_HEX >= 0x030E0000
        if (row != NULL) ((PyTupleObject*)row)->ob_hash = -1;
    #endif
        return row;
    }
    """
    tuple row_new(object kind, Py_ssize_t size)
    void PyObject_GC_UnTrack(object)

HEADER_SIZE = RECORDS_AT

Record = namedtuple("Record", ["offset", "timestamp_ms", "key", "value", "headers"], defaults=[()])


class BatchError(ValueError):
    """See rawbatch.pyi."""

    def __init__(self, text, code=CORRUPT_MESSAGE, offset=-1):
        super().__init__(text)
        self.code = code
        self.offset = offset


cdef object raise_fault(int fault, int64_t offset):
    text = batch_error_text(fault).decode()
    raise BatchError(f"batch at offset {offset}: {text}", batch_error_code(fault), offset)


cdef Py_buffer* _contiguous(object view) except NULL:
    cdef Py_buffer* raw = PyMemoryView_GET_BUFFER(view)
    if not view.c_contiguous:
        raise BufferError("the buffer must be contiguous")
    return raw


cdef class RawBatch:
    """See rawbatch.pyi."""

    def __init__(self, buffer):
        cdef object view = PyMemoryView_FromObject(buffer)
        cdef Py_buffer* raw = _contiguous(view)
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
        return memoryview(self)[RECORDS_AT if self.header.magic == MAGIC_2 else MAGIC_AT + 2:]

    def check(self, *, int64_t max_bytes=0, bint client=False):
        """See rawbatch.pyi."""
        cdef int fault
        cdef int flags = CHECK_CLIENT if client else CHECK_STORED
        with nogil:
            fault = batch_check(self.data, &self.header, max_bytes, flags)
        if fault != BATCH_OK:
            raise_fault(fault, self.header.base_offset)


def split(buffer):
    """See rawbatch.pyi."""
    cdef object view = PyMemoryView_FromObject(buffer)
    cdef Py_buffer* raw = _contiguous(view)
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


cdef object _some_bytes(const uint8_t* p, int64_t length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char*>p, <Py_ssize_t>length)


cdef tuple _headers_of(const RecordView* record):
    cdef const uint8_t* p = record.headers
    cdef HeaderView header
    cdef list out
    cdef int32_t _i
    if record.header_count == 0:
        return ()
    out = []
    for _i in range(record.header_count):
        p = record_header(p, record.end, &header)
        key = PyBytes_FromStringAndSize(<const char*>header.key, header.key_length)
        out.append((key.decode("utf-8", "surrogateescape"), _some_bytes(header.value, header.value_length)))
    return tuple(out)


# Makes records of one batch: tuples of `kind`, whose fields are those of `before`, then those of Record.
cdef class _Rows:
    cdef object kind
    cdef tuple before
    cdef Py_ssize_t size
    cdef int64_t first_offset           # records with smaller offsets are left out
    cdef object timestamp               # of the last row: many records of a batch have the same
    cdef int64_t timestamp_ms
    cdef list made

    def __cinit__(self, kind, tuple before, int64_t first_offset):
        if not issubclass(kind, tuple) or len(kind._fields) != len(before) + len(Record._fields):
            raise TypeError(f"{kind.__name__} is no named tuple of {len(before) + len(Record._fields)} fields")
        self.kind = kind
        self.before = before
        self.size = len(kind._fields)
        self.first_offset = first_offset
        self.timestamp_ms = -1
        self.timestamp = -1
        self.made = []

    cdef int add(
        self, int64_t offset, int64_t timestamp_ms, object key, object value, tuple headers
    ) except -1:
        cdef tuple row = row_new(self.kind, self.size)
        cdef Py_ssize_t at = PyTuple_GET_SIZE(self.before)
        cdef Py_ssize_t i
        for i in range(at):
            _put(row, i, <object>PyTuple_GET_ITEM(self.before, i))
        if timestamp_ms != self.timestamp_ms:
            self.timestamp_ms = timestamp_ms
            self.timestamp = timestamp_ms
        _put(row, at, offset)
        _put(row, at + 1, self.timestamp)
        _put(row, at + 2, key)
        _put(row, at + 3, value)
        _put(row, at + 4, headers)
        # A row leads only to numbers, text and bytes. So no cycle goes through it, and the collector need not visit it.
        PyObject_GC_UnTrack(row)
        self.made.append(row)
        return 0


cdef inline void _put(tuple row, Py_ssize_t at, object item) noexcept:
    Py_INCREF(item)
    PyTuple_SET_ITEM(row, at, item)


cdef int _add_message(_Rows rows, int64_t offset, int64_t timestamp_ms, const MessageView* message) except -1:
    if offset < rows.first_offset:
        return 0
    return rows.add(offset, timestamp_ms, _some_bytes(message.key, message.key_length),
                    _some_bytes(message.value, message.value_length), ())


cdef int _add_messages(RawBatch raw, size_t limit_bytes, _Rows rows) except -1:
    # Of magic 0 and 1: the message, or those inside of a wrapper.
    cdef MessageView message
    cdef BatchHeader inner
    cdef Inner found
    cdef vector[uint8_t] scratch
    cdef const uint8_t* p = raw.data
    cdef size_t left
    cdef int fault
    if not raw.header.attributes & CODEC_MASK:
        if not message_read(raw.data, &raw.header, &message):
            raise_fault(BATCH_BAD_RECORDS, raw.header.base_offset)
        return _add_message(rows, message.offset, message.timestamp, &message)
    with nogil:
        fault = wrapper_open(raw.data, &raw.header, limit_bytes, False, scratch, &found)
    if fault != BATCH_OK:
        raise_fault(fault, raw.header.base_offset)
    p = found.data
    left = found.n
    while left and message_next(&p, &left, raw.header.magic, &inner, &message) == BATCH_OK:
        _add_message(rows, inner_offset(&found, &message), inner_timestamp(&raw.header, &message), &message)
    return 0


cdef int _add_records(RawBatch raw, size_t limit_bytes, _Rows rows) except -1:
    cdef vector[uint8_t] scratch
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef size_t n
    cdef RecordView record
    cdef int32_t last = -1
    cdef int32_t _i
    cdef int64_t offset, timestamp
    cdef int fault
    cdef BatchHeader* header = &raw.header
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
        offset = record_offset(header, &record)
        if offset < rows.first_offset:
            continue
        timestamp = record_create_time(header, &record)
        if header.attributes & LOG_APPEND_TIME_BIT:
            timestamp = header.max_timestamp
        rows.add(offset, timestamp, _some_bytes(record.key, record.key_length),
                 _some_bytes(record.value, record.value_length), _headers_of(&record))
    if p != end or header.record_count < 0:
        raise_fault(BATCH_BAD_RECORDS, header.base_offset)
    return 0


def records(RawBatch raw, size_t limit_bytes=1 << 28):
    """See rawbatch.pyi."""
    return records_as(raw, Record, (), INT64_MIN, limit_bytes)


def records_as(RawBatch raw, kind, tuple before, int64_t first_offset, size_t limit_bytes=1 << 28):
    """See rawbatch.pyi."""
    cdef _Rows rows = _Rows(kind, before, first_offset)
    if raw.header.magic < MAGIC_2:
        _add_messages(raw, limit_bytes, rows)
    else:
        _add_records(raw, limit_bytes, rows)
    return rows.made


def count_records(RawBatch raw, size_t limit_bytes=1 << 28):
    """See rawbatch.pyi."""
    cdef Inner found
    cdef vector[uint8_t] scratch
    cdef int fault
    if raw.header.magic >= MAGIC_2 or not raw.header.attributes & CODEC_MASK:
        return raw.header.record_count
    with nogil:
        fault = wrapper_open(raw.data, &raw.header, limit_bytes, False, scratch, &found)
    if fault != BATCH_OK:
        raise_fault(fault, raw.header.base_offset)
    return found.count


def marker(bint commit, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, int64_t timestamp_ms):
    """See rawbatch.pyi."""
    cdef uint8_t out[MARKER_SIZE]
    cdef int n = batch_write_marker(out, commit, producer_id, producer_epoch, coordinator_epoch, timestamp_ms)
    return PyBytes_FromStringAndSize(<const char*>out, n)


def marker_type(RawBatch raw):
    """See rawbatch.pyi."""
    cdef int kind
    if not batch_is_control(&raw.header):
        raise BatchError(f"batch at offset {raw.base_offset}: not a control batch", INVALID_RECORD,
                         raw.base_offset)
    kind = batch_marker_type(raw.data, &raw.header, NULL)
    if kind < 0:
        raise_fault(kind, raw.header.base_offset)
    return "commit" if kind == MARKER_COMMIT else "abort"
