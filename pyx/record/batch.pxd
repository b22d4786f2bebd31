"""Record batches (magic 2) as they are on the wire and on disk; message sets of magic 0 and 1 as far as the
log and plain consumers need them.

 0 base offset i64 | 8 length i32 (of what follows it) | 12 leader epoch i32 | 16 magic i8
17 crc u32 (of all that follows it) | 21 attributes i16 | 23 last offset delta i32 | 27 base timestamp i64
35 max timestamp i64 | 43 producer id i64 | 51 producer epoch i16 | 53 base sequence i32
57 record count i32 | 61 records, maybe compressed

A record: length varint | attributes i8 | timestamp delta varlong | offset delta varint
  | key length varint (-1 = null), key | value length varint (-1 = null), value | header count varint
  | for each header: key length varint, key, value length varint (-1 = null), value

Base offset and leader epoch lie outside the CRC, so a broker assigns both without touching it.
"""

from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from penstock.pyx.record.codec cimport CODEC_CORRUPT, CODEC_OK, CODEC_OVER_LIMIT, CODEC_UNKNOWN

cdef enum:
    MAGIC_2 = 2                                 # the newest; 0 and 1 are messages

cdef enum:
    BASE_OFFSET_AT = 0
    LENGTH_AT = BASE_OFFSET_AT + 8
    LEADER_EPOCH_AT = LENGTH_AT + 4
    LOG_OVERHEAD = LEADER_EPOCH_AT              # what the length field doesn't count
    MAGIC_AT = LEADER_EPOCH_AT + 4
    CRC_AT = MAGIC_AT + 1
    ATTRIBUTES_AT = CRC_AT + 4                  # the CRC covers from here on
    LAST_OFFSET_DELTA_AT = ATTRIBUTES_AT + 2
    BASE_TIMESTAMP_AT = LAST_OFFSET_DELTA_AT + 4
    MAX_TIMESTAMP_AT = BASE_TIMESTAMP_AT + 8
    PRODUCER_ID_AT = MAX_TIMESTAMP_AT + 8
    PRODUCER_EPOCH_AT = PRODUCER_ID_AT + 8
    BASE_SEQUENCE_AT = PRODUCER_EPOCH_AT + 2
    RECORD_COUNT_AT = BASE_SEQUENCE_AT + 4
    RECORDS_AT = RECORD_COUNT_AT + 4            # = 61, the size of the header
    MESSAGE_CRC_AT = LOG_OVERHEAD               # magic 0 and 1: crc u32, magic i8, attributes i8, ...
    MESSAGE_ATTRIBUTES_AT = MAGIC_AT + 1        # one byte
    MESSAGE_TIMESTAMP_AT = MAGIC_AT + 2         # magic 1 only
    MESSAGE_SIZE_MIN = MAGIC_AT + 10          # magic, attributes, key length, value length
    RECORD_SIZE_MIN = 7                       # length, attributes, two deltas, two lengths, header count

cdef enum:
    CODEC_MASK = 0x07
    LOG_APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40                   # set by Kafka's cleaner only: base timestamp = delete horizon
    UNUSED_BITS = 0xff80
    CODEC_MAX = 4
    MESSAGE_CODEC_MAX = 3                      # zstd came with magic 2

# What is wrong with a batch. `batch_error_code` gives Kafka's number for each, `batch_error_text` the words.
cdef enum BatchFault:
    BATCH_OK = 0
    BATCH_PARTIAL = -1                          # fewer bytes are there than the length field asks for
    BATCH_BAD_LENGTH = -2                       # negative, or too small for a header
    BATCH_BAD_MAGIC = -3
    BATCH_BAD_CRC = -4
    BATCH_BAD_CODEC = -5
    BATCH_BAD_ATTRIBUTES = -6
    BATCH_BAD_COUNT = -7
    BATCH_CONTROL = -8                          # a control batch where none may come
    BATCH_BAD_PRODUCER = -9                     # producer id, epoch and sequence don't fit together
    BATCH_TOO_LARGE = -10
    BATCH_BAD_TIMESTAMP_TYPE = -11              # a producer that says LogAppendTime
    BATCH_BAD_RECORDS = -12                     # the records inside can't be read (seen by a caller that opens it)
    BATCH_BAD_PAYLOAD = -13                     # the codec can't inflate it
    BATCH_OVER_LIMIT = -14                      # inflates to more than the reader's limit
    BATCH_NO_MEMORY = -15
    BATCH_BAD_OFFSET = -16                      # a stored batch with a negative base offset
    BATCH_NO_KEY = -17                          # a record without a key where compaction needs one
    BATCH_BAD_TIMESTAMP = -18                   # too far from the broker's clock, by the topic's limits

# What batch_check looks for besides length, CRC, codec and what can never be true.
cdef enum:
    CHECK_STORED = 0                            # recovery: holes, empty batches and magic 0 or 1 may be there
    # count == last offset delta + 1, unlike what was compacted, and no more records than the bytes can hold
    CHECK_DENSE = 1
    CHECK_NO_CONTROL = 2
    CHECK_CLEAN = 4                             # magic 2, no unused bits or LogAppendTime, producer fits
    CHECK_CLIENT = CHECK_DENSE | CHECK_NO_CONTROL | CHECK_CLEAN

cdef struct BatchHeader:
    int64_t base_offset
    int64_t size                                # of the whole batch in bytes, with base offset and length
    int32_t leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t record_count

# Reads the header at `p`, of which `left` bytes may be read. 0, or BATCH_PARTIAL, BATCH_BAD_LENGTH,
# BATCH_BAD_MAGIC. Nothing else is validated. For BATCH_PARTIAL with at least 12 bytes there, `out.size` says how
# many the batch needs (0 otherwise). Magic 0 and 1: only base offset, size, magic, crc, attributes are true;
# the rest is as for one record without a producer, timestamps -1.
cdef int batch_parse(const uint8_t* p, size_t left, BatchHeader* out) noexcept nogil

# The same for a header whose payload isn't there (a read of the first 61 bytes of a batch on disk); `left` >=
# 61 or BATCH_PARTIAL. `out.size` is believed, so compare it with what the file has.
cdef int batch_parse_header(const uint8_t* p, size_t left, BatchHeader* out) noexcept nogil

# Validates a parsed batch, all of whose bytes are at `p`, without building records. `max_bytes` <= 0 = no limit.
# `flags`: CHECK_*. 0 or a BatchFault. Reads every byte once (CRC).
cdef int batch_check(const uint8_t* p, const BatchHeader* header, int64_t max_bytes, int flags) noexcept nogil

# All of batch_check but for the CRC: only the header is read.
cdef int batch_check_header(const BatchHeader* header, int64_t max_bytes, int flags) noexcept nogil

# Kafka's error code for a BatchFault (errorcodes.pxd); 0 for BATCH_OK.
cdef int16_t batch_error_code(int fault) noexcept nogil
cdef const char* batch_error_text(int fault) noexcept nogil

cdef inline int64_t batch_last_offset(const BatchHeader* header) noexcept nogil:
    # By way of unsigned numbers: a hostile base offset may overflow.
    return <int64_t>(<uint64_t>header.base_offset + <uint64_t>header.last_offset_delta)

cdef inline int32_t sequence_add(int32_t sequence, int32_t steps) noexcept nogil:
    # Sequence numbers go round from 2^31 - 1 to 0.
    return <int32_t>((<int64_t>sequence + steps) & INT32_MAX)

cdef inline int32_t batch_last_sequence(const BatchHeader* header) noexcept nogil:
    return -1 if header.base_sequence < 0 else sequence_add(header.base_sequence, header.last_offset_delta)

cdef inline bint batch_is_control(const BatchHeader* header) noexcept nogil:
    return header.magic >= 2 and (header.attributes & CONTROL_BIT) != 0

cdef inline bint batch_is_transactional(const BatchHeader* header) noexcept nogil:
    return header.magic >= 2 and (header.attributes & TRANSACTIONAL_BIT) != 0

# In place, outside the CRC; the header struct isn't changed. Magic 2 only.
cdef void batch_set_offset(uint8_t* p, int64_t base_offset, int32_t leader_epoch) noexcept nogil

# In place: the max timestamp and, if wanted, the LogAppendTime bit (the base timestamp stays, as in Kafka). The
# CRC follows from the old one by linearity, so the payload isn't read, and a CRC that was wrong stays wrong.
cdef void batch_set_max_timestamp(uint8_t* p, int64_t size, int64_t max_ms, bint log_append_time) noexcept nogil

cdef enum MarkerType:
    MARKER_ABORT = 0
    MARKER_COMMIT = 1

# A MarkerType, or BATCH_BAD_RECORDS for anything else (other control types, corrupt). The batch is a parsed control
# batch. `coordinator_epoch` may be NULL.
cdef int batch_marker_type(const uint8_t* p, const BatchHeader* header, int32_t* coordinator_epoch) noexcept nogil

# One record inside of an inflated payload; pointers are into it. Lengths are -1 for null.
cdef struct RecordView:
    int64_t timestamp_delta
    int8_t attributes                           # mean nothing yet
    int32_t offset_delta
    int32_t key_length
    int32_t value_length
    int32_t header_count
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers                      # the first header; read on with `record_header`
    const uint8_t* end

# Where a record is, and the time that its producer gave it. By way of unsigned numbers, as hostile ones overflow.
cdef inline int64_t record_offset(const BatchHeader* header, const RecordView* record) noexcept nogil:
    return <int64_t>(<uint64_t>header.base_offset + <uint64_t>record.offset_delta)

cdef inline int64_t record_create_time(const BatchHeader* header, const RecordView* record) noexcept nogil:
    return <int64_t>(<uint64_t>header.base_timestamp + <uint64_t>record.timestamp_delta)

# Reads the record at `p`; gives the place after it, or NULL when it is corrupt: lengths are checked against
# `end`, headers are walked, and the record must end where its length says.
cdef const uint8_t* record_read(const uint8_t* p, const uint8_t* end, RecordView* out) noexcept nogil

# What a walk over all records of a batch found: times as their producers gave them, and whether a key is missing.
cdef struct RecordsSeen:
    int64_t oldest_ms
    int64_t newest_ms
    bint keyless

# Reads all records of an inflated payload, to its end. 0; BATCH_BAD_RECORDS for what not every client reads as the
# same records: corrupt ones, attributes over 127 (kafka-python takes them for a varint), offset deltas other than
# 0, 1, 2, ...; BATCH_BAD_COUNT when bytes are left over. What it costs is paid for each record that is appended.
cdef int records_walk(const BatchHeader* header, const uint8_t* p, size_t n, RecordsSeen* out) noexcept nogil

cdef struct HeaderView:
    const uint8_t* key
    const uint8_t* value
    int32_t key_length
    int32_t value_length

# Reads the record header at `p`; NULL when it is corrupt.
cdef const uint8_t* record_header(const uint8_t* p, const uint8_t* end, HeaderView* out) noexcept nogil

# What a CodecFault means for the batch whose payload it was.
cdef inline int payload_fault(int codec_fault) noexcept nogil:
    if codec_fault == CODEC_OK:
        return BATCH_OK
    if codec_fault == CODEC_UNKNOWN:
        return BATCH_BAD_CODEC
    if codec_fault == CODEC_CORRUPT:
        return BATCH_BAD_PAYLOAD
    return BATCH_OVER_LIMIT if codec_fault == CODEC_OVER_LIMIT else BATCH_NO_MEMORY

# The records of a batch, inflated when it is compressed: `*data` and `*n` are into the batch itself (codec 0)
# or into `scratch`. 0 or a BatchFault (BATCH_BAD_CODEC, BATCH_BAD_PAYLOAD, BATCH_OVER_LIMIT). Magic 2 only.
cdef int batch_payload(
    const uint8_t* p, const BatchHeader* header, size_t limit_bytes, vector[uint8_t]& scratch, const uint8_t** data,
    size_t* n
) noexcept nogil

# Puts the header of a magic 2 batch before the records that are at `p` + 61, CRC last. `size` is of the whole
# batch.
cdef void batch_write_header(uint8_t* p, const BatchHeader* header) noexcept nogil

# A transaction marker into `out` (78 bytes): control batch of one record. The size is given back.
cdef enum:
    MARKER_SIZE = 78
cdef int batch_write_marker(
    uint8_t* out, bint commit, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
    int64_t timestamp_ms
) noexcept nogil
