"""One connection: its memory, its requests, its answers; see connection.pxd. Every function runs without the GIL and
gives a status back.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t, uint8_t

from penstock.pyx.admission cimport FRAME_BYTES_BEFORE_MAX, SECURITY_PLAINTEXT, admission_leave
from penstock.pyx.control cimport queue_put
from penstock.pyx.endian cimport get_i16, get_u32
from penstock.pyx.fetch cimport (
    FETCH_FLEXIBLE_FROM,
    FETCH_KEY,
    FETCH_PARSED,
    FETCH_VERSION_MAX,
    FETCH_VERSION_MIN,
    FetchJob,
    FetchParse,
    FetchRange,
    fetch_begin,
    fetch_free,
    fetch_held_bytes,
    fetch_parse,
)
from penstock.pyx.fetchanswer cimport FilePiece, fetch_answer, piece_release
from penstock.pyx.fetchread cimport FETCH_AGAIN, FETCH_COLD, FETCH_FAILED, FETCH_WAIT, FetchState, fetch_try
from penstock.pyx.frame cimport (
    API_VERSION_AT,
    CUT_BAD,
    CUT_MORE,
    Cut,
    Reader,
    RequestHead,
    SIZE_BYTES,
    Writer,
    frame_cut,
    read_head,
    reader_start,
    write_raw,
    writer_free,
)
from penstock.pyx.plane cimport (
    Connection,
    GENERATION_MASK,
    INPUT_BYTES_MIN,
    INPUT_FREE_BYTES,
    OUTPUT_BYTES_MAX,
    OUTPUT_KEPT_BYTES,
    PEER_BYTES,
    PLACES_MAX,
    Reactor,
    SCRATCH_BYTES,
    SENDFILE_CHUNK_BYTES,
    SERVED,
    SERVE_CLOSE,
    SERVE_STALLED,
    SLOTS,
    SLOTS_BYTES_MAX,
    SLOT_CLOSE,
    SLOT_CONTROL,
    SLOT_DONE,
    SLOT_FETCH,
    Served,
    Slot,
    SlotState,
    TURN_BYTES,
    TURN_FRAMES,
    slot_at,
)
from penstock.pyx.posix cimport (
    EAGAIN,
    EINTR,
    EPOLLET,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    EPOLL_CTL_ADD,
    MSG_MORE,
    MSG_NOSIGNAL,
    atomic_add64,
    atomic_load32,
    atomic_store32,
    calloc,
    close,
    epoll_ctl,
    epoll_event,
    errno,
    free,
    memcpy,
    memmove,
    memset,
    off_t,
    realloc,
    recv,
    send,
    sendfile,
)
from penstock.pyx.produce cimport (
    PRODUCE_ANSWERED,
    PRODUCE_FLEXIBLE_FROM,
    PRODUCE_HAND_OVER,
    PRODUCE_KEY,
    PRODUCE_SILENT,
    PRODUCE_VERSION_MAX,
    PRODUCE_VERSION_MIN,
    ProduceResult,
    produce_serve,
)
from penstock.pyx.reader cimport range_is_cached, reader_submit
from penstock.pyx.waiting cimport park, unpark

cdef enum:
    OUTPUT_COMPACT_BYTES = OUTPUT_BYTES_MAX // 4


cdef void connection_ready(Reactor* r, Connection* c) noexcept nogil:
    if c.on_ready:
        return
    c.on_ready = True
    c.ready_next = NULL
    if r.ready_last == NULL:
        r.ready_first = c
    else:
        r.ready_last.ready_next = c
    r.ready_last = c


# --- a connection's memory ----------------------------------------------------------------------------------
cdef void connection_unstall(Reactor* r, Connection* c) noexcept nogil:
    if c.stalled:
        c.stalled = False
        r.stalled_count -= 1


cdef void stall(Reactor* r, Connection* c) noexcept nogil:
    if not c.stalled:
        c.stalled = True
        r.stalled_count += 1
        r.counters.stalls += 1


cdef void input_free(Reactor* r, Connection* c) noexcept nogil:
    if not c.borrowed:
        free(c.input)
        if c.capacity > INPUT_FREE_BYTES:
            atomic_add64(&r.plane.input_bytes, -<int64_t>(c.capacity - INPUT_FREE_BYTES))
            if r.over_budget == c:
                r.over_budget = NULL
            if r.stalled_count:
                atomic_store32(&r.unstall, 1)
                atomic_store32(&r.wake, 1)            # its own thread looks before it sleeps
    c.input = NULL
    c.borrowed = False
    c.capacity = 0
    c.start = 0
    c.end = 0
    c.largest = 0


cdef void connection_rest(Reactor* r, Connection* c) noexcept nogil:
    if c.input != NULL and c.start == c.end:
        input_free(r, c)
    if c.output.n == 0:
        writer_free(&c.output)
    if c.pieces.n == 0:
        free(c.pieces.p)
        c.pieces.p = NULL
        c.pieces.capacity = 0


cdef Served input_grow(Reactor* r, Connection* c, size_t capacity) noexcept nogil:
    """A larger buffer of the connection's own. Beyond the broker's limit one connection per reactor may still
    grow, so that frames which came in part only can't keep each other from ever being whole.
    """
    cdef int64_t before = max(<int64_t>c.capacity - INPUT_FREE_BYTES, 0)
    cdef int64_t more = max(<int64_t>capacity - INPUT_FREE_BYTES, 0) - before
    cdef uint8_t* grown
    if more > 0 and atomic_add64(&r.plane.input_bytes, more) > r.plane.input_bytes_max:
        if r.over_budget != NULL and r.over_budget != c:
            atomic_add64(&r.plane.input_bytes, -more)
            return SERVE_STALLED
        r.over_budget = c
    grown = <uint8_t*>realloc(c.input, capacity)
    if grown == NULL:
        atomic_add64(&r.plane.input_bytes, -more)
        return SERVE_CLOSE
    c.input = grown
    c.capacity = capacity
    return SERVED


cdef Served input_settle(Reactor* r, Connection* c) noexcept nogil:
    """After a turn: what is left of borrowed scratch moves to a buffer of the connection's own; an empty buffer goes,
    unless large frames keep coming.
    """
    cdef size_t left = c.end - c.start
    cdef const uint8_t* source = c.input + c.start
    cdef Served got
    if c.borrowed:
        c.input = NULL
        c.borrowed = False
        c.capacity = 0
        c.start = 0
        c.end = 0
        if left == 0:
            return SERVED
        got = input_grow(r, c, max(<size_t>INPUT_BYTES_MIN, left))
        if got != SERVED:
            return got
        memcpy(c.input, source, left)
        c.end = left
    elif left == 0 and c.input != NULL:
        c.start = 0
        c.end = 0
        if c.largest < INPUT_FREE_BYTES // 2 or r.stalled_count or r.over_budget == c:
            input_free(r, c)
    return SERVED


cdef int64_t output_left(const Connection* c) noexcept nogil:
    return <int64_t>(c.output.n - c.sent)


cdef bint output_full(const Connection* c) noexcept nogil:
    return output_left(c) > OUTPUT_BYTES_MAX or c.pieces.first < c.pieces.n


cdef bint slots_full(Connection* c) noexcept nogil:
    """Whether no further request may be taken, by number (one slot is kept for a SLOT_CLOSE) or by what waits."""
    cdef uint32_t number = c.head
    cdef int64_t held = 0
    cdef const Slot* slot
    if c.tail - c.head >= SLOTS - 1:
        return True
    while number != c.tail and held <= SLOTS_BYTES_MAX:
        slot = slot_at(c, number)
        held += slot.request_bytes + <int64_t>slot.answer.capacity
        if slot.fetch != NULL:
            held += fetch_held_bytes(slot.fetch)
        number += 1
    return held > SLOTS_BYTES_MAX


cdef Slot* slot_push(Connection* c, SlotState state) noexcept nogil:
    """The caller has seen that the ring has room."""
    cdef Slot* slot = slot_at(c, c.tail)
    memset(slot, 0, sizeof(Slot))
    slot.state = state
    c.tail += 1
    return slot


cdef void refuse(Reactor* r, Connection* c) noexcept nogil:
    """The last frame was wrong: what came before it is still answered, nothing after it is read."""
    slot_push(c, SLOT_CLOSE)
    c.refusing = True


# --- opening and closing ------------------------------------------------------------------------------------
cdef Connection* connection_place(Reactor* r) noexcept nogil:
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
        grown = <Connection**>realloc(r.connections, places * sizeof(Connection*))
        if grown == NULL:
            return NULL
        r.connections = grown
        r.places = places
    c = <Connection*>calloc(1, sizeof(Connection))
    if c == NULL:
        return NULL
    c.place = r.places_used
    c.fd = -1
    r.connections[r.places_used] = c
    r.places_used += 1
    return c


cdef void connection_open(Reactor* r, int fd, int32_t listener, const char* peer) noexcept nogil:
    cdef Connection* c = NULL
    cdef epoll_event event
    if not r.draining:
        c = connection_place(r)
    if c == NULL:
        close(fd)
        admission_leave(r.plane.admission, listener, peer)
        return
    c.fd = fd
    c.listener = listener
    c.security = r.plane.admission.listeners[listener].security
    c.authenticated = c.security == SECURITY_PLAINTEXT
    c.frame_bytes_max = r.plane.request_bytes_max if c.authenticated else min(
        r.plane.request_bytes_max, <int32_t>FRAME_BYTES_BEFORE_MAX
    )
    c.active_ms = r.now_ms
    c.took_ms = r.now_ms
    c.frame_ms = 0
    c.writable = True
    memcpy(c.peer, peer, PEER_BYTES)
    r.counters.connections += 1
    r.counters.connections_accepted += 1
    event.events = <uint32_t>EPOLLIN | <uint32_t>EPOLLOUT | <uint32_t>EPOLLRDHUP | <uint32_t>EPOLLET
    event.data.u64 = <uint64_t>c.place | (<uint64_t>c.generation << 32)
    if epoll_ctl(r.epoll, EPOLL_CTL_ADD, fd, &event) != 0:
        connection_close(r, c)


cdef void connection_close(Reactor* r, Connection* c) noexcept nogil:
    """Frees all that the connection holds. A token or event that comes late is told by the generation."""
    cdef Slot* slot
    cdef int32_t i
    if c.fd < 0:
        return
    close(c.fd)
    c.fd = -1
    admission_leave(r.plane.admission, c.listener, c.peer)
    connection_unstall(r, c)
    while c.head != c.tail:
        slot = slot_at(c, c.head)
        if slot.fetch != NULL:
            unpark(r, slot.fetch)
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
    c.readable = False
    c.hung_up = False
    c.ended = False
    c.refusing = False
    c.closing = False
    c.handed_over = 0
    c.cold = False
    c.generation = (c.generation + 1) & GENERATION_MASK
    r.free_places[r.free_count] = c.place
    r.free_count += 1
    r.counters.connections -= 1
    r.counters.connections_closed += 1


# --- requests -----------------------------------------------------------------------------------------------
cdef Served hand_over(Reactor* r, Connection* c, const uint8_t* frame, int32_t n, bint produce) noexcept nogil:
    """A request for the control plane. A produce is served there: those of its connection that come behind it follow
    it, so that they stay in order.
    """
    cdef Served result = queue_put(r, c, c.tail, frame, n, produce)
    cdef Slot* slot
    if result == SERVED:
        slot = slot_push(c, SLOT_CONTROL)
        slot.request_bytes = n
        slot.handed_over = produce
        c.handed_over += produce
        r.counters.requests_produce += produce
        r.counters.requests_control += not produce
    return result


cdef Served serve_produce(
    Reactor* r, Connection* c, const RequestHead* head, Reader body, const uint8_t* frame, int32_t n
) noexcept nogil:
    cdef bint straight = c.head == c.tail             # nothing before it waits
    cdef Writer waiting
    cdef Slot* slot
    cdef ProduceResult result
    if c.handed_over > 0:
        return hand_over(r, c, frame, n, True)
    memset(&waiting, 0, sizeof(Writer))
    result = produce_serve(r.plane.logs, head, body, &c.output if straight else &waiting, &r.produced, NULL)
    if result == PRODUCE_HAND_OVER:
        return hand_over(r, c, frame, n, True)
    r.counters.requests_produce += 1
    if result == PRODUCE_ANSWERED and not straight:
        slot = slot_push(c, SLOT_DONE)
        slot.answer = waiting
        return SERVED
    if not straight:
        writer_free(&waiting)
    if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
        return SERVED
    return SERVE_CLOSE


cdef FetchJob* begin_fetch(Reactor* r, Connection* c, const RequestHead* head, Reader body) noexcept nogil:
    """The job of a fetch; NULL when it is malformed or there is no memory."""
    cdef FetchJob* job
    r.counters.requests_fetch += 1
    if fetch_parse(head, body, r.plane.answer_bytes_max, &job) != FETCH_PARSED:
        return NULL
    job.connection = c
    job.deadline_ms = r.now_ms + max(job.max_wait_ms, 0)
    job.look = True
    return job


cdef Served serve_fetch(Reactor* r, Connection* c, const RequestHead* head, Reader body) noexcept nogil:
    cdef FetchJob* job = begin_fetch(r, c, head, body)
    cdef Slot* slot
    if job == NULL:
        return SERVE_CLOSE
    slot = slot_push(c, SLOT_FETCH)
    slot.fetch = job
    return SERVED


cdef Served serve(Reactor* r, Connection* c, uint8_t* frame, int32_t n) noexcept nogil:
    """One whole frame, without its size. The ring has room for one more."""
    cdef int16_t api_key = get_i16(frame)
    cdef int16_t version = get_i16(frame + API_VERSION_AT)
    cdef bint produce = api_key == PRODUCE_KEY and PRODUCE_VERSION_MIN <= version <= PRODUCE_VERSION_MAX
    cdef bint fetch = api_key == FETCH_KEY and FETCH_VERSION_MIN <= version <= FETCH_VERSION_MAX
    cdef RequestHead head
    cdef Reader body
    if (produce or fetch) and not (atomic_load32(&r.plane.diverted) >> api_key) & 1:
        reader_start(&body, frame, <size_t>n)
        read_head(&body, version >= (PRODUCE_FLEXIBLE_FROM if produce else FETCH_FLEXIBLE_FROM), &head)
        if body.bad:
            return SERVE_CLOSE
        return serve_produce(r, c, &head, body, frame, n) if produce else serve_fetch(r, c, &head, body)
    return hand_over(r, c, frame, n, False)


cdef void connection_resume(
    Reactor* r, Connection* c, uint32_t number, uint8_t* frame, int32_t n, bint lose
) noexcept nogil:
    """Serves a diverted Produce or Fetch into the slot that it has held meanwhile."""
    cdef int16_t version = get_i16(frame + API_VERSION_AT)
    cdef bint produce = get_i16(frame) == PRODUCE_KEY
    cdef RequestHead head
    cdef Reader body
    cdef ProduceResult result
    cdef Slot* slot = slot_at(c, number)
    slot.request_bytes = 0
    slot.state = SLOT_CLOSE
    reader_start(&body, frame, <size_t>n)
    read_head(&body, version >= (PRODUCE_FLEXIBLE_FROM if produce else FETCH_FLEXIBLE_FROM), &head)
    if not body.bad and produce:
        result = produce_serve(r.plane.logs, &head, body, &slot.answer, &r.produced, NULL)
        if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
            slot.state = SLOT_DONE
        elif result == PRODUCE_HAND_OVER and not lose and queue_put(r, c, number, frame, n, True) == SERVED:
            slot.state = SLOT_CONTROL
            slot.request_bytes = n
            slot.handed_over = True
            c.handed_over += 1
            return
    elif not body.bad:
        slot.fetch = begin_fetch(r, c, &head, body)
        if slot.fetch != NULL:
            slot.state = SLOT_FETCH
    if lose and slot.state == SLOT_DONE:
        writer_free(&slot.answer)
        slot.state = SLOT_CLOSE
    if slot.state == SLOT_CLOSE:
        c.refusing = True
    connection_ready(r, c)


# --- input --------------------------------------------------------------------------------------------------
cdef enum Taken:
    TAKEN_BYTES = 1
    TAKEN_NOTHING = 0
    TAKEN_STALLED = 2
    TAKEN_ERROR = -1


cdef Taken input_room(Reactor* r, Connection* c, size_t* wanted) noexcept nogil:
    """Where the next bytes go, and how many are asked for: the rest of a large frame exactly, so that nothing of
    the next one has to be moved; else what comes. A buffer is at most twice what has arrived, whatever the
    frame's size says.
    """
    cdef size_t held = c.end - c.start
    cdef size_t need = SCRATCH_BYTES
    cdef size_t capacity
    cdef Served grown
    if c.input == NULL:
        c.input = r.scratch
        c.capacity = SCRATCH_BYTES
        c.borrowed = True
        c.start = 0
        c.end = 0
    elif c.start > 0:
        memmove(c.input, c.input + c.start, held)
        c.start = 0
        c.end = held
    if held >= SIZE_BYTES:
        # The frame was cut, so its size is right and its end isn't here yet.
        need = <size_t>get_u32(c.input) + SIZE_BYTES - held
        need = max(need, <size_t>INPUT_BYTES_MIN)
    if c.end == c.capacity:
        capacity = min(c.capacity * 2, held + need)
        grown = input_grow(r, c, capacity)
        if grown != SERVED:
            return TAKEN_STALLED if grown == SERVE_STALLED else TAKEN_ERROR
    wanted[0] = min(c.capacity - c.end, need)
    return TAKEN_BYTES


cdef Taken input_take(Reactor* r, Connection* c, size_t* got) noexcept nogil:
    cdef size_t wanted = 0
    cdef ssize_t n
    cdef Taken room
    got[0] = 0
    if c.borrowed:
        # The scratch was filled in this turn already; its rest becomes the connection's own.
        if input_settle(r, c) == SERVE_CLOSE:
            return TAKEN_ERROR
    room = input_room(r, c, &wanted)
    if room != TAKEN_BYTES:
        return room
    n = recv(c.fd, c.input + c.end, wanted, 0)
    if n > 0:
        c.end += <size_t>n
        got[0] = <size_t>n
        r.counters.bytes_in += n
        # A short read has emptied the socket, unless its end is to be seen yet.
        c.readable = <size_t>n == wanted or c.hung_up
        return TAKEN_BYTES
    if n == 0:
        c.ended = True
        c.readable = False
        return TAKEN_NOTHING
    if errno == EINTR:
        return TAKEN_BYTES
    c.readable = False
    return TAKEN_NOTHING if errno == EAGAIN else TAKEN_ERROR


cdef bint connection_read(Reactor* r, Connection* c) noexcept nogil:
    """Takes bytes and serves frames until there are none, the turn is over, or the connection mustn't take more.
    False: it has to be closed.
    """
    cdef int32_t frames = 0, size
    cdef size_t bytes_taken = 0, got
    cdef Cut cut
    cdef Served served
    cdef Taken taken
    while not c.refusing and not output_full(c) and not slots_full(c) and not r.draining:
        cut = CUT_MORE
        if c.end > c.start:
            cut = frame_cut(c.input + c.start, c.end - c.start, c.frame_bytes_max, &size)
        if cut == CUT_BAD:
            r.counters.closed_malformed += 1
            refuse(r, c)
            return True
        if cut == CUT_MORE:
            if c.ended or not c.readable or c.stalled:
                return True
            if bytes_taken >= TURN_BYTES:
                connection_ready(r, c)
                return True
            taken = input_take(r, c, &got)
            if taken == TAKEN_ERROR:
                return False
            if taken == TAKEN_STALLED:
                stall(r, c)
            bytes_taken += got
            continue
        if frames == TURN_FRAMES or bytes_taken >= TURN_BYTES:
            connection_ready(r, c)
            return True
        served = serve(r, c, c.input + c.start + SIZE_BYTES, size)
        if served == SERVE_STALLED:
            stall(r, c)
            return True
        frames += 1
        r.counters.requests += 1
        c.active_ms = r.now_ms
        c.frame_ms = 0
        c.start += SIZE_BYTES + <size_t>size
        c.largest = max(c.largest, size)
        if served == SERVE_CLOSE:
            r.counters.closed_malformed += 1
            refuse(r, c)
    return True


# --- output -------------------------------------------------------------------------------------------------
cdef bint warm(Reactor* r, Connection* c, FilePiece* piece, int64_t n) noexcept nogil:
    """Whether the next n bytes of a piece can go without waiting for a disk; if not, a reader thread has them."""
    if piece.position + n <= piece.warm_until or range_is_cached(piece.read.fd, piece.position, n):
        return True
    piece.warm_until = piece.position + n
    if not reader_submit(r.plane.readers, piece.read.fd, piece.position, n, r, c.place, c.generation):
        return True
    r.counters.cold_ranges += 1
    c.cold = True
    return False


cdef ssize_t send_file(Reactor* r, Connection* c, FilePiece* piece) noexcept nogil:
    cdef int64_t n = min(piece.left, <int64_t>SENDFILE_CHUNK_BYTES)
    cdef off_t position = piece.position
    cdef ssize_t went
    went = sendfile(c.fd, piece.read.fd, &position, <size_t>n)
    if went > 0:
        piece.position += went
        piece.left -= went
        if piece.left == 0:
            piece_release(piece)
            c.pieces.first += 1
    return went


cdef void output_reset(Connection* c) noexcept nogil:
    c.sent = 0
    c.output.n = 0
    c.pieces.n = 0
    c.pieces.first = 0
    if c.output.capacity > OUTPUT_KEPT_BYTES:
        writer_free(&c.output)


cdef void output_compact(Connection* c) noexcept nogil:
    """Drops bytes that went, so that a peer that is always a little behind doesn't make the buffer grow for ever."""
    cdef int32_t i
    if c.sent < OUTPUT_COMPACT_BYTES:
        return
    memmove(c.output.p, c.output.p + c.sent, c.output.n - c.sent)
    for i in range(c.pieces.first, c.pieces.n):
        c.pieces.p[i].at -= c.sent
    c.output.n -= c.sent
    c.sent = 0


cdef bint connection_send(Reactor* r, Connection* c) noexcept nogil:
    """Sends until all is out, the peer takes no more, a range is cold, or the turn is over. False: close."""
    cdef FilePiece* piece
    cdef size_t until
    cdef ssize_t went
    cdef int64_t total = 0
    while c.writable:
        piece = &c.pieces.p[c.pieces.first] if c.pieces.first < c.pieces.n else NULL
        until = piece.at if piece != NULL else c.output.n
        if c.sent == until and piece == NULL:
            break
        if total >= TURN_BYTES:
            connection_ready(r, c)
            break
        if c.sent < until:
            went = send(c.fd, c.output.p + c.sent, until - c.sent, MSG_NOSIGNAL | (MSG_MORE if piece != NULL else 0))
            c.sent += <size_t>went if went > 0 else 0
        elif c.cold or not warm(r, c, piece, min(piece.left, <int64_t>SENDFILE_CHUNK_BYTES)):
            break
        else:
            went = send_file(r, c, piece)
            if went == 0:                             # the file is shorter than its log says
                return False
        if went > 0:
            total += went
        elif errno == EAGAIN:
            c.writable = False
        elif errno != EINTR:
            return False
    if total:
        r.counters.bytes_out += total
        c.active_ms = r.now_ms
        c.took_ms = r.now_ms
    if c.sent == c.output.n and c.pieces.first == c.pieces.n:
        output_reset(c)
    else:
        output_compact(c)
    return True


cdef enum Step:
    STEP_DONE = 1                     # the slot's answer is in the output
    STEP_WAIT = 0
    STEP_CLOSE = -1


cdef Step warm_range(Reactor* r, Connection* c, FetchJob* job) noexcept nogil:
    """Has a reader thread read what a fetch of an old version needs in memory; it is tried again then."""
    cdef const FetchRange* cold = &job.ranges[job.cold]
    job.look = True
    r.counters.cold_ranges += 1
    c.cold = reader_submit(
        r.plane.readers, cold.read.fd, cold.read.position, cold.read.length, r, c.place, c.generation
    )
    if not c.cold:
        connection_ready(r, c)                        # too much is waiting to be read: in a later turn
    return STEP_WAIT


cdef Step answer_fetch(Reactor* r, Connection* c, Slot* slot) noexcept nogil:
    cdef FetchJob* job = slot.fetch
    cdef bint must_answer = r.now_ms >= job.deadline_ms or r.draining
    cdef FetchState state
    cdef int64_t n
    if not job.look or c.cold:
        return STEP_WAIT
    if not job.begun:
        fetch_begin(job, r.plane.logs, r.plane.sessions, r.now_ms)
    job.look = False
    state = fetch_try(job, r.id, must_answer)
    if state == FETCH_COLD:
        return warm_range(r, c, job)
    if state == FETCH_AGAIN:
        job.look = True
        connection_ready(r, c)
        return STEP_WAIT
    if state == FETCH_WAIT:
        return STEP_WAIT if park(r, job) else STEP_CLOSE
    if state == FETCH_FAILED:
        return STEP_CLOSE
    unpark(r, job)
    n = fetch_answer(job, r.now_ms, &c.output, &c.pieces, &r.counters.fetch_errors)
    slot.fetch = NULL
    fetch_free(job)
    if n < 0:
        return STEP_CLOSE
    r.counters.fetch_bytes += n
    return STEP_DONE


cdef Step answer_head(Reactor* r, Connection* c) noexcept nogil:
    """Moves the oldest slot's answer to the output, if it is there."""
    cdef Slot* slot = slot_at(c, c.head)
    if slot.state == SLOT_CONTROL:
        return STEP_WAIT
    if slot.state == SLOT_FETCH:
        return answer_fetch(r, c, slot)
    if slot.state == SLOT_CLOSE:
        c.closing = True
        return STEP_DONE
    if c.output.n == 0:
        writer_free(&c.output)
        c.output = slot.answer
        memset(&slot.answer, 0, sizeof(Writer))
    else:
        write_raw(&c.output, slot.answer.p, slot.answer.n)
        writer_free(&slot.answer)
    return STEP_CLOSE if c.output.failed else STEP_DONE


cdef bint connection_pump(Reactor* r, Connection* c) noexcept nogil:
    """Answers in order, as far as they are there and the peer takes them. False: close."""
    cdef Step step
    cdef bint progress = True
    while progress:
        progress = False
        while c.head != c.tail and not output_full(c) and not c.closing:
            step = answer_head(r, c)
            if step == STEP_CLOSE:
                return False
            if step == STEP_WAIT:
                break
            c.head += 1
            progress = True
        if not connection_send(r, c):
            return False
        if c.on_ready:                                # its turn is over
            break
    return True


cdef void clock_frame(Reactor* r, Connection* c) noexcept nogil:
    """Notes since when a frame is here in part. It isn't the peer's fault while nothing more is read."""
    if c.start == c.end or c.stalled or c.refusing or output_full(c) or slots_full(c):
        c.frame_ms = 0
    elif c.frame_ms == 0:
        c.frame_ms = r.now_ms


cdef void connection_run(Reactor* r, Connection* c) noexcept nogil:
    """One turn of a connection."""
    if c.fd < 0:
        return
    connection_unstall(r, c)                          # it stalls again if it still has to
    if not connection_pump(r, c):
        connection_close(r, c)
        return
    if not connection_read(r, c) or input_settle(r, c) == SERVE_CLOSE or not connection_pump(r, c):
        connection_close(r, c)
        return
    if c.closing and c.output.n == c.sent and c.pieces.first == c.pieces.n:
        connection_close(r, c)
        return
    if c.ended or (c.hung_up and not c.readable):
        # The peer has gone; what was answered was sent, what waits is dropped.
        if not c.on_ready:
            connection_close(r, c)
            return
    clock_frame(r, c)
    # The pump may have made room for frames that are here already, or that the socket has.
    if (c.readable or c.end - c.start >= SIZE_BYTES) and not c.stalled and not c.refusing and not output_full(c):
        if not slots_full(c) and runnable(r, c):
            connection_ready(r, c)


cdef bint runnable(Reactor* r, Connection* c) noexcept nogil:
    """Whether a next turn would find a whole frame, or bytes to take."""
    cdef int32_t size
    if r.draining:
        return False
    return c.readable or frame_cut(c.input + c.start, c.end - c.start, c.frame_bytes_max, &size) != CUT_MORE
