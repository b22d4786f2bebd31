"""The epoll threads: events, mail, time; see plane.pxd for the picture. Every function runs without the GIL.

The rule that keeps it simple: events, mail, timers and wakes only note what they saw on a connection and put it
on the ready list; `connection_run` is the one place where a connection does anything.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t

from penstock.pyx.admission cimport LISTENERS_MAX, admission_enter, admission_leave, admission_wait_ms
from penstock.pyx.connection cimport connection_close, connection_open, connection_rest, connection_run
from penstock.pyx.control cimport queue_clear, queue_open, queue_take
from penstock.pyx.fetch cimport FetchJob
from penstock.pyx.endian cimport get_u32
from penstock.pyx.frame cimport SIZE_BYTES, Writer, writer_free
from penstock.pyx.input cimport input_unstall
from penstock.pyx.partition cimport Partition, partition_release, partition_retain, set_wake_hook
from penstock.pyx.plane cimport (
    ACCEPTS_MAX,
    Connection,
    ControlRequest,
    Counters,
    DRAIN_MS,
    EVENTS_MAX,
    FRAME_BYTES_A_SECOND,
    GENERATION_MASK,
    MAIL_CLOSE,
    MAIL_RESUME,
    MAIL_RESUME_LOSE,
    MAIL_SOCKET,
    MAIL_WARM,
    Mail,
    MailKind,
    PEER_BYTES,
    PLACE_MASK,
    Plane,
    REACTORS_MAX,
    REQUEST_MASK,
    Reactor,
    SCRATCH_BYTES,
    SLOT_CLOSE,
    SLOT_CONTROL,
    SLOT_DONE,
    SWEEP_MS_MAX,
    Slot,
    slot_at,
    connection_ready,
    output_left,
)
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
    SIG_BLOCK,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    accept4,
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
    eventfd_write,
    free,
    inet_ntop,
    malloc,
    memchr,
    memcpy,
    memset,
    lowest_bit,
    ntohs,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    pthread_self,
    pthread_sigmask,
    realloc,
    sigfillset,
    sigset_t,
    snprintf,
    sockaddr,
    sockaddr_in,
    sockaddr_in6,
    sockaddr_storage,
    socklen_t,
    strncmp,
    timespec,
)
from penstock.pyx.requests cimport requests_resume, slots_full
from penstock.pyx.sessions cimport sessions_rest
from penstock.pyx.waiting cimport look_moved, unpark, wait_open

cdef enum:
    EVENT_WAKE = 0x7fffffff           # epoll's data for what isn't a connection: low half of data.u64
    EVENT_LISTENER = 0x7ffffffe
    KEEP_BUFFERS_MS = 5000            # an idle connection's empty buffers are kept this long
    ACCEPT_AGAIN_MS = 100
    DRAIN_LOOK_MS = 10
    MOVED_KEPT = 4096                 # room for so many moved partitions is kept

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


cdef void note_moved(Reactor* r, Partition* p) noexcept nogil:
    cdef Partition** grown
    cdef int32_t capacity
    pthread_mutex_lock(&r.lock)
    if r.moved_n == r.moved_capacity:
        capacity = r.moved_capacity * 2 + 64
        grown = <Partition**>realloc(r.moved, <size_t>capacity * sizeof(Partition*))
        if grown != NULL:
            r.moved = grown
            r.moved_capacity = capacity
    if r.moved_n < r.moved_capacity:
        partition_retain(p)
        r.moved[r.moved_n] = p
        r.moved_n += 1
    else:
        r.moved_all = True
    pthread_mutex_unlock(&r.lock)


cdef void on_partition_moved(Partition* p, uint64_t mask) noexcept nogil:
    """The log's wake hook. A bit may be of a thread that has ended since it waited."""
    cdef int32_t i
    while mask:
        i = lowest_bit(mask)
        mask &= mask - 1
        if _reactors[i] != NULL and atomic_load32(&_reactors[i].running):
            note_moved(_reactors[i], p)
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
        if strncmp(text, b"::ffff:", 7) == 0 and memchr(text, c".", sizeof(text)) != NULL:
            # An address of version 4 that came to a socket of both.
            snprintf(out, PEER_BYTES, b"%s:%u", text + 7, <unsigned int>ntohs(six.sin6_port))
            return
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
        admission_leave(r.plane.admission, listener, peer)
        return
    mail.kind = MAIL_SOCKET
    mail.fd = fd
    mail.listener = listener
    memcpy(mail.peer, peer, PEER_BYTES)
    post(owner, mail)


cdef void accept_again(Reactor* r, int64_t wait_ms) noexcept nogil:
    if r.accept_ms == 0 or r.now_ms + wait_ms < r.accept_ms:
        r.accept_ms = r.now_ms + wait_ms


cdef void accept_all(Reactor* r, int32_t listener) noexcept nogil:
    cdef sockaddr_storage address
    cdef socklen_t n
    cdef char peer[PEER_BYTES]
    cdef int32_t _i
    cdef int64_t wait_ms
    cdef int fd
    if r.listeners[listener] < 0 or r.draining:
        return
    for _i in range(ACCEPTS_MAX):
        wait_ms = admission_wait_ms(r.plane.admission, listener, r.now_ms)
        if wait_ms:
            r.counters.accepts_delayed += 1
            accept_again(r, wait_ms)
            return
        n = sizeof(sockaddr_storage)
        fd = accept4(r.listeners[listener], <sockaddr*>&address, &n, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if fd >= 0:
            describe_peer(&address, peer)
            if admission_enter(r.plane.admission, listener, peer):
                hand_over(r, fd, listener, peer)
            else:
                r.counters.closed_address_limit += 1
                close(fd)
        elif errno == EAGAIN:
            return
        elif errno != EINTR and errno != ECONNABORTED and errno != EPROTO:
            accept_again(r, ACCEPT_AGAIN_MS)          # no descriptors or no memory: some may be freed
            return
    accept_again(r, 0)                                # more than one turn's worth


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
        if slots_full(c) or c.refusing or c.stalled:
            c.readable = False                        # it isn't being read: the end is all there is to see
    if event.events & (<uint32_t>EPOLLOUT | <uint32_t>EPOLLHUP | <uint32_t>EPOLLERR):
        c.writable = True
    connection_ready(r, c)


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
    if mail.kind == MAIL_RESUME or mail.kind == MAIL_RESUME_LOSE:
        requests_resume(r, c, number, mail.answer.p, <int32_t>mail.answer.n, mail.kind == MAIL_RESUME_LOSE)
        return
    slot.request_bytes = 0
    c.handed_over -= slot.handed_over
    if mail.kind == MAIL_CLOSE:
        slot.state = SLOT_CLOSE
        c.refusing = True
        r.counters.closed_malformed += 1
    else:
        slot.state = SLOT_DONE
        slot.answer = mail.answer
        memset(&mail.answer, 0, sizeof(Writer))
    connection_ready(r, c)


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
        connection_ready(r, c)
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
    connection_ready(r, <Connection*>job.connection)


cdef void on_moved(Reactor* r) noexcept nogil:
    """Looks at the fetches that wait for a partition which moved. The list goes back to be filled again."""
    cdef Partition** moved
    cdef int32_t n, capacity, i
    cdef bint all
    pthread_mutex_lock(&r.lock)
    moved = r.moved
    n = r.moved_n
    capacity = r.moved_capacity
    all = r.moved_all
    r.moved = NULL
    r.moved_n = 0
    r.moved_capacity = 0
    r.moved_all = False
    pthread_mutex_unlock(&r.lock)
    for i in range(n):
        look_moved(r, moved[i], look_again)
        partition_release(moved[i])
    if all:
        for i in range(r.heap_n):
            look_again(r, r.heap[i])
    pthread_mutex_lock(&r.lock)
    if r.moved == NULL and capacity <= MOVED_KEPT:
        r.moved = moved
        r.moved_capacity = capacity
        moved = NULL
    pthread_mutex_unlock(&r.lock)
    free(moved)


cdef void on_deadlines(Reactor* r) noexcept nogil:
    """A job whose time is up leaves the heap and is answered in its connection's next turn."""
    while r.heap_n and r.heap[0].deadline_ms <= r.now_ms:
        look_again(r, r.heap[0])
        unpark(r, r.heap[0])


cdef void on_unstall(Reactor* r) noexcept nogil:
    cdef uint32_t i
    for i in range(r.places_used):
        if r.connections[i].stalled:
            input_unstall(r, r.connections[i])
            connection_ready(r, r.connections[i])


cdef bint is_idle(Reactor* r, Connection* c) noexcept nogil:
    """Silent for too long, and not because of an answer that this broker owes."""
    if r.now_ms - c.active_ms <= r.plane.idle_ms_max:
        return False
    return c.head == c.tail or output_left(c) > 0 or c.pieces.first < c.pieces.n


cdef int64_t frame_ms_allowed(Reactor* r, const Connection* c) noexcept nogil:
    """For the frame that has come in part: a large one has longer."""
    cdef int64_t size = get_u32(c.input + c.start) if c.end - c.start >= SIZE_BYTES else 0
    return r.plane.frame_ms_max + size * 1000 // FRAME_BYTES_A_SECOND


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
        elif c.frame_ms and not c.on_ready and r.now_ms - c.frame_ms > frame_ms_allowed(r, c):
            r.counters.closed_slow_request += 1
            connection_close(r, c)
        elif output_left(c) == 0 and c.pieces.first == c.pieces.n:
            c.took_ms = r.now_ms
            if r.now_ms - c.active_ms > KEEP_BUFFERS_MS:
                connection_rest(r, c)
        elif not c.cold and r.now_ms - c.took_ms > r.plane.take_ms_max:
            r.counters.closed_slow_reader += 1
            connection_close(r, c)
    if r.stalled_count:
        on_unstall(r)
    if r == r.plane.reactors[0]:
        sessions_rest(r.plane.sessions, r.now_ms)


cdef void start_drain(Reactor* r) noexcept nogil:
    """Nothing new is taken; what waits on a log is answered now, what waits on the control plane has DRAIN_MS."""
    cdef int32_t i
    cdef uint32_t place
    r.draining = True
    r.drain_until_ms = r.now_ms + DRAIN_MS
    for i in range(r.listener_count):
        if r.listeners[i] >= 0:
            close(r.listeners[i])
            r.listeners[i] = -1
    for i in range(r.heap_n):
        r.heap[i].look = True
    for place in range(r.places_used):
        if r.connections[place].fd >= 0:
            connection_ready(r, r.connections[place])


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
    cdef int64_t shortest = min(r.plane.idle_ms_max, min(r.plane.frame_ms_max, r.plane.take_ms_max))
    return min(max(shortest // 4, <int64_t>10), <int64_t>SWEEP_MS_MAX)


cdef int timeout_ms(Reactor* r) noexcept nogil:
    """Until the next thing that has a time."""
    cdef int64_t until = r.swept_ms + sweep_every_ms(r)
    if r.ready_first != NULL or atomic_load32(&r.wake):
        return 0
    if r.heap_n and r.heap[0].deadline_ms < until:
        until = r.heap[0].deadline_ms
    if r.accept_ms:
        until = min(until, r.accept_ms)
    if r.draining:
        until = min(until, r.now_ms + DRAIN_LOOK_MS)
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
    if r.moved_n or r.moved_all:                      # read without the lock: who adds to it wakes afterwards
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
        if r.accept_ms and r.now_ms >= r.accept_ms:
            r.accept_ms = 0
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
    on_moved(r)
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
    r.unstall = 0
    r.wake = 0
    r.draining = False
    r.accept_ms = 0
    r.listener_count = 0
    r.next_reactor = 0
    memset(&r.counters, 0, sizeof(Counters))
    memset(&r.produced, 0, sizeof(r.produced))
    if r.scratch == NULL:
        r.scratch = <uint8_t*>malloc(SCRATCH_BYTES)
        r.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    r.epoll = epoll_create1(EPOLL_CLOEXEC)
    if r.scratch == NULL or r.wake_fd < 0 or r.epoll < 0 or not wait_open(r):
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
    if not queue_open(&plane.queue):
        return False
    for i in range(reactor_count):
        plane.reactors[i] = reactor_take(plane)
        if plane.reactors[i] == NULL:
            return False
        plane.reactor_count = i + 1
        if not reactor_prepare(plane.reactors[i], plane):
            return False
    set_wake_hook(on_partition_moved)
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


cdef ControlRequest* plane_take(Plane* plane, int32_t most) noexcept nogil:
    cdef bint unstall
    cdef int32_t i
    cdef ControlRequest* first = queue_take(&plane.queue, most, &unstall)
    if unstall:
        for i in range(plane.reactor_count):
            atomic_store32(&plane.reactors[i].unstall, 1)
            reactor_wake(plane.reactors[i])
    return first


cdef void plane_stop(Plane* plane) noexcept nogil:
    cdef int32_t i
    for i in range(plane.reactor_count):
        atomic_store32(&plane.reactors[i].stopping, 1)
        reactor_wake(plane.reactors[i])


cdef void plane_close(Plane* plane) noexcept nogil:
    cdef Reactor* r
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
    queue_clear(&plane.queue)
