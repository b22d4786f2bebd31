"""The epoll threads: events, mail, time; see plane.pxd for the picture. Every function runs without the GIL.

The rule that keeps it simple: events, mail, timers and wakes only note what they saw on a connection and put it
on the ready list; `connection_run` is the one place where a connection does anything.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t

from penstock.pyx.log.partition cimport Partition, partition_release
from penstock.pyx.net.acceptor cimport accept_all
from penstock.pyx.net.closures cimport (
    CLOSED_MEMORY_SHORT, CLOSED_SLOW_READER, CLOSED_SLOW_REQUEST, Reason, closures_note,
)
from penstock.pyx.net.connection cimport connection_close, connection_open, connection_rest, connection_run
from penstock.pyx.net.input cimport input_free, input_lags, input_may_go_on, input_unstall, input_watch
from penstock.pyx.net.mailbox cimport reactor_enter, wake_others
from penstock.pyx.net.output cimport output_was_read
from penstock.pyx.net.plane cimport (
    DRAIN_MS, EVENTS_MAX, EVENT_LISTENER, EVENT_WAKE, FRAME_BYTES_A_SECOND, INPUT_FREE_BYTES, MAIL_CLOSE, MAIL_READ,
    MAIL_RESUME, MAIL_RESUME_LOSE, MAIL_SOCKET, REQUEST_MASK, SLOT_CLOSE, SLOT_CONTROL, SLOT_DONE, STALL_NONE,
    SWEEP_MS_MAX, Connection, Mail, Reactor, Slot, connection_ready, output_left, slot_at,
)
from penstock.pyx.net.requests cimport requests_resume, slots_full
from penstock.pyx.net.waiting cimport look_moved, unpark
from penstock.pyx.posix cimport (
    CLOCK_MONOTONIC, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, atomic_add32, atomic_load32, atomic_load64,
    atomic_store32, atomic_swap32, block_signals, clock_gettime, close, epoll_event, epoll_wait, free, memset,
    pthread_mutex_lock, pthread_mutex_unlock, pthread_self, set_time_slice, timespec,
)
from penstock.pyx.record.endian cimport get_u32
from penstock.pyx.record.frame cimport SIZE_BYTES, Writer, writer_free
from penstock.pyx.request.fetch cimport FetchJob
from penstock.pyx.request.sessions cimport sessions_rest

cdef enum:
    KEEP_BUFFERS_MS = 5000            # an idle connection's empty buffers are kept this long
    DRAIN_LOOK_MS = 10
    MOVED_KEPT = 4096                 # room for so many moved partitions is kept
    SMALLEST_BIT = 17                 # of INPUT_FREE_BYTES
    LARGEST_BIT = 31                  # of the largest buffer that a frame can need
    TIME_SLICE_NS = 1000000           # less than others have: so it may go before who runs when it wakes


cdef int64_t now_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef Connection* connection_of(Reactor* r, uint32_t place, uint32_t generation) noexcept nogil:
    cdef Connection* c
    if place >= r.places_used:
        return NULL
    c = r.connections[place]
    return c if c.fd >= 0 and c.generation == generation else NULL


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
        r.counters.answers_late += mail.kind != MAIL_READ
    elif mail.kind == MAIL_READ:
        if not output_was_read(r, c, mail):
            connection_close(r, c)
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
    """Those who wait for the control queue or for memory, and would get it, have a turn."""
    cdef Connection* c
    cdef uint32_t i
    cdef bint starved = False
    for i in range(r.places_used):
        c = r.connections[i]
        if c.stalled == STALL_NONE:
            continue
        if input_may_go_on(r, c):
            input_unstall(r, c)
            connection_ready(r, c)
        else:
            starved = True
    if not starved and atomic_swap32(&r.starved, 0):
        atomic_add32(&r.plane.starved, -1)


cdef void close_for(Reactor* r, Connection* c, Reason why, int64_t* counter) noexcept nogil:
    """Closes a connection for what its peer did, or didn't."""
    counter[0] += 1
    closures_note(&r.plane.closed, why, c.peer, <int64_t>c.capacity)
    connection_close(r, c)


cdef void relieve(Reactor* r) noexcept nogil:
    """Memory for requests is short: buffers that hold nothing are given back, and who holds much and brings little is
    closed, the largest first (by powers of two), until enough is free.
    """
    cdef int64_t eased = r.plane.input_bytes_max // 4
    cdef bint lags = False
    cdef Connection* c
    cdef uint32_t i
    cdef int bit
    for i in range(r.places_used):
        c = r.connections[i]
        if c.fd >= 0 and c.capacity > INPUT_FREE_BYTES and c.start == c.end and not c.on_ready:
            input_free(r, c)
        lags = lags or (c.fd >= 0 and input_lags(r, c))
    c = r.over_budget
    if c != NULL and input_lags(r, c):
        close_for(r, c, CLOSED_MEMORY_SHORT, &r.counters.closed_memory_short)
    for bit in range(LARGEST_BIT, SMALLEST_BIT - 1, -1):
        for i in range(r.places_used if lags else 0):
            if atomic_load64(&r.plane.input_bytes) <= eased:
                return
            c = r.connections[i]
            if c.fd >= 0 and c.capacity >> bit and input_lags(r, c):
                close_for(r, c, CLOSED_MEMORY_SHORT, &r.counters.closed_memory_short)


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
        input_watch(r, c)
        if is_idle(r, c):
            r.counters.closed_idle += 1
            connection_close(r, c)
        elif c.frame_ms and not c.on_ready and r.now_ms - c.frame_ms > frame_ms_allowed(r, c):
            close_for(r, c, CLOSED_SLOW_REQUEST, &r.counters.closed_slow_request)
        elif output_left(c) == 0 and c.pieces.first == c.pieces.n:
            c.took_ms = r.now_ms
            if r.now_ms - c.active_ms > KEEP_BUFFERS_MS:
                connection_rest(r, c)
        elif not c.lent and r.now_ms - c.took_ms > r.plane.take_ms_max:
            close_for(r, c, CLOSED_SLOW_READER, &r.counters.closed_slow_reader)
    if atomic_load32(&r.plane.starved):
        relieve(r)
    if r.stalled_count or atomic_load32(&r.starved):
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
    shortest = min(shortest, r.plane.input_patience_ms)
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
        wake_others(r)
        c = after


cdef void on_wake(Reactor* r) noexcept nogil:
    if atomic_swap32(&r.wake, 0) == 0:
        return
    if atomic_load32(&r.stopping) and not r.draining:
        start_drain(r)
    take_mail(r)
    if r.moved_n or r.moved_all:                      # read without the lock: who adds to it wakes afterwards
        on_moved(r)
    if atomic_swap32(&r.relieve, 0):
        relieve(r)
    if atomic_swap32(&r.unstall, 0):
        on_unstall(r)


cdef void reactor_loop(Reactor* r) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n, i
    block_signals()
    set_time_slice(TIME_SLICE_NS)
    r.thread = pthread_self()
    reactor_enter(r)
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
        wake_others(r)                                # of what moved outside of a connection's turn
        if r.draining and drained(r):
            break
    close_all(r)
    wake_others(r)
    reactor_enter(NULL)
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
