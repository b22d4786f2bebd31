"""A log opened, halted and closed, in the order of calls. Answers are 0 or errno."""

from libc.stdint cimport int32_t, int64_t

from penstock.pyx.log.partitionlog cimport PartitionLog
from penstock.pyx.log.recovery cimport RecoveryReport

# A log whose folder is there, recovered and ready. Of a leader all is committed; of any other role what lies below
# `high_watermark` is, as far as the log goes.
cdef int open_log(PartitionLog* p, int32_t leader_epoch, bint clean, RecoveryReport* report) noexcept nogil
# Under the lock: the leader epoch only grows, and begins at the log end.
cdef void raise_epoch(PartitionLog* p, int32_t leader_epoch) noexcept nogil
# No more appends or reads; fetches that wait are answered.
cdef void halt_log(PartitionLog* p) noexcept nogil
# With `upkeep` held and the log halted: everything to the disk, so that the next start believes it.
cdef int close_log(PartitionLog* p, int64_t now_ms) noexcept nogil
