"""Proving a segment: walking its batches by their headers, once, where neither this process nor its checks (checks.pxd)
can say that its index files, its largest timestamp and its aborted transactions are right.

Apache Kafka leaves no checks, and keeps other entries than we do: what agrees with the batches stays as it is. What
doesn't is replaced by what the walk has found, and that is said (logstate.pxd, Note). The checks are written, so that
the next start needs no walk.

What needs a proof:
    retention by time   before it lets a segment go (upkeep.pyx)
    a search by time    of each segment that it passes over or reads (read.pyx, logmanager.pyx)
    compaction          of the whole log, before it decides by aborted transactions (cleaner.pyx)
    a fetch             of aborted transactions, or by an index file that turns out to be wrong: network threads don't
                        walk, they answer NOT_LEADER_OR_FOLLOWER, which clients try again, and the control plane proves
    a fetch             of a segment of which nobody knows whether it has messages of older formats: it is answered, and
                        looks into each range that it gives until the control plane has proved (fetchconvert.pxd)

A segment with a batch that can't be read is `corrupt`: retention by time keeps it, for the rest its files are
believed.
"""

from libc.stdint cimport int64_t

from penstock.pyx.log.partitionlog cimport PartitionLog

# All with `upkeep` held, and without other locks. 0 or errno.
# Those that are `doubted`.
cdef int prove_doubted(PartitionLog* p, int64_t now_ms) noexcept nogil
# All of them, to the last byte of their index files.
cdef int prove_all(PartitionLog* p, int64_t now_ms) noexcept nogil
# What retention by time is about to let go, and what keeps it from going on.
cdef int prove_expired(PartitionLog* p, size_t count, int64_t now_ms, bint* proved) noexcept nogil
