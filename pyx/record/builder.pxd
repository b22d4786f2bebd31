"""Builds record batches of magic 2: records behind room for the header, then the header, compressed if wanted."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.vector cimport vector

from penstock.pyx.record.batch cimport BatchHeader, RecordView

# The size of a record without its own length. Its deltas, lengths (-1: null) and header count are set.
cdef int64_t record_body_size(const RecordView* record, size_t headers_size) noexcept nogil

# Appends such a record, whose body has that size. False: no memory.
cdef bint record_append(
    vector[uint8_t]& out, const RecordView* record, size_t headers_size, int64_t body_size
) noexcept nogil

# Appends a batch of `n` bytes of records, compressed by the codec in `header.attributes`; `header.size` is set. 0 or a
# BatchFault; on a fault `out` is as long as it was.
cdef int batch_append(
    const uint8_t* records, size_t n, int level, BatchHeader* header, vector[uint8_t]& out
) noexcept nogil

# Puts the header before the records in `plain` (codec 0), or both, compressed, into `packed`. The codec is in
# `header.attributes`; `header.size` is set. 0 or a BatchFault.
cdef int batch_finish(vector[uint8_t]& plain, int level, BatchHeader* header, vector[uint8_t]& packed) noexcept nogil

# Collects records, uncompressed, behind room for the header.
cdef class BatchBuilder:
    cdef vector[uint8_t] buffer
    cdef readonly int codec
    cdef readonly int level
    cdef readonly int64_t max_bytes
    cdef readonly bint any_time
    cdef int32_t taken
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp

    cpdef bint append(self, bytes key, bytes value, int64_t timestamp_ms, headers=*) except -1
    cpdef clear(self)

    # 1 taken, 0 full, BATCH_TOO_LARGE (for any batch), BATCH_NO_MEMORY. Key, value and the already encoded
    # headers of `record` are set, its deltas are set here. Nothing is changed unless it was taken.
    cdef int take(self, RecordView* record, int64_t timestamp_ms, size_t headers_size) noexcept nogil
