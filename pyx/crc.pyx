"""CRC32C of bytes, and of bytes joined, without reading them again.

The register is a polynomial over GF(2), lowest bit = highest power. Appending n zero bytes multiplies it by
x^(8n) modulo the Castagnoli polynomial; that is all that the three-stream loop and `crc32c_combine` rest on.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

cdef extern from "zlib.h" nogil:
    unsigned long zlib_crc32 "crc32_z"(unsigned long crc, const uint8_t* p, size_t n) noexcept

cdef extern from *:
    """
    static const uint32_t CRC_POLYNOMIAL = 0x82f63b78u;
    enum { CRC_LONG = 8192, CRC_SHORT = 256 };
    static uint32_t crc_slices[8][256];
    static uint32_t crc_power[64];                 // x^(8 * 2^k)
    static uint32_t crc_skip_long[4][256];         // by x^(8 * CRC_LONG), a byte of the register at a time
    static uint32_t crc_skip_short[4][256];
    static int crc_hardware = 0;

    // a * b modulo the polynomial.
    static uint32_t crc_multiply(uint32_t a, uint32_t b) {
        uint32_t product = 0;
        for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
            if (a & bit) product ^= b;
            b = (b >> 1) ^ ((b & 1) ? CRC_POLYNOMIAL : 0);
        }
        return product;
    }

    static uint32_t crc_power_of(uint64_t bytes) {
        uint32_t result = 0x80000000u;             // the number one
        for (int k = 0; bytes != 0; k++, bytes >>= 1)
            if (bytes & 1) result = crc_multiply(crc_power[k], result);
        return result;
    }

    static void crc_fill_skip(uint32_t skip[4][256], uint64_t bytes) {
        uint32_t factor = crc_power_of(bytes);
        for (int at = 0; at < 4; at++)
            for (uint32_t byte = 0; byte < 256; byte++)
                skip[at][byte] = crc_multiply(factor, byte << (8 * at));
    }

    static void crc_prepare(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t value = byte;
            for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ ((value & 1) ? CRC_POLYNOMIAL : 0);
            crc_slices[0][byte] = value;
        }
        for (int slice = 1; slice < 8; slice++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t before = crc_slices[slice - 1][byte];
                crc_slices[slice][byte] = (before >> 8) ^ crc_slices[0][before & 255];
            }
        crc_power[0] = 0x00800000u;                // x^8
        for (int k = 1; k < 64; k++) crc_power[k] = crc_multiply(crc_power[k - 1], crc_power[k - 1]);
        crc_fill_skip(crc_skip_long, CRC_LONG);
        crc_fill_skip(crc_skip_short, CRC_SHORT);
    #if defined(__x86_64__)
        __builtin_cpu_init();
        crc_hardware = __builtin_cpu_supports("sse4.2");
    #endif
    }

    static uint32_t crc_by_tables(uint32_t crc, const uint8_t* p, size_t n) {
        crc = ~crc;
        while (n >= 8) {
            uint32_t low = crc ^ (p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);
            crc = crc_slices[7][low & 255] ^ crc_slices[6][(low >> 8) & 255]
                ^ crc_slices[5][(low >> 16) & 255] ^ crc_slices[4][low >> 24] ^ crc_slices[3][p[4]]
                ^ crc_slices[2][p[5]] ^ crc_slices[1][p[6]] ^ crc_slices[0][p[7]];
            p += 8;
            n -= 8;
        }
        while (n--) crc = (crc >> 8) ^ crc_slices[0][(crc ^ *p++) & 255];
        return ~crc;
    }

    #if defined(__x86_64__)
    #include <nmmintrin.h>
    #include <string.h>
    static inline uint64_t crc_skip(const uint32_t skip[4][256], uint64_t crc) {
        return skip[0][crc & 255] ^ skip[1][(crc >> 8) & 255] ^ skip[2][(crc >> 16) & 255]
            ^ skip[3][(crc >> 24) & 255];
    }
    static inline uint64_t crc_word(const uint8_t* p) { uint64_t word; memcpy(&word, p, 8); return word; }

    // The instruction has a latency of three cycles and a throughput of one: three streams keep it busy.
    #define CRC_THREE(block, skip)                                                   \\
        while (n >= 3 * (size_t)(block)) {                                           \\
            uint64_t b = 0, c = 0;                                                   \\
            for (const uint8_t* end = p + (block); p < end; p += 8) {                \\
                a = _mm_crc32_u64(a, crc_word(p));                                   \\
                b = _mm_crc32_u64(b, crc_word(p + (block)));                         \\
                c = _mm_crc32_u64(c, crc_word(p + 2 * (block)));                     \\
            }                                                                        \\
            a = crc_skip(skip, crc_skip(skip, a) ^ b) ^ c;                           \\
            p += 2 * (block);                                                        \\
            n -= 3 * (size_t)(block);                                                \\
        }
    __attribute__((target("sse4.2")))
    static uint32_t crc_by_hardware(uint32_t crc, const uint8_t* p, size_t n) {
        uint64_t a = (uint32_t)~crc;
        CRC_THREE(CRC_LONG, crc_skip_long)
        CRC_THREE(CRC_SHORT, crc_skip_short)
        for (; n >= 8; p += 8, n -= 8) a = _mm_crc32_u64(a, crc_word(p));
        while (n--) a = _mm_crc32_u8((uint32_t)a, *p++);
        return ~(uint32_t)a;
    }
    #else
    static uint32_t crc_by_hardware(uint32_t crc, const uint8_t* p, size_t n) {
        return crc_by_tables(crc, p, n);
    }
    #endif
    """
    bint crc_hardware
    void crc_prepare() noexcept nogil
    uint32_t crc_power_of(uint64_t count) noexcept nogil
    uint32_t crc_multiply(uint32_t a, uint32_t b) noexcept nogil
    uint32_t crc_by_tables(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
    uint32_t crc_by_hardware(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil

crc_prepare()


cdef uint32_t crc32c(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil:
    return crc_by_hardware(crc, p, n) if crc_hardware else crc_by_tables(crc, p, n)


cdef uint32_t crc32c_tables(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil:
    return crc_by_tables(crc, p, n)


cdef uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) noexcept nogil:
    return crc_multiply(crc_power_of(length_b), crc_a) ^ crc_b


cdef uint32_t crc32_zlib(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil:
    return <uint32_t>zlib_crc32(crc, p, n)


def _crc32c(data, unsigned int crc=0, *, bint tables=False):
    """See crc.pyi: `crc32c`."""
    cdef Py_buffer view
    cdef uint32_t out
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            if tables:
                out = crc32c_tables(crc, <const uint8_t*>view.buf, <size_t>view.len)
            else:
                out = crc32c(crc, <const uint8_t*>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return out


def _crc32c_combine(unsigned int crc_a, unsigned int crc_b, unsigned long long length_b):
    """See crc.pyi: `crc32c_combine`."""
    return crc32c_combine(crc_a, crc_b, length_b)


# A cdef function and a def function of one module can't share a name; Python knows them by Kafka's word.
globals()["crc32c"] = _crc32c
globals()["crc32c_combine"] = _crc32c_combine
