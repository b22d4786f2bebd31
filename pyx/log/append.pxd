"""The one way into a log, for producers, this broker's coordinators and replicas.

Parts that a connection brought at once are validated one by one, as if each came alone, and are written with one
`pwritev`: the page cache takes a large write in larger folios than two small ones.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from penstock.pyx.log.followerask cimport FollowerAsk
from penstock.pyx.log.origin cimport Origin
from penstock.pyx.log.partition cimport Partition
from penstock.pyx.log.validator cimport Refusal, Validated

# Why an append got KAFKA_STORAGE_ERROR.
cdef enum StorageFault:
    STORAGE_FAILED = 1                 # the partition is offline
    STORAGE_FULL = 2
    STORAGE_SHORTAGE = 3               # of memory or descriptors

# What an append did. `base_offset` is the offset of the first record, also of a duplicate (error 0 then), -1 on errors.
cdef struct Appended:
    int16_t error
    int64_t base_offset
    int64_t log_append_time_ms         # -1 unless message.timestamp.type is LogAppendTime
    int64_t log_start_offset           # -1 if unknown
    int64_t needed                     # once the high watermark is there, all replicas that count have the records;
    int32_t leader_epoch               # unless another leader came since this epoch, in which they were appended
    bint waits                         # it isn't there yet
    StorageFault storage               # for KAFKA_STORAGE_ERROR alone
    bint tallied                       # the log has counted the part; else the caller does, unless it tries again
    Refusal refusal                    # what was wrong with the records, where the error code doesn't say it all

# The batches, or the message set, of one partition of one produce request: appended all or (on an error) none of them.
# `records` is written to: base offsets, leader epochs and (LogAppendTime) timestamps and CRCs.
cdef struct Append:
    uint8_t* records
    size_t n
    Origin origin
    const FollowerAsk* ask             # of a REPLICA: what has to fit still; NULL: the caller knows that it does
    int64_t* may_inflate               # bytes of payloads that may be inflated; what was is taken off: a bound to share
    int64_t* work_left                 # what validating may cost (validator.pxd); what it did is taken off
    bint acks_all                      # it is refused while too few replicas are in sync
    int32_t led_since                  # it is refused unless this broker has led since that epoch; NO_EPOCH: any
    int64_t guard                      # of VERIFIED, ADDED: taken before the coordinator was asked (producerstate.pxd)
    const int64_t* lease_until_ms      # refused, or not answered for, once that is over; NULL: it waits for others
    Validated* checked                 # by partition_validate; NULL: partition_append does it
    Appended done

# Validates a part before it is appended, so that several can be before any of them is: `done` says what is wrong.
# False: it takes more work than `work_left`; the records are as good as before.
cdef bint partition_validate(Partition* p, Append* part, Validated* into) noexcept nogil

# Appends the parts in their order, under one lock, and those that go into the same segment with one write (fewer of
# them if they had to be written again, which is held meanwhile). One part's error is no other's, except that a write
# fails for all that were in it, and NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS and KAFKA_STORAGE_ERROR go for all
# parts that follow. Fills their `done`; its errors are those of validate_records, of producer_data (an old
# duplicate is OUT_OF_ORDER_SEQUENCE_NUMBER) and of producer_marker, and
#   NOT_LEADER_OR_FOLLOWER   the partition was stopped, is being cut, another broker leads it, or has led it since
#                            `led_since`, it isn't what a follower's fetch named, or a segment has to be proved first;
#                            or the lease is over and another broker may lead it (what was appended stays)
#   NOT_ENOUGH_REPLICAS      fewer are in sync than min.insync.replicas demands, and `acks_all`; or a batch would begin
#                            a transaction, and its guard doesn't count any more: the client sends it again, and the
#                            coordinator is asked again
#   KAFKA_STORAGE_ERROR      the disk failed or is full
#   INVALID_TXN_STATE        also for a client's batch that would begin a transaction in the partition
#                            (LogConfig.verify_transactions): it is appended as VERIFIED or ADDED, once the coordinator
#                            has been asked (verification.pxd)
# Waiters are woken through the hook before it returns.
cdef void partition_append(Partition* p, Append** parts, size_t count) noexcept nogil
