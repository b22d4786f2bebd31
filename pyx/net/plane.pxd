"""What the network threads are made of, and their limits. A `Plane` is one set of them with one queue of
requests for the control plane; a `Reactor` is one epoll thread; a `Connection` belongs to one reactor for
life, and only that thread touches it.

  transport -> input (shared scratch, or the connection's own while a frame isn't whole) -> frame_cut
    produce: appended at once. Nothing waits before it: the answer goes straight into the output; else into its slot
    fetch: a slot with a job, tried when all before it are answered
    a produce that takes long, records to be converted for a fetch: a slot, and a job for a worker thread
    a produce with acks=all that other replicas don't have yet: a slot, whose answer waits for the high watermark
    anything else: a slot, and a copy on the control queue; the answer comes back through the mailbox by its token
  slots leave the ring in order -> output (bytes, and pieces of files between them) -> transport

Other threads reach a reactor through its mailbox only (mailbox.pxd), and through flags that are atomic.

Reactors are never freed: a partition's wake mask may name one that has stopped, and the next Plane takes it
over.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from penstock.pyx.linux.gate cimport Gate
from penstock.pyx.linux.posix cimport monotonic_ns, pthread_mutex_t
from penstock.pyx.log.partition cimport LogSet
from penstock.pyx.net.admission cimport LISTENERS_MAX, PEER_BYTES, Admission, Security
from penstock.pyx.net.busytime cimport BusyTime
from penstock.pyx.net.client cimport Client
from penstock.pyx.net.closures cimport CLOSED_FAULT, Closures, Reason, closures_note
from penstock.pyx.net.coldreader cimport ReaderPool
from penstock.pyx.net.control cimport ControlQueue, ControlRequest
from penstock.pyx.net.counters cimport Counters, counters_closed
from penstock.pyx.net.mailbox cimport REACTORS_MAX, Mailbox
from penstock.pyx.net.requesttimes cimport RequestTimes, Timings, timings_full
from penstock.pyx.net.transport cimport Transport
from penstock.pyx.net.waiting cimport Waits
from penstock.pyx.net.workers cimport Work, WorkerPool
from penstock.pyx.record.frame cimport Writer
from penstock.pyx.request.acks cimport ProduceWait
from penstock.pyx.request.fetch cimport FetchJob
from penstock.pyx.request.fetchanswer cimport Pieces
from penstock.pyx.request.leaders cimport Addresses
from penstock.pyx.request.produce cimport ProduceGroup, ProduceTally
from penstock.pyx.request.refusals cimport Refusals
from penstock.pyx.request.sessions cimport SessionCache

cdef enum:
    SLOTS = 64                        # requests of a connection that wait for their answer
    SLOTS_BYTES_MAX = 16777216        # more than this held by them: no further request is read

    EVENT_WAKE = 0x7fffffff           # epoll's data for what isn't a connection: low half of data.u64
    EVENT_LISTENER = 0x7ffffffe

    SCRATCH_BYTES = 262144
    INPUT_BYTES_MIN = 16384           # the smallest buffer that a connection owns
    INPUT_TOGETHER = 8                # frames that a connection reads ahead, if they aren't too large
    INPUT_TOGETHER_BYTES = 1048576
    INPUT_FREE_BYTES = 131072         # what each connection may hold without asking for broker memory
    INPUT_TURNOVER_MS = 60000         # while that is short, a holder of some has to bring as much in this time
    OUTPUT_BYTES_MAX = 1048576        # more than this unsent: no request is read, no answer is built
    OUTPUT_KEPT_BYTES = 16384         # an empty output larger than this is freed
    TURN_FRAMES = 64                  # what one connection may do before the others have their turn
    TURN_BYTES = 4194304
    TURN_NS = 2_000_000               # the same in time, looked at between requests: a thousand small ones
    COSTLY_TURN_NS = 500_000          # a connection whose turn took longer waits for those whose turns are short
    PASS_NS = 5_000_000               # what one pass over the connections may take before events are looked at again
    SENDFILE_CHUNK_BYTES = 1048576
    EVENTS_MAX = 256
    ACCEPTS_MAX = 64
    SWEEP_MS_MAX = 1000
    FRAME_BYTES_A_SECOND = 65536      # the slowest that a large request may come
    DRAIN_MS = 2000

cdef enum SlotState:
    SLOT_DONE = 0                     # `answer` is whole
    SLOT_CONTROL = 1                  # the control plane has the request
    SLOT_FETCH = 2                    # `fetch` is to be tried when all before it are answered
    SLOT_WARMING = 3                  # it was: a reader thread reads a range that it needs in memory
    SLOT_CLOSE = 4                    # nothing after it is answered: the connection ends here
    SLOT_WORKING = 5                  # a worker has the request, or `fetch`, as `work`
    SLOT_ACKS = 6                     # `answer` is whole but for errors: `acks` waits for other replicas

# Whether a connection is there, and whether its requests are read: in this order, and from each one to CLOSED.
cdef enum ConnectionState:
    CONNECTION_CLOSED = 0             # the place is free
    CONNECTION_OPEN = 1               # by connection_open
    CONNECTION_REFUSING = 2           # by connection_refuse: no request is read any more, a SLOT_CLOSE is in the ring
    CONNECTION_CLOSING = 3            # by connection_finish: it was reached; closed when the output is empty

# What is known of the bytes that a socket has; input_seen goes from one to another.
cdef enum Incoming:
    INCOMING_NOTHING = 0              # all was read
    INCOMING_MORE = 1                 # there may be more than was read
    INCOMING_LAST = 2                 # the same, and the peer has ended its sending side
    INCOMING_ENDED = 3                # the end of the stream was read: closed once the peer has all its answers
    INCOMING_RESET = 4                # there may be more, but the peer has gone: no answer reaches it
    INCOMING_GONE = 5                 # the same, and nothing more is read: closed at the end of the turn

# Who may send.
cdef enum Outgoing:
    OUTGOING_ROOM = 0                 # the reactor: the socket may have room
    OUTGOING_FULL = 1                 # nobody, until epoll tells of room
    OUTGOING_LENT = 2                 # a reader thread, which has the next piece: it knows of room, too

# What a connection that isn't read waits for.
cdef enum Stall:
    STALL_NONE = 0
    STALL_QUEUE = 1                   # room in the control queue, or for frames that workers will serve
    STALL_INPUT = 2                   # broker memory for what it would receive
    STALL_HELD = 3                    # the end of a partition's move

cdef struct Slot:
    SlotState state
    int32_t request_bytes             # of a request that the control plane has
    bint handed_over                  # it is a produce: of those behind it none may overtake it
    Writer answer
    FetchJob* fetch
    ProduceWait* acks
    Work* work

# What a connection's last produce took.
cdef enum ProduceCost:
    COST_LITTLE = 0
    COST_MUCH = 1                     # too much for a network thread: the next one goes to a worker at once

cdef struct Connection

# A list of those that are ready; the last one's ready_next is its own.
cdef struct ReadyList:
    Connection* first
    Connection* last

# A connection's states change independently of each other; the last column gives the exceptions.
#
#   state      written by                                 while it is so
#   incoming   input_seen                                 no way back from LAST, ENDED, RESET and GONE
#   outgoing   _on_event, _output_send, _lend,            LENT: there is a piece, and the oldest slot isn't WARMING: no
#              output_was_read                            fetch is tried while there is a piece
#   stalled    input_stall, input_unstall                 each turn begins without
#   ready_next connection_ready, _run_ready               the place stays on the list when its connection is closed: the
#                                                         next connection there then has one turn with nothing to do
#
# connection_close gives back what is held; place, generation and the list's fields stay; connection_open sets the rest.
cdef struct Connection:
    ConnectionState state
    Transport transport
    uint32_t place                    # in reactor.connections
    uint32_t generation               # grows when the place is closed, so that a late token or event is told apart
    int32_t listener
    Security security                 # what the listener speaks
    int32_t frame_bytes_max           # little before a client has said who it is, where it has to
    Incoming incoming
    Outgoing outgoing
    Stall stalled
    int64_t held_ms                   # since when its next produce is held; 0: it isn't
    void* cold_in                     # segment where a range was last cold
    int32_t handed_over               # produce requests of its slots that the control plane serves, in order
    Work* producing                   # the produce that a worker serves: nothing is read meanwhile. NULL: none
    ProduceCost cost
    int64_t produce_cpu_us            # what its last job of that kind took a worker
    int64_t fetch_cpu_us
    int64_t turn_ns                   # what its last turn took
    int64_t asked_ns                  # when it asked for the turn that it has, or will have
    int64_t arrived_ns                # when it asked for the one in which the frames came that its input has
    Connection* ready_next            # of the list of those that have a turn; the last one is its own. NULL: not on it
    int64_t opened_ms
    int64_t active_ms                 # last whole request, or answer bytes taken by the peer
    int64_t frame_ms                  # since when a frame is here in part, while more of it would be read; 0: none is
    int64_t took_ms                   # when the peer last took bytes, or had nothing to take
    int64_t brought                   # bytes received, ever
    int64_t took                      # bytes sent, ever
    int64_t requests                  # whole ones, ever
    int64_t served_bytes              # of them, those of whole requests
    int64_t kept_up_ms                # when it was last seen to bring enough for the memory that it holds,
    int64_t kept_up_bytes             # and `brought` then
    uint8_t* input                    # own buffer, or within a turn the reactor's scratch
    size_t start
    size_t end
    size_t capacity
    int32_t largest                   # frame since the buffer was got
    Writer output
    size_t sent                       # of output
    int64_t output_at                 # bytes that were in the output before those that are
    Pieces pieces
    int64_t pieces_at                 # pieces before them
    Timings timings                   # of requests whose answers are on their way
    Slot ring[SLOTS]
    uint32_t head                     # running numbers; slot = number % SLOTS
    uint32_t tail
    Client client
    char peer[PEER_BYTES]

cdef enum Stopping:
    STOP_NOT = 0
    STOP_DRAINED = 1                  # once what is being served is answered
    STOP_ABRUPT = 2                   # before its next turn: connections are reset

cdef struct Plane

cdef struct Reactor:
    int32_t id                        # bit in the wake masks, and in tokens
    bint taken                        # by a Plane; under the table's lock
    Plane* plane
    int epoll
    Mailbox mailbox
    int32_t unstall                   # atomic: there is room again in the control queue, or memory for input
    int32_t starved                   # atomic: some of its connections wait for memory for input
    int32_t relieve                   # atomic: somebody does, of any reactor: look who holds it
    int32_t stopping                  # atomic; a Stopping
    int32_t hanging_up                # atomic: it has to close all connections
    # The thread's own from here on.
    bint draining
    int64_t accept_ms                 # when to accept again, as it failed or was too much for a turn; 0 = no need
    bint descriptors_short            # when it last accepted
    int64_t drain_until_ms
    int64_t now_ms
    int64_t clock_ns                  # when it last read the clock: after each wait, and after each piece of long work
    int64_t swept_ms
    int listeners[LISTENERS_MAX]
    int32_t listener_count
    uint32_t next_reactor             # round robin of the acceptor
    pthread_mutex_t growing           # held while the next two are written: `connection_presence` reads them
    Connection** connections
    uint32_t places
    uint32_t places_used
    uint32_t* free_places
    uint32_t free_count
    ReadyList ready                   # whose turns are short
    ReadyList costly                  # whose last one wasn't: served in what time a pass has left, but one at least
    int64_t turn_ends_ns              # the connection's that has its turn
    Connection* over_budget           # the one connection that may go beyond the broker's input memory
    int32_t stalled_count
    Waits* waits                      # fetches and acks that wait
    uint8_t* scratch
    ProduceGroup* produces            # those that are served right now
    ProduceTally produced
    Counters counters
    int32_t listening[LISTENERS_MAX]  # connections now, by listener
    RequestTimes times
    BusyTime busy

cdef struct Plane:
    ProduceTally produced             # by the control plane, for requests that were handed over
    LogSet* logs                      # what it serves
    SessionCache* sessions            # of fetches
    Refusals* refusals                # of produces
    Addresses* addresses              # of brokers, for clients that have come to the wrong one
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
    int64_t slow_ns                   # a request that takes longer, waiting aside, is noted; 0: none is
    int64_t input_patience_ms         # for one that brings too little for the memory that it holds, while that is short
    int32_t is_shut                   # atomic: new connections are closed at once
    Gate gate                         # of the network threads
    Closures closed
    ControlQueue queue
    ReaderPool* readers
    WorkerPool* workers
    Admission* admission

# Takes reactors for a plane; False when there is no memory, no descriptor or no reactor left. None runs yet.
cdef bint plane_open(Plane* plane, int32_t reactor_count) noexcept nogil
cdef bint plane_listen(Plane* plane, int fd) noexcept nogil       # before start; the plane then owns fd
cdef void plane_close(Plane* plane) noexcept nogil                # after all threads were joined
# Closes all connections, and new ones at once, until it is called with False.
cdef void plane_shut(Plane* plane, bint shut) noexcept nogil
# Ends the streams of connections whose threads haven't heard of it, since they are at a disk.
cdef void plane_hang_up_held(Plane* plane) noexcept nogil
cdef void plane_stop(Plane* plane, Stopping how) noexcept nogil   # asks every thread to return
cdef void plane_pause(Plane* plane) noexcept nogil                # returns once no thread runs, until `gate_open`
# Connections that wait for room in the control queue, or for the workers, are looked at again.
cdef void plane_has_room(void* plane) noexcept nogil
# Requests for the control plane, as queue_take gives them; connections that the queue stalled are woken.
cdef ControlRequest* plane_take(Plane* plane, int32_t most) noexcept nogil


# The slot of a running number between head and tail.
cdef inline Slot* slot_at(Connection* c, uint32_t number) noexcept nogil:
    return &c.ring[number % SLOTS]


# Its answer is whole; `acks` (or NULL), which it takes, says what has to happen before it is sent.
cdef inline void slot_finish(Connection* c, Slot* slot, ProduceWait* acks) noexcept nogil:
    slot.state = SLOT_DONE if acks == NULL else SLOT_ACKS
    slot.acks = acks
    if acks != NULL:
        acks.waiting.connection = c


# Something here is missing that the connection needs: its caller closes it.
cdef inline void connection_fault(Reactor* r, Connection* c, const char* detail) noexcept nogil:
    counters_closed(&r.counters, CLOSED_FAULT)
    closures_note(&r.plane.closed, CLOSED_FAULT, c.listener, c.peer, <int64_t>c.capacity, detail)


# Nothing after this slot is answered, and no further request is read. It is counted, and noted with the `detail`.
cdef inline void connection_refuse(
    Reactor* r, Connection* c, Slot* slot, Reason why, const char* detail
) noexcept nogil:
    counters_closed(&r.counters, why)
    closures_note(&r.plane.closed, why, c.listener, c.peer, 0, detail)
    slot.state = SLOT_CLOSE
    if c.state == CONNECTION_OPEN:
        c.state = CONNECTION_REFUSING


# All before the SLOT_CLOSE was answered: what is in the output is sent, and that's all.
cdef inline void connection_finish(Connection* c) noexcept nogil:
    c.state = CONNECTION_CLOSING


cdef inline bint connection_is_ready(const Connection* c) noexcept nogil:
    """Whether it has asked for a turn."""
    return c.ready_next != NULL


# Asks for a turn.
cdef inline void connection_ready(Reactor* r, Connection* c) noexcept nogil:
    cdef ReadyList* ready = &r.costly if c.turn_ns > COSTLY_TURN_NS else &r.ready
    if connection_is_ready(c):
        return
    c.asked_ns = r.clock_ns
    c.ready_next = c
    if ready.last == NULL:
        ready.first = c
    else:
        ready.last.ready_next = c
    ready.last = c


cdef inline int64_t reactor_clock(Reactor* r) noexcept nogil:
    """Reads the clock."""
    r.clock_ns = monotonic_ns()
    return r.clock_ns


cdef inline bint turn_is_over(Reactor* r) noexcept nogil:
    """Whether the connection that has its turn has used its time."""
    return reactor_clock(r) >= r.turn_ends_ns


# Bytes of answers that wait for the peer, without pieces.
cdef inline int64_t output_left(const Connection* c) noexcept nogil:
    return <int64_t>(c.output.n - c.sent)


cdef inline bint output_full(const Connection* c) noexcept nogil:
    return (
        output_left(c) > OUTPUT_BYTES_MAX
        or c.pieces.first < c.pieces.n
        or timings_full(&c.timings)
    )
