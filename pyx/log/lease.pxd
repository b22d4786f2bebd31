"""Until when this broker surely leads what it leads, by CLOCK_BOOTTIME in ms: one number of a LogSet (partition.pxd).

`broker/cluster/lease.py` says why. Each question reads the clock again: the thread may have been stopped since it
read one last.
"""

from libc.stdint cimport INT64_MAX, int64_t

from penstock.pyx.linux.boottime cimport boottime_ms
from penstock.pyx.linux.posix cimport atomic_load64


# Whether somebody else may lead by now. Without a cluster, or without leases, the number is INT64_MAX: one compare.
cdef inline bint lease_is_over(const int64_t* until_ms) noexcept nogil:
    cdef int64_t until = atomic_load64(until_ms)
    return until != INT64_MAX and boottime_ms() >= until
