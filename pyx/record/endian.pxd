"""Big-endian loads and stores, as the wire and the log have them. No alignment is asked of the pointer; the
caller has checked that the bytes are there.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef PENSTOCK_ENDIAN
    #define PENSTOCK_ENDIAN
    #include <stdint.h>
    #include <string.h>
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define PENSTOCK_BE(bits, value) __builtin_bswap##bits(value)
    #else
    #define PENSTOCK_BE(bits, value) (value)
    #endif
    static inline uint16_t get_u16(const void* p) { uint16_t v; memcpy(&v, p, 2); return PENSTOCK_BE(16, v); }
    static inline uint32_t get_u32(const void* p) { uint32_t v; memcpy(&v, p, 4); return PENSTOCK_BE(32, v); }
    static inline uint64_t get_u64(const void* p) { uint64_t v; memcpy(&v, p, 8); return PENSTOCK_BE(64, v); }
    static inline int16_t get_i16(const void* p) { return (int16_t)get_u16(p); }
    static inline int32_t get_i32(const void* p) { return (int32_t)get_u32(p); }
    static inline int64_t get_i64(const void* p) { return (int64_t)get_u64(p); }
    static inline void put_i16(void* p, int16_t i) {
        uint16_t v = PENSTOCK_BE(16, (uint16_t)i);
        memcpy(p, &v, 2);
    }
    static inline void put_i32(void* p, int32_t i) {
        uint32_t v = PENSTOCK_BE(32, (uint32_t)i);
        memcpy(p, &v, 4);
    }
    static inline void put_u32(void* p, uint32_t i) { uint32_t v = PENSTOCK_BE(32, i); memcpy(p, &v, 4); }
    static inline void put_i64(void* p, int64_t i) {
        uint64_t v = PENSTOCK_BE(64, (uint64_t)i);
        memcpy(p, &v, 8);
    }
    #endif
    """
    uint16_t get_u16(const void* p) noexcept nogil
    uint32_t get_u32(const void* p) noexcept nogil
    uint64_t get_u64(const void* p) noexcept nogil
    int16_t get_i16(const void* p) noexcept nogil
    int32_t get_i32(const void* p) noexcept nogil
    int64_t get_i64(const void* p) noexcept nogil
    void put_i16(void* p, int16_t value) noexcept nogil
    void put_i32(void* p, int32_t value) noexcept nogil
    void put_u32(void* p, uint32_t value) noexcept nogil
    void put_i64(void* p, int64_t value) noexcept nogil
