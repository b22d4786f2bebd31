"""Which connections may come in: Kafka's limits by broker, listener and address, and rates of new ones.

Where the broker or a listener is full, or connections come faster than the rate, nothing is accepted for a while:
they wait in the kernel's queue. A connection of an address that has too many is accepted and closed at once. One
listener may be `kept_open` (the one for brokers): it isn't stopped by the broker's limit, only by its own.

The accepting thread asks and counts in; the thread that closes a connection counts it out. The broker's limits may
change at any time: connections that are open stay.
"""

from libc.stdint cimport int32_t, int64_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map

from penstock.pyx.linux.posix cimport pthread_mutex_t

cdef enum:
    LISTENERS_MAX = 16
    PEER_BYTES = 56                   # "[v6 address]:port" and its end
    ADMIT_AGAIN_MS = 100              # when to look again where all is full
    FRAME_BYTES_BEFORE_MAX = 524288   # largest request of who hasn't said who he is

# What a listener speaks; the others have their place only.
cdef enum Security:
    SECURITY_PLAINTEXT = 0

# A bucket that holds one second's worth.
cdef struct Rate:
    int32_t per_second                # 0: any; atomic
    int64_t thousandths               # of connections that may come now
    int64_t at_ms

cdef struct Listener:
    Security security
    int32_t connections_max
    int32_t connections               # atomic
    bint kept_open
    bint between_brokers              # replica ids are believed
    Rate rate

cdef struct Admission:
    int32_t connections_max           # atomic
    int32_t connections               # atomic
    Rate rate
    Listener listeners[LISTENERS_MAX]
    pthread_mutex_t lock              # what follows
    int32_t address_max
    unordered_map[string, int32_t] addresses      # connections now
    unordered_map[string, int32_t] address_limits  # of those that have their own

cdef Admission* admission_new() noexcept nogil                    # without any limit
cdef void admission_free(Admission* a) noexcept nogil
# The broker's limits. `own` (by address, as the network threads write it) is emptied.
cdef void admission_limit(
    Admission* a, int32_t most, int32_t rate, int32_t most_of_address, unordered_map[string, int32_t]& own
) noexcept nogil

# How long to wait before the next accept; 0: now.
cdef int64_t admission_wait_ms(Admission* a, int32_t listener, int64_t now_ms) noexcept nogil
# Counts a connection in. `peer` is "address:port". False: its address has too many; it isn't counted.
cdef bint admission_enter(Admission* a, int32_t listener, const char* peer) noexcept nogil
cdef void admission_leave(Admission* a, int32_t listener, const char* peer) noexcept nogil
