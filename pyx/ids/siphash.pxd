"""SipHash-2-4: a hash under a secret key, so that nobody who doesn't know the key can choose bytes that collide.

What comes from outside - keys of records, ids of messages - is put into tables by it.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cdef inline uint64_t _turned(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline void _round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = _turned(v[1], 13) ^ v[0]
    v[0] = _turned(v[0], 32)
    v[2] += v[3]
    v[3] = _turned(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _turned(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _turned(v[1], 17) ^ v[2]
    v[2] = _turned(v[2], 32)


# The state after all bytes. Little endian, as its authors define it (and as all machines are that this is for).
cdef inline void _absorb(
    uint64_t* v, const uint64_t* secret, uint64_t variant, const uint8_t* p, size_t n
) noexcept nogil:
    cdef uint64_t word
    cdef size_t i
    v[0] = secret[0] ^ <uint64_t>0x736f6d6570736575
    v[1] = secret[1] ^ <uint64_t>0x646f72616e646f6d ^ variant
    v[2] = secret[0] ^ <uint64_t>0x6c7967656e657261
    v[3] = secret[1] ^ <uint64_t>0x7465646279746573
    for i in range(n // 8 + 1):
        if (i + 1) * 8 <= n:
            memcpy(&word, p + i * 8, 8)
        else:
            word = 0
            if n % 8 != 0:
                memcpy(&word, p + i * 8, n % 8)
            word |= <uint64_t>n << 56
        v[3] ^= word
        _round(v)
        _round(v)
        v[0] ^= word


cdef inline uint64_t _squeeze(uint64_t* v) noexcept nogil:
    cdef int _turn
    for _turn in range(4):
        _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


# 64 bits of output. `secret` has two words.
cdef inline uint64_t siphash64(const uint64_t* secret, const uint8_t* p, size_t n) noexcept nogil:
    cdef uint64_t v[4]
    _absorb(v, secret, 0, p, n)
    v[2] ^= 0xff
    return _squeeze(v)


# 128 bits of output, another function than the one of 64.
cdef inline void siphash128(
    const uint64_t* secret, const uint8_t* p, size_t n, uint64_t* low, uint64_t* high
) noexcept nogil:
    cdef uint64_t v[4]
    _absorb(v, secret, 0xee, p, n)
    v[2] ^= 0xee
    low[0] = _squeeze(v)
    v[1] ^= 0xdd
    high[0] = _squeeze(v)
