"""Stored batches as message sets, for clients of Fetch 0 to 3 that can't read what is stored (KIP-31, KIP-98)."""

from libc.stdint cimport int8_t, int16_t, int64_t, uint8_t
from libcpp.vector cimport vector

from penstock.pyx.record.batch cimport BatchHeader

cdef enum:
    # A batch that inflates to more than these bytes and as many for each of its own isn't converted, be it down or up
    # (upconvert.pxd): the fetch gets MESSAGE_TOO_LARGE. No more is taken from a client (validator.pxd).
    CONVERT_INFLATED_MAX_BYTES = 64 << 20
    CONVERT_INFLATED_PER_BYTE = 16
    # An answer that took so much is enough.
    CONVERT_OPENED_ENOUGH_BYTES = 16 << 20

cdef inline size_t convert_limit(const BatchHeader* header) noexcept nogil:
    return <size_t>(CONVERT_INFLATED_MAX_BYTES + header.size * CONVERT_INFLATED_PER_BYTE)

# Kafka's code for a BatchFault of a stored batch that was to be converted.
cdef int16_t convert_error_code(int fault) noexcept nogil

# Whole stored batches in, messages of at most `to_magic` (0 or 1) out, appended to `out`. Of what is converted,
# records below `from_offset` are left out, and headers, control batches and deletions' horizons too. Batches
# whose magic the client can read are given as they are, so records below `from_offset` may lead. Aborted
# records stay: such clients know no transactions. A codec is kept by wrapping. A batch that is cut off at the
# end is left out. `out` stays empty when there is nothing to give.
#   0 | 2 CORRUPT_MESSAGE: a stored batch can't be read | 10 MESSAGE_TOO_LARGE | 56 KAFKA_STORAGE_ERROR: no memory
#   | 76 UNSUPPORTED_COMPRESSION_TYPE: zstd, which these formats don't have
# After an error `out` holds the batches before the bad one, and serving these is right if there are any.
# `opened` counts the bytes of records that were read, over all calls of one answer; once that is enough, batches
# behind the first that gave something are left out (NULL: never).
# Memory: `out`, and for one batch at a time what it inflates to, twice.
cdef int16_t convert_down(
    const uint8_t* p, size_t n, int8_t to_magic, int64_t from_offset, size_t* opened, vector[uint8_t]& out
) noexcept nogil
