"""Which connections may come in; see admission.pxd."""

from cython.operator cimport dereference as at
from libc.stdint cimport INT32_MAX

from penstock.pyx.linux.posix cimport (
    atomic_add32, atomic_load32, atomic_store32, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, strlen,
)
from penstock.pyx.log.files cimport dropped, made

cdef enum:
    WHOLE = 1000                      # a connection in a rate's count


cdef Admission* admission_new() noexcept nogil:
    cdef Admission* a = made[Admission]()
    cdef int32_t i
    a.connections_max = INT32_MAX
    a.connections = 0
    a.address_max = INT32_MAX
    a.rate.per_second = 0
    pthread_mutex_init(&a.lock, NULL)
    for i in range(LISTENERS_MAX):
        a.listeners[i].security = SECURITY_PLAINTEXT
        a.listeners[i].connections_max = INT32_MAX
        a.listeners[i].connections = 0
        a.listeners[i].kept_open = False
        a.listeners[i].between_brokers = False
        a.listeners[i].rate.per_second = 0
    return a


cdef void admission_free(Admission* a) noexcept nogil:
    pthread_mutex_destroy(&a.lock)
    dropped[Admission](a)


cdef void admission_limit(
    Admission* a, int32_t most, int32_t rate, int32_t most_of_address, unordered_map[string, int32_t]& own
) noexcept nogil:
    atomic_store32(&a.connections_max, most)
    atomic_store32(&a.rate.per_second, rate)
    pthread_mutex_lock(&a.lock)
    a.address_max = most_of_address
    a.address_limits.swap(own)
    pthread_mutex_unlock(&a.lock)
    own.clear()


# --- rates --------------------------------------------------------------------------------------------------
cdef int64_t _rate_wait_ms(Rate* rate, int64_t now_ms) noexcept nogil:
    """Fills the bucket up to now; how long until there is a whole connection in it."""
    cdef int64_t per_second = atomic_load32(&rate.per_second)
    cdef int64_t came
    if per_second == 0:
        return 0
    if rate.at_ms == 0:
        came = WHOLE * per_second                     # at first it is full
    else:
        came = min(now_ms - rate.at_ms, <int64_t>1000) * per_second
    rate.thousandths = min(rate.thousandths + came, WHOLE * per_second)
    rate.at_ms = now_ms
    return max((WHOLE - rate.thousandths + per_second - 1) // per_second, <int64_t>0)


cdef void _rate_take(Rate* rate) noexcept nogil:
    if atomic_load32(&rate.per_second):
        rate.thousandths -= WHOLE


# --- counts -------------------------------------------------------------------------------------------------
cdef int64_t admission_wait_ms(Admission* a, int32_t listener, int64_t now_ms) noexcept nogil:
    cdef Listener* own = &a.listeners[listener]
    if atomic_load32(&own.connections) >= own.connections_max:
        return ADMIT_AGAIN_MS
    if not own.kept_open and atomic_load32(&a.connections) >= atomic_load32(&a.connections_max):
        return ADMIT_AGAIN_MS
    return max(_rate_wait_ms(&a.rate, now_ms), _rate_wait_ms(&own.rate, now_ms))


cdef string _address_of(const char* peer) noexcept nogil:
    cdef string address
    cdef size_t n = strlen(peer)
    while n > 0 and peer[n - 1] != c":":
        n -= 1
    address.assign(peer, n - 1 if n > 0 else 0)
    return address


cdef bint _enter_address(Admission* a, const char* peer) noexcept nogil:
    cdef string address = _address_of(peer)
    cdef int32_t limit
    cdef bint fits
    pthread_mutex_lock(&a.lock)
    limit = a.address_max
    found = a.address_limits.find(address)
    if found != a.address_limits.end():
        limit = at(found).second
    now = a.addresses.find(address)
    fits = (0 if now == a.addresses.end() else at(now).second) < limit
    if fits:
        a.addresses[address] += 1
    pthread_mutex_unlock(&a.lock)
    return fits


cdef bint admission_enter(Admission* a, int32_t listener, const char* peer) noexcept nogil:
    _rate_take(&a.rate)
    _rate_take(&a.listeners[listener].rate)
    if not _enter_address(a, peer):
        return False
    atomic_add32(&a.connections, 1)
    atomic_add32(&a.listeners[listener].connections, 1)
    return True


cdef void admission_leave(Admission* a, int32_t listener, const char* peer) noexcept nogil:
    cdef string address = _address_of(peer)
    atomic_add32(&a.connections, -1)
    atomic_add32(&a.listeners[listener].connections, -1)
    pthread_mutex_lock(&a.lock)
    a.addresses[address] -= 1
    if a.addresses[address] <= 0:
        a.addresses.erase(address)
    pthread_mutex_unlock(&a.lock)
