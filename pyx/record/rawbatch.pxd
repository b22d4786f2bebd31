"""Batches as Python sees them: where one lies, in which buffer, and its faults as exceptions."""

from libc.stdint cimport int64_t, uint8_t

from penstock.pyx.record.batch cimport BatchHeader

# A batch, or a message of magic 0 or 1, somewhere in a buffer that it keeps alive.
cdef class RawBatch:
    cdef BatchHeader header
    cdef const uint8_t* data
    cdef object owner                           # the memoryview that holds the buffer

    @staticmethod
    cdef RawBatch at(object view, const uint8_t* data, const BatchHeader* header)

# Raises BatchError with the fault's words and the offset.
cdef object raise_fault(int fault, int64_t offset)
