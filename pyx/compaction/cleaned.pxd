"""What a group of segments becomes: a segment whose files are named `.cleaned` as yet."""

from libc.stdint cimport int64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.compaction.cleaning cimport Cleaning
from penstock.pyx.linux.posix cimport timespec
from penstock.pyx.log.segment cimport Segment
from penstock.pyx.record.batch cimport BatchHeader

cdef struct Cleaned:
    Segment* segment
    int64_t position                   # of the batch that is written next
    int64_t spare                      # by how much what is left to read may grow, so that positions still fit
    bint changed                       # something went, or segments became one

# An empty one. 0 or errno; `segment` is there in any case.
cdef int cleaned_begin(Cleaning* c, const string& folder, const vector[Segment*]& group, Cleaned* out) noexcept nogil
# A batch behind the others, and into the indexes. 0, CLEAN_CANCELLED or errno.
cdef int cleaned_write(Cleaning* c, Cleaned* out, const uint8_t* bytes, const BatchHeader* header) noexcept nogil
# What is not written yet; if something changed, then all of it to the disk, dated `times`. `next_base`: where the next
# segment begins. Results as above.
cdef int cleaned_end(Cleaning* c, Cleaned* out, int64_t next_base, const timespec* times) noexcept nogil
