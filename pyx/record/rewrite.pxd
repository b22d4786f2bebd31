"""The header of a batch that goes on to another cluster, without its payload being read."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

# Writes the new 61 bytes into `out` (which may be `p` itself). `size` is of the whole batch at `p`; only its
# header is read.
cdef void header_rewrite(
    const uint8_t* p, int64_t size, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
    bint transactional, uint8_t* out
) noexcept nogil
