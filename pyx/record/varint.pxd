"""Kafka's variable-length integers. Readers never read at or past `end`; they give back the place after the
number, or NULL when it is cut off, longer than its type may be, or wider than its type. A NULL `p` gives
NULL, so that several reads can be chained and checked once. Writers need 10 bytes of room (5 for the
32-bit ones).

- varint, varlong: zigzag, 32 and 64 bits, in records of magic 2
- uvarint: unsigned, 32 bits, in flexible versions of the protocol
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef PENSTOCK_VARINT
    #define PENSTOCK_VARINT
    #include <stdint.h>
    #include <stddef.h>
    static inline const uint8_t* uvarlong_read(const uint8_t* p, const uint8_t* end, uint64_t* out) {
        uint64_t value = 0;
        if (p == NULL) return NULL;
        for (int shift = 0; shift < 64; shift += 7) {
            if (p >= end) return NULL;
            uint8_t byte = *p++;
            if (shift == 63 && byte > 1) return NULL;
            value |= (uint64_t)(byte & 0x7f) << shift;
            if (byte < 0x80) { *out = value; return p; }
        }
        return NULL;
    }
    static inline const uint8_t* varint_near(const uint8_t* p, int32_t* out) {
        uint32_t raw = *p++;
        if (raw >= 0x80) {
            raw = (raw & 0x7f) | (uint32_t)*p++ << 7;
            if (raw >= 0x4000) {
                raw = (raw & 0x3fff) | (uint32_t)*p++ << 14;
                if (raw >= 0x200000) return NULL;
            }
        }
        *out = (int32_t)((raw >> 1) ^ (0u - (raw & 1)));
        return p;
    }
    static inline const uint8_t* uvarint_read(const uint8_t* p, const uint8_t* end, uint32_t* out) {
        uint64_t wide = 0;
        const uint8_t* after;
        if (p != NULL && p < end && *p < 0x80) { *out = *p; return p + 1; }
        after = uvarlong_read(p, end, &wide);
        if (after == NULL || after - p > 5 || wide > UINT32_MAX) return NULL;
        *out = (uint32_t)wide;
        return after;
    }
    static inline const uint8_t* varint_read(const uint8_t* p, const uint8_t* end, int32_t* out) {
        uint32_t raw = 0;
        p = uvarint_read(p, end, &raw);
        if (p != NULL) *out = (int32_t)((raw >> 1) ^ (0u - (raw & 1)));
        return p;
    }
    static inline const uint8_t* varlong_read(const uint8_t* p, const uint8_t* end, int64_t* out) {
        uint64_t raw = 0;
        p = uvarlong_read(p, end, &raw);
        if (p != NULL) *out = (int64_t)((raw >> 1) ^ (0ull - (raw & 1)));
        return p;
    }
    static inline uint8_t* uvarlong_write(uint8_t* p, uint64_t value) {
        while (value >= 0x80) { *p++ = (uint8_t)(value | 0x80); value >>= 7; }
        *p++ = (uint8_t)value;
        return p;
    }
    static inline uint8_t* varlong_write(uint8_t* p, int64_t value) {
        return uvarlong_write(p, ((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
    }
    static inline uint8_t* varint_write(uint8_t* p, int32_t value) { return varlong_write(p, value); }
    static inline int uvarlong_size(uint64_t value) { return (63 - __builtin_clzll(value | 1)) / 7 + 1; }
    static inline int varlong_size(int64_t value) {
        return uvarlong_size(((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
    }
    static inline int varint_size(int32_t value) { return varlong_size(value); }
    #endif
    """
    const uint8_t* uvarlong_read(const uint8_t* p, const uint8_t* end, uint64_t* out) noexcept nogil
    const uint8_t* uvarint_read(const uint8_t* p, const uint8_t* end, uint32_t* out) noexcept nogil
    const uint8_t* varint_read(const uint8_t* p, const uint8_t* end, int32_t* out) noexcept nogil
    const uint8_t* varlong_read(const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil
    # For loops in which each nanosecond counts: 3 bytes must be there, whatever they are. NULL: it is longer.
    const uint8_t* varint_near(const uint8_t* p, int32_t* out) noexcept nogil
    # These give back the place after what they wrote.
    uint8_t* uvarlong_write(uint8_t* p, uint64_t value) noexcept nogil
    uint8_t* varint_write(uint8_t* p, int32_t value) noexcept nogil
    uint8_t* varlong_write(uint8_t* p, int64_t value) noexcept nogil
    int uvarlong_size(uint64_t value) noexcept nogil
    int varint_size(int32_t value) noexcept nogil
    int varlong_size(int64_t value) noexcept nogil
