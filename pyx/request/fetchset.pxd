"""The partitions that one client fetches: those of one request, or those of its session. They have an order, in
which they are read. A set that is indexed (a session's) holds no partition twice and finds each by its name.

`at` is an index into `partitions`, valid until that partition is removed. Partitions are looked up when they are read:
`partition` is NULL until then, and again after its log was stopped.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from penstock.pyx.log.partition cimport LogSet, Partition
from penstock.pyx.record.frame cimport TOPIC_ID_BYTES, Slice

cdef enum:
    NOWHERE = -1                      # no place: the end of an order or a chain, not found, no memory

cdef struct FetchTopic:
    uint8_t* name                     # a copy; NULL: the client speaks of it by id
    int32_t name_n
    uint8_t topic_id[TOPIC_ID_BYTES]
    int32_t partitions                # of the set; an indexed set forgets a topic with its last one
    uint32_t hash
    int32_t chain                     # the next in its bucket, or the next free place

cdef struct FetchPartition:
    Partition* partition              # a reference
    int32_t topic
    int32_t index
    int32_t leader_epoch              # as the client knows it; -1 doesn't ask for a check
    int32_t last_fetched_epoch        # -1 doesn't ask for a check
    int32_t max_bytes
    int64_t offset
    int64_t log_start                 # a follower's
    int64_t broker_epoch              # of a follower's registration, in which it has said this offset
    int64_t known_end                 # by the request's isolation, when it was last read
    int64_t cached_high_watermark     # what the client of a session knows; -1: it has to be sent again
    int64_t cached_log_start
    int32_t next                      # in the order of reading
    int32_t previous
    int32_t chain

cdef struct FetchSet:
    FetchTopic* topics
    int32_t topics_used
    int32_t topics_capacity
    int32_t topics_free
    FetchPartition* partitions
    int32_t used
    int32_t capacity
    int32_t free
    int32_t count
    int32_t first
    int32_t last
    int32_t* buckets                  # of topics, then as many of partitions; NULL: not indexed
    int32_t bucket_count              # a power of two
    int64_t bytes                     # all that it holds

cdef void set_open(FetchSet* s) noexcept nogil
cdef void set_close(FetchSet* s) noexcept nogil                   # gives back memory and partitions; then as opened
cdef bint set_index(FetchSet* s) noexcept nogil                   # of an empty set. False: no memory

# The place of a topic, by its id if that isn't NULL. An indexed set finds it, any other adds it again.
cdef int32_t set_topic(FetchSet* s, Slice name, const uint8_t* topic_id) noexcept nogil
# Adds a partition at the end of the order, whether the set has it or not.
cdef int32_t set_add(FetchSet* s, int32_t topic, int32_t index) noexcept nogil
cdef void set_remove(FetchSet* s, int32_t at) noexcept nogil      # of an indexed set
cdef void set_move_last(FetchSet* s, int32_t at) noexcept nogil

# Into an indexed set: what `asked` has replaces what was asked before, new ones come last. `tells_again`: who asks
# is told all of these partitions again, as if it had been told nothing. False: no memory.
cdef bint set_merge(FetchSet* s, const FetchSet* asked, bint tells_again) noexcept nogil
# Out of an indexed set: the partitions of `forgotten`, as far as they are there.
cdef void set_subtract(FetchSet* s, const FetchSet* forgotten) noexcept nogil

# Finds the partition unless it is known: 0, or the error that says why there is none.
cdef int16_t set_resolve(FetchSet* s, LogSet* logs, FetchPartition* partition) noexcept nogil
cdef void set_unresolve(FetchPartition* partition) noexcept nogil
