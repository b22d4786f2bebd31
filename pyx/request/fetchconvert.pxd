"""Records in a format that their client can read, where they are stored in another one. Clients of Fetch 0 to 3 get
message sets. Clients of Fetch 4 and later get batches of magic 2 where a log has message sets, which most of them
misread: only ranges of segments that have such sets, or may have, come here for them (segment.pxd).

It takes memory and time, so one answer converts at most CONVERT_STORED_MAX_BYTES of stored bytes (but at least one
batch), and a worker thread does it (workers.pxd). Workers are few: they read only what is in the page cache.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from penstock.pyx.request.fetch cimport FetchJob

cdef enum:
    CONVERT_STORED_MAX_BYTES = 4 << 20
    CONVERT_DONE = -1

# Makes `converted` of every range that the client can't read as it is stored, or sets its error. CONVERT_DONE, or the
# range that isn't in memory (never when `may_block`): have it read, gather again, convert again.
cdef int32_t fetch_convert(FetchJob* job, bint may_block) noexcept nogil
