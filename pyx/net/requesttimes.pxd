"""How long requests take, and in which phases. A network thread counts those of its connections when their answers have
gone into the socket, whoever has served them; so a request whose connection is closed before isn't counted.

  queue     since the thread was told of its bytes, until its service begins: behind others, held by a move, in the
            control plane's queue, or at a worker
  local     served by a thread: records validated and appended, ranges read or converted, a handler's steps
  waiting   a fetch for records; a handler for other clients, a disk, a thread, its turn on the loop
  send      behind earlier answers of its connection, and until the socket has taken the last byte

A `Timing` is one request, or several produces that were appended together. A connection keeps them in the order of
their requests: first those whose answers are in its output, then one for each slot of its ring.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from penstock.pyx.linux.posix cimport free
from penstock.pyx.net.admission cimport PEER_BYTES
from penstock.pyx.net.client cimport Client
from penstock.pyx.net.histogram cimport Histogram
from penstock.pyx.record.endian cimport get_i16
from penstock.pyx.record.frame cimport API_VERSION_AT

cdef enum Phase:
    PHASE_QUEUE = 0
    PHASE_LOCAL = 1
    PHASE_WAITING = 2
    PHASE_SEND = 3
    PHASE_TOTAL = 4
    PHASES = 5

cdef enum:
    API_KEYS = 128                    # those that any request with an answer has
    FETCH_FOLLOWER = 127              # of a replica's Fetch, which Kafka counts apart, in place of its key
    API_VERSIONS = 32
    UNSENT_MAX = 1024                 # timings whose answers aren't sent: no further request is read
    SLOW_KEPT = 256

cdef struct Timing:
    int64_t arrived_ns
    int64_t passed_ns[PHASE_SEND]     # in the phases before it
    int64_t sent_at                   # counted through all of the connection's answers: the end of its answer's bytes
    int64_t sent_pieces               # and of its pieces
    int32_t bytes                     # of the request
    int32_t count
    uint32_t topic                    # the first one's number (topictally.pxd); 0: none, or not known
    int16_t api_key                   # or FETCH_FOLLOWER
    int16_t version
    Phase phase                       # that it is in

# Running numbers: first <= answered <= last; the answers of those before `answered` are in the output.
cdef struct Timings:
    Timing* ring
    uint32_t capacity                 # a power of two
    uint32_t first
    uint32_t answered
    uint32_t last

# What a network thread has counted of an API.
cdef struct RequestCounts:
    int64_t slow
    int64_t versions[API_VERSIONS]
    Histogram phases[PHASES]

# A request that took too long.
cdef struct SlowTiming:
    int16_t api_key
    uint32_t topic
    int32_t bytes
    int64_t passed_ns[PHASE_TOTAL]
    int64_t ended_ms                  # by the wall clock
    Client client
    char peer[PEER_BYTES]

# What one network thread counts. Its own, but that another one takes slow requests out.
cdef struct RequestTimes:
    RequestCounts* counts[API_KEYS]   # atomic; made with the first request
    int64_t slow_ns                   # 0: none is slow
    SlowTiming* slow                 # atomic; SLOW_KEPT of them, made with the first one
    int64_t slow_written              # atomic: running numbers
    int64_t slow_taken                # atomic: the other thread's
    int64_t slow_lost                 # there was no room

# Room for twice as many. False: no memory.
cdef bint timings_grow(Timings* t) noexcept nogil
# Those whose answers are sent up to there.
cdef void timings_settle(
    RequestTimes* times, Timings* t, int64_t sent_at, int64_t sent_pieces, int64_t now_ns, const Client* client,
    const char* peer
) noexcept nogil
# One that isn't in any connection's: its answer is sent, or there is none.
cdef void timing_settle(
    RequestTimes* times, const Timing* one, int64_t now_ns, const Client* client, const char* peer
) noexcept nogil
# Those of a thread that ended.
cdef void times_clear(RequestTimes* times) noexcept nogil
# Takes the oldest slow requests, as many as there are; `out` has room for SLOW_KEPT.
cdef int32_t slow_take(RequestTimes* times, SlowTiming* out) noexcept nogil


# One more, of a request's frame without its size. NULL: no memory.
cdef inline Timing* timings_push(Timings* t, const uint8_t* frame, int32_t n, int64_t arrived_ns) noexcept nogil:
    cdef Timing* one
    cdef int phase
    if t.last - t.first == t.capacity and not timings_grow(t):
        return NULL
    one = &t.ring[t.last & (t.capacity - 1)]
    t.last += 1
    one.arrived_ns = arrived_ns
    for phase in range(PHASE_SEND):
        one.passed_ns[phase] = 0
    one.bytes = n
    one.count = 1
    one.topic = 0
    one.api_key = get_i16(frame)
    one.version = get_i16(frame + API_VERSION_AT)
    one.phase = PHASE_QUEUE
    return one


cdef inline void timings_unpush(Timings* t) noexcept nogil:
    t.last -= 1


# The one whose answer is `ahead` behind the next that goes into the output.
cdef inline Timing* timing_at(Timings* t, uint32_t ahead) noexcept nogil:
    return &t.ring[(t.answered + ahead) & (t.capacity - 1)]


# The next answer is whole in the output.
cdef inline void timings_answered(Timings* t, int64_t sent_at, int64_t sent_pieces) noexcept nogil:
    cdef Timing* one = timing_at(t, 0)
    one.sent_at = sent_at
    one.sent_pieces = sent_pieces
    t.answered += 1


cdef inline bint timings_unsent(const Timings* t) noexcept nogil:
    return t.first != t.answered


cdef inline bint timings_full(const Timings* t) noexcept nogil:
    return t.answered - t.first >= UNSENT_MAX


cdef inline void timings_free(Timings* t) noexcept nogil:
    free(t.ring)
    t.ring = NULL
    t.capacity = 0
    t.first = 0
    t.answered = 0
    t.last = 0


# When the phases end that it has passed.
cdef inline int64_t timing_until(const Timing* one) noexcept nogil:
    cdef int64_t served_ns = one.passed_ns[<int>PHASE_QUEUE] + one.passed_ns[<int>PHASE_LOCAL]
    return one.arrived_ns + served_ns + one.passed_ns[<int>PHASE_WAITING]


# Up to `now_ns` it was in that phase.
cdef inline void timing_pass(Timing* one, Phase phase, int64_t now_ns) noexcept nogil:
    one.passed_ns[<int>phase] += max(now_ns - timing_until(one), <int64_t>0)
