"""What this broker does for a partition that it holds, and how far the others have fetched from it.

`broker/cluster/replica.py` and `leader.py` say when a role changes and what each mark means; this is what the data
plane keeps of it. On a broker without a cluster each log has ROLE_LEADER and no marks.
"""

from libc.stdint cimport int32_t, int64_t

cdef enum Role:
    ROLE_LEADER = 0
    ROLE_FOLLOWER = 1
    ROLE_FENCED = 2                    # nobody leads, or this broker's registration is over
    ROLE_OFFLINE = 3                   # a cut below the high watermark was refused; its bytes stay

cdef enum:
    NO_BROKER = -1
    NO_EPOCH = -1

# Of one replica but this broker's own, while this broker leads. Times are of CLOCK_MONOTONIC, in ms.
cdef struct Mark:
    int32_t broker
    bint in_isr
    bint in_max                        # in the ISR, or its entry has been proposed
    int64_t named_epoch                # the broker epoch under which the controller named it
    int64_t broker_epoch               # of its last fetch
    int64_t end                        # all records below it are in its log
    int64_t log_start
    int64_t caught_up_ms               # when it last had all that there was
    int64_t fetched_ms
    int64_t end_at_fetch               # the leader's log end at that fetch
    int64_t removed_below              # the leader's at that fetch

# What the fetch of another replica says of one partition.
cdef struct ReplicaFetch:
    int32_t replica
    int64_t broker_epoch
    int32_t leader_epoch
    int64_t offset                     # all below is in its log
    int32_t last_epoch                 # of its last batch; NO_EPOCH: its log is empty
    int64_t log_start
    int64_t now_ms                     # when the fetch came
    bint moves                         # its first try: one that has waited says nothing new
    # The answer:
    bint begins                        # it may keep what was deleted: its log begins again at this log's start
    int64_t removed_below              # of this log, if it is past `offset`; else 0
    bint diverged                      # its log isn't a part of this one
    int32_t diverging_epoch
    int64_t diverging_end
