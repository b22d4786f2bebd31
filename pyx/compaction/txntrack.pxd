"""Which transactions a walk over a log's batches is in.

The data of an aborted transaction lies between the first and the last offset that the index of aborted ones has for it;
a marker ends the transaction of its producer. What was seen on the way says whether a marker still has data before it.
"""

from libc.stdint cimport int64_t, uint8_t
from libcpp.unordered_map cimport unordered_map
from libcpp.unordered_set cimport unordered_set
from libcpp.vector cimport vector

from penstock.pyx.record.batch cimport BatchHeader

cdef struct AbortSpan:                 # an entry of a .txnindex
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset
    int64_t stable_offset

cdef struct OngoingAbort:
    AbortSpan span
    bint observed                      # data of it was seen in this walk

cdef struct TxnTrack:
    vector[AbortSpan] aborted          # by first offset; set by the caller
    size_t next                        # of these, the first that the walk has not reached
    unordered_map[int64_t, OngoingAbort] ongoing
    unordered_set[int64_t] committed

# Before the first batch of a walk.
cdef void track_begin(TxnTrack* t) noexcept nogil
# Whether the data batch belongs to an aborted transaction.
cdef bint track_data(TxnTrack* t, const BatchHeader* header) noexcept nogil
# Whether nothing is left of the control batch's transaction. `ended`: the index's entry of an abort marker, its
# producer_id -1 for anything else.
cdef bint track_control(TxnTrack* t, const uint8_t* bytes, const BatchHeader* header, AbortSpan* ended) noexcept nogil
