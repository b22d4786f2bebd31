"""The 32-bit murmur2 hash of a key, by which Kafka's Java producer chooses its partition."""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    MURMUR2_SEED = 0x9747b28c
    MURMUR2_MULTIPLIER = 0x5bd1e995
    MURMUR2_POSITIVE = 0x7fffffff


cdef inline uint32_t murmur2(const uint8_t* p, size_t n) noexcept nogil:
    cdef uint32_t h = <uint32_t>MURMUR2_SEED ^ <uint32_t>n
    cdef uint32_t k
    cdef size_t i
    for i in range(n // 4):
        memcpy(&k, p + 4 * i, 4)
        k *= <uint32_t>MURMUR2_MULTIPLIER
        k ^= k >> 24
        k *= <uint32_t>MURMUR2_MULTIPLIER
        h *= <uint32_t>MURMUR2_MULTIPLIER
        h ^= k
    p += n - n % 4
    if n % 4 == 3:
        h ^= <uint32_t>p[2] << 16
    if n % 4 >= 2:
        h ^= <uint32_t>p[1] << 8
    if n % 4 >= 1:
        h ^= p[0]
        h *= <uint32_t>MURMUR2_MULTIPLIER
    h ^= h >> 13
    h *= <uint32_t>MURMUR2_MULTIPLIER
    return h ^ (h >> 15)


# The partition of a key among so many.
cdef inline int32_t murmur2_partition(const uint8_t* p, size_t n, int32_t partitions) noexcept nogil:
    return <int32_t>((murmur2(p, n) & MURMUR2_POSITIVE) % <uint32_t>partitions)
