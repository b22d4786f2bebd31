"""The answer to a follower's fetch (Fetch 17), read in the order of its bytes while they come.

  size int32 | correlation_id int32 | tags | throttle int32 | error int16 | session_id int32 | topics:
    topic_id 16 | partitions:
      index int32 | error int16 | high watermark, last stable offset, log start int64 | aborted transactions
      | preferred replica int32 | records | tags (0: the diverging epoch; 10000: removed_below int64)
    | tags
  | tags

An answer is never whole in memory: a caller needs the bytes of one partition at a time. It calls `reply_next` with all
bytes that it has and hasn't given, drops `taken` of them, and calls again until REPLY_MORE.

The leader may lie. A count is held against the bytes that the answer says it still has, and only bounds a loop. A
length of records above `records_max` ends the answer before the records come, and everything else of a partition or
topic is bounded by ELEMENT_BYTES_MAX.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from penstock.pyx.record.frame cimport TOPIC_ID_BYTES

cdef enum:
    ELEMENT_BYTES_MAX = 262144        # of what isn't records, in one element

cdef enum ReplyStep:
    STEP_SIZE = 0
    STEP_HEAD = 1
    STEP_TOPIC = 2
    STEP_PARTITION = 3
    STEP_TOPIC_TAGS = 4
    STEP_TAGS = 5

cdef enum ReplyEvent:
    REPLY_BAD = -1                    # no Fetch answer looks like that
    REPLY_MORE = 0                    # `wanted` bytes have to be there from the first one that wasn't taken
    REPLY_HEAD = 1                    # correlation_id, error and session_id are known
    REPLY_PARTITION = 2               # `part` has one of the topic `topic_id`
    REPLY_END = 3                     # the next byte is another answer's
    REPLY_ON = 4                      # never given to a caller: the next element follows

cdef struct Reply:                    # all zero: an answer begins
    ReplyStep step
    int64_t left                      # bytes of the answer that weren't taken
    size_t wanted
    int32_t correlation_id
    int16_t error
    int32_t session_id
    int32_t topics                    # that are left, this one included
    int32_t partitions
    uint8_t topic_id[TOPIC_ID_BYTES]

cdef struct ReplyPart:
    int32_t index
    int16_t error
    int64_t leader_high_watermark
    int64_t log_start
    uint8_t* records                  # in the caller's bytes
    size_t n
    bint diverged                     # the logs part, at an offset that may be one
    int32_t diverging_epoch
    int64_t diverging_end
    int64_t removed_below             # of the leader's log, if it is past the fetch's offset; else 0 (log/removals.pxd)

cdef ReplyEvent reply_next(
    Reply* reply, uint8_t* p, size_t n, size_t records_max, size_t* taken, ReplyPart* part
) noexcept nogil
