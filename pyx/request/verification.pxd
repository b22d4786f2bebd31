"""Which partitions of a produce request have to be asked of the transaction coordinator before anything is appended
(KIP-890).

A transactional batch may only be appended where its transaction goes on already: the first one in a partition has to be
known to the coordinator, so that a marker ends it. Otherwise a batch that comes late, after the marker, would begin a
transaction that nothing ends.
"""

from libc.stdint cimport int16_t, int32_t, int64_t
from libcpp.vector cimport vector

from penstock.pyx.log.partition cimport LogSet, Partition
from penstock.pyx.record.frame cimport Reader, RequestHead

# A partition that has to be asked about. The producer is that of its first transactional batch.
cdef struct Unverified:
    int32_t place                      # of the partition in the request, counted through all its topics
    Partition* partition               # a reference: unverified_free
    int64_t producer_id
    int16_t producer_epoch

# Whether any partition of a whole request (its reader stands at the body) has to be asked about. With `out` all of
# them are appended to it, else the first one ends the search.
cdef bint find_unverified(LogSet* logs, const RequestHead* head, Reader body, vector[Unverified]* out) noexcept nogil
cdef void unverified_free(vector[Unverified]& found) noexcept nogil
