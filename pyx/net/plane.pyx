"""A set of network threads, made and ended; see plane.pxd."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from penstock.pyx.linux.gate cimport gate_await, gate_close, gate_free, gate_new, gate_open
from penstock.pyx.linux.posix cimport (
    EPOLLET, EPOLLIN, EPOLL_CLOEXEC, EPOLL_CTL_ADD, atomic_load32, atomic_store32, calloc, close, epoll_create1,
    epoll_ctl, epoll_event, free, malloc, memset, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t,
    pthread_mutex_unlock,
)
from penstock.pyx.log.partition cimport set_wake_hook
from penstock.pyx.net.closures cimport closures_open
from penstock.pyx.net.control cimport ControlRequest, queue_clear, queue_open, queue_take
from penstock.pyx.net.counters cimport Counters
from penstock.pyx.net.mailbox cimport REACTORS_MAX, mailbox_clear, mailbox_open, mailbox_wake, on_partition_moved
from penstock.pyx.net.requesttimes cimport times_clear
from penstock.pyx.net.transport cimport transport_hang_up
from penstock.pyx.net.waiting cimport waits_new
from penstock.pyx.request.produce cimport produce_group_new

# Every reactor that was ever made, by id.
cdef Reactor* _reactors[REACTORS_MAX]
cdef pthread_mutex_t _table_lock
pthread_mutex_init(&_table_lock, NULL)


cdef Reactor* _reactor_new(int32_t number) noexcept nogil:
    """NULL when there is no memory or no descriptor."""
    cdef Reactor* r = <Reactor*>calloc(1, sizeof(Reactor))
    if r == NULL:
        return NULL
    r.id = number
    r.epoll = -1
    pthread_mutex_init(&r.growing, NULL)
    r.scratch = <uint8_t*>malloc(SCRATCH_BYTES)
    if r.scratch == NULL or not mailbox_open(&r.mailbox, number):
        free(r.scratch)
        free(r)
        return NULL
    r.produces = produce_group_new(True)
    r.waits = waits_new(number)
    return r


cdef Reactor* _reactor_take(Plane* plane) noexcept nogil:
    """A reactor that no plane has, with the lowest free id; NULL when there is none."""
    cdef Reactor* r = NULL
    cdef int32_t i
    pthread_mutex_lock(&_table_lock)
    for i in range(REACTORS_MAX):
        if _reactors[i] == NULL:
            _reactors[i] = _reactor_new(i)
            r = _reactors[i]
            break
        if not _reactors[i].taken:
            r = _reactors[i]
            break
    if r != NULL:
        r.taken = True
        r.plane = plane
        r.mailbox.plane = plane
    pthread_mutex_unlock(&_table_lock)
    return r


cdef void _reactor_give_back(Reactor* r) noexcept nogil:
    """It may be taken again."""
    pthread_mutex_lock(&_table_lock)
    r.mailbox.plane = NULL
    r.plane = NULL
    r.epoll = -1
    r.taken = False
    pthread_mutex_unlock(&_table_lock)


cdef bint _reactor_prepare(Reactor* r) noexcept nogil:
    """Makes a taken reactor fit to run: the numbers of its last run are forgotten, its connection places are kept."""
    cdef epoll_event event
    r.stopping = STOP_NOT
    r.unstall = 0
    r.starved = 0
    r.relieve = 0
    r.hanging_up = 0
    r.mailbox.wake = 0
    r.draining = False
    r.accept_ms = 0
    r.descriptors_short = False
    r.listener_count = 0
    r.next_reactor = 0
    memset(&r.counters, 0, sizeof(Counters))
    memset(&r.produced, 0, sizeof(r.produced))
    memset(r.listening, 0, sizeof(r.listening))
    memset(&r.busy, 0, sizeof(r.busy))
    times_clear(&r.times)
    r.times.slow_ns = r.plane.slow_ns
    r.epoll = epoll_create1(EPOLL_CLOEXEC)
    if r.epoll < 0:
        return False
    event.events = <uint32_t>EPOLLIN | <uint32_t>EPOLLET
    event.data.u64 = EVENT_WAKE
    return epoll_ctl(r.epoll, EPOLL_CTL_ADD, r.mailbox.wake_fd, &event) == 0


cdef bint plane_open(Plane* plane, int32_t reactor_count) noexcept nogil:
    cdef int32_t i
    closures_open(&plane.closed)
    gate_new(&plane.gate)
    if not queue_open(&plane.queue):
        return False
    for i in range(reactor_count):
        plane.reactors[i] = _reactor_take(plane)
        if plane.reactors[i] == NULL:
            return False
        plane.reactor_count = i + 1
        if not _reactor_prepare(plane.reactors[i]):
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


cdef void plane_has_room(void* plane) noexcept nogil:
    cdef Plane* whole = <Plane*>plane
    cdef int32_t i
    for i in range(whole.reactor_count):
        atomic_store32(&whole.reactors[i].unstall, 1)
        mailbox_wake(&whole.reactors[i].mailbox)


cdef ControlRequest* plane_take(Plane* plane, int32_t most) noexcept nogil:
    cdef bint unstall
    cdef ControlRequest* first = queue_take(&plane.queue, most, &unstall)
    if unstall:
        plane_has_room(plane)
    return first


cdef void plane_stop(Plane* plane, Stopping how) noexcept nogil:
    cdef int32_t i
    for i in range(plane.reactor_count):
        atomic_store32(&plane.reactors[i].stopping, how)
        mailbox_wake(&plane.reactors[i].mailbox)
    gate_open(&plane.gate)


cdef void plane_pause(Plane* plane) noexcept nogil:
    cdef int32_t i
    gate_close(&plane.gate)
    for i in range(plane.reactor_count):
        mailbox_wake(&plane.reactors[i].mailbox)
    gate_await(&plane.gate, plane.reactor_count)


cdef void plane_shut(Plane* plane, bint shut) noexcept nogil:
    cdef int32_t i
    atomic_store32(&plane.is_shut, shut)
    for i in range(plane.reactor_count):
        atomic_store32(&plane.reactors[i].hanging_up, shut)
        if shut:
            mailbox_wake(&plane.reactors[i].mailbox)


cdef void plane_hang_up_held(Plane* plane) noexcept nogil:
    """A thread that goes on in this very moment may close a descriptor, which another connection then gets: that one's
    peer has to connect again, too."""
    cdef Reactor* r
    cdef int32_t i
    cdef uint32_t place
    for i in range(plane.reactor_count):
        r = plane.reactors[i]
        if atomic_load32(&r.hanging_up) == 0:
            continue
        pthread_mutex_lock(&r.growing)
        for place in range(r.places_used):
            if atomic_load32(<int32_t*>&r.connections[place].state) != CONNECTION_CLOSED:
                transport_hang_up(&r.connections[place].transport)
        pthread_mutex_unlock(&r.growing)


cdef void plane_close(Plane* plane) noexcept nogil:
    cdef Reactor* r
    cdef int32_t i, j
    for i in range(plane.reactor_count):
        r = plane.reactors[i]
        mailbox_clear(&r.mailbox)
        for j in range(r.listener_count):
            if r.listeners[j] >= 0:
                close(r.listeners[j])
        if r.epoll >= 0:
            close(r.epoll)
        _reactor_give_back(r)
    plane.reactor_count = 0
    gate_free(&plane.gate)
    queue_clear(&plane.queue)
