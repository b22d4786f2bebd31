"""Sets of epoll threads, made and ended; see planes.pxd."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from penstock.pyx.log.partition cimport set_wake_hook
from penstock.pyx.net.admission cimport LISTENERS_MAX
from penstock.pyx.net.closures cimport closures_open
from penstock.pyx.net.control cimport queue_clear, queue_open, queue_take
from penstock.pyx.net.mailbox cimport on_partition_moved, reactor_give_back, reactor_take, reactor_wake
from penstock.pyx.net.plane cimport EVENT_LISTENER, EVENT_WAKE, SCRATCH_BYTES, ControlRequest, Counters, Plane, Reactor
from penstock.pyx.net.reactor cimport close_all
from penstock.pyx.net.waiting cimport wait_open
from penstock.pyx.posix cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLLET, EPOLLIN, EPOLL_CLOEXEC, EPOLL_CTL_ADD, atomic_store32, close, epoll_create1,
    epoll_ctl, epoll_event, eventfd, malloc, memset,
)
from penstock.pyx.request.produce cimport produce_group_new

cdef bint reactor_prepare(Reactor* r, Plane* plane) noexcept nogil:
    """Makes a taken reactor fit to run: the numbers of its last run are forgotten, its connection places are kept."""
    cdef epoll_event event
    r.plane = plane
    r.stopping = 0
    r.unstall = 0
    r.starved = 0
    r.relieve = 0
    r.wake = 0
    r.draining = False
    r.accept_ms = 0
    r.descriptors_short = False
    r.listener_count = 0
    r.next_reactor = 0
    memset(&r.counters, 0, sizeof(Counters))
    memset(&r.produced, 0, sizeof(r.produced))
    if r.scratch == NULL:
        r.scratch = <uint8_t*>malloc(SCRATCH_BYTES)
        r.produces = produce_group_new()
        r.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    r.epoll = epoll_create1(EPOLL_CLOEXEC)
    if r.scratch == NULL or r.wake_fd < 0 or r.epoll < 0 or not wait_open(r):
        return False
    event.events = <uint32_t>EPOLLIN | <uint32_t>EPOLLET
    event.data.u64 = EVENT_WAKE
    return epoll_ctl(r.epoll, EPOLL_CTL_ADD, r.wake_fd, &event) == 0


cdef bint plane_open(Plane* plane, int32_t reactor_count) noexcept nogil:
    cdef int32_t i
    closures_open(&plane.closed)
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
        reactor_give_back(r)
    plane.reactor_count = 0
    queue_clear(&plane.queue)
