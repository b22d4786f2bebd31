"""Gzip, snappy, lz4 and zstd in the framings that Kafka's clients write and read.

- gzip: RFC 1952; members one after the other are read.
- snappy: written in the framing of Java's SnappyOutputStream ("xerial"): 16 bytes of header, then chunks of a
  big-endian length and a raw snappy block of at most 32 KiB. Read in that framing or as one raw block.
- lz4: the LZ4 frame format, blocks of 64 KiB, no content checksum (Java's reader asks for independent blocks).
- zstd: frames.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t

from penstock.pyx.linux.posix cimport memcmp, memcpy, memset
from penstock.pyx.record.endian cimport get_u32, put_i32

cdef extern from "zlib.h" nogil:
    ctypedef struct z_stream:
        uint8_t* next_in
        unsigned int avail_in
        uint8_t* next_out
        unsigned int avail_out
    int Z_OK, Z_STREAM_END, Z_BUF_ERROR, Z_FINISH, Z_NO_FLUSH, Z_DEFLATED, Z_DEFAULT_STRATEGY
    int deflateInit2(z_stream* stream, int level, int method, int window_bits, int memory,
                     int strategy) noexcept
    int deflate(z_stream* stream, int flush) noexcept
    int deflateEnd(z_stream* stream) noexcept
    unsigned long deflateBound(z_stream* stream, unsigned long n) noexcept
    int inflateInit2(z_stream* stream, int window_bits) noexcept
    int inflate(z_stream* stream, int flush) noexcept
    int inflateReset(z_stream* stream) noexcept
    int inflateEnd(z_stream* stream) noexcept

cdef extern from "snappy-c.h" nogil:
    int SNAPPY_OK
    int snappy_compress(const char* p, size_t n, char* out, size_t* out_n) noexcept
    int snappy_uncompress(const char* p, size_t n, char* out, size_t* out_n) noexcept
    size_t snappy_max_compressed_length(size_t n) noexcept
    int snappy_uncompressed_length(const char* p, size_t n, size_t* out) noexcept

cdef extern from "lz4frame.h" nogil:
    ctypedef enum LZ4F_blockSizeID_t:
        LZ4F_max64KB
    ctypedef enum LZ4F_blockMode_t:
        LZ4F_blockIndependent
    ctypedef struct LZ4F_frameInfo_t:
        LZ4F_blockSizeID_t blockSizeID
        LZ4F_blockMode_t blockMode
    ctypedef struct LZ4F_preferences_t:
        LZ4F_frameInfo_t frameInfo
        int compressionLevel
    ctypedef struct LZ4F_dctx:
        pass
    int LZ4F_VERSION
    unsigned int LZ4F_isError(size_t code) noexcept
    size_t LZ4F_compressFrameBound(size_t n, const LZ4F_preferences_t* preferences) noexcept
    size_t LZ4F_compressFrame(void* out, size_t room, const void* p, size_t n,
                              const LZ4F_preferences_t* preferences) noexcept
    size_t LZ4F_createDecompressionContext(LZ4F_dctx** out, unsigned int version) noexcept
    size_t LZ4F_freeDecompressionContext(LZ4F_dctx* context) noexcept
    size_t LZ4F_decompress(LZ4F_dctx* context, void* out, size_t* room, const void* p, size_t* n,
                           const void* options) noexcept

cdef extern from "zstd.h" nogil:
    unsigned long long ZSTD_CONTENTSIZE_UNKNOWN, ZSTD_CONTENTSIZE_ERROR
    ctypedef struct ZSTD_CCtx:
        pass
    ctypedef struct ZSTD_DCtx:
        pass
    size_t ZSTD_compressBound(size_t n) noexcept
    size_t ZSTD_compressCCtx(ZSTD_CCtx* context, void* out, size_t room, const void* p, size_t n,
                             int level) noexcept
    size_t ZSTD_decompressDCtx(ZSTD_DCtx* context, void* out, size_t room, const void* p, size_t n) noexcept
    unsigned long long ZSTD_getFrameContentSize(const void* p, size_t n) noexcept
    size_t ZSTD_findFrameCompressedSize(const void* p, size_t n) noexcept
    unsigned int ZSTD_isError(size_t code) noexcept
    int ZSTD_maxCLevel() noexcept
    int ZSTD_minCLevel() noexcept

cdef extern from "zstd_errors.h" nogil:
    int ZSTD_error_dstSize_tooSmall
    int ZSTD_getErrorCode(size_t code) noexcept

# A zstd context is several hundred KiB that take longer to make than a small batch takes to compress: one per
# thread.
cdef extern from *:
    """
    #include <zstd.h>
    #include <lz4frame.h>
    #include <zlib.h>
    struct ZstdContexts {
        ZSTD_CCtx* compress = nullptr;
        ZSTD_DCtx* decompress = nullptr;
        ~ZstdContexts() { ZSTD_freeCCtx(compress); ZSTD_freeDCtx(decompress); }
    };
    static thread_local ZstdContexts zstd_contexts;
    static ZSTD_CCtx* zstd_compressor(void) {
        if (zstd_contexts.compress == nullptr) zstd_contexts.compress = ZSTD_createCCtx();
        return zstd_contexts.compress;
    }
    static ZSTD_DCtx* zstd_decompressor(void) {
        if (zstd_contexts.decompress == nullptr) zstd_contexts.decompress = ZSTD_createDCtx();
        return zstd_contexts.decompress;
    }
    """
    ZSTD_CCtx* zstd_compressor() noexcept nogil
    ZSTD_DCtx* zstd_decompressor() noexcept nogil

# xxHash32 with seed 0: a frame header's checksum is its second byte. liblz4 keeps its own to itself.
cdef extern from *:
    """
    #include <string.h>
    static inline uint32_t xxh_word(const uint8_t* p) { uint32_t v; memcpy(&v, p, 4); return v; }
    static inline uint32_t xxh_turn(uint32_t v, int n) { return v << n | v >> (32 - n); }
    static uint32_t xxh32(const uint8_t* p, size_t n) {
        const uint32_t A = 2654435761u, B = 2246822519u, C = 3266489917u, D = 668265263u, E = 374761393u;
        const uint8_t* end = p + n;
        uint32_t h = E;
        if (n >= 16) {
            uint32_t lane[4] = {A + B, B, 0, 0u - A};
            for (; end - p >= 16; p += 16)
                for (int i = 0; i < 4; i++) lane[i] = xxh_turn(lane[i] + xxh_word(p + 4 * i) * B, 13) * A;
            h = xxh_turn(lane[0], 1) + xxh_turn(lane[1], 7) + xxh_turn(lane[2], 12) + xxh_turn(lane[3], 18);
        }
        h += (uint32_t)n;
        for (; end - p >= 4; p += 4) h = xxh_turn(h + xxh_word(p) * C, 17) * D;
        for (; p < end; p++) h = xxh_turn(h + *p * E, 11) * A;
        h = (h ^ h >> 15) * B;
        h = (h ^ h >> 13) * C;
        return h ^ h >> 16;
    }
    """
    unsigned int xxh32(const uint8_t* p, size_t n) noexcept nogil

cdef enum:
    LZ4_MAGIC_SIZE = 4
    LZ4_HAS_SIZE = 0x08                         # flags of a frame: 8 bytes of content size, 4 of dictionary id
    LZ4_HAS_DICTIONARY = 0x01
    GZIP_WINDOW = 15 + 16                       # the largest window, and 16 for the gzip wrapper
    GZIP_MEMORY = 8
    GZIP_LEVEL_MAX = 9
    LZ4_LEVEL_MAX = 12
    ZSTD_LEVEL = 3
    LZ4_FORM_MASK = 0xe3                        # flags: version, independent blocks, dictionary, reserved
    LZ4_FORM = 0x60                             # version 1, independent blocks
    ZSTD_SINGLE_SEGMENT = 0x20                  # of the byte behind zstd's magic: no window is given
    ZSTD_MAGIC_SIZE = 4
    ZSTD_WINDOW_LOG_MAX = 27
    ZSTD_WINDOW_LOG_MIN = 10
    XERIAL_HEADER = 16
    XERIAL_MAGIC = 8
    XERIAL_BLOCK = 32 * 1024
    # A snappy element of three bytes gives at most 64: a block that claims more than this times its size is
    # lying.
    SNAPPY_RATIO_MAX = 32
    FIRST_ROOM = 64 * 1024
    PIECE_MAX = 1 << 30                        # zlib counts in 32 bits

cdef const uint8_t* LZ4_MAGIC = <const uint8_t*>b"\x04\x22\x4d\x18"
cdef const uint8_t* ZSTD_MAGIC = <const uint8_t*>b"\x28\xb5\x2f\xfd"
cdef const uint8_t* XERIAL = <const uint8_t*>b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


cdef int codec_compress(int codec, int level, const uint8_t* p, size_t n, vector[uint8_t]& out) noexcept nogil:
    cdef size_t before = out.size()
    cdef int fault
    if codec == CODEC_NONE:
        fault = _copy_through(p, n, out)
    elif codec == CODEC_GZIP:
        fault = _gzip_compress(level, p, n, out)
    elif codec == CODEC_SNAPPY:
        fault = _xerial_compress(p, n, out)
    elif codec == CODEC_LZ4:
        fault = _lz4_compress(level, p, n, out)
    elif codec == CODEC_ZSTD:
        fault = _zstd_compress(level, p, n, out)
    else:
        fault = CODEC_UNKNOWN
    if fault != CODEC_OK:
        bytes_resize(out, before)
    return fault


cdef int codec_decompress(int codec, const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out) noexcept nogil:
    cdef bint common
    return codec_decompress_validated(codec, p, n, limit, out, &common)


cdef int codec_decompress_validated(
    int codec, const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out, bint* common
) noexcept nogil:
    cdef size_t before = out.size()
    cdef int fault
    common[0] = True
    if codec == CODEC_NONE:
        fault = _copy_through(p, n, out) if n <= limit else CODEC_OVER_LIMIT
    elif codec == CODEC_GZIP:
        fault = _gzip_decompress(p, n, limit, out, common)
    elif codec == CODEC_SNAPPY:
        if n >= XERIAL_HEADER and memcmp(p, XERIAL, XERIAL_MAGIC) == 0:
            fault = _xerial_decompress(p, n, limit, out, common)
        else:
            fault = _snappy_block(p, n, limit, out)
    elif codec == CODEC_LZ4:
        fault = _lz4_decompress(p, n, limit, out, common)
    elif codec == CODEC_ZSTD:
        common[0] = _zstd_is_common(p, n)
        fault = _zstd_decompress(p, n, limit, out)
    else:
        fault = CODEC_UNKNOWN
    if fault != CODEC_OK:
        bytes_resize(out, before)
    return fault


cdef inline int _copy_through(const uint8_t* p, size_t n, vector[uint8_t]& out) noexcept nogil:
    cdef size_t before = out.size()
    if not bytes_resize(out, before + n):
        return CODEC_NO_MEMORY
    if n:
        memcpy(out.data() + before, p, n)
    return CODEC_OK


cdef inline size_t _next_room(size_t room, size_t limit) noexcept nogil:
    # How much to have after `room` bytes weren't enough; `limit` + 1 tells "exactly full" from "over".
    return room * 2 if room < limit // 2 else limit


cdef inline size_t _first_room(size_t n, size_t limit) noexcept nogil:
    cdef size_t room = 4 * n + FIRST_ROOM
    return room if room < limit else limit


cdef int _gzip_compress(int level, const uint8_t* p, size_t n, vector[uint8_t]& out) noexcept nogil:
    cdef z_stream stream
    cdef size_t before = out.size()
    cdef size_t room
    cdef int status
    if n > PIECE_MAX:
        return CODEC_OVER_LIMIT
    memset(&stream, 0, sizeof(stream))
    if level != -1:
        level = 1 if level < 1 else GZIP_LEVEL_MAX if level > GZIP_LEVEL_MAX else level
    if deflateInit2(&stream, level, Z_DEFLATED, GZIP_WINDOW, GZIP_MEMORY, Z_DEFAULT_STRATEGY) != Z_OK:
        return CODEC_NO_MEMORY
    room = deflateBound(&stream, n)
    if not bytes_resize(out, before + room):
        deflateEnd(&stream)
        return CODEC_NO_MEMORY
    stream.next_in = <uint8_t*>p
    stream.avail_in = <unsigned int>n
    stream.next_out = out.data() + before
    stream.avail_out = <unsigned int>room
    status = deflate(&stream, Z_FINISH)
    room -= stream.avail_out
    deflateEnd(&stream)
    bytes_resize(out, before + room)
    return CODEC_OK if status == Z_STREAM_END else CODEC_CORRUPT


cdef int _gzip_decompress(const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out, bint* common) noexcept nogil:
    cdef z_stream stream
    cdef size_t before = out.size()
    cdef size_t made = 0
    cdef int fault = CODEC_CORRUPT
    if n > PIECE_MAX:
        return CODEC_OVER_LIMIT
    memset(&stream, 0, sizeof(stream))
    if inflateInit2(&stream, GZIP_WINDOW) != Z_OK:
        return CODEC_NO_MEMORY
    stream.next_in = <uint8_t*>p
    stream.avail_in = <unsigned int>n
    # A member takes at least 18 bytes of input, so this ends.
    while True:
        fault = _gzip_member(&stream, before, &made, limit, out)
        if fault != CODEC_OK or stream.avail_in == 0:
            break
        common[0] = False
        inflateReset(&stream)
    inflateEnd(&stream)
    if fault == CODEC_OK:
        bytes_resize(out, before + made)
    return fault


cdef int _gzip_member(z_stream* stream, size_t before, size_t* made, size_t limit, vector[uint8_t]& out) noexcept nogil:
    cdef size_t room = out.size() - before
    cdef size_t piece
    cdef unsigned int fed
    cdef int status
    # One byte more than the limit is asked for, so that an output of exactly the limit ends by itself.
    if room == 0:
        room = _first_room(stream.avail_in, limit) + 1
        if not bytes_resize(out, before + room):
            return CODEC_NO_MEMORY
    while True:
        if made[0] == room:
            if room > limit:
                return CODEC_OVER_LIMIT
            room = _next_room(room, limit) + 1
            if not bytes_resize(out, before + room):
                return CODEC_NO_MEMORY
        piece = room - made[0]
        piece = piece if piece < PIECE_MAX else PIECE_MAX
        stream.next_out = out.data() + before + made[0]
        stream.avail_out = <unsigned int>piece
        fed = stream.avail_in
        status = inflate(stream, Z_NO_FLUSH)
        made[0] += piece - stream.avail_out
        if made[0] > limit:
            return CODEC_OVER_LIMIT
        if status == Z_STREAM_END:
            return CODEC_OK
        if status != Z_OK and status != Z_BUF_ERROR:
            return CODEC_CORRUPT
        if stream.avail_in == fed and stream.avail_out == piece:
            return CODEC_CORRUPT


cdef int _xerial_compress(const uint8_t* p, size_t n, vector[uint8_t]& out) noexcept nogil:
    cdef size_t before = out.size()
    cdef size_t at = before + XERIAL_HEADER
    cdef size_t piece, length
    cdef size_t chunks = n // XERIAL_BLOCK + 1
    if not bytes_resize(out, at + chunks * (4 + snappy_max_compressed_length(XERIAL_BLOCK))):
        return CODEC_NO_MEMORY
    memcpy(out.data() + before, XERIAL, XERIAL_HEADER)
    while n:
        piece = n if n < XERIAL_BLOCK else XERIAL_BLOCK
        length = snappy_max_compressed_length(piece)
        if snappy_compress(<const char*>p, piece, <char*>out.data() + at + 4, &length) != SNAPPY_OK:
            return CODEC_CORRUPT
        put_i32(out.data() + at, <int32_t>length)
        at += 4 + length
        p += piece
        n -= piece
    bytes_resize(out, at)
    return CODEC_OK


cdef int _xerial_decompress(
    const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out, bint* common
) noexcept nogil:
    cdef const uint8_t* begin = p
    cdef const uint8_t* end = p + n
    cdef size_t before = out.size()
    cdef size_t length
    cdef int fault
    while p < end:
        # Streams may follow one another, each with its header; a chunk's length never looks like one (it is
        # positive).
        if <size_t>(end - p) >= XERIAL_HEADER and memcmp(p, XERIAL, XERIAL_MAGIC) == 0:
            common[0] = p == begin
            p += XERIAL_HEADER
            continue
        if end - p < 4:
            return CODEC_CORRUPT
        length = get_u32(p)
        p += 4
        if length > <size_t>(end - p):
            return CODEC_CORRUPT
        fault = _snappy_block(p, length, limit - (out.size() - before), out)
        if fault != CODEC_OK:
            return fault
        p += length
    return CODEC_OK


cdef int _snappy_block(const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out) noexcept nogil:
    cdef size_t before = out.size()
    cdef size_t length = 0
    if snappy_uncompressed_length(<const char*>p, n, &length) != SNAPPY_OK or length > SNAPPY_RATIO_MAX * n:
        return CODEC_CORRUPT
    if length > limit:
        return CODEC_OVER_LIMIT
    if not bytes_grow(out, before + length):
        return CODEC_NO_MEMORY
    if snappy_uncompress(<const char*>p, n, <char*>out.data() + before, &length) != SNAPPY_OK:
        return CODEC_CORRUPT
    return CODEC_OK


cdef int _lz4_compress(int level, const uint8_t* p, size_t n, vector[uint8_t]& out) noexcept nogil:
    cdef LZ4F_preferences_t preferences
    cdef size_t before = out.size()
    cdef size_t room
    memset(&preferences, 0, sizeof(preferences))
    preferences.frameInfo.blockSizeID = LZ4F_max64KB
    preferences.frameInfo.blockMode = LZ4F_blockIndependent
    preferences.compressionLevel = 0 if level < 0 else LZ4_LEVEL_MAX if level > LZ4_LEVEL_MAX else level
    room = LZ4F_compressFrameBound(n, &preferences)
    if not bytes_resize(out, before + room):
        return CODEC_NO_MEMORY
    room = LZ4F_compressFrame(out.data() + before, room, p, n, &preferences)
    if LZ4F_isError(room):
        return CODEC_CORRUPT
    bytes_resize(out, before + room)
    return CODEC_OK


cdef bint lz4_seal_header(uint8_t* p, size_t n, bint historical) noexcept nogil:
    cdef size_t at = LZ4_MAGIC_SIZE + 2
    cdef size_t start = 0 if historical else <size_t>LZ4_MAGIC_SIZE
    if n <= at or memcmp(p, LZ4_MAGIC, LZ4_MAGIC_SIZE) != 0:
        return False
    if p[LZ4_MAGIC_SIZE] & LZ4_HAS_SIZE:
        at += 8
    if p[LZ4_MAGIC_SIZE] & LZ4_HAS_DICTIONARY:
        at += 4
    if n <= at:
        return False
    p[at] = <uint8_t>(xxh32(p + start, at - start) >> 8)
    return True


cdef int _lz4_decompress(const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out, bint* common) noexcept nogil:
    cdef LZ4F_dctx* context = NULL
    cdef int fault
    if LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION)):
        return CODEC_NO_MEMORY
    common[0] = n > LZ4_MAGIC_SIZE and memcmp(p, LZ4_MAGIC, LZ4_MAGIC_SIZE) == 0 and (
        p[LZ4_MAGIC_SIZE] & LZ4_FORM_MASK == LZ4_FORM
    )
    fault = _lz4_frames(context, p, n, limit, out, common)
    LZ4F_freeDecompressionContext(context)
    return fault


cdef int _lz4_frames(
    LZ4F_dctx* context, const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out, bint* common
) noexcept nogil:
    cdef size_t before = out.size()
    cdef size_t room = _first_room(n, limit) + 1
    cdef size_t made = 0
    cdef size_t hint = 1
    cdef size_t took, gave
    if not bytes_resize(out, before + room):
        return CODEC_NO_MEMORY
    while True:
        if made == room:
            if room > limit:
                return CODEC_OVER_LIMIT
            room = _next_room(room, limit) + 1
            if not bytes_resize(out, before + room):
                return CODEC_NO_MEMORY
        took = n
        gave = room - made
        hint = LZ4F_decompress(context, out.data() + before + made, &gave, p, &took, NULL)
        if LZ4F_isError(hint):
            return CODEC_CORRUPT
        p += took
        n -= took
        made += gave
        if made > limit:
            return CODEC_OVER_LIMIT
        if hint == 0:
            if n == 0:
                bytes_resize(out, before + made)
                return CODEC_OK
            common[0] = False
        # Nothing eaten and nothing given with room to spare: it waits for bytes that won't come.
        if took == 0 and gave == 0:
            return CODEC_CORRUPT


cdef int _zstd_compress(int level, const uint8_t* p, size_t n, vector[uint8_t]& out) noexcept nogil:
    cdef ZSTD_CCtx* context = zstd_compressor()
    cdef size_t before = out.size()
    cdef size_t room = ZSTD_compressBound(n)
    if context == NULL or not bytes_resize(out, before + room):
        return CODEC_NO_MEMORY
    level = ZSTD_LEVEL if level == -1 else level
    level = ZSTD_maxCLevel() if level > ZSTD_maxCLevel() else level
    level = ZSTD_minCLevel() if level < ZSTD_minCLevel() else level
    room = ZSTD_compressCCtx(context, out.data() + before, room, p, n, level)
    if ZSTD_isError(room):
        return CODEC_NO_MEMORY
    bytes_resize(out, before + room)
    return CODEC_OK


cdef bint _zstd_is_common(const uint8_t* p, size_t n) noexcept nogil:
    # The magic is the frame's, not that of one to be skipped, and behind its end is nothing.
    if n < 6 or memcmp(p, ZSTD_MAGIC, ZSTD_MAGIC_SIZE) != 0 or ZSTD_findFrameCompressedSize(p, n) != n:
        return False
    return p[4] & ZSTD_SINGLE_SEGMENT != 0 or (p[5] >> 3) + ZSTD_WINDOW_LOG_MIN <= ZSTD_WINDOW_LOG_MAX


cdef int _zstd_decompress(const uint8_t* p, size_t n, size_t limit, vector[uint8_t]& out) noexcept nogil:
    # In one piece, so that no window is allocated by what a frame's header claims; again with more room when
    # the size that the frame gives isn't there or isn't to be believed.
    cdef ZSTD_DCtx* context = zstd_decompressor()
    cdef size_t before = out.size()
    cdef size_t room = _first_room(n, limit)
    cdef size_t made
    cdef unsigned long long claimed = ZSTD_getFrameContentSize(p, n)
    if context == NULL:
        return CODEC_NO_MEMORY
    if claimed == ZSTD_CONTENTSIZE_ERROR:
        return CODEC_CORRUPT
    if claimed < room:
        room = <size_t>claimed
    while True:
        if not bytes_resize(out, before + room):
            return CODEC_NO_MEMORY
        made = ZSTD_decompressDCtx(context, out.data() + before, room, p, n)
        if not ZSTD_isError(made):
            bytes_resize(out, before + made)
            return CODEC_OK
        if ZSTD_getErrorCode(made) != ZSTD_error_dstSize_tooSmall:
            return CODEC_CORRUPT
        if room >= limit:
            return CODEC_OVER_LIMIT
        room = _next_room(room if room > FIRST_ROOM else FIRST_ROOM, limit)


CODEC_IDS = {"none": CODEC_NONE, "gzip": CODEC_GZIP, "snappy": CODEC_SNAPPY, "lz4": CODEC_LZ4,
             "zstd": CODEC_ZSTD}

_TEXTS = {
    CODEC_UNKNOWN: "unknown codec",
    CODEC_CORRUPT: "the data is not what the codec takes",
    CODEC_OVER_LIMIT: "the data is over the limit",
    CODEC_NO_MEMORY: "no memory",
}


class CodecError(ValueError):
    """See codec.pyi."""


def compress(int codec, data, int level=-1):
    """See codec.pyi."""
    cdef Py_buffer view
    cdef vector[uint8_t] out
    cdef int fault
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            fault = codec_compress(codec, level, <const uint8_t*>view.buf, <size_t>view.len, out)
    finally:
        PyBuffer_Release(&view)
    return _give(codec, fault, out)


def decompress(int codec, data, size_t limit_bytes=1 << 28):
    """See codec.pyi."""
    cdef Py_buffer view
    cdef vector[uint8_t] out
    cdef int fault
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            fault = codec_decompress(codec, <const uint8_t*>view.buf, <size_t>view.len, limit_bytes, out)
    finally:
        PyBuffer_Release(&view)
    return _give(codec, fault, out)


cdef bytes _give(int codec, int fault, vector[uint8_t]& out):
    if fault != CODEC_OK:
        raise CodecError(f"codec {codec}: {_TEXTS[fault]}")
    return PyBytes_FromStringAndSize(<const char*>out.data(), <Py_ssize_t>out.size())
