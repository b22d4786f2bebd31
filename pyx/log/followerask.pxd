"""What a follower's fetch names, and whether it fits still when the leader's answer comes: rule R4 of
`broker/cluster/follower.py`."""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.log.partitionlog cimport PartitionLog, last_batch_epoch
from penstock.pyx.log.role cimport ROLE_FOLLOWER

cdef struct FollowerAsk:
    int32_t leader_id
    int64_t broker_epoch
    int32_t leader_epoch
    int64_t offset                     # the log end: everything below is written
    int32_t last_epoch                 # of the last batch; NO_EPOCH: there is none
    int64_t log_start

# Under the lock.
cdef inline bint ask_fits(const PartitionLog* p, const FollowerAsk* ask) noexcept nogil:
    return (
        p.role == ROLE_FOLLOWER
        and not p.cutting
        and p.leader_id == ask.leader_id
        and p.broker_epoch == ask.broker_epoch
        and p.leader_epoch == ask.leader_epoch
        and p.log.log_end == ask.offset
        and last_batch_epoch(p) == ask.last_epoch
    )
