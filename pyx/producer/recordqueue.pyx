"""A producer's queue; see recordqueue.pyi."""

from collections import deque

cimport cython
from cpython.object cimport PyObject, PyTypeObject

from penstock.errors import ErrorCode, KafkaError

cdef tuple _NOTHING = ()


cdef class SentRecord:
    """See recordqueue.pyi."""

    def __init__(self, int64_t timestamp_ms, on_delivery, record_id):
        self.timestamp_ms = timestamp_ms
        self._on_delivery = on_delivery
        self.record_id = record_id


cdef SentRecord sent_record(object kind, int64_t timestamp_ms, object on_delivery, object record_id):
    cdef SentRecord record = (<PyTypeObject*>kind).tp_new(kind, <PyObject*>_NOTHING, NULL)
    record.timestamp_ms = timestamp_ms
    record._on_delivery = on_delivery
    record.record_id = record_id
    return record


cdef class ProducerBatch:
    """See recordqueue.pyi."""

    def __init__(self, tuple tp, BatchBuilder builder not None, bint hears_all):
        self.tp = tp
        self.builder = builder
        self.hears_all = hears_all
        self.heard = []

    cdef int take(self, SentRecord record, int64_t size) except -1:
        record._batch = self
        record._index = self.builder.taken - 1
        if self.hears_all or record._on_delivery is not None:
            self.heard.append(record)
        self.size += size
        return 0


cdef class Line:
    """See recordqueue.pyi."""

    def __init__(self, tuple tp):
        self.tp = tp
        self.closed = deque()


@cython.final
cdef class RecordQueue:
    """See recordqueue.pyi."""

    def __init__(
        self, keeper, lock, check_open, *, int64_t batch_bytes, int64_t batch_records, int64_t memory_limit,
        int64_t queue_limit
    ):
        self.keeper = keeper
        self.acquire = lock.acquire
        self.release = lock.release
        self.check_open = check_open
        self.batch_bytes = batch_bytes
        self.batch_records = batch_records
        self.memory_limit = memory_limit
        self.queue_limit = queue_limit
        self.lines = {}

    cpdef Line line(self, tuple tp):
        """See recordqueue.pyi."""
        cdef Line line = self.lines.get(tp)
        if line is None:
            self.acquire()  # others may be walking over the lines
            try:
                line = self.lines.setdefault(tp, Line(tp))
            finally:
                self.release()
        return line

    cpdef bint append(
        self, Line line, SentRecord record, bytes key, bytes value, object headers, int64_t size, double block_until,
        object bulk=None
    ) except -1:
        """See recordqueue.pyi."""
        cdef bint filled = False
        self.acquire()
        try:
            if self.queued >= self.queue_limit or self.memory_bytes and self.memory_bytes + size > self.memory_limit:
                self.keeper.reserve(size, block_until)
            self.check()
            self._enter()
            try:
                filled = self._append(line, record, key, value, headers, size, bulk)
            finally:
                self.entered = False
        finally:
            self.release()
        return filled

    cdef bint _append(
        self, Line line, SentRecord record, bytes key, bytes value, object headers, int64_t size, object bulk
    ) except -1:
        cdef ProducerBatch batch = line.open
        cdef bint filled = False
        if batch is not None and not batch.builder.append(key, value, record.timestamp_ms, headers):
            self.keeper.close_batch(line)
            batch, filled = None, True
        if batch is None:
            try:
                batch = self.keeper.open_batch(line)
                batch.builder.append(key, value, record.timestamp_ms, headers)
            except BaseException:
                if line.open is not None:
                    self.keeper.drop_batch(line)
                raise
        batch.take(record, size)
        if bulk is not None:
            batch.add_bulk(bulk, 1, 0)
        self.memory_bytes += size
        self.queued += 1
        if self.is_full(batch):
            self.keeper.close_batch(line)
            filled = True
        return filled

    def change(self, work, *args):
        """See recordqueue.pyi."""
        self._enter()
        try:
            return work(*args)
        finally:
            self.entered = False

    cdef int _enter(self) except -1:
        if self.entered:
            raise RuntimeError(
                "a signal handler, a destructor or a log handler has interrupted a `send` of this thread, and sends a "
                "record itself: have another thread send it")
        self.entered = True
        return 0

    cpdef bint is_full(self, ProducerBatch batch):
        """See recordqueue.pyi."""
        return <int64_t>batch.builder.buffer.size() >= self.batch_bytes or batch.builder.taken >= self.batch_records

    cpdef check(self):
        """See recordqueue.pyi."""
        if self.closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer is closed")
        if self.check_open is not None:
            self.check_open()
