"""A producer's queue: the C side of `recordqueue.pyi`."""

cimport cython
from libc.stdint cimport int64_t

from penstock.pyx.record.builder cimport BatchBuilder

cdef class SentRecord:
    cdef readonly ProducerBatch _batch
    cdef readonly int64_t _index
    cdef readonly int64_t timestamp_ms
    cdef readonly object _on_delivery
    cdef readonly object record_id

# Makes one of a subclass.
cdef SentRecord sent_record(object kind, int64_t timestamp_ms, object on_delivery, object record_id)

cdef class ProducerBatch:
    cdef readonly tuple tp
    cdef readonly BatchBuilder builder
    cdef public int64_t size
    cdef readonly list heard
    cdef bint hears_all

    # The builder has taken a record.
    cdef int take(self, SentRecord record, int64_t size) except -1

cdef class Line:
    cdef readonly tuple tp
    cdef readonly object closed
    cdef public ProducerBatch open


@cython.final
cdef class RecordQueue:
    cdef object keeper
    cdef object acquire
    cdef object release
    cdef object check_open
    cdef readonly int64_t batch_bytes
    cdef readonly int64_t batch_records
    cdef readonly int64_t memory_limit
    cdef readonly int64_t queue_limit
    cdef public int64_t memory_bytes
    cdef public int64_t queued
    cdef public bint closed
    cdef bint entered
    cdef readonly dict lines

    cpdef Line line(self, tuple tp)
    cpdef bint append(
        self, Line line, SentRecord record, bytes key, bytes value, object headers, int64_t size, double block_until,
        object bulk=*
    ) except -1
    cdef bint _append(
        self, Line line, SentRecord record, bytes key, bytes value, object headers, int64_t size, object bulk
    ) except -1
    cdef int _enter(self) except -1
    cpdef bint is_full(self, ProducerBatch batch)
    cpdef check(self)
