"""What the network threads are made of, and their limits. A `Plane` is one set of them with one queue of
requests for the control plane; a `Reactor` is one epoll thread; a `Connection` belongs to one reactor for
life, and only that thread touches it.

  bytes come -> input (shared scratch, or the connection's own while a frame isn't whole) -> frame_cut
    produce: appended at once. Nothing waits before it: the answer goes straight into the output; else into its slot
    fetch: a slot with a job, tried when all before it are answered
    anything else: a slot, and a copy on the control queue; the answer comes back through the mailbox by its token
  slots leave the ring in order -> output (bytes, and pieces of files between them) -> send, sendfile

Other threads reach a reactor through its mailbox only (a list under a mutex, an eventfd that is written
when `wake` was 0), and through `moved`, which names partitions with a waiting fetch that grew.

Reactors are never freed: a partition's wake mask may name one that has stopped, and the next Plane takes it
over.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.pyx.log.partition cimport LogSet, Partition
from penstock.pyx.log.segment cimport BatchPlace
from penstock.pyx.net.admission cimport LISTENERS_MAX, Admission, Security
from penstock.pyx.net.closures cimport Closures
from penstock.pyx.net.coldreader cimport ReaderPool
from penstock.pyx.posix cimport pthread_mutex_t, pthread_t
from penstock.pyx.record.frame cimport Writer
from penstock.pyx.request.fetch cimport FetchJob
from penstock.pyx.request.fetchanswer cimport Pieces
from penstock.pyx.request.produce cimport ProduceGroup, ProduceTally
from penstock.pyx.request.sessions cimport SessionCache

cdef enum:
    REACTORS_MAX = 64                 # bits of a partition's wake mask
    SLOTS = 64                        # requests of a connection that wait for their answer
    SLOTS_BYTES_MAX = 16777216        # more than this held by them: no further request is read
    PEER_BYTES = 56                   # "[v6 address]:port" and its end
    PLACES_MAX = 1 << 22              # connections of a reactor (a token's bits)

    EVENT_WAKE = 0x7fffffff           # epoll's data for what isn't a connection: low half of data.u64
    EVENT_LISTENER = 0x7ffffffe

    SCRATCH_BYTES = 262144
    INPUT_BYTES_MIN = 16384           # the smallest buffer that a connection owns
    INPUT_TOGETHER = 8                # frames that a connection reads ahead, if they aren't too large
    INPUT_TOGETHER_BYTES = 1048576
    INPUT_FREE_BYTES = 131072         # what each connection may hold without asking for broker memory
    INPUT_TURNOVER_MS = 60000         # while that is short, whoever holds some has to bring as much in this time
    OUTPUT_BYTES_MAX = 1048576        # more than this unsent: no request is read, no answer is built
    OUTPUT_KEPT_BYTES = 16384         # an empty output larger than this is freed
    TURN_FRAMES = 64                  # what one connection may do before the others have their turn
    TURN_BYTES = 4194304
    SENDFILE_CHUNK_BYTES = 1048576
    EVENTS_MAX = 256
    ACCEPTS_MAX = 64
    SWEEP_MS_MAX = 1000
    FRAME_BYTES_A_SECOND = 65536      # the slowest that a large request may come
    DRAIN_MS = 2000

# What became of a frame, or of a wish for memory.
cdef enum Served:
    SERVED = 0
    SERVE_STALLED = 1                 # not now: the frame stays where it is, the connection is looked at again later
    SERVE_CLOSE = -1                  # never: the connection ends

cdef enum SlotState:
    SLOT_DONE = 0                     # `answer` is whole
    SLOT_CONTROL = 1                  # the control plane has the request
    SLOT_FETCH = 2                    # `fetch` is to be tried when all before it are answered
    SLOT_CLOSE = 3                    # nothing after it is answered: the connection ends here

# What a connection that isn't read waits for.
cdef enum Stall:
    STALL_NONE = 0
    STALL_QUEUE = 1                   # room in the control queue
    STALL_INPUT = 2                   # broker memory for what it would receive

cdef struct Slot:
    SlotState state
    int32_t request_bytes             # of a request that the control plane has
    bint handed_over                  # it is a produce that waits there for its transaction coordinator
    Writer answer
    FetchJob* fetch

cdef struct Connection:
    int fd                            # -1: closed, the place is free
    uint32_t place                    # in reactor.connections
    uint32_t generation               # grows when the place is closed, so that a late token or event is told apart
    int32_t listener
    Security security                 # what the listener speaks
    bint authenticated                # always, where nobody has to say who he is; else no other request is served
    int32_t frame_bytes_max           # little until then
    bint readable                     # the socket may have more than was read
    bint writable
    bint hung_up                      # the peer has ended its side; seen again as an end of file when read
    bint ended                        # end of file was read
    bint refusing                     # no request is read any more: a SLOT_CLOSE is in the ring, or was reached
    bint closing                      # closed when the output is empty
    Stall stalled
    bint cold                         # a reader thread has the next range
    bint lent                         # and the socket, to send it; nobody else sends then
    void* cold_in                     # segment where a range was last cold
    int32_t handed_over               # produce requests of its slots that the control plane serves, in order
    bint on_ready
    Connection* ready_next
    int64_t active_ms                 # last whole request, or answer bytes taken by the peer
    int64_t frame_ms                  # since when a frame is here in part, while more of it would be read; 0: none is
    int64_t took_ms                   # when the peer last took bytes, or had nothing to take
    int64_t brought                   # bytes received, ever
    int64_t served_bytes              # of them, those of whole requests
    int64_t kept_up_ms                # when it was last seen to bring enough for the memory that it holds,
    int64_t kept_up_bytes             # and `brought` then
    uint8_t* input                    # own buffer, or the reactor's scratch while `borrowed`
    bint borrowed
    size_t start
    size_t end
    size_t capacity
    int32_t largest                   # frame since the buffer was got
    Writer output
    size_t sent                       # of output
    Pieces pieces
    Slot ring[SLOTS]
    uint32_t head                     # running numbers; slot = number % SLOTS
    uint32_t tail
    char peer[PEER_BYTES]

cdef enum MailKind:
    MAIL_SOCKET = 0
    MAIL_ANSWER = 1
    MAIL_CLOSE = 2
    MAIL_READ = 3                     # a reader thread is done: `sent` bytes of the next piece went; -1: it failed
    MAIL_RESUME = 4                   # `answer` holds a diverted request: serve it into its slot after all
    MAIL_RESUME_LOSE = 5              # the same, but its answer is lost and the connection ends

cdef struct Mail:
    MailKind kind
    uint32_t place
    uint32_t generation
    uint32_t request                  # low 16 bits of the slot's running number
    int32_t listener
    int fd
    int64_t sent
    int64_t ready                     # bytes behind those that are in memory
    BatchPlace follows                # where the next fetch begins; `position` -1: nobody knows
    bint full                         # the peer takes no more for now
    Writer answer                     # with its size in front
    char peer[PEER_BYTES]
    Mail* next

# A request on its way to the control plane. `frame` has no size in front.
cdef struct ControlRequest:
    uint64_t token
    int32_t listener
    int32_t n
    bint handed_over                  # a produce that its network thread may not serve
    char peer[PEER_BYTES]
    ControlRequest* next
    uint8_t frame[1]

cdef struct ControlQueue:
    pthread_mutex_t lock
    ControlRequest* first
    ControlRequest* last
    int64_t bytes
    int64_t bytes_max
    int fd                            # eventfd: readable while something is there
    bint full                         # a connection was stalled by it

# Of one reactor; plain numbers, written by its thread only and read by anybody.
cdef struct Counters:
    int64_t connections
    int64_t connections_accepted
    int64_t connections_closed
    int64_t closed_malformed
    int64_t closed_idle
    int64_t closed_slow_request       # a frame that took too long to come
    int64_t closed_slow_reader        # answers that weren't taken
    int64_t closed_memory_short       # held memory for requests that others needed, and brought too little
    int64_t closed_address_limit      # at once, as their address has too many
    int64_t accepts_delayed           # times when nothing was accepted because of a limit
    int64_t accepts_without_descriptor  # times when it was because the process has too few descriptors
    int64_t requests
    int64_t requests_produce
    int64_t requests_fetch
    int64_t requests_control
    int64_t answers_late
    int64_t bytes_in
    int64_t bytes_out
    int64_t fetch_bytes
    int64_t fetch_errors
    int64_t fetch_waits
    int64_t fetch_sessions_made
    int64_t fetch_partitions_asked    # named by requests, not those that their sessions remember
    int64_t cold_ranges
    int64_t stalls

cdef struct Plane

cdef struct Reactor:
    int32_t id                        # bit in the wake masks, and in tokens
    bint taken                        # by a Plane; under the table's lock
    Plane* plane
    int epoll
    int wake_fd
    pthread_t thread
    int32_t running                   # atomic
    int32_t wake                      # atomic: the mailbox or `moved` has something, or `stopping` changed
    int32_t unstall                   # atomic: there is room again in the control queue, or memory for input
    int32_t starved                   # atomic: some of its connections wait for memory for input
    int32_t relieve                   # atomic: somebody does, of any reactor: look who holds it
    int32_t stopping                  # atomic
    pthread_mutex_t lock              # of the mailbox
    Mail* mail_first
    Mail* mail_last
    Partition** moved                 # that grew or were stopped while one of its fetches waited; under the lock
    int32_t moved_n
    int32_t moved_capacity
    bint moved_all                    # there was no memory to say which
    # The thread's own from here on.
    uint64_t to_wake                  # reactors that have to hear of what moved once this turn's answers are sent
    bint draining
    int64_t accept_ms                 # when to accept again, as it failed or was too much for a turn; 0 = no need
    bint descriptors_short            # when it last accepted
    int64_t drain_until_ms
    int64_t now_ms
    int64_t swept_ms
    int listeners[LISTENERS_MAX]
    int32_t listener_count
    uint32_t next_reactor             # round robin of the acceptor
    Connection** connections
    uint32_t places
    uint32_t places_used
    uint32_t* free_places
    uint32_t free_count
    Connection* ready_first
    Connection* ready_last
    Connection* over_budget           # the one connection that may go beyond the broker's input memory
    int32_t stalled_count
    void* waits                       # waiting.pxd
    FetchJob** heap                   # waiting fetches by deadline
    int32_t heap_n
    int32_t heap_capacity
    uint8_t* scratch
    ProduceGroup* produces            # those that are served right now
    ProduceTally produced
    Counters counters

cdef struct Plane:
    ProduceTally produced             # by the control plane, for requests that were handed over
    LogSet* logs                      # what it serves
    SessionCache* sessions            # of fetches
    Reactor* reactors[REACTORS_MAX]
    int32_t reactor_count
    int32_t diverted                  # atomic: bit = api key of Produce, Fetch: such requests go to the control plane
    int32_t request_bytes_max
    int32_t answer_bytes_max
    int64_t idle_ms_max
    int64_t frame_ms_max              # for a frame to come whole, and a second more for each FRAME_BYTES_A_SECOND
    int64_t take_ms_max               # for a peer to take any of its answer
    int64_t input_bytes_max
    int64_t input_bytes               # atomic: held by connections beyond INPUT_FREE_BYTES each
    int32_t starved                   # atomic: reactors where somebody waits for more of them
    int64_t input_patience_ms         # for who brings too little for the memory that it holds, while that is short
    Closures closed
    ControlQueue queue
    ReaderPool* readers
    Admission* admission

# A token names a request for the control plane: reactor (6 bits), place (22), generation (20), request (16).
cdef enum:
    PLACE_MASK = PLACES_MAX - 1
    GENERATION_MASK = 0xfffff
    REQUEST_MASK = 0xffff


cdef inline uint64_t token_pack(
    int32_t reactor, uint32_t place, uint32_t generation, uint32_t request
) noexcept nogil:
    return (
        (<uint64_t>reactor << 58)
        | (<uint64_t>place << 36)
        | (<uint64_t>(generation & GENERATION_MASK) << 16)
        | (request & REQUEST_MASK)
    )


# The slot of a running number between head and tail.
cdef inline Slot* slot_at(Connection* c, uint32_t number) noexcept nogil:
    return &c.ring[number % SLOTS]


# Asks for a turn.
cdef inline void connection_ready(Reactor* r, Connection* c) noexcept nogil:
    if c.on_ready:
        return
    c.on_ready = True
    c.ready_next = NULL
    if r.ready_last == NULL:
        r.ready_first = c
    else:
        r.ready_last.ready_next = c
    r.ready_last = c


# Bytes of answers that wait for the peer, without pieces.
cdef inline int64_t output_left(const Connection* c) noexcept nogil:
    return <int64_t>(c.output.n - c.sent)


cdef inline bint output_full(const Connection* c) noexcept nogil:
    return output_left(c) > OUTPUT_BYTES_MAX or c.pieces.first < c.pieces.n
