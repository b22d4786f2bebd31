"""One connection: opening and closing it, and its turns; see connection.pxd."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from penstock.pyx.linux.posix cimport (
    EPOLL_CTL_ADD, atomic_load32, atomic_load64, atomic_store32, calloc, close, free, memcpy, memset,
    pthread_mutex_lock, pthread_mutex_unlock, realloc,
)
from penstock.pyx.net.admission cimport FRAME_BYTES_BEFORE_MAX, PEER_BYTES, SECURITY_PLAINTEXT, admission_leave
from penstock.pyx.net.client cimport client_copy, client_note_id, client_open, fence
from penstock.pyx.net.closures cimport DETAIL_BYTES, Reason, closures_tell_size
from penstock.pyx.net.control cimport SERVE_CLOSE, SERVE_HELD, SERVE_STALLED, Served
from penstock.pyx.net.input cimport (
    TAKEN_ERROR, TAKEN_STALLED, Taken, input_end_turn, input_free, input_has_more, input_stall, input_take,
    input_unstall,
)
from penstock.pyx.net.mailbox cimport GENERATION_MASK, PLACES_MAX, PLACE_MASK
from penstock.pyx.net.output cimport output_abandon, output_pump, output_watch
from penstock.pyx.net.plane cimport (
    CONNECTION_CLOSED, CONNECTION_CLOSING, CONNECTION_OPEN, COST_LITTLE, INCOMING_ENDED, INCOMING_LAST,
    INCOMING_NOTHING, INCOMING_RESET, OUTGOING_ROOM, STALL_HELD, STALL_INPUT, STALL_QUEUE, TURN_BYTES, TURN_FRAMES,
    Connection, Plane, Reactor, Slot, connection_is_ready, connection_ready, output_full, slot_at, turn_is_over,
)
from penstock.pyx.net.requests cimport (
    Span, connection_sender, request_serve, requests_describe, requests_refuse, slots_full,
)
from penstock.pyx.net.requesttimes cimport timings_free
from penstock.pyx.net.transport cimport transport_close, transport_open
from penstock.pyx.net.waiting cimport unpark
from penstock.pyx.record.frame cimport CUT_BAD, CUT_MORE, SIZE_BYTES, Cut, frame_cut, writer_free
from penstock.pyx.request.acks cimport acks_free
from penstock.pyx.request.fetch cimport fetch_free
from penstock.pyx.request.fetchanswer cimport piece_release
from penstock.pyx.request.refusals cimport refusals_forget

cdef enum:
    COPY_TIMES = 3                    # that a connection is copied, while it is written


cdef void connection_free_buffers(Reactor* r, Connection* c) noexcept nogil:
    if c.input != NULL and c.start == c.end:
        input_free(r, c)
    if c.output.n == 0:
        writer_free(&c.output)
    if c.timings.first == c.timings.last:
        timings_free(&c.timings)
    if c.pieces.n == 0:
        free(c.pieces.p)
        c.pieces.p = NULL
        c.pieces.capacity = 0


cdef Connection* _connection_place(Reactor* r) noexcept nogil:
    """A free connection; NULL when there is no memory or no place."""
    cdef Connection** grown
    cdef uint32_t* frees
    cdef uint32_t places
    cdef Connection* c
    if r.free_count:
        r.free_count -= 1
        return r.connections[r.free_places[r.free_count]]
    if r.places_used == r.places:
        places = r.places * 2 if r.places else 64
        if places > PLACES_MAX:
            return NULL
        frees = <uint32_t*>realloc(r.free_places, places * sizeof(uint32_t))
        if frees == NULL:
            return NULL
        r.free_places = frees
        pthread_mutex_lock(&r.growing)
        grown = <Connection**>realloc(r.connections, places * sizeof(Connection*))
        if grown != NULL:
            r.connections = grown
        pthread_mutex_unlock(&r.growing)
        if grown == NULL:
            return NULL
        r.places = places
    c = <Connection*>calloc(1, sizeof(Connection))
    if c == NULL:
        return NULL
    c.place = r.places_used
    pthread_mutex_lock(&r.growing)
    r.connections[r.places_used] = c
    r.places_used += 1
    pthread_mutex_unlock(&r.growing)
    return c


cdef bint _copy(const Connection* c, ConnectionCopy* out) noexcept nogil:
    """False: nobody is connected there, or it was another one by the end."""
    cdef uint32_t generation = <uint32_t>atomic_load32(<int32_t*>&c.generation)
    cdef bint whole
    if atomic_load32(<int32_t*>&c.state) == CONNECTION_CLOSED:
        return False
    whole = client_copy(&c.client, &out.client)
    memcpy(out.peer, c.peer, PEER_BYTES)
    out.listener = c.listener
    out.opened_ms = atomic_load64(&c.opened_ms)
    out.active_ms = atomic_load64(&c.active_ms)
    out.requests = atomic_load64(&c.requests)
    out.bytes_in = atomic_load64(&c.brought)
    out.bytes_out = atomic_load64(&c.took)
    fence()
    return (
        whole
        and <uint32_t>atomic_load32(<int32_t*>&c.generation) == generation
        and atomic_load32(<int32_t*>&c.state) != CONNECTION_CLOSED
    )


cdef size_t connections_copy(Plane* plane, ConnectionCopy* out, size_t most) noexcept nogil:
    cdef size_t n = 0
    cdef Connection* c
    cdef Reactor* r
    cdef uint32_t place, places
    cdef int32_t i, _again
    for i in range(plane.reactor_count):
        r = plane.reactors[i]
        pthread_mutex_lock(&r.growing)
        places = r.places_used
        pthread_mutex_unlock(&r.growing)
        for place in range(places):
            if n == most:
                return n
            pthread_mutex_lock(&r.growing)
            c = r.connections[place]
            pthread_mutex_unlock(&r.growing)
            for _again in range(COPY_TIMES):
                if _copy(c, &out[n]):
                    n += 1
                    break
    return n


cdef Presence connection_presence(Plane* plane, uint64_t token) noexcept nogil:
    cdef uint32_t place = <uint32_t>(token >> 36) & PLACE_MASK
    cdef uint32_t generation = <uint32_t>(token >> 16) & GENERATION_MASK
    cdef Presence found = PRESENCE_GONE
    cdef Reactor* r
    cdef Connection* c
    cdef int32_t i
    for i in range(plane.reactor_count):
        r = plane.reactors[i]
        if <uint64_t>r.id != token >> 58:
            continue
        pthread_mutex_lock(&r.growing)
        c = r.connections[place] if place < r.places_used else NULL
        pthread_mutex_unlock(&r.growing)
        # Its reactor may be writing these just now: the next question then finds what it writes.
        if c != NULL and <uint32_t>atomic_load32(<int32_t*>&c.generation) == generation:
            found = PRESENCE_SENDING if atomic_load32(<int32_t*>&c.incoming) < INCOMING_LAST else PRESENCE_HALF_CLOSED
    return found


cdef void connection_open(Reactor* r, int fd, int32_t listener, const char* peer) noexcept nogil:
    cdef Connection* c = NULL
    if not r.draining:
        c = _connection_place(r)
    if c == NULL:
        close(fd)
        admission_leave(r.plane.admission, listener, peer)
        return
    transport_open(&c.transport, fd)
    c.incoming = INCOMING_NOTHING
    c.outgoing = OUTGOING_ROOM
    c.cold_in = NULL
    c.handed_over = 0
    c.producing = NULL
    c.cost = COST_LITTLE
    c.produce_cpu_us = 0
    c.fetch_cpu_us = 0
    c.turn_ns = 0
    c.asked_ns = r.clock_ns
    c.arrived_ns = r.clock_ns
    c.opened_ms = r.now_ms
    c.took = 0
    c.requests = 0
    c.output_at = 0
    c.pieces_at = 0
    c.held_ms = 0
    c.listener = listener
    c.security = r.plane.admission.listeners[listener].security
    c.frame_bytes_max = r.plane.request_bytes_max
    if c.security != SECURITY_PLAINTEXT:
        c.frame_bytes_max = min(c.frame_bytes_max, <int32_t>FRAME_BYTES_BEFORE_MAX)
    c.active_ms = r.now_ms
    c.took_ms = r.now_ms
    c.frame_ms = 0
    c.kept_up_ms = 0
    c.kept_up_bytes = 0
    c.brought = 0
    c.served_bytes = 0
    client_open(&c.client)
    memcpy(c.peer, peer, PEER_BYTES)
    # From here on others may copy it (connections_copy).
    atomic_store32(<int32_t*>&c.state, <int32_t>CONNECTION_OPEN)
    r.listening[listener] += 1
    r.counters.connections += 1
    r.counters.connections_accepted += 1
    if not output_watch(r, c, EPOLL_CTL_ADD, True):
        connection_close(r, c)


cdef void connection_close(Reactor* r, Connection* c) noexcept nogil:
    """Frees all that the connection holds. A token or event that comes late is told by the generation."""
    cdef Slot* slot
    cdef int32_t i
    if c.state == CONNECTION_CLOSED:
        return
    connection_settle(r, c)
    timings_free(&c.timings)
    refusals_forget(r.plane.refusals, connection_sender(r, c).connection)
    output_abandon(r, c)
    transport_close(&c.transport)
    c.state = CONNECTION_CLOSED
    admission_leave(r.plane.admission, c.listener, c.peer)
    input_unstall(r, c)
    while c.head != c.tail:
        slot = slot_at(c, c.head)
        if slot.fetch != NULL:
            unpark(r.waits, &slot.fetch.waiting)
        if slot.acks != NULL:
            unpark(r.waits, &slot.acks.waiting)
            acks_free(slot.acks)
        if slot.work != NULL:
            atomic_store32(&slot.work.dropped, 1)      # it is freed when it comes back, its fetch with it
        else:
            fetch_free(slot.fetch)
        writer_free(&slot.answer)
        c.head += 1
    for i in range(c.pieces.first, c.pieces.n):
        piece_release(&c.pieces.p[i])
    free(c.pieces.p)
    memset(&c.pieces, 0, sizeof(c.pieces))
    writer_free(&c.output)
    c.sent = 0
    input_free(r, c)
    c.head = 0
    c.tail = 0
    atomic_store32(<int32_t*>&c.generation, <int32_t>((c.generation + 1) & GENERATION_MASK))
    r.listening[c.listener] -= 1
    r.free_places[r.free_count] = c.place
    r.free_count += 1
    r.counters.connections -= 1
    r.counters.connections_closed += 1


cdef bint _connection_read(Reactor* r, Connection* c) noexcept nogil:
    """Takes bytes and serves frames until there are none, the turn is over, or the connection mustn't take more.
    False: it has to be closed.
    """
    cdef int32_t frames = 0, size
    cdef size_t bytes_taken = 0, got
    cdef Cut cut
    cdef Span span
    cdef Served served
    cdef Taken taken
    cdef Reason why
    cdef char detail[DETAIL_BYTES]
    while c.state == CONNECTION_OPEN and not output_full(c) and not slots_full(c) and not r.draining:
        cut = CUT_MORE
        if c.end > c.start:
            cut = frame_cut(c.input + c.start, c.end - c.start, c.frame_bytes_max, &size)
        if cut == CUT_BAD:
            why = closures_tell_size(c.input + c.start, c.end - c.start, c.frame_bytes_max, detail)
            requests_refuse(r, c, why, detail)
            return True
        if cut == CUT_MORE:
            if c.incoming == INCOMING_ENDED:
                c.start = c.end                       # a frame that came in part: its rest never comes
            if not input_has_more(c) or c.stalled:
                return True
            if bytes_taken >= TURN_BYTES:
                connection_ready(r, c)
                return True
            taken = input_take(r, c, &got)
            if taken == TAKEN_ERROR:
                return False
            # All frames that came before have been served. Bytes that came in this turn came after it was asked for.
            c.arrived_ns = c.asked_ns
            c.asked_ns = r.clock_ns
            if taken == TAKEN_STALLED:
                input_stall(r, c, STALL_INPUT)
            bytes_taken += got
            continue
        if frames == TURN_FRAMES or bytes_taken >= TURN_BYTES or (frames and turn_is_over(r)):
            connection_ready(r, c)
            return True
        client_note_id(&c.client, c.input + c.start + SIZE_BYTES, size)
        served = request_serve(r, c, size, TURN_FRAMES - frames, &span)
        if served == SERVE_STALLED:
            input_stall(r, c, STALL_QUEUE)
            return True
        if served == SERVE_HELD:
            input_stall(r, c, STALL_HELD)
            return True
        if served == SERVE_CLOSE:
            requests_describe(c.input + c.start + SIZE_BYTES, size, detail)
            requests_refuse(r, c, span.why, detail)
        frames += span.frames
        r.counters.requests += span.frames
        c.requests += span.frames
        c.active_ms = r.now_ms
        c.frame_ms = 0
        c.start += span.bytes
        c.served_bytes += span.bytes
        c.largest = max(c.largest, span.largest)
    return True


cdef void _clock_frame(Reactor* r, Connection* c) noexcept nogil:
    """Notes since when a frame is here in part. It isn't the peer's fault while nothing more is read."""
    if c.start == c.end or c.stalled or c.state != CONNECTION_OPEN or output_full(c) or slots_full(c):
        c.frame_ms = 0
    elif c.frame_ms == 0:
        c.frame_ms = r.now_ms


cdef bint _is_over(const Connection* c) noexcept nogil:
    """Whether the connection has nothing more to do after its turn."""
    cdef bint sent = c.output.n == c.sent and c.pieces.first == c.pieces.n
    if c.state == CONNECTION_CLOSING and sent:
        return True
    if connection_is_ready(c):
        return False
    if c.incoming >= INCOMING_RESET:                  # what came was served; answers that wait are dropped
        return True
    # A peer that has ended its sending side gets every answer that it is owed, as from Kafka.
    return c.incoming == INCOMING_ENDED and sent and c.head == c.tail and not c.stalled


cdef void connection_run(Reactor* r, Connection* c) noexcept nogil:
    """One turn of a connection."""
    if c.state == CONNECTION_CLOSED:
        return
    input_unstall(r, c)                          # it stalls again if it still has to
    if not output_pump(r, c):
        connection_close(r, c)
        return
    if not _connection_read(r, c) or input_end_turn(r, c) == SERVE_CLOSE or not output_pump(r, c):
        connection_close(r, c)
        return
    if _is_over(c):
        connection_close(r, c)
        return
    _clock_frame(r, c)
    # The pump may have made room for frames that are here already, or that the socket has.
    if c.state == CONNECTION_OPEN and (input_has_more(c) or c.end - c.start >= SIZE_BYTES) and not c.stalled:
        if not output_full(c) and not slots_full(c) and _runnable(r, c):
            connection_ready(r, c)


cdef bint _runnable(Reactor* r, Connection* c) noexcept nogil:
    """Whether a next turn would find a whole frame, or bytes to take."""
    cdef int32_t size
    if r.draining:
        return False
    if input_has_more(c):
        return True
    return frame_cut(c.input + c.start, c.end - c.start, c.frame_bytes_max, &size) != CUT_MORE
