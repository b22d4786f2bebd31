"""Fetch sessions (KIP-227): the broker remembers which partitions a client fetches and what it sent of them, so
that a request names only what changed and an answer only what has news.

A session belongs to a client, not to a connection or a thread. A request takes it by id and epoch, and gives it
back when it was answered (or its connection is gone); between the two only that request's thread touches its set.
The epoch grows with each taking, so a request that comes twice, or while another has the session, is refused.

Kafka's rules of eviction, with all slots in use: a session that wasn't used for eviction_ms may be evicted. So may a
consumer's by a follower's (privileged), and one with fewer partitions by one with more; of sessions younger than
eviction_ms only a follower's evicts another. Beyond Kafka: `bytes_max` bounds what
all of them hold; a client that would exceed it has no session and sends whole requests.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libcpp.map cimport map
from libcpp.pair cimport pair
from libcpp.unordered_map cimport unordered_map

from penstock.pyx.linux.posix cimport pthread_mutex_t
from penstock.pyx.request.fetchset cimport FetchSet

cdef enum:
    SESSION_EPOCH_INITIAL = 0         # a full request that would like a session
    SESSION_EPOCH_FINAL = -1          # a full request without one
    SESSION_IDLE_MS = 10000           # or eviction_ms, if that is less

cdef struct Session:
    int32_t id
    int32_t epoch                     # that the next request has to bear
    bint by_ids                       # topics by id, not by name
    bint privileged
    bint taken
    bint unresolved                    # knows its partitions by name only
    bint dropped                      # closed or evicted while it was taken: freed when it comes back
    int64_t made_ms
    int64_t used_ms
    int32_t size                      # partitions and bytes as the cache counts them
    int64_t bytes
    FetchSet set                      # the taker's

ctypedef pair[int64_t, int32_t] SessionKey

cdef struct SessionCache:
    pthread_mutex_t lock
    unordered_map[int32_t, Session*] by_id
    map[SessionKey, Session*] by_use              # (used_ms, id)
    map[SessionKey, Session*] by_worth            # (privileged and size, id): what anybody may evict
    map[SessionKey, Session*] by_worth_privileged  # what a privileged one may
    int32_t slots_max
    int64_t eviction_ms
    int64_t bytes_max
    int64_t bytes
    int64_t partitions
    int64_t evictions
    uint64_t random                   # state of the ids' generator

# 0 slots: no client gets a session. NULL: no memory.
cdef SessionCache* sessions_new(int32_t slots_max, int64_t eviction_ms, int64_t bytes_max) noexcept nogil
cdef void sessions_free(SessionCache* cache) noexcept nogil       # after the last request gave its session back

# 0 and the session, or 70 FETCH_SESSION_ID_NOT_FOUND, 71 INVALID_FETCH_SESSION_EPOCH, 106 FETCH_SESSION_TOPIC_ID_ERROR.
cdef int16_t session_take(
    SessionCache* cache, int32_t id, int32_t epoch, bint by_ids, int64_t now_ms, Session** out
) noexcept nogil
# A new session that takes over the set (which is left open and empty) and is taken already. NULL: there is no room.
cdef Session* session_make(
    SessionCache* cache, FetchSet* set, bint by_ids, bint privileged, int64_t now_ms
) noexcept nogil
# After its set changed. One that holds too much now is dropped; the taker may still use it.
cdef void session_resized(SessionCache* cache, Session* session) noexcept nogil
# Sessions that weren't used for a while let go of the logs: a topic that is deleted meanwhile keeps no files open.
cdef void sessions_unresolve_idle(SessionCache* cache, int64_t now_ms) noexcept nogil
cdef void session_give_back(SessionCache* cache, Session* session) noexcept nogil
cdef void session_close(SessionCache* cache, int32_t id) noexcept nogil       # if there is one
cdef void session_drop(SessionCache* cache, Session* session) noexcept nogil  # by its taker, who still gives it back
