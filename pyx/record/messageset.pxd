"""Message sets: messages of magic 0 and 1, one after the other, as clients before 0.11 (Produce 0 to 2, Fetch 0
to 3) speak them and as the log keeps what such clients sent.

 0 offset i64 | 8 length i32 (of what follows it) | 12 crc u32 (zlib's, of all that follows it) | 16 magic i8
17 attributes i8 | 18 timestamp i64 (magic 1 only) | key length i32 (-1 = null), key | value length i32, value

Attributes: the codec in bits 0 to 2, bit 3 = LogAppendTime (magic 1). A message with a codec is a wrapper: its
value is a compressed message set whose messages have no codec. Offsets inside are absolute in magic 0 and
relative in magic 1; the wrapper has the offset of its last message. The offset lies outside the CRC.

lz4 in magic 0 has a frame header whose checksum covers the frame's magic number too (KAFKA-3160): it is written
so, and not checked when read. zstd came with magic 2.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libcpp.vector cimport vector

from penstock.pyx.record.batch cimport BatchHeader

# Pointers are into the message; lengths are -1 for null.
cdef struct MessageView:
    int64_t offset
    int64_t timestamp                           # -1 in magic 0
    int8_t magic
    int8_t attributes
    int32_t key_length
    int32_t value_length
    const uint8_t* key
    const uint8_t* value

# What a wrapper holds, once opened. `data` is in the scratch that it was opened into.
cdef struct Inner:
    uint8_t* data
    size_t n
    int32_t count
    int64_t shift                               # to add to an inner message's own offset
    int64_t max_timestamp                       # of the messages themselves; -1 in magic 0
    bint dense                                  # their own offsets are 0, 1, ... count - 1
    bint common                                 # every client's decoder reads the payload (codec.pxd)

# The fields of a message that batch_parse has found whole. False: lengths that don't fill it.
cdef bint message_read(const uint8_t* p, const BatchHeader* header, MessageView* out) noexcept nogil

# The next message of a set: `p` moves on and `left` shrinks. BATCH_OK or a BatchFault: cut off, another magic,
# or fields that don't fill it. Magic 0 and 1 only.
cdef int message_next(
    const uint8_t** p, size_t* left, int8_t magic, BatchHeader* header, MessageView* out
) noexcept nogil

# Opens a wrapper to at most `limit_bytes`, and checks each message in it: of the same magic, without a codec,
# whole. CRCs only with `check_crc`. BATCH_OK or a BatchFault; an empty wrapper is BATCH_BAD_COUNT.
cdef int wrapper_open(
    const uint8_t* p, const BatchHeader* header, size_t limit_bytes, bint check_crc, vector[uint8_t]& scratch,
    Inner* out
) noexcept nogil

# The offset of an inner message. By way of unsigned numbers, as hostile ones overflow.
cdef inline int64_t inner_offset(const Inner* inner, const MessageView* message) noexcept nogil:
    return <int64_t>(<uint64_t>message.offset + <uint64_t>inner.shift)

# The timestamp of an inner message: the wrapper's when that has LogAppendTime.
cdef int64_t inner_timestamp(const BatchHeader* wrapper, const MessageView* message) noexcept nogil

# Appends a message; its length and CRC are worked out. False: no memory, or over 2 GiB.
cdef bint message_write(const MessageView* message, vector[uint8_t]& out) noexcept nogil

# Appends a wrapper around the set at `p`. `codec` 1 to 3. BATCH_OK or a BatchFault; on one `out` is as it was.
cdef int wrapper_write(
    int8_t magic, int codec, int level, int8_t attribute_bits, int64_t last_offset, int64_t timestamp, const uint8_t* p,
    size_t n, vector[uint8_t]& out
) noexcept nogil

# In place, CRC too: the timestamp (and bit 3 when `log_append_time`) of a message of magic 1.
cdef void message_set_timestamp(uint8_t* p, int64_t size, int64_t timestamp_ms, bint log_append_time) noexcept nogil

# Numbers the messages of a set that was checked before from `first` on, in place.
cdef void messages_number(uint8_t* p, size_t n, int64_t first) noexcept nogil

# The first message of a stored one (a wrapper's inner ones too) that is late enough and at or past from_offset:
# BATCH_OK. BATCH_BAD_TIMESTAMP: none is; or the fault of a wrapper that can't be opened.
cdef int message_at_time(
    const uint8_t* p, const BatchHeader* header, int64_t timestamp_ms, int64_t from_offset, size_t limit_bytes,
    vector[uint8_t]& scratch, int64_t* offset, int64_t* timestamp
) noexcept nogil
