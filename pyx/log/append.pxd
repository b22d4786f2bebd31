"""The one way into a log, for producers, this broker's coordinators and replicas."""

from libc.stdint cimport int16_t, int64_t, uint8_t

from penstock.pyx.log.partition cimport Partition
from penstock.pyx.log.validator cimport Refusal

cdef enum:
    # Who appends. It decides what is checked.
    ORIGIN_CLIENT = 0                  # a producer: sequences are checked, control batches are refused
    ORIGIN_COORDINATOR = 1             # this broker's coordinators: control batches allowed, no sequences
    ORIGIN_REPLICA = 2                 # bytes of the leader: offsets and leader epochs are kept as they are
    ORIGIN_VERIFIED = 3                # a producer whose transaction the coordinator has just been asked about
    ORIGIN_ADDED = 4                   # the same with transactions v2: the coordinator has added the partition to it
    ORIGIN_MARKER = 5                  # a marker of transactions v2: its epoch is above that of its records

cdef inline bint from_client(int origin) noexcept nogil:
    return origin == ORIGIN_CLIENT or origin == ORIGIN_VERIFIED or origin == ORIGIN_ADDED

# What an append did. `base_offset` is the offset of the first record, also of a duplicate (error 0 then), -1 on errors.
cdef struct Appended:
    int16_t error
    int64_t base_offset
    int64_t log_append_time_ms         # -1 unless message.timestamp.type is LogAppendTime
    int64_t log_start_offset           # -1 if unknown
    Refusal refusal                    # what was wrong with the records, where the error code doesn't say it all

# The batches, or the message set, of one partition of one produce request: appended all or (on an error) none of them.
# `records` is written to: base offsets, leader epochs and (LogAppendTime) timestamps and CRCs.
cdef struct Append:
    uint8_t* records
    size_t n
    int origin
    int64_t* may_inflate               # bytes of payloads that may be inflated; what was is taken off: a bound to share
    Appended done

# Appends the parts in their order, under one lock, and those that go into the same segment with one write (fewer of
# them if they had to be written anew, which is held meanwhile). One part's error is no other's, except that a write
# fails for all that were in it. Fills their `done`; its errors:
#   2 CORRUPT_MESSAGE (CRC, length, garbage)          6 NOT_LEADER_OR_FOLLOWER (stopped)
#  10 MESSAGE_TOO_LARGE   18 RECORD_LIST_TOO_LARGE   32 INVALID_TIMESTAMP    87 INVALID_RECORD
#  45 OUT_OF_ORDER_SEQUENCE_NUMBER   46 DUPLICATE_SEQUENCE_NUMBER is not used (an old duplicate is out of order)
#  76 UNSUPPORTED_COMPRESSION_TYPE
#  47 INVALID_PRODUCER_EPOCH   48 INVALID_TXN_STATE   52 TRANSACTION_COORDINATOR_FENCED   56 KAFKA_STORAGE_ERROR
# 48 also for a client's batch that would begin a transaction in the partition (LogConfig.verify_transactions): it is
# appended as ORIGIN_VERIFIED or ORIGIN_ADDED, once the coordinator has been asked (verification.pxd).
# Waiters are woken through the hook before it returns.
cdef void partition_append(Partition* p, Append** parts, size_t count) noexcept nogil
