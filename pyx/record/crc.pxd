"""CRC32C (Castagnoli) as Kafka's magic 2 batches carry it, and zlib's CRC32 for message sets of magic 0 and 1."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

# Goes on from `crc` (0 at the start), in the quickest way that the machine has.
cdef uint32_t crc32c_update(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil

# The CRC of A followed by B, from crc(A), crc(B) and the length of B in bytes; O(log length).
cdef uint32_t crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) noexcept nogil

cdef uint32_t crc32_zlib(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
