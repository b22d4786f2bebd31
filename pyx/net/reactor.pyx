"""The epoll threads: events, mail, time; see plane.pxd for the picture. Every function runs without the GIL.

The rule that keeps it simple: events, mail, timers and wakes only note what they saw on a connection and put it
on the ready list; `connection_run` is the one place where a connection does anything.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t

from penstock.pyx.linux.gate cimport gate_pass
from penstock.pyx.linux.posix cimport (
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, atomic_add32, atomic_load32, atomic_load64, atomic_swap32,
    block_signals, close, epoll_event, epoll_wait, free, memset, set_time_slice,
)
from penstock.pyx.log.files cimport later_ms
from penstock.pyx.log.partition cimport partition_release
from penstock.pyx.net.acceptor cimport accept_all
from penstock.pyx.net.busytime cimport busy_beat, busy_begin, busy_end
from penstock.pyx.net.client cimport client_note_software
from penstock.pyx.net.closures cimport (
    CLOSED_MEMORY_SHORT, CLOSED_SLOW_READER, CLOSED_SLOW_REQUEST, Reason, closures_note,
)
from penstock.pyx.net.connection cimport (
    connection_close, connection_free_buffers, connection_open, connection_run, connection_settle,
)
from penstock.pyx.net.counters cimport counters_closed
from penstock.pyx.net.input cimport (
    input_free, input_lags, input_may_go_on, input_seen, input_unstall, input_watch,
)
from penstock.pyx.net.mailbox cimport (
    MAIL_CLOSE, MAIL_NAMES, MAIL_READ, MAIL_RESUME, MAIL_RESUME_LOSE, MAIL_SOCKET, MAIL_WORKED, REQUEST_MASK, Mail,
    Moved, Service, mail_take, mailbox_enter, mailbox_leave, moved_give_back, moved_take, wake_others,
)
from penstock.pyx.net.output cimport output_was_read
from penstock.pyx.net.plane cimport (
    CONNECTION_CLOSED, DRAIN_MS, EVENTS_MAX, EVENT_LISTENER, EVENT_WAKE, FRAME_BYTES_A_SECOND, INCOMING_LAST,
    INCOMING_MORE, INCOMING_RESET, INPUT_FREE_BYTES, OUTGOING_LENT, OUTGOING_ROOM, PASS_NS, SLOT_CONTROL,
    STALL_NONE, STOP_ABRUPT, SWEEP_MS_MAX, TURN_NS, Connection, Reactor, ReadyList, Slot, connection_is_ready,
    connection_ready, connection_refuse, output_full, output_left, reactor_clock, slot_at, slot_finish,
)
from penstock.pyx.net.requests cimport requests_resume, requests_worked
from penstock.pyx.net.requesttimes cimport (
    PHASE_LOCAL, PHASE_QUEUE, PHASE_WAITING, Timing, timing_at, timing_pass, timing_until, timings_full,
    timings_unsent,
)
from penstock.pyx.net.transport cimport transport_reset
from penstock.pyx.net.waiting cimport retry_moved, unpark
from penstock.pyx.record.endian cimport get_u32
from penstock.pyx.record.frame cimport SIZE_BYTES, Writer, writer_free
from penstock.pyx.request.acks cimport acks_free
from penstock.pyx.request.sessions cimport sessions_unresolve_idle
from penstock.pyx.request.waiting cimport Waiting

cdef enum:
    KEEP_BUFFERS_MS = 5000            # an idle connection's empty buffers are kept this long
    DRAIN_CHECK_MS = 10
    SMALLEST_BIT = 17                 # of INPUT_FREE_BYTES
    LARGEST_BIT = 31                  # of the largest buffer that a frame can need
    # Less than other threads have: from 6.12 on Linux lets a thread that wakes run at once only if its slice is shorter
    # than that of the thread that runs. It gets no larger share of the processor by it.
    TIME_SLICE_NS = 1000000


cdef inline void _read_clock(Reactor* r) noexcept nogil:
    r.now_ms = reactor_clock(r) // 1_000_000


cdef Connection* _connection_of(Reactor* r, uint32_t place, uint32_t generation) noexcept nogil:
    cdef Connection* c
    if place >= r.places_used:
        return NULL
    c = r.connections[place]
    return c if c.state != CONNECTION_CLOSED and c.generation == generation else NULL


cdef void _on_event(Reactor* r, const epoll_event* event) noexcept nogil:
    cdef uint32_t low = <uint32_t>event.data.u64
    cdef uint32_t high = <uint32_t>(event.data.u64 >> 32)
    cdef Connection* c
    if low == EVENT_WAKE:
        return
    if low == EVENT_LISTENER:
        accept_all(r, <int32_t>high)
        reactor_clock(r)
        return
    c = _connection_of(r, low, high)
    if c == NULL:
        return
    if event.events & (<uint32_t>EPOLLIN | <uint32_t>EPOLLRDHUP | <uint32_t>EPOLLHUP | <uint32_t>EPOLLERR):
        input_seen(c, INCOMING_MORE)
    if event.events & (<uint32_t>EPOLLRDHUP | <uint32_t>EPOLLHUP | <uint32_t>EPOLLERR):
        input_seen(c, INCOMING_LAST)
    if event.events & (<uint32_t>EPOLLHUP | <uint32_t>EPOLLERR):
        input_seen(c, INCOMING_RESET)                 # after EPOLLRDHUP alone the peer may still read its answers
    if event.events & (<uint32_t>EPOLLOUT | <uint32_t>EPOLLHUP | <uint32_t>EPOLLERR) and c.outgoing != OUTGOING_LENT:
        c.outgoing = OUTGOING_ROOM
    connection_ready(r, c)


cdef void _time_answer(Timing* one, const Service* service) noexcept nogil:
    """Of a request that the control plane has served."""
    cdef int64_t local_ns
    if service.begun_ns != 0:
        timing_pass(one, PHASE_QUEUE, service.begun_ns)
        local_ns = min(service.local_ns, max(service.done_ns - timing_until(one), <int64_t>0))
        one.passed_ns[<int>PHASE_LOCAL] += local_ns
        timing_pass(one, PHASE_WAITING, service.done_ns)
    else:
        timing_pass(one, PHASE_LOCAL, service.done_ns)
    one.topic = service.topic


cdef void _on_answer(Reactor* r, Connection* c, Mail* mail) noexcept nogil:
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
    if mail.kind == MAIL_NAMES:
        client_note_software(&c.client, mail.answer.p, mail.name_bytes, mail.answer.n - mail.name_bytes)
        return
    if mail.kind == MAIL_RESUME or mail.kind == MAIL_RESUME_LOSE:
        requests_resume(r, c, number, mail.answer.p, <int32_t>mail.answer.n, mail.kind == MAIL_RESUME_LOSE)
        return
    slot.request_bytes = 0
    c.handed_over -= slot.handed_over
    if mail.kind == MAIL_CLOSE:
        connection_refuse(r, c, slot, mail.reason, <const char*>mail.answer.p)
    else:
        slot.answer = mail.answer
        memset(&mail.answer, 0, sizeof(Writer))
        slot_finish(c, slot, mail.acks)
        mail.acks = NULL
        _time_answer(timing_at(&c.timings, number - c.head), &mail.service)
    connection_ready(r, c)


cdef void _on_mail(Reactor* r, Mail* mail) noexcept nogil:
    cdef Connection* c
    if mail.kind == MAIL_SOCKET:
        connection_open(r, mail.fd, mail.listener, mail.peer)
        return
    c = _connection_of(r, mail.place, mail.generation)
    if mail.kind == MAIL_WORKED:
        requests_worked(r, c, mail.work)
    elif c == NULL:
        r.counters.answers_late += mail.kind != MAIL_READ
    elif mail.kind == MAIL_READ:
        if not output_was_read(r, c, mail):
            connection_close(r, c)
    else:
        _on_answer(r, c, mail)


cdef void _take_mail(Reactor* r) noexcept nogil:
    cdef Mail* mail = mail_take(&r.mailbox)
    cdef Mail* after
    while mail != NULL:
        after = mail.next
        _on_mail(r, mail)
        writer_free(&mail.answer)
        acks_free(mail.acks)
        free(mail)
        mail = after


cdef void _retry(void* reactor, Waiting* who) noexcept nogil:
    who.due = True
    connection_ready(<Reactor*>reactor, <Connection*>who.connection)


cdef void _on_moved(Reactor* r) noexcept nogil:
    """Looks at the requests that wait for a partition which moved."""
    cdef Moved moved = moved_take(&r.mailbox)
    cdef int32_t i
    for i in range(moved.n):
        retry_moved(r.waits, moved.partitions[i], _retry, r)
        partition_release(moved.partitions[i])
    if moved.all:
        for i in range(r.waits.heap_n):
            _retry(r, r.waits.heap[i])
    moved_give_back(&r.mailbox, &moved)
    if r.stalled_count:                               # a move that is over is told in the same way
        _on_unstall(r)


cdef void _on_deadlines(Reactor* r) noexcept nogil:
    """A request whose time is up leaves the heap and is answered in its connection's next turn."""
    if r.waits.heap_n == 0 or r.waits.heap[0].deadline_ms > r.now_ms:
        return
    while r.waits.heap_n and r.waits.heap[0].deadline_ms <= r.now_ms:
        _retry(r, r.waits.heap[0])
        unpark(r.waits, r.waits.heap[0])
    reactor_clock(r)


cdef void _on_unstall(Reactor* r) noexcept nogil:
    """Connections that wait (plane.pxd's Stall), and would get what they wait for, have a turn."""
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


cdef void _close_for(Reactor* r, Connection* c, Reason why) noexcept nogil:
    """Closes a connection for what its peer did, or didn't."""
    counters_closed(&r.counters, why)
    closures_note(&r.plane.closed, why, c.listener, c.peer, <int64_t>c.capacity, NULL)
    connection_close(r, c)


cdef void _relieve(Reactor* r) noexcept nogil:
    """Memory for requests is short: empty buffers are given back, and a connection that holds much and brings little is
    closed, the largest first (by powers of two), until enough is free.
    """
    cdef int64_t eased = r.plane.input_bytes_max // 4
    cdef bint lags = False
    cdef Connection* c
    cdef uint32_t i
    cdef int bit
    for i in range(r.places_used):
        c = r.connections[i]
        if c.state == CONNECTION_CLOSED:
            continue
        if c.capacity > INPUT_FREE_BYTES and c.start == c.end and not connection_is_ready(c):
            input_free(r, c)
        lags = lags or input_lags(r, c)
    c = r.over_budget
    if c != NULL and input_lags(r, c):
        _close_for(r, c, CLOSED_MEMORY_SHORT)
    for bit in range(LARGEST_BIT, SMALLEST_BIT - 1, -1):
        for i in range(r.places_used if lags else 0):
            if atomic_load64(&r.plane.input_bytes) <= eased:
                return
            c = r.connections[i]
            if c.state != CONNECTION_CLOSED and c.capacity >> bit and input_lags(r, c):
                _close_for(r, c, CLOSED_MEMORY_SHORT)


cdef bint _is_idle(Reactor* r, Connection* c) noexcept nogil:
    """Silent for too long, and not because of an answer that this broker owes. A peer that has ended its sending side
    waits no longer than that for an answer: it may have gone, and nothing else would show it.
    """
    if r.now_ms - c.active_ms <= r.plane.idle_ms_max:
        return False
    return c.incoming >= INCOMING_LAST or c.head == c.tail or output_left(c) > 0 or c.pieces.first < c.pieces.n


cdef int64_t _frame_ms_allowed(Reactor* r, const Connection* c) noexcept nogil:
    """For the frame that has come in part: a large one has longer."""
    cdef int64_t size = get_u32(c.input + c.start) if c.end - c.start >= SIZE_BYTES else 0
    return later_ms(size * 1000 // FRAME_BYTES_A_SECOND, r.plane.frame_ms_max)


cdef void _sweep(Reactor* r) noexcept nogil:
    cdef Connection* c
    cdef uint32_t i
    r.swept_ms = r.now_ms
    for i in range(r.places_used):
        c = r.connections[i]
        if c.state == CONNECTION_CLOSED:
            continue
        input_watch(r, c)
        if _is_idle(r, c):
            r.counters.closed_idle += 1
            connection_close(r, c)
        elif c.frame_ms and not connection_is_ready(c) and r.now_ms - c.frame_ms > _frame_ms_allowed(r, c):
            _close_for(r, c, CLOSED_SLOW_REQUEST)
        elif output_left(c) == 0 and c.pieces.first == c.pieces.n:
            c.took_ms = r.now_ms
            if r.now_ms - c.active_ms > KEEP_BUFFERS_MS:
                connection_free_buffers(r, c)
        elif c.outgoing != OUTGOING_LENT and r.now_ms - c.took_ms > r.plane.take_ms_max:
            _close_for(r, c, CLOSED_SLOW_READER)
    if atomic_load32(&r.plane.starved):
        _relieve(r)
    if r.stalled_count or atomic_load32(&r.starved):
        _on_unstall(r)
    if r == r.plane.reactors[0]:
        sessions_unresolve_idle(r.plane.sessions, r.now_ms)
    reactor_clock(r)


cdef void _start_drain(Reactor* r) noexcept nogil:
    """Nothing new is taken; what waits on a log is answered now, what waits on the control plane has DRAIN_MS."""
    cdef int32_t i
    cdef uint32_t place
    r.draining = True
    r.drain_until_ms = r.now_ms + DRAIN_MS
    for i in range(r.listener_count):
        if r.listeners[i] >= 0:
            close(r.listeners[i])
            r.listeners[i] = -1
    for i in range(r.waits.heap_n):
        r.waits.heap[i].due = True
    for place in range(r.places_used):
        if r.connections[place].state != CONNECTION_CLOSED:
            connection_ready(r, r.connections[place])


cdef bint _drained(Reactor* r) noexcept nogil:
    cdef uint32_t i
    cdef Connection* c
    if r.now_ms >= r.drain_until_ms:
        return True
    for i in range(r.places_used):
        c = r.connections[i]
        if c.state != CONNECTION_CLOSED and (c.head != c.tail or output_left(c) > 0 or c.pieces.first < c.pieces.n):
            return False
    return True


cdef int64_t _sweep_every_ms(Reactor* r) noexcept nogil:
    cdef int64_t shortest = min(r.plane.idle_ms_max, min(r.plane.frame_ms_max, r.plane.take_ms_max))
    shortest = min(shortest, r.plane.input_patience_ms)
    return min(max(shortest // 4, <int64_t>10), <int64_t>SWEEP_MS_MAX)


cdef int _timeout_ms(Reactor* r) noexcept nogil:
    """Until the next thing that has a time, by the clock as it was read after the last turn."""
    cdef int64_t until = r.swept_ms + _sweep_every_ms(r)
    if r.ready.first != NULL or r.costly.first != NULL or atomic_load32(&r.mailbox.wake):
        return 0
    if r.waits.heap_n and r.waits.heap[0].deadline_ms < until:
        until = r.waits.heap[0].deadline_ms
    if r.accept_ms:
        until = min(until, r.accept_ms)
    if r.draining:
        until = min(until, r.now_ms + DRAIN_CHECK_MS)
    return <int>max(until - r.clock_ns // 1_000_000, <int64_t>0)


cdef void _run_first(Reactor* r, ReadyList* due) noexcept nogil:
    """A turn for the first of a list. The clock was read just before, and is after it."""
    cdef Connection* c = due.first
    cdef int64_t begun_ns = r.clock_ns
    cdef bint full
    due.first = c.ready_next if c.ready_next != c else NULL
    if due.first == NULL:
        due.last = NULL
    c.ready_next = NULL
    r.turn_ends_ns = begun_ns + TURN_NS
    connection_run(r, c)
    wake_others(&r.mailbox)
    c.turn_ns = reactor_clock(r) - begun_ns
    if c.state != CONNECTION_CLOSED and timings_unsent(&c.timings):
        full = timings_full(&c.timings)
        connection_settle(r, c)
        if full and not output_full(c):               # what it couldn't do for that it has been told already
            connection_ready(r, c)


cdef void _put_before(ReadyList* due, ReadyList* asked) noexcept nogil:
    if due.last == NULL:
        return
    if asked.first != NULL:
        due.last.ready_next = asked.first
        due.last = asked.last
    asked[0] = due[0]


cdef void _run_ready(Reactor* r) noexcept nogil:
    """One turn for each connection that is ready now, as far as the pass's time goes; those that ask again come after
    the next epoll_wait. Connections whose turns are short go first. The clock was read after whatever took long.
    """
    cdef int64_t until_ns = r.clock_ns + PASS_NS
    cdef ReadyList due = r.ready
    cdef ReadyList costly = r.costly
    memset(&r.ready, 0, sizeof(ReadyList))
    memset(&r.costly, 0, sizeof(ReadyList))
    if due.first == NULL and costly.first == NULL:
        reactor_clock(r)
        return
    while due.first != NULL and r.clock_ns < until_ns:
        _run_first(r, &due)
    if costly.first != NULL:
        _run_first(r, &costly)
    while costly.first != NULL and r.clock_ns < until_ns:
        _run_first(r, &costly)
    # Those that had no turn are before those that have asked since.
    _put_before(&due, &r.ready)
    _put_before(&costly, &r.costly)


cdef void _hang_up(Reactor* r) noexcept nogil:
    cdef uint32_t i
    for i in range(r.places_used):
        connection_close(r, r.connections[i])


cdef void _on_wake(Reactor* r) noexcept nogil:
    if atomic_swap32(&r.mailbox.wake, 0) == 0:
        return
    gate_pass(&r.plane.gate)
    if atomic_load32(&r.stopping) == STOP_ABRUPT:
        return
    if atomic_load32(&r.stopping) and not r.draining:
        _start_drain(r)
    _take_mail(r)
    if r.mailbox.moved.n or r.mailbox.moved.all:      # read without the lock: who adds to it wakes afterwards
        _on_moved(r)
    if atomic_swap32(&r.hanging_up, 0):
        _hang_up(r)
    if atomic_swap32(&r.relieve, 0):
        _relieve(r)
    if atomic_swap32(&r.unstall, 0):
        _on_unstall(r)
    reactor_clock(r)


cdef void _close_all(Reactor* r) noexcept nogil:
    cdef uint32_t i
    _take_mail(r)
    _on_moved(r)
    for i in range(r.places_used):
        if atomic_load32(&r.stopping) == STOP_ABRUPT:
            transport_reset(&r.connections[i].transport)
        connection_close(r, r.connections[i])
        r.connections[i].ready_next = NULL
    memset(&r.ready, 0, sizeof(ReadyList))
    memset(&r.costly, 0, sizeof(ReadyList))


cdef void reactor_loop(Reactor* r) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n, i, timeout_ms
    block_signals()
    set_time_slice(TIME_SLICE_NS)
    mailbox_enter(&r.mailbox)
    _read_clock(r)
    r.swept_ms = r.now_ms
    busy_begin(&r.busy, r.clock_ns)
    while True:
        timeout_ms = _timeout_ms(r)
        if timeout_ms > 0:
            busy_end(&r.busy, r.clock_ns)
        n = epoll_wait(r.epoll, events, EVENTS_MAX, timeout_ms)
        _read_clock(r)
        if timeout_ms > 0:
            busy_begin(&r.busy, r.clock_ns)
        else:
            busy_beat(&r.busy)
        for i in range(n):
            _on_event(r, &events[i])
        _on_wake(r)
        if atomic_load32(&r.stopping) == STOP_ABRUPT:
            break
        if r.accept_ms and r.now_ms >= r.accept_ms:
            r.accept_ms = 0
            for i in range(r.listener_count):
                accept_all(r, i)
            reactor_clock(r)
        _on_deadlines(r)
        _run_ready(r)
        if r.now_ms - r.swept_ms >= _sweep_every_ms(r):
            _sweep(r)
        wake_others(&r.mailbox)                       # of what moved outside of a connection's turn
        if r.draining and _drained(r):
            break
    _close_all(r)
    wake_others(&r.mailbox)
    busy_end(&r.busy, reactor_clock(r))
    mailbox_leave(&r.mailbox)
