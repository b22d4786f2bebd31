"""Kafka's compression codecs, whole payloads at a time. Ids: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""

from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

cdef enum:
    CODEC_NONE = 0
    CODEC_GZIP = 1
    CODEC_SNAPPY = 2
    CODEC_LZ4 = 3
    CODEC_ZSTD = 4

cdef enum CodecFault:
    CODEC_OK = 0
    CODEC_UNKNOWN = -1
    CODEC_CORRUPT = -2                           # cut off, or not what the codec's decoder takes
    CODEC_OVER_LIMIT = -3
    CODEC_NO_MEMORY = -4

# Both append to `out`; on a fault `out` is as long as it was. `level` -1 is the codec's own default; other
# levels are brought into the codec's range. Snappy and none have no levels.
cdef int codec_compress(int codec, int level, const uint8_t* p, size_t n, vector[uint8_t]& out) noexcept nogil

# `limit` is the most bytes that may be appended. Memory is taken as output comes, never by a length that the
# input claims without bytes to show for it.
cdef int codec_decompress(int codec, const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out) noexcept nogil

# The same, and whether every client's decoder reads it. What `common` denies is read by ours and not by all: several
# frames (librdkafka reads the first gzip member only, and stumbles over a second of lz4 or snappy), lz4 blocks that
# lean on the ones before (Java reads none), and a zstd window over the 128 MiB that decoders grant.
cdef int codec_decompress_validated(
    int codec, const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out, bint* common
) noexcept nogil

# The most bytes that n bytes of a codec can hold, whatever they are.
cdef inline int64_t codec_holds_most(int codec, int64_t n) noexcept nogil:
    if codec == CODEC_GZIP:
        return n * 1040                         # deflate: 258 bytes for 2 bits
    if codec == CODEC_SNAPPY:
        return n * 32                           # 64 bytes for 3
    if codec == CODEC_LZ4:
        return n * 256                          # a byte of length for 255
    return n * 32768 if codec == CODEC_ZSTD else n      # a block of 128 KiB for 4

# Writes the checksum of the LZ4 frame's header at `p`: the right one, or with `historical` the one of KAFKA-3160,
# which covers the frame's magic number too. False: no such header is there.
cdef bint lz4_seal_header(uint8_t* p, size_t n, bint historical) noexcept nogil

# vector::resize that says False in place of throwing.
cdef extern from *:
    """
    #ifndef PENSTOCK_GROW
    #define PENSTOCK_GROW
    #include <vector>
    #include <stdint.h>
    static inline bool bytes_resize(std::vector<uint8_t>& out, size_t n) noexcept {
        try { out.resize(n); return true; } catch (...) { return false; }
    }
    // As resize, but room is taken by doubling, so that many small steps stay linear.
    static inline bool bytes_grow(std::vector<uint8_t>& out, size_t n) noexcept {
        try {
            if (n > out.capacity()) out.reserve(n > 2 * out.capacity() ? n : 2 * out.capacity());
            out.resize(n);
            return true;
        } catch (...) { return false; }
    }
    #endif
    """
    bint bytes_resize(vector[uint8_t]& out, size_t n) noexcept nogil
    bint bytes_grow(vector[uint8_t]& out, size_t n) noexcept nogil
