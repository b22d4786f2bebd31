"""What becomes of records between the wire and the log: validated, and only where it must be, rewritten.

A batch of magic 2 stays as its producer made it:
  - it is opened, and every record checked: penstock.validate.records is `full` (the default), the topic is
    compacted (no record may be without a key), compression.type names another codec, or the largest timestamp is
    missing;
  - else its header and checksum are checked.
One that was opened is compressed again if compression.type names another codec, or if its payload is framed as Java
reads it, but not every client (several gzip members: librdkafka reads the first and drops the rest).
Message sets (magic 0 and 1) become batches of magic 2 (upconvert.pxd), in their own codec or the topic's, as in Kafka
3: clients of today don't read them all. Where message.format.version asks for an older format they keep their magic:
messages that lie plain get offsets in place; a wrapper of magic 1 too, if its messages have the relative offsets 0,
1, ...; a wrapper of magic 0 is compressed again, as its messages get absolute offsets (as in Kafka 0.8 to 2.8).
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libcpp.vector cimport vector

from penstock.pyx.log.logconfig cimport LogConfig
from penstock.pyx.log.origin cimport Origin
from penstock.pyx.record.batch cimport BatchHeader

cdef enum:
    # A batch that inflates to more than these bytes and as many for each of its own, or to more than `may_inflate`,
    # is MESSAGE_TOO_LARGE. Only the Java producer fills batches by their compressed size, and splits what is refused.
    INFLATED_MAX_BYTES = 64 << 20
    INFLATED_PER_BYTE = 16
    # Work is counted in bytes that a fast codec inflates: a processor does some 500 million a second. A byte to be
    # compressed counts as so many of them:
    WORK_FAST = 2                              # snappy, lz4, zstd at its lowest levels
    WORK_MEDIUM = 16                           # gzip, lz4 at its high levels, zstd up to level 9
    WORK_SLOW = 256                            # zstd above
    REFUSED_MAX = 16                           # records that an answer names; the others are refused all the same

# No error of Kafka's: nothing is wrong with the records, but to open or to compress them takes more than `work_left`.
cdef enum:
    VALIDATE_TOO_MUCH_WORK = -32767

cdef enum ValidateRecords:
    VALIDATE_NONE = 0                           # header fields: no checksum. Rot is found by readers and recovery
    VALIDATE_HEADERS = 1                        # and the checksum
    VALIDATE_FULL = 2                           # and every record

# What is wrong, for the answer. `fault` is a BatchFault, 0 when the error code says it all; `refused` are the
# numbers of records within the batch, in order.
cdef struct Refusal:
    int fault
    int32_t count
    int32_t records[REFUSED_MAX]

cdef struct Validated:
    uint8_t* records                            # what is to be appended: the caller's bytes or `rebuilt`
    size_t n
    vector[BatchHeader] batches                 # of a wrapper that is kept: last_offset_delta is right
    vector[uint8_t] rebuilt
    vector[uint8_t] inner                       # messages of a wrapper of magic 0 that wait for their offsets
    int64_t may_inflate                         # bytes, set by the caller; what was inflated is taken off
    int64_t work_left                           # set by the caller; what was done is taken off (WORK_* above)
    bint too_much_work                          # more than that: the result is VALIDATE_TOO_MUCH_WORK
    bint stamps                                 # the topic's timestamps are the log's
    int wrapper_codec
    int wrapper_level
    int64_t placed_at                           # the first offset that `rebuilt` was made for; -1: none yet
    Refusal refusal

# Validates `records` without any lock and prepares them; they may be written to, so that they can be validated again.
# 0, VALIDATE_TOO_MUCH_WORK or Kafka's code:
# CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, KAFKA_STORAGE_ERROR (no memory),
# UNSUPPORTED_COMPRESSION_TYPE or INVALID_RECORD.
cdef int16_t validate_records(
    const LogConfig* config, uint8_t* records, size_t n, Origin origin, int64_t now_ms, Validated* out
) noexcept nogil

# LogAppendTime, if the topic has it, into records that are about to be appended. They couldn't be validated again.
cdef void stamp_validated(Validated* out, int64_t now_ms) noexcept nogil

# What needs the offset of the first record: wrappers of magic 0 are compressed (MESSAGE_TOO_LARGE may come of that).
# Called first with the offset that is likely, so that under the partition's lock there is nothing left to do unless
# another thread has appended meanwhile.
cdef int16_t place_validated(const LogConfig* config, Validated* out, int64_t offset) noexcept nogil
