"""The first half of a compaction pass: each key's newest offset into the map."""

from libc.stdint cimport int64_t

from penstock.pyx.compaction.cleaning cimport Cleaning
from penstock.pyx.log.segment cimport Segment

# The segment's keys into the map. `next_base`: where the next segment begins. Before the first one of a pass:
# track_begin. 0, a CleanResult or errno.
cdef int clean_keys(Cleaning* c, Segment* s, int64_t next_base) noexcept nogil
