"""The epoll threads; see reactor.pxd for the picture. Every function runs without the GIL and gives a status back.

The rule that keeps it simple: events, mail, timers and wakes only note what they saw on a connection and put
it on the ready list; `connection_run` is the one place where a connection does anything.
"""
from penstock.pyx.endian cimport get_i16, get_u32
from penstock.pyx.fetch cimport (
    FETCH_AGAIN,
    FETCH_KEY,
    FETCH_PARSED,
    FETCH_VERSION_MAX,
    FETCH_VERSION_MIN,
    FETCH_WAIT,
    FETCH_FLEXIBLE_FROM,
    FetchParse,
    FetchState,
    FilePiece,
    fetch_answer,
    fetch_free,
    fetch_moved,
    fetch_parse,
    fetch_try,
    piece_release,
)
from penstock.pyx.frame cimport (
    API_VERSION_AT,
    CUT_BAD,
    CUT_MORE,
    SIZE_BYTES,
    Cut,
    Reader,
    RequestHead,
    frame_cut,
    read_head,
    reader_start,
    write_raw,
    writer_free,
)
from penstock.pyx.partition cimport set_wake_hook
from penstock.pyx.posix cimport (
    AF_INET6,
    CLOCK_MONOTONIC,
    EAGAIN,
    ECONNABORTED,
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EINTR,
    EPOLLERR,
    EPOLLET,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPROTO,
    IPPROTO_TCP,
    MSG_MORE,
    MSG_NOSIGNAL,
    SIG_BLOCK,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    TCP_NODELAY,
    accept4,
    atomic_add64,
    atomic_load32,
    atomic_store32,
    atomic_swap32,
    calloc,
    clock_gettime,
    close,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    errno,
    eventfd,
    eventfd_read,
    eventfd_write,
    free,
    inet_ntop,
    malloc,
    memcpy,
    memmove,
    memset,
    ntohs,
    off_t,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    pthread_self,
    pthread_sigmask,
    realloc,
    recv,
    send,
    sendfile,
    setsockopt,
    sigfillset,
    sigset_t,
    sockaddr,
    sockaddr_in,
    sockaddr_in6,
    sockaddr_storage,
    snprintf,
    socklen_t,
    timespec,
)
from penstock.pyx.produce cimport (
    PRODUCE_ANSWERED,
    PRODUCE_FLEXIBLE_FROM,
    PRODUCE_KEY,
    PRODUCE_SILENT,
    PRODUCE_VERSION_MAX,
    PRODUCE_VERSION_MIN,
    ProduceResult,
    produce_serve,
)
from penstock.pyx.reader cimport range_is_cached, reader_submit

cdef enum:
    GENERATION_MASK = 0xfffff         # bits of a generation in a token
    REQUEST_MASK = 0xffff
    PLACE_MASK = PLACES_MAX - 1
    EVENT_WAKE = 0x7fffffff           # epoll's data for what isn't a connection: low half of data.u64
    EVENT_LISTENER = 0x7ffffffe
    KEEP_INPUT_MS = 5000              # a large empty input buffer is kept this long
    ACCEPT_AGAIN_MS = 100

cdef enum Served:
    SERVED = 0
    SERVE_STALLED = 1                 # the frame stays where it is
    SERVE_CLOSE = -1

# Every reactor that was ever made, by id; the hook reads it without a lock.
cdef Reactor* _reactors[REACTORS_MAX]
cdef pthread_mutex_t _table_lock
pthread_mutex_init(&_table_lock, NULL)


cdef int64_t now_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


# --- from other threads -------------------------------------------------------------------------------------
cdef void reactor_wake(Reactor* r) noexcept nogil:
    """Makes the thread look at its flags and mailbox. Its own calls need no event: it looks before it sleeps."""
    if atomic_swap32(&r.wake, 1) == 0 and not (atomic_load32(&r.running) and r.thread == pthread_self()):
        eventfd_write(r.wake_fd, 1)


cdef void on_partitions_moved(uint64_t mask) noexcept nogil:
    """The log's wake hook."""
    cdef int32_t i
    for i in range(REACTORS_MAX):
        if (mask >> i) & 1 and _reactors[i] != NULL:
            atomic_store32(&_reactors[i].moved, 1)
            reactor_wake(_reactors[i])


cdef void post(Reactor* r, Mail* mail) noexcept nogil:
    mail.next = NULL
    pthread_mutex_lock(&r.lock)
    if r.mail_last == NULL:
        r.mail_first = mail
    else:
        r.mail_last.next = mail
    r.mail_last = mail
    pthread_mutex_unlock(&r.lock)
    reactor_wake(r)


cdef void on_warm(void* owner, uint32_t place, uint32_t generation) noexcept nogil:
    """The reader pool's hook. Without memory for the mail the connection stays parked until it is swept as idle."""
    cdef Mail* mail = <Mail*>calloc(1, sizeof(Mail))
    if mail != NULL:
        mail.kind = MAIL_WARM
        mail.place = place
        mail.generation = generation
        post(<Reactor*>owner, mail)


cdef uint64_t token_pack(int32_t reactor, uint32_t place, uint32_t generation, uint32_t request) noexcept nogil:
    return (
        (<uint64_t>reactor << 58)
        | (<uint64_t>place << 36)
        | (<uint64_t>(generation & GENERATION_MASK) << 16)
        | (request & REQUEST_MASK)
    )


cdef bint token_post(Plane* plane, uint64_t token, MailKind kind, Writer* answer) noexcept nogil:
    cdef Reactor* r = _reactors[token >> 58]
    cdef Mail* mail
    if r == NULL or r.plane != plane:
        writer_free(answer)
        return False
    mail = <Mail*>calloc(1, sizeof(Mail))
    if mail == NULL:
        writer_free(answer)
        return False
    mail.kind = kind
    mail.place = <uint32_t>(token >> 36) & PLACE_MASK
    mail.generation = <uint32_t>(token >> 16) & GENERATION_MASK
    mail.request = <uint32_t>token & REQUEST_MASK
    mail.answer = answer[0]
    memset(answer, 0, sizeof(Writer))
    post(r, mail)
    return True


# --- the control queue --------------------------------------------------------------------------------------
cdef Served queue_put(Reactor* r, Connection* c, const uint8_t* frame, int32_t n) noexcept nogil:
    """Copies a request onto the queue. A request is always taken when the queue is empty, however large it is."""
    cdef ControlQueue* q = &r.plane.queue
    cdef ControlRequest* request
    cdef bint was_empty
    cdef int64_t cost = n + <int64_t>sizeof(ControlRequest)
    pthread_mutex_lock(&q.lock)
    if q.bytes > 0 and q.bytes + cost > q.bytes_max:
        q.full = True
        pthread_mutex_unlock(&q.lock)
        return SERVE_STALLED
    q.bytes += cost
    pthread_mutex_unlock(&q.lock)
    request = <ControlRequest*>malloc(<size_t>cost)
    if request == NULL:
        pthread_mutex_lock(&q.lock)
        q.bytes -= cost
        pthread_mutex_unlock(&q.lock)
        return SERVE_CLOSE
    request.token = token_pack(r.id, c.place, c.generation, c.tail)
    request.listener = c.listener
    request.n = n
    request.next = NULL
    memcpy(request.peer, c.peer, PEER_BYTES)
    memcpy(request.frame, frame, <size_t>n)
    pthread_mutex_lock(&q.lock)
    was_empty = q.first == NULL
    if was_empty:
        q.first = request
    else:
        q.last.next = request
    q.last = request
    pthread_mutex_unlock(&q.lock)
    if was_empty:
        eventfd_write(q.fd, 1)
    return SERVED


cdef ControlRequest* queue_take(Plane* plane, int32_t most) noexcept nogil:
    cdef ControlQueue* q = &plane.queue
    cdef ControlRequest* first
    cdef ControlRequest* last
    cdef uint64_t count
    cdef bint unstall = False
    cdef int32_t i, _i
    # Read before the list is taken: a request that comes between the two writes the eventfd again.
    eventfd_read(q.fd, &count)
    pthread_mutex_lock(&q.lock)
    first = q.first
    last = first
    if first != NULL:
        q.bytes -= first.n + <int64_t>sizeof(ControlRequest)
        for _i in range(1, most):
            if last.next == NULL:
                break
            last = last.next
            q.bytes -= last.n + <int64_t>sizeof(ControlRequest)
        q.first = last.next
        last.next = NULL
        if q.first == NULL:
            q.last = NULL
        else:
            eventfd_write(q.fd, 1)
        if q.full and q.bytes <= q.bytes_max // 2:
            q.full = False
            unstall = True
    pthread_mutex_unlock(&q.lock)
    if unstall:
        for i in range(plane.reactor_count):
            atomic_store32(&plane.reactors[i].unstall, 1)
            reactor_wake(plane.reactors[i])
    return first


# --- ready list, deadlines ----------------------------------------------------------------------------------
cdef void ready(Reactor* r, Connection* c) noexcept nogil:
    if c.on_ready:
        return
    c.on_ready = True
    c.ready_next = NULL
    if r.ready_last == NULL:
        r.ready_first = c
    else:
        r.ready_last.ready_next = c
    r.ready_last = c


cdef void heap_set(Reactor* r, int32_t at, FetchJob* job) noexcept nogil:
    r.heap[at] = job
    job.heap_index = at


cdef void heap_settle(Reactor* r, int32_t at, FetchJob* job) noexcept nogil:
    """Puts the job at or near place `at`, so that every parent is due before its children."""
    cdef int32_t other
    while at > 0 and r.heap[(at - 1) // 2].deadline_ms > job.deadline_ms:
        heap_set(r, at, r.heap[(at - 1) // 2])
        at = (at - 1) // 2
    while True:
        other = 2 * at + 1
        if other >= r.heap_n:
            break
        if other + 1 < r.heap_n and r.heap[other + 1].deadline_ms < r.heap[other].deadline_ms:
            other += 1
        if r.heap[other].deadline_ms >= job.deadline_ms:
            break
        heap_set(r, at, r.heap[other])
        at = other
    heap_set(r, at, job)


cdef bint park(Reactor* r, FetchJob* job) noexcept nogil:
    """Puts a job on the waiting list and its deadline on the heap. False: no memory."""
    cdef FetchJob** grown
    cdef int32_t capacity
    if job.heap_index >= 0:
        return True
    if r.heap_n == r.heap_capacity:
        capacity = r.heap_capacity * 2 + 64
        grown = <FetchJob**>realloc(r.heap, <size_t>capacity * sizeof(FetchJob*))
        if grown == NULL:
            return False
        r.heap = grown
        r.heap_capacity = capacity
    r.heap_n += 1
    heap_settle(r, r.heap_n - 1, job)
    job.previous = NULL
    job.next = r.waiting
    if job.next != NULL:
        job.next.previous = job
    r.waiting = job
    r.counters.fetch_waits += 1
    return True


cdef void unpark(Reactor* r, FetchJob* job) noexcept nogil:
    cdef int32_t at = job.heap_index
    cdef FetchJob* last
    if at < 0:
        return
    job.heap_index = -1
    r.heap_n -= 1
    last = r.heap[r.heap_n]
    if last != job:
        heap_settle(r, at, last)
    if job.previous != NULL:
        job.previous.next = job.next
    else:
        r.waiting = job.next
    if job.next != NULL:
        job.next.previous = job.previous
    job.next = NULL
    job.previous = NULL


# --- a connection's memory ----------------------------------------------------------------------------------
cdef void unstall(Reactor* r, Connection* c) noexcept nogil:
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
                reactor_wake(r)
    c.input = NULL
    c.borrowed = False
    c.capacity = 0
    c.start = 0
    c.end = 0
    c.largest = 0


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


cdef Slot* slot_at(Connection* c, uint32_t number) noexcept nogil:
    return &c.ring[number % SLOTS]


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
    cdef int one = 1
    if not r.draining:
        c = connection_place(r)
    if c == NULL:
        close(fd)
        return
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(int))
    c.fd = fd
    c.listener = listener
    c.active_ms = r.now_ms
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
    unstall(r, c)
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
    c.cold = False
    c.generation = (c.generation + 1) & GENERATION_MASK
    r.free_places[r.free_count] = c.place
    r.free_count += 1
    r.counters.connections -= 1
    r.counters.connections_closed += 1


# --- requests -----------------------------------------------------------------------------------------------
cdef Served serve_produce(Reactor* r, Connection* c, const RequestHead* head, Reader body) noexcept nogil:
    cdef bint straight = c.head == c.tail             # nothing before it waits
    cdef Writer waiting
    cdef Slot* slot
    cdef ProduceResult result
    r.counters.requests_produce += 1
    memset(&waiting, 0, sizeof(Writer))
    result = produce_serve(head, body, &c.output if straight else &waiting, &r.produced)
    if result == PRODUCE_ANSWERED and not straight:
        slot = slot_push(c, SLOT_DONE)
        slot.answer = waiting
        return SERVED
    if not straight:
        writer_free(&waiting)
    if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
        return SERVED
    return SERVE_CLOSE


cdef Served serve_fetch(Reactor* r, Connection* c, const RequestHead* head, Reader body) noexcept nogil:
    cdef FetchJob* job
    cdef Slot* slot
    cdef FetchParse result = fetch_parse(head, body, r.plane.answer_bytes_max, &job)
    r.counters.requests_fetch += 1
    if result != FETCH_PARSED:
        return SERVE_CLOSE
    job.connection = c
    job.deadline_ms = r.now_ms + max(job.max_wait_ms, 0)
    job.look = True
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
    cdef Served result
    if produce or fetch:
        reader_start(&body, frame, <size_t>n)
        read_head(&body, version >= (PRODUCE_FLEXIBLE_FROM if produce else FETCH_FLEXIBLE_FROM), &head)
        if body.bad:
            return SERVE_CLOSE
        return serve_produce(r, c, &head, body) if produce else serve_fetch(r, c, &head, body)
    result = queue_put(r, c, frame, n)
    if result == SERVED:
        slot_push(c, SLOT_CONTROL)
        r.counters.requests_control += 1
    return result


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
    while not c.refusing and not output_full(c) and c.tail - c.head < SLOTS - 1 and not r.draining:
        cut = CUT_MORE
        if c.end > c.start:
            cut = frame_cut(c.input + c.start, c.end - c.start, r.plane.request_bytes_max, &size)
        if cut == CUT_BAD:
            r.counters.closed_malformed += 1
            refuse(r, c)
            return True
        if cut == CUT_MORE:
            if c.ended or not c.readable or c.stalled:
                return True
            if bytes_taken >= TURN_BYTES:
                ready(r, c)
                return True
            taken = input_take(r, c, &got)
            if taken == TAKEN_ERROR:
                return False
            if taken == TAKEN_STALLED:
                stall(r, c)
            bytes_taken += got
            continue
        if frames == TURN_FRAMES or bytes_taken >= TURN_BYTES:
            ready(r, c)
            return True
        served = serve(r, c, c.input + c.start + SIZE_BYTES, size)
        if served == SERVE_STALLED:
            stall(r, c)
            return True
        frames += 1
        r.counters.requests += 1
        c.active_ms = r.now_ms
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
    if c.sent < OUTPUT_BYTES_MAX // 4:
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
    while c.writable and not c.cold:
        piece = &c.pieces.p[c.pieces.first] if c.pieces.first < c.pieces.n else NULL
        until = piece.at if piece != NULL else c.output.n
        if c.sent == until and piece == NULL:
            break
        if total >= TURN_BYTES:
            ready(r, c)
            break
        if c.sent < until:
            went = send(c.fd, c.output.p + c.sent, until - c.sent, MSG_NOSIGNAL | (MSG_MORE if piece != NULL else 0))
            c.sent += <size_t>went if went > 0 else 0
        elif not warm(r, c, piece, min(piece.left, <int64_t>SENDFILE_CHUNK_BYTES)):
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
    if c.sent == c.output.n and c.pieces.first == c.pieces.n:
        output_reset(c)
    else:
        output_compact(c)
    return True


cdef enum Step:
    STEP_DONE = 1                     # the slot's answer is in the output
    STEP_WAIT = 0
    STEP_CLOSE = -1


cdef Step answer_fetch(Reactor* r, Connection* c, Slot* slot) noexcept nogil:
    cdef FetchJob* job = slot.fetch
    cdef bint must_answer = r.now_ms >= job.deadline_ms or r.draining
    cdef FetchState state
    cdef int64_t n
    if not job.look:
        return STEP_WAIT
    job.look = False
    state = fetch_try(job, r.id, must_answer)
    if state == FETCH_AGAIN:
        atomic_store32(&r.moved, 1)
        atomic_store32(&r.wake, 1)
    if state == FETCH_WAIT or state == FETCH_AGAIN:
        return STEP_WAIT if park(r, job) else STEP_CLOSE
    unpark(r, job)
    n = fetch_answer(job, &c.output, &c.pieces, &r.counters.fetch_errors)
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


cdef void connection_run(Reactor* r, Connection* c) noexcept nogil:
    """One turn of a connection."""
    if c.fd < 0:
        return
    unstall(r, c)                                     # it stalls again if it still has to
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
    # The pump may have made room for frames that are here already, or that the socket has.
    if (c.readable or c.end - c.start >= SIZE_BYTES) and not c.stalled and not c.refusing and not output_full(c):
        if c.tail - c.head < SLOTS - 1 and runnable(r, c):
            ready(r, c)


cdef bint runnable(Reactor* r, Connection* c) noexcept nogil:
    """Whether a next turn would find a whole frame, or bytes to take."""
    cdef int32_t size
    if r.draining:
        return False
    return c.readable or frame_cut(c.input + c.start, c.end - c.start, r.plane.request_bytes_max, &size) != CUT_MORE


# --- events, mail, time -------------------------------------------------------------------------------------
cdef Connection* connection_of(Reactor* r, uint32_t place, uint32_t generation) noexcept nogil:
    cdef Connection* c
    if place >= r.places_used:
        return NULL
    c = r.connections[place]
    return c if c.fd >= 0 and c.generation == generation else NULL


cdef void describe_peer(const sockaddr_storage* address, char* out) noexcept nogil:
    cdef char text[48]
    cdef const sockaddr_in6* six = <const sockaddr_in6*>address
    cdef const sockaddr_in* four = <const sockaddr_in*>address
    text[0] = 0
    memset(out, 0, PEER_BYTES)
    if address.ss_family == AF_INET6:
        inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text))
        snprintf(out, PEER_BYTES, b"[%s]:%u", text, <unsigned int>ntohs(six.sin6_port))
    else:
        inet_ntop(address.ss_family, &four.sin_addr, text, sizeof(text))
        snprintf(out, PEER_BYTES, b"%s:%u", text, <unsigned int>ntohs(four.sin_port))


cdef void hand_over(Reactor* r, int fd, int32_t listener, const char* peer) noexcept nogil:
    """Gives a new socket to the next reactor in turn."""
    cdef Reactor* owner = r.plane.reactors[r.next_reactor % <uint32_t>r.plane.reactor_count]
    cdef Mail* mail
    r.next_reactor += 1
    if owner == r:
        connection_open(r, fd, listener, peer)
        return
    mail = <Mail*>calloc(1, sizeof(Mail))
    if mail == NULL:
        close(fd)
        return
    mail.kind = MAIL_SOCKET
    mail.fd = fd
    mail.listener = listener
    memcpy(mail.peer, peer, PEER_BYTES)
    post(owner, mail)


cdef void accept_all(Reactor* r, int32_t listener) noexcept nogil:
    cdef sockaddr_storage address
    cdef socklen_t n
    cdef char peer[PEER_BYTES]
    cdef int32_t _i
    cdef int fd
    if r.listeners[listener] < 0 or r.draining:
        return
    for _i in range(ACCEPTS_MAX):
        n = sizeof(sockaddr_storage)
        fd = accept4(r.listeners[listener], <sockaddr*>&address, &n, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if fd >= 0:
            describe_peer(&address, peer)
            hand_over(r, fd, listener, peer)
        elif errno == EAGAIN:
            return
        elif errno != EINTR and errno != ECONNABORTED and errno != EPROTO:
            break
    r.accept_again = True                             # no descriptors, or more than one turn's worth are waiting


cdef void on_event(Reactor* r, const epoll_event* event) noexcept nogil:
    cdef uint32_t low = <uint32_t>event.data.u64
    cdef uint32_t high = <uint32_t>(event.data.u64 >> 32)
    cdef Connection* c
    if low == EVENT_WAKE:
        return
    if low == EVENT_LISTENER:
        accept_all(r, <int32_t>high)
        return
    c = connection_of(r, low, high)
    if c == NULL:
        return
    if event.events & (<uint32_t>EPOLLIN | <uint32_t>EPOLLRDHUP | <uint32_t>EPOLLHUP | <uint32_t>EPOLLERR):
        c.readable = True
    if event.events & (<uint32_t>EPOLLRDHUP | <uint32_t>EPOLLHUP | <uint32_t>EPOLLERR):
        c.hung_up = True
        if c.tail - c.head >= SLOTS - 1 or c.refusing or c.stalled:
            c.readable = False                        # it isn't being read: the end is all there is to see
    if event.events & (<uint32_t>EPOLLOUT | <uint32_t>EPOLLHUP | <uint32_t>EPOLLERR):
        c.writable = True
    ready(r, c)


cdef void on_answer(Reactor* r, Connection* c, Mail* mail) noexcept nogil:
    """Puts the control plane's answer into its slot; one that comes twice, or too late, is dropped."""
    cdef uint32_t number = c.head + ((mail.request - c.head) & REQUEST_MASK)
    cdef Slot* slot
    if number - c.head >= c.tail - c.head:
        r.counters.answers_late += 1
        return
    slot = slot_at(c, number)
    if slot.state != SLOT_CONTROL:
        r.counters.answers_late += 1
        return
    if mail.kind == MAIL_CLOSE:
        slot.state = SLOT_CLOSE
        c.refusing = True
        r.counters.closed_malformed += 1
    else:
        slot.state = SLOT_DONE
        slot.answer = mail.answer
        memset(&mail.answer, 0, sizeof(Writer))
    ready(r, c)


cdef void on_mail(Reactor* r, Mail* mail) noexcept nogil:
    cdef Connection* c
    if mail.kind == MAIL_SOCKET:
        connection_open(r, mail.fd, mail.listener, mail.peer)
        return
    c = connection_of(r, mail.place, mail.generation)
    if c == NULL:
        r.counters.answers_late += mail.kind != MAIL_WARM
    elif mail.kind == MAIL_WARM:
        c.cold = False
        ready(r, c)
    else:
        on_answer(r, c, mail)


cdef void take_mail(Reactor* r) noexcept nogil:
    cdef Mail* mail
    cdef Mail* after
    pthread_mutex_lock(&r.lock)
    mail = r.mail_first
    r.mail_first = NULL
    r.mail_last = NULL
    pthread_mutex_unlock(&r.lock)
    while mail != NULL:
        after = mail.next
        on_mail(r, mail)
        writer_free(&mail.answer)
        free(mail)
        mail = after


cdef void look_again(Reactor* r, FetchJob* job) noexcept nogil:
    job.look = True
    ready(r, <Connection*>job.connection)


cdef void on_moved(Reactor* r) noexcept nogil:
    cdef FetchJob* job = r.waiting
    while job != NULL:
        if job.look or fetch_moved(job, r.id):
            look_again(r, job)
        job = job.next


cdef void on_deadlines(Reactor* r) noexcept nogil:
    """A job whose time is up leaves the heap and is answered in its connection's next turn."""
    while r.heap_n and r.heap[0].deadline_ms <= r.now_ms:
        look_again(r, r.heap[0])
        unpark(r, r.heap[0])


cdef void on_unstall(Reactor* r) noexcept nogil:
    cdef uint32_t i
    for i in range(r.places_used):
        if r.connections[i].stalled:
            unstall(r, r.connections[i])
            ready(r, r.connections[i])


cdef bint is_idle(Reactor* r, Connection* c) noexcept nogil:
    """Silent for too long, and not because of an answer that this broker owes."""
    if r.now_ms - c.active_ms <= r.plane.idle_ms_max:
        return False
    return c.head == c.tail or output_left(c) > 0 or c.pieces.first < c.pieces.n


cdef void sweep(Reactor* r) noexcept nogil:
    cdef Connection* c
    cdef uint32_t i
    r.swept_ms = r.now_ms
    for i in range(r.places_used):
        c = r.connections[i]
        if c.fd < 0:
            continue
        if is_idle(r, c):
            r.counters.closed_idle += 1
            connection_close(r, c)
        elif c.input != NULL and c.start == c.end and r.now_ms - c.active_ms > KEEP_INPUT_MS:
            input_free(r, c)
    if r.stalled_count:
        on_unstall(r)


cdef void start_drain(Reactor* r) noexcept nogil:
    """Nothing new is taken; what waits on a log is answered now, what waits on the control plane has DRAIN_MS."""
    cdef int32_t i
    cdef uint32_t place
    cdef FetchJob* job = r.waiting
    r.draining = True
    r.drain_until_ms = r.now_ms + DRAIN_MS
    for i in range(r.listener_count):
        if r.listeners[i] >= 0:
            close(r.listeners[i])
            r.listeners[i] = -1
    while job != NULL:
        job.look = True
        job = job.next
    for place in range(r.places_used):
        if r.connections[place].fd >= 0:
            ready(r, r.connections[place])


cdef bint drained(Reactor* r) noexcept nogil:
    cdef uint32_t i
    cdef Connection* c
    if r.now_ms >= r.drain_until_ms:
        return True
    for i in range(r.places_used):
        c = r.connections[i]
        if c.fd >= 0 and (c.head != c.tail or output_left(c) > 0 or c.pieces.first < c.pieces.n):
            return False
    return True


cdef int64_t sweep_every_ms(Reactor* r) noexcept nogil:
    return min(max(r.plane.idle_ms_max // 4, <int64_t>10), <int64_t>SWEEP_MS_MAX)


cdef int timeout_ms(Reactor* r) noexcept nogil:
    """Until the next thing that has a time."""
    cdef int64_t until = r.swept_ms + sweep_every_ms(r)
    if r.ready_first != NULL or atomic_load32(&r.wake):
        return 0
    if r.heap_n and r.heap[0].deadline_ms < until:
        until = r.heap[0].deadline_ms
    if r.accept_again or r.draining:
        until = min(until, r.now_ms + (ACCEPT_AGAIN_MS if not r.draining else 10))
    return <int>max(until - now_ms(), <int64_t>0)


cdef void run_ready(Reactor* r) noexcept nogil:
    """One turn for each connection that is ready now; those that ask again come after the next look at the events."""
    cdef Connection* c = r.ready_first
    cdef Connection* after
    r.ready_first = NULL
    r.ready_last = NULL
    while c != NULL:
        after = c.ready_next
        c.on_ready = False
        connection_run(r, c)
        c = after


cdef void on_wake(Reactor* r) noexcept nogil:
    if atomic_swap32(&r.wake, 0) == 0:
        return
    if atomic_load32(&r.stopping) and not r.draining:
        start_drain(r)
    take_mail(r)
    if atomic_swap32(&r.moved, 0):
        on_moved(r)
    if atomic_swap32(&r.unstall, 0):
        on_unstall(r)


cdef void block_signals() noexcept nogil:
    """Signals are for Python's main thread; a peer that has gone is an error of sendfile, not a signal."""
    cdef sigset_t all_signals
    sigfillset(&all_signals)
    pthread_sigmask(SIG_BLOCK, &all_signals, NULL)


cdef void reactor_loop(Reactor* r) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n, i
    block_signals()
    r.thread = pthread_self()
    atomic_store32(&r.running, 1)
    r.now_ms = now_ms()
    r.swept_ms = r.now_ms
    while True:
        n = epoll_wait(r.epoll, events, EVENTS_MAX, timeout_ms(r))
        r.now_ms = now_ms()
        for i in range(n):
            on_event(r, &events[i])
        on_wake(r)
        if r.accept_again:
            r.accept_again = False
            for i in range(r.listener_count):
                accept_all(r, i)
        on_deadlines(r)
        run_ready(r)
        if r.now_ms - r.swept_ms >= sweep_every_ms(r):
            sweep(r)
        if r.draining and drained(r):
            break
    close_all(r)
    atomic_store32(&r.running, 0)


cdef void close_all(Reactor* r) noexcept nogil:
    cdef uint32_t i
    take_mail(r)
    for i in range(r.places_used):
        connection_close(r, r.connections[i])
        r.connections[i].on_ready = False
    r.ready_first = NULL
    r.ready_last = NULL


# --- planes -------------------------------------------------------------------------------------------------
cdef bint reactor_prepare(Reactor* r, Plane* plane) noexcept nogil:
    """Makes a taken reactor fit to run: the numbers of its last run are forgotten, its connection places are kept."""
    cdef epoll_event event
    r.plane = plane
    r.stopping = 0
    r.moved = 0
    r.unstall = 0
    r.wake = 0
    r.draining = False
    r.accept_again = False
    r.listener_count = 0
    r.next_reactor = 0
    memset(&r.counters, 0, sizeof(Counters))
    memset(&r.produced, 0, sizeof(r.produced))
    if r.scratch == NULL:
        r.scratch = <uint8_t*>malloc(SCRATCH_BYTES)
        r.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    r.epoll = epoll_create1(EPOLL_CLOEXEC)
    if r.scratch == NULL or r.wake_fd < 0 or r.epoll < 0:
        return False
    event.events = <uint32_t>EPOLLIN | <uint32_t>EPOLLET
    event.data.u64 = EVENT_WAKE
    return epoll_ctl(r.epoll, EPOLL_CTL_ADD, r.wake_fd, &event) == 0


cdef Reactor* reactor_take(Plane* plane) noexcept nogil:
    """A reactor that no plane has, with the lowest free id; NULL when there is none."""
    cdef Reactor* r = NULL
    cdef int32_t i
    pthread_mutex_lock(&_table_lock)
    for i in range(REACTORS_MAX):
        if _reactors[i] == NULL:
            r = <Reactor*>calloc(1, sizeof(Reactor))
            if r == NULL:
                break
            r.id = i
            r.wake_fd = -1
            r.epoll = -1
            pthread_mutex_init(&r.lock, NULL)
            _reactors[i] = r
        elif not _reactors[i].taken:
            r = _reactors[i]
        if r != NULL:
            r.taken = True
            break
    pthread_mutex_unlock(&_table_lock)
    return r


cdef bint plane_open(Plane* plane, int32_t reactor_count) noexcept nogil:
    cdef int32_t i
    pthread_mutex_init(&plane.queue.lock, NULL)
    plane.queue.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    if plane.queue.fd < 0:
        return False
    for i in range(reactor_count):
        plane.reactors[i] = reactor_take(plane)
        if plane.reactors[i] == NULL:
            return False
        plane.reactor_count = i + 1
        if not reactor_prepare(plane.reactors[i], plane):
            return False
    set_wake_hook(on_partitions_moved)
    return True


cdef bint plane_listen(Plane* plane, int fd) noexcept nogil:
    """Gives a listening socket to the first reactor, which owns it from now on. Before the threads run."""
    cdef Reactor* r = plane.reactors[0]
    cdef epoll_event event
    if r.listener_count == LISTENERS_MAX:
        return False
    r.listeners[r.listener_count] = fd
    event.events = <uint32_t>EPOLLIN | <uint32_t>EPOLLET
    event.data.u64 = <uint64_t>EVENT_LISTENER | (<uint64_t>r.listener_count << 32)
    if epoll_ctl(r.epoll, EPOLL_CTL_ADD, fd, &event) != 0:
        return False
    r.listener_count += 1
    return True


cdef void plane_stop(Plane* plane) noexcept nogil:
    cdef int32_t i
    for i in range(plane.reactor_count):
        atomic_store32(&plane.reactors[i].stopping, 1)
        reactor_wake(plane.reactors[i])


cdef void plane_close(Plane* plane) noexcept nogil:
    cdef Reactor* r
    cdef ControlRequest* request
    cdef int32_t i, j
    for i in range(plane.reactor_count):
        r = plane.reactors[i]
        close_all(r)
        for j in range(r.listener_count):
            if r.listeners[j] >= 0:
                close(r.listeners[j])
        if r.epoll >= 0:
            close(r.epoll)
        pthread_mutex_lock(&_table_lock)
        r.plane = NULL
        r.epoll = -1
        r.taken = False
        pthread_mutex_unlock(&_table_lock)
    plane.reactor_count = 0
    while plane.queue.first != NULL:
        request = plane.queue.first
        plane.queue.first = request.next
        free(request)
    if plane.queue.fd >= 0:
        close(plane.queue.fd)
        plane.queue.fd = -1
