"""Looking whether a begun FetchJob has enough to answer, and taking the ranges to answer with.

Partitions are read in their order. The first one with records returns its first batch whole, even above every limit;
the others share what is left of max_bytes and never begin with a batch that was cut. (Versions
below 3 know no limit for a whole answer: there each partition gives its first batch whole, until the broker's own
limit is reached.) In a session only partitions with news are answered: records, an error, a log that parted, or
another high watermark or log start than the client knows.
"""

from penstock.pyx.request.fetch cimport FetchJob

cdef enum FetchState:
    FETCH_WAIT = 0                    # too little there: every partition is watched, the job holds no range
    FETCH_READY = 1                   # the job holds the ranges to answer with
    FETCH_AGAIN = 2                   # the ends keep moving: try again on a later turn
    FETCH_COLD = 3                    # ranges[cold] has to be in memory first, then try again
    FETCH_CONVERT = 4                 # fetch_convert_ranges, which takes long, comes first, then try again
    FETCH_HELD = 5                    # a partition is held (partition.pxd): try again then
    FETCH_FAILED = -1                 # no memory: the connection has to be closed

# `must_answer`: its time is up, answer with what there is. `reactor` is the network thread to wake.
cdef FetchState fetch_try(FetchJob* job, int reactor, bint must_answer) noexcept nogil

# After FETCH_CONVERT, on a thread that alone has the job.
cdef void fetch_convert_ranges(FetchJob* job) noexcept nogil
