"""A follower's log: what its fetch names, and what becomes of its leader's answer.

`broker/cluster/follower.py` has the rules and why they are. All of this runs on a fetcher thread, in the order
follower_ask -> (the fetch, its answer) -> follower_append, follower_cut or follower_begin. What a fetch names is taken
under the partition's lock, and has to fit when the answer is taken (followerask.pxd).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from penstock.pyx.log.followerask cimport FollowerAsk
from penstock.pyx.log.partition cimport Partition

cdef enum FollowResult:
    FOLLOW_DONE = 0
    FOLLOW_STALE = 1                   # the partition isn't any more what the fetch named; ask again
    # CRC, torn, offsets or epochs that don't follow, or the first hole that the log is to have, which has to come
    # twice: nothing of it was appended.
    FOLLOW_ROTTEN = 2
    FOLLOW_REFUSED = 3                 # a cut below the high watermark: the replica is ROLE_OFFLINE from now on
    FOLLOW_DISK = 4                    # the disk failed or is full

# False: it is no follower (any more), or nothing can be appended to it just now.
cdef bint follower_ask(Partition* p, FollowerAsk* out) noexcept nogil
# The leader's answer: appends its whole batches (the last one may be cut short, as the answer has a bound) up to the
# first one whose epoch doesn't follow, then moves high watermark and log start. `records` may be written to.
# `removed_below` is the leader's if it is past what was asked for, else 0: the log takes it over before the records.
cdef FollowResult follower_append(
    Partition* p, const FollowerAsk* ask, uint8_t* records, size_t n, int64_t high_watermark, int64_t log_start,
    int64_t removed_below
) noexcept nogil
# The logs part: the leader's largest epoch up to the follower's last one is `epoch`, and ends at `end_offset`.
cdef FollowResult follower_cut(
    Partition* p, const FollowerAsk* ask, int32_t epoch, int64_t end_offset
) noexcept nogil
# The log ends below the leader's log start, or may keep what was deleted by deletions below `removed_below`, which the
# leader has no more: all of it goes, and it begins at that start. `again`: so it began before, and was overtaken.
cdef FollowResult follower_begin(
    Partition* p, const FollowerAsk* ask, int64_t log_start, int64_t removed_below, bint again
) noexcept nogil
