"""CRC32C of bytes, and of bytes joined, without reading them again.

The register is a polynomial over GF(2), lowest bit = highest power. Appending n zero bytes multiplies it by
x^(8n) modulo the Castagnoli polynomial; that is all that the three ways and `crc32c_combine` rest on.
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
    enum CrcWay { CRC_TABLES, CRC_INSTRUCTION, CRC_FOLDING };
    static int crc_best = CRC_TABLES;

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

    // Folding: what lies `bits` before other bytes is multiplied by x^bits and added to them, 64 bits at a time: the
    // first half of each 128 by x^(bits + 64), the second by x^bits; one power less, since a product of reflected
    // factors comes out multiplied by x.
    enum { CRC_FOLD_FROM = 256 };
    alignas(64) static uint64_t crc_fold_2048[8], crc_fold_512[8], crc_fold_lanes[8];

    static uint64_t crc_fold_factor(unsigned power) {
        uint32_t factor = 0x80000000u;             // the number one
        while (power--) factor = (factor >> 1) ^ ((factor & 1) ? CRC_POLYNOMIAL : 0);
        return (uint64_t)factor << 32;
    }

    static void crc_fill_fold(uint64_t* two, unsigned bits) {
        two[0] = crc_fold_factor(bits + 63);
        two[1] = crc_fold_factor(bits - 1);
    }

    static void crc_prepare_folding(void) {
        for (int lane = 0; lane < 4; lane++) {
            crc_fill_fold(&crc_fold_2048[2 * lane], 2048);
            crc_fill_fold(&crc_fold_512[2 * lane], 512);
            if (lane < 3) crc_fill_fold(&crc_fold_lanes[2 * lane], 384 - 128 * lane);
        }
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
        if (__builtin_cpu_supports("sse4.2")) crc_best = CRC_INSTRUCTION;
        if (crc_best == CRC_INSTRUCTION && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("vpclmulqdq")) {
            crc_best = CRC_FOLDING;
            crc_prepare_folding();
        }
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
    #include <immintrin.h>
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
    static uint32_t crc_by_instruction(uint32_t crc, const uint8_t* p, size_t n) {
        uint64_t a = (uint32_t)~crc;
        CRC_THREE(CRC_LONG, crc_skip_long)
        CRC_THREE(CRC_SHORT, crc_skip_short)
        for (; n >= 8; p += 8, n -= 8) a = _mm_crc32_u64(a, crc_word(p));
        while (n--) a = _mm_crc32_u8((uint32_t)a, *p++);
        return ~(uint32_t)a;
    }

    #define CRC_FOLDS __attribute__((target("avx512f,avx512dq,vpclmulqdq,pclmul,sse4.2")))
    CRC_FOLDS static inline __m512i crc_fold(__m512i x, __m512i factors, __m512i onto) {
        return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, factors, 0x00),
                                         _mm512_clmulepi64_epi128(x, factors, 0x11), onto, 0x96);  // all three added
    }
    // Four times 64 bytes go on side by side, as a product takes several cycles. What they come to in the end are 16
    // bytes with the CRC of all.
    CRC_FOLDS static uint32_t crc_by_folding(uint32_t crc, const uint8_t* p, size_t n) {
        if (n < CRC_FOLD_FROM) return crc_by_instruction(crc, p, n);
        __m512i factors = _mm512_load_si512(crc_fold_2048);
        __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
        __m512i b = _mm512_loadu_si512(p + 64), c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
        for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
            a = crc_fold(a, factors, _mm512_loadu_si512(p));
            b = crc_fold(b, factors, _mm512_loadu_si512(p + 64));
            c = crc_fold(c, factors, _mm512_loadu_si512(p + 128));
            d = crc_fold(d, factors, _mm512_loadu_si512(p + 192));
        }
        factors = _mm512_load_si512(crc_fold_512);
        a = crc_fold(crc_fold(crc_fold(a, factors, b), factors, c), factors, d);
        for (; n >= 64; p += 64, n -= 64) a = crc_fold(a, factors, _mm512_loadu_si512(p));
        __m512i lanes = crc_fold(a, _mm512_load_si512(crc_fold_lanes), _mm512_setzero_si512());
        __m128i sum = _mm_xor_si128(
            _mm_xor_si128(_mm512_extracti64x2_epi64(lanes, 0), _mm512_extracti64x2_epi64(lanes, 1)),
            _mm_xor_si128(_mm512_extracti64x2_epi64(lanes, 2), _mm512_extracti64x2_epi64(a, 3)));
        uint64_t rest = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(sum, 0));
        rest = _mm_crc32_u64(rest, (uint64_t)_mm_extract_epi64(sum, 1));
        return crc_by_instruction(~(uint32_t)rest, p, n);
    }
    #else
    static uint32_t crc_by_instruction(uint32_t crc, const uint8_t* p, size_t n) { return crc_by_tables(crc, p, n); }
    static uint32_t crc_by_folding(uint32_t crc, const uint8_t* p, size_t n) { return crc_by_tables(crc, p, n); }
    #endif

    static uint32_t crc_by(int way, uint32_t crc, const uint8_t* p, size_t n) {
        return way == CRC_FOLDING ? crc_by_folding(crc, p, n)
            : way == CRC_INSTRUCTION ? crc_by_instruction(crc, p, n) : crc_by_tables(crc, p, n);
    }
    """
    int crc_best
    void crc_prepare() noexcept nogil
    uint32_t crc_power_of(uint64_t count) noexcept nogil
    uint32_t crc_multiply(uint32_t a, uint32_t b) noexcept nogil
    uint32_t crc_by(int way, uint32_t crc, const uint8_t* p, size_t n) noexcept nogil

crc_prepare()
WAYS = ["tables", "instruction", "folding"][crc_best::-1]


cdef uint32_t crc32c_update(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil:
    return crc_by(crc_best, crc, p, n)


cdef uint32_t crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) noexcept nogil:
    return crc_multiply(crc_power_of(length_b), crc_a) ^ crc_b


cdef uint32_t crc32_zlib(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil:
    return <uint32_t>zlib_crc32(crc, p, n)


def crc32c(data, unsigned int crc=0, *, str way=""):
    """See crc.pyi: `crc32c`."""
    cdef Py_buffer view
    cdef uint32_t out
    cdef int chosen = crc_best - WAYS.index(way) if way else crc_best
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            out = crc_by(chosen, crc, <const uint8_t*>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return out


def crc32c_combine(unsigned int crc_a, unsigned int crc_b, unsigned long long length_b):
    """See crc.pyi: `crc32c_combine`."""
    return crc32c_join(crc_a, crc_b, length_b)
