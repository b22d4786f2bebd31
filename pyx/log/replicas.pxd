"""A partition of several replicas, as its broker sees it: its role, and as leader how far the others have fetched.

`broker/cluster/replica.py` and `leader.py` are the specification, and say what each rule guards against; a property
test holds this against them. All is done under the partition's lock, and wakes all who wait for the partition.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libcpp.vector cimport vector

from penstock.pyx.log.partition cimport Partition
from penstock.pyx.log.partitionlog cimport PartitionLog
from penstock.pyx.log.role cimport Mark, ReplicaFetch

# A role as the controller tells it. The members are those of a leader.
cdef struct RoleTerms:
    int64_t broker_epoch               # of this broker, to which it is told
    int32_t leader                     # NO_BROKER: nobody leads
    int32_t leader_epoch
    int32_t partition_epoch
    int32_t unclean_epoch              # of a follower
    int32_t enough
    bint sole                          # of a leader: nobody else can be elected

# This broker leads: with a new leader epoch the lead begins, and nothing is known of any other replica; else the
# members are others. `members`: `broker`, `in_isr`, `in_max` and `named_epoch` of each replica but this broker's own.
# False: the terms are older than what is known, or than the log's last batch; nothing has changed.
cdef bint lead_log(
    Partition* partition, const RoleTerms* terms, const vector[Mark]& members, int64_t now_ms
) noexcept nogil
# Another broker leads, or nobody. False: as above.
cdef bint follow_log(Partition* partition, const RoleTerms* terms) noexcept nogil
# The lease is over: while a member of MAX hasn't fetched for silence_ms clients are refused, as for a leader that is
# cut off; INT64_MAX: the lease holds, so they aren't. Whether they are.
cdef bint isolate_log(Partition* partition, int64_t now_ms, int64_t silence_ms) noexcept nogil
# Whether the control plane has to look at it: a member of the ISR hasn't been caught up for lag_ms, or this broker
# neither leads nor follows.
cdef bint is_unsettled(Partition* partition, int64_t now_ms, int64_t lag_ms) noexcept nogil
# This broker's registration is over. Whether it led.
cdef bint fence_log(Partition* partition) noexcept nogil

# Under the lock, in which the bounds of what is read are taken, too. `wake` gets network threads. 0, or
#   NOT_LEADER_OR_FOLLOWER   this broker doesn't lead, or has no such replica
#   FENCED_LEADER_EPOCH      of an older leader epoch
#   UNKNOWN_LEADER_EPOCH     of a newer one: this broker doesn't lead any more
#   STALE_BROKER_EPOCH       of an older registration than one that has fetched already
#   OFFSET_OUT_OF_RANGE      if its log lies outside of this one, or `begins`
# No mark moves unless it is 0 and the logs haven't diverged.
cdef int16_t replica_fetched(PartitionLog* p, ReplicaFetch* fetch, uint64_t* wake) noexcept nogil
