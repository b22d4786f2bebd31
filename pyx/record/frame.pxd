"""Cutting requests out of what a connection brought, reading them with every bound checked, and writing
answers.

  a frame:   size int32 | api_key int16 | api_version int16 | correlation_id int32 | client_id nullable string
             | tagged fields (flexible versions) | body

`Reader` never reads past `end`. The first read that fails sets `bad`, moves to the end, and each later read
gives 0 or an empty slice; so a parser checks `bad` once a loop, and before it believes what it read. A
count that came over the wire is a loop's bound only, never the size of an allocation.

`Writer` grows as bytes are put in. When there is no memory it sets `failed` and takes nothing more; the
owner checks once, at the end.
"""

from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from penstock.pyx.linux.posix cimport free, memcpy, realloc
from penstock.pyx.record.endian cimport get_i16, get_i32, get_i64, put_i16, put_i32, put_i64
from penstock.pyx.record.varint cimport uvarint_read, uvarlong_write

cdef enum:
    SIZE_BYTES = 4
    API_VERSION_AT = 2                # places in a frame without its size
    CORRELATION_AT = 4
    CLIENT_ID_AT = 8
    FRAME_BYTES_MIN = 10              # a header whose client id is null
    TOPIC_ID_BYTES = 16
    STRING_BYTES_MAX = 0x7fff         # as in Kafka; a compact length could say more
    TAGS_MAX = 64                     # Kafka's own messages have fewer than ten in a structure

cdef struct Reader:
    const uint8_t* p
    const uint8_t* end
    bint bad

cdef struct Slice:                    # into the frame; p is NULL for a null value
    const uint8_t* p
    int32_t n

cdef struct RequestHead:
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    Slice client_id

cdef struct Writer:
    uint8_t* p
    size_t n
    size_t capacity
    bint failed

cdef enum Cut:
    CUT_MORE = 0                      # the frame isn't whole yet
    CUT_WHOLE = 1
    CUT_BAD = -1                      # a size that no request may have: the connection is closed


# The first frame in n bytes. `size` gets its size without the prefix as soon as four bytes are there, else 0.
cdef inline Cut frame_cut(const uint8_t* p, size_t n, int32_t size_max, int32_t* size) noexcept nogil:
    size[0] = 0
    if n < SIZE_BYTES:
        return CUT_MORE
    cdef int32_t announced = get_i32(p)
    if announced < FRAME_BYTES_MIN or announced > size_max:
        return CUT_BAD
    size[0] = announced
    return CUT_WHOLE if n - SIZE_BYTES >= <size_t>announced else CUT_MORE


cdef inline void reader_start(Reader* r, const uint8_t* p, size_t n) noexcept nogil:
    r.p = p
    r.end = p + n
    r.bad = False


cdef inline size_t reader_left(const Reader* r) noexcept nogil:
    return <size_t>(r.end - r.p)


cdef inline void reader_fail(Reader* r) noexcept nogil:
    r.bad = True
    r.p = r.end


# n bytes as they are; NULL when they aren't there.
cdef inline const uint8_t* read_raw(Reader* r, size_t n) noexcept nogil:
    cdef const uint8_t* at = r.p
    if n > reader_left(r):
        reader_fail(r)
        return NULL
    r.p += n
    return at


cdef inline int8_t read_i8(Reader* r) noexcept nogil:
    cdef const uint8_t* at = read_raw(r, 1)
    return <int8_t>at[0] if at != NULL else 0


cdef inline int16_t read_i16(Reader* r) noexcept nogil:
    cdef const uint8_t* at = read_raw(r, 2)
    return get_i16(at) if at != NULL else 0


cdef inline int32_t read_i32(Reader* r) noexcept nogil:
    cdef const uint8_t* at = read_raw(r, 4)
    return get_i32(at) if at != NULL else 0


cdef inline int64_t read_i64(Reader* r) noexcept nogil:
    cdef const uint8_t* at = read_raw(r, 8)
    return get_i64(at) if at != NULL else 0


cdef inline uint32_t read_uvarint(Reader* r) noexcept nogil:
    cdef uint32_t value = 0
    cdef const uint8_t* after = uvarint_read(r.p, r.end, &value)
    if after == NULL:
        reader_fail(r)
        return 0
    r.p = after
    return value


# A length or count in front of a string, bytes or array: -1 for null. Compact ones hold length + 1.
cdef inline int32_t read_compact_length(Reader* r) noexcept nogil:
    cdef uint32_t raw = read_uvarint(r)
    if raw > <uint32_t>INT32_MAX:
        reader_fail(r)
        return -1
    return <int32_t>raw - 1


cdef inline Slice _slice(Reader* r, int32_t n, bint nullable) noexcept nogil:
    cdef Slice out
    out.p = NULL
    out.n = 0
    if n < 0:
        if n != -1 or not nullable:
            reader_fail(r)
        return out
    out.p = read_raw(r, <size_t>n)
    if out.p != NULL:
        out.n = n
    return out


cdef inline Slice read_string(Reader* r, bint flexible, bint nullable) noexcept nogil:
    cdef int32_t n = read_compact_length(r) if flexible else <int32_t>read_i16(r)
    if n > STRING_BYTES_MAX:
        reader_fail(r)
    return _slice(r, n, nullable)


cdef inline Slice read_bytes(Reader* r, bint flexible, bint nullable) noexcept nogil:
    cdef int32_t n = read_compact_length(r) if flexible else read_i32(r)
    return _slice(r, n, nullable)


# The count of an array whose elements take at least element_bytes_min each; a count that can't be is an error
# at once.
cdef inline int32_t read_count(Reader* r, bint flexible, size_t element_bytes_min) noexcept nogil:
    cdef int32_t n = read_compact_length(r) if flexible else read_i32(r)
    if n < 0 or <size_t>n > reader_left(r) / element_bytes_min:
        reader_fail(r)
        return 0
    return n


# Tagged fields that nothing here needs.
cdef inline void skip_tags(Reader* r, bint flexible) noexcept nogil:
    if not flexible:
        return
    cdef uint32_t count = read_uvarint(r)
    cdef uint32_t _i
    if count > TAGS_MAX:
        reader_fail(r)
    for _i in range(count):
        if r.bad:
            return
        read_uvarint(r)
        read_raw(r, read_uvarint(r))


# The header up to and with its tagged fields; the reader then stands at the body. The client id is never
# compact.
cdef inline void read_head(Reader* r, bint flexible, RequestHead* out) noexcept nogil:
    out.api_key = read_i16(r)
    out.api_version = read_i16(r)
    out.correlation_id = read_i32(r)
    out.client_id = read_string(r, False, True)
    skip_tags(r, flexible)


# Room for n more bytes; False (and `failed`) when there is no memory.
cdef inline bint writer_room(Writer* w, size_t n) noexcept nogil:
    cdef size_t wanted = w.n + n
    cdef size_t capacity = w.capacity
    cdef uint8_t* grown
    if w.failed:
        return False
    if wanted <= capacity:
        return True
    if capacity < 128:
        capacity = 128
    while capacity < wanted:
        capacity *= 2
    grown = <uint8_t*>realloc(w.p, capacity)
    if grown == NULL:
        w.failed = True
        return False
    w.p = grown
    w.capacity = capacity
    return True


cdef inline void writer_free(Writer* w) noexcept nogil:
    free(w.p)
    w.p = NULL
    w.n = 0
    w.capacity = 0
    w.failed = False


cdef inline void write_raw(Writer* w, const void* source, size_t n) noexcept nogil:
    if n and writer_room(w, n):
        memcpy(w.p + w.n, source, n)
        w.n += n


cdef inline void write_i8(Writer* w, int8_t value) noexcept nogil:
    if writer_room(w, 1):
        w.p[w.n] = <uint8_t>value
        w.n += 1


cdef inline void write_i16(Writer* w, int16_t value) noexcept nogil:
    if writer_room(w, 2):
        put_i16(w.p + w.n, value)
        w.n += 2


cdef inline void write_i32(Writer* w, int32_t value) noexcept nogil:
    if writer_room(w, 4):
        put_i32(w.p + w.n, value)
        w.n += 4


cdef inline void write_i64(Writer* w, int64_t value) noexcept nogil:
    if writer_room(w, 8):
        put_i64(w.p + w.n, value)
        w.n += 8


cdef inline void write_uvarint(Writer* w, uint32_t value) noexcept nogil:
    if writer_room(w, 10):
        w.n = <size_t>(uvarlong_write(w.p + w.n, value) - w.p)


# A count or length; -1 is null.
cdef inline void write_count(Writer* w, int32_t count, bint flexible) noexcept nogil:
    if flexible:
        write_uvarint(w, <uint32_t>(count + 1))
    else:
        write_i32(w, count)


# A string; one whose p is NULL is null.
cdef inline void write_string(Writer* w, Slice text, bint flexible) noexcept nogil:
    cdef int32_t n = text.n if text.p != NULL else -1
    if flexible:
        write_uvarint(w, <uint32_t>(n + 1))
    else:
        write_i16(w, <int16_t>n)
    if n > 0:
        write_raw(w, text.p, <size_t>n)


cdef inline void write_no_tags(Writer* w, bint flexible) noexcept nogil:
    if flexible:
        write_i8(w, 0)


# Begins an answer: the size (put in by `answer_end`) and the response header. Gives the place where the size
# is.
cdef inline size_t answer_begin(Writer* w, int32_t correlation_id, bint flexible) noexcept nogil:
    cdef size_t at = w.n
    write_i32(w, 0)
    write_i32(w, correlation_id)
    write_no_tags(w, flexible)
    return at


# Ends an answer that has `file_bytes` more than what was written (records that go out by sendfile).
cdef inline void answer_end(Writer* w, size_t at, int64_t file_bytes) noexcept nogil:
    if not w.failed:
        put_i32(w.p + at, <int32_t>(<int64_t>(w.n - at - SIZE_BYTES) + file_bytes))
