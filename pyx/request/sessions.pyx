"""Fetch sessions; see sessions.pxd."""

from cython.operator cimport dereference as at, postincrement
from libc.stdint cimport INT32_MAX

from penstock.pyx.errorcodes cimport (
    FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH,
)
from penstock.pyx.linux.posix cimport (
    CLOCK_REALTIME, calloc, clock_gettime, free, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, timespec,
)
from penstock.pyx.log.files cimport dropped, made
from penstock.pyx.request.fetchset cimport NOWHERE, set_close, set_open, set_unresolve


cdef SessionCache* sessions_new(int32_t slots_max, int64_t eviction_ms, int64_t bytes_max) noexcept nogil:
    cdef SessionCache* cache = made[SessionCache]()
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    pthread_mutex_init(&cache.lock, NULL)
    cache.slots_max = slots_max
    cache.eviction_ms = eviction_ms
    cache.bytes_max = bytes_max
    cache.bytes = 0
    cache.partitions = 0
    cache.evictions = 0
    # Ids of before a restart mean nothing after it: an old client's next request has to miss.
    cache.random = (<uint64_t>now.tv_sec << 32) ^ (<uint64_t>now.tv_nsec << 2) ^ <uint64_t><size_t>cache | 1
    return cache


cdef void sessions_free(SessionCache* cache) noexcept nogil:
    while not cache.by_id.empty():
        _take_out(cache, at(cache.by_id.begin()).second)
    pthread_mutex_destroy(&cache.lock)
    dropped[SessionCache](cache)


# --- under the lock -----------------------------------------------------------------------------------------
cdef inline SessionKey _use_key(const Session* s) noexcept nogil:
    return SessionKey(s.used_ms, s.id)


cdef inline SessionKey _worth_key(bint privileged, int32_t size, int32_t id) noexcept nogil:
    return SessionKey((<int64_t>privileged << 32) | size, id)


cdef void _list_worth(SessionCache* cache, Session* s) noexcept nogil:
    """Puts a session where it can be found by its worth, as far as it may be evicted for it."""
    cdef SessionKey key = _worth_key(s.privileged, s.size, s.id)
    cdef bint old = s.used_ms - s.made_ms > cache.eviction_ms
    if old:
        cache.by_worth[key] = s
    if old or not s.privileged:
        cache.by_worth_privileged[key] = s


cdef void _touch(SessionCache* cache, Session* s, int64_t now_ms) noexcept nogil:
    cdef SessionKey key = _worth_key(s.privileged, s.size, s.id)
    cache.by_use.erase(_use_key(s))
    cache.by_worth.erase(key)
    cache.by_worth_privileged.erase(key)
    s.used_ms = now_ms
    cache.by_use[_use_key(s)] = s
    _list_worth(cache, s)


cdef void _count(SessionCache* cache, Session* s) noexcept nogil:
    """Takes the set's size of now into the counts; the session isn't listed while that changes."""
    cache.partitions += s.set.count - s.size
    cache.bytes += s.set.bytes + <int64_t>sizeof(Session) - s.bytes
    s.size = s.set.count
    s.bytes = s.set.bytes + <int64_t>sizeof(Session)


cdef void _session_free(Session* s) noexcept nogil:
    set_close(&s.set)
    free(s)


cdef void _take_out(SessionCache* cache, Session* s) noexcept nogil:
    """Removes the session from the cache. If a request holds it, session_give_back frees it."""
    cdef SessionKey key = _worth_key(s.privileged, s.size, s.id)
    cache.by_use.erase(_use_key(s))
    cache.by_worth.erase(key)
    cache.by_worth_privileged.erase(key)
    cache.by_id.erase(s.id)
    cache.partitions -= s.size
    if s.taken:
        s.dropped = True
    else:
        cache.bytes -= s.bytes
        _session_free(s)


cdef Session* _find(SessionCache* cache, int32_t id) noexcept nogil:
    cdef unordered_map[int32_t, Session*].iterator found = cache.by_id.find(id)
    if found == cache.by_id.end():
        return NULL
    return at(found).second


cdef bint _evict(SessionCache* cache, bint privileged, int32_t size, int64_t now_ms) noexcept nogil:
    """Makes room for a session of this worth. False: none is old or worth less."""
    cdef Session* s
    cdef map[SessionKey, Session*]* by_worth = &cache.by_worth_privileged if privileged else &cache.by_worth
    if cache.by_use.empty():
        return False
    s = at(cache.by_use.begin()).second
    if now_ms - s.used_ms <= cache.eviction_ms:
        # Ids are above 0, so one of the same worth stays.
        if by_worth.empty() or _worth_key(privileged, size, 0) < at(by_worth.begin()).first:
            return False
        s = at(by_worth.begin()).second
    _take_out(cache, s)
    cache.evictions += 1
    return True


cdef bint _has_room(SessionCache* cache, bint privileged, int32_t size, int64_t bytes, int64_t now_ms) noexcept nogil:
    """Whether a new session may come in; what has to go for it went."""
    cdef Session* oldest
    if cache.slots_max == 0 or bytes > cache.bytes_max:
        return False
    used = cache.by_use.begin()
    while cache.bytes + bytes > cache.bytes_max:
        # Only sessions that weren't used for eviction_ms are evicted for their memory.
        if used == cache.by_use.end():
            return False
        oldest = at(used).second
        postincrement(used)
        if now_ms - oldest.used_ms <= cache.eviction_ms:
            return False
        if not oldest.taken:
            _take_out(cache, oldest)
            cache.evictions += 1
    return <int32_t>cache.by_id.size() < cache.slots_max or _evict(cache, privileged, size, now_ms)


cdef int32_t _new_id(SessionCache* cache) noexcept nogil:
    cdef int32_t id
    while True:
        cache.random ^= cache.random << 13
        cache.random ^= cache.random >> 7
        cache.random ^= cache.random << 17
        id = <int32_t>((cache.random >> 16) & <uint64_t>INT32_MAX)
        if id != 0 and cache.by_id.count(id) == 0:
            return id


# --- for requests -------------------------------------------------------------------------------------------
cdef int16_t session_take(
    SessionCache* cache, int32_t id, int32_t epoch, bint by_ids, int64_t now_ms, Session** out
) noexcept nogil:
    cdef Session* s
    cdef int16_t error = 0
    out[0] = NULL
    pthread_mutex_lock(&cache.lock)
    s = _find(cache, id)
    if s == NULL:
        error = FETCH_SESSION_ID_NOT_FOUND
    elif s.epoch != epoch or s.taken:
        error = INVALID_FETCH_SESSION_EPOCH
    elif s.by_ids != by_ids:
        error = FETCH_SESSION_TOPIC_ID_ERROR
    else:
        s.taken = True
        s.unresolved = False
        s.epoch = 1 if epoch == INT32_MAX else epoch + 1
        _touch(cache, s, now_ms)
        out[0] = s
    pthread_mutex_unlock(&cache.lock)
    return error


cdef Session* session_make(
    SessionCache* cache, FetchSet* set, bint by_ids, bint privileged, int64_t now_ms
) noexcept nogil:
    cdef Session* s = NULL
    cdef int64_t bytes = set.bytes + <int64_t>sizeof(Session)
    pthread_mutex_lock(&cache.lock)
    if _has_room(cache, privileged, set.count, bytes, now_ms):
        s = <Session*>calloc(1, sizeof(Session))
    if s != NULL:
        s.id = _new_id(cache)
        s.epoch = SESSION_EPOCH_INITIAL + 1
        s.by_ids = by_ids
        s.privileged = privileged
        s.taken = True
        s.made_ms = now_ms
        s.used_ms = now_ms
        s.set = set[0]
        set_open(set)
        _count(cache, s)
        cache.by_id[s.id] = s
        _touch(cache, s, now_ms)
    pthread_mutex_unlock(&cache.lock)
    return s


cdef void session_resized(SessionCache* cache, Session* s) noexcept nogil:
    cdef SessionKey key
    pthread_mutex_lock(&cache.lock)
    if not s.dropped and (s.size != s.set.count or s.bytes != s.set.bytes + <int64_t>sizeof(Session)):
        key = _worth_key(s.privileged, s.size, s.id)
        cache.by_worth.erase(key)
        cache.by_worth_privileged.erase(key)
        _count(cache, s)
        _list_worth(cache, s)
        if cache.bytes > cache.bytes_max:
            _take_out(cache, s)
    pthread_mutex_unlock(&cache.lock)


cdef void sessions_unresolve_idle(SessionCache* cache, int64_t now_ms) noexcept nogil:
    cdef int64_t until_ms = now_ms - min(cache.eviction_ms, <int64_t>SESSION_IDLE_MS)
    cdef Session* s
    cdef int32_t place
    pthread_mutex_lock(&cache.lock)
    used = cache.by_use.begin()
    while used != cache.by_use.end() and at(used).first.first < until_ms:
        s = at(used).second
        if not s.taken and not s.unresolved:
            s.unresolved = True
            place = s.set.first
            while place != NOWHERE:
                set_unresolve(&s.set.partitions[place])
                place = s.set.partitions[place].next
        postincrement(used)
    pthread_mutex_unlock(&cache.lock)


cdef void session_give_back(SessionCache* cache, Session* s) noexcept nogil:
    cdef bint gone
    pthread_mutex_lock(&cache.lock)
    s.taken = False
    gone = s.dropped
    if gone:
        cache.bytes -= s.bytes
    pthread_mutex_unlock(&cache.lock)
    if gone:
        _session_free(s)


cdef void session_close(SessionCache* cache, int32_t id) noexcept nogil:
    cdef Session* s
    pthread_mutex_lock(&cache.lock)
    s = _find(cache, id)
    if s != NULL:
        _take_out(cache, s)
    pthread_mutex_unlock(&cache.lock)


cdef void session_drop(SessionCache* cache, Session* s) noexcept nogil:
    pthread_mutex_lock(&cache.lock)
    if not s.dropped:
        _take_out(cache, s)
    pthread_mutex_unlock(&cache.lock)
