"""Records as columns: the C side of `columns.Columns`. Offsets of the k-th record's key: key_starts[k],
key_starts[k + 1].
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.vector cimport vector

from penstock.pyx.record.batch cimport BatchHeader, RecordView
from penstock.pyx.record.messageset cimport Inner, MessageView

# Owns the memory that the numpy arrays of one Columns refer to.
cdef class Store:
    cdef vector[int64_t] offsets
    cdef vector[int64_t] timestamps
    cdef vector[int32_t] batch_index
    cdef vector[int64_t] key_starts
    cdef vector[int64_t] value_starts
    cdef vector[int64_t] header_starts
    cdef vector[uint8_t] key_null
    cdef vector[uint8_t] value_null
    cdef vector[uint8_t] key_data
    cdef vector[uint8_t] value_data
    cdef vector[uint8_t] header_data            # as encoded in the records, one header after the other
    cdef vector[uint8_t] scratch
    cdef size_t left_bytes                      # of the limit on inflated bytes

    # A numpy array over `count` items at `data`, which is memory of this store.
    cdef object array(self, void* data, size_t count, object dtype)

    # The values as a Column.
    cdef object values(self)

    # One more record. False: no memory.
    cdef bint add(self, const RecordView* record, int64_t offset, int64_t timestamp, int32_t batch) noexcept nogil

    # All records of a batch, of any magic. 0 or a BatchFault; after a fault the store is of no use.
    cdef int add_batch(self, const uint8_t* p, const BatchHeader* header, int32_t batch) noexcept nogil
    cdef int add_messages(self, const uint8_t* p, const BatchHeader* header, int32_t batch) noexcept nogil
    cdef bint add_message(
        self, const BatchHeader* wrapper, const MessageView* message, const Inner* inner, int32_t batch
    ) noexcept nogil
