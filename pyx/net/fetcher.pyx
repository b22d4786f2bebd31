"""The fetcher threads: they fetch from leaders what this broker follows. See fetcher.pyi."""

import os
import threading
import time
from cpython.bytes cimport PyBytes_AS_STRING
from cython.operator cimport dereference as at
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libcpp.vector cimport vector
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.linux.gate cimport Gate, gate_await, gate_close, gate_free, gate_new, gate_open, gate_pass
from penstock.pyx.linux.posix cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLLIN, EPOLL_CLOEXEC, EPOLL_CTL_ADD, atomic_load32, atomic_load64, atomic_store32,
    atomic_store64, block_signals, close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, eventfd, eventfd_read,
    eventfd_write, free, memcpy, memset, monotonic_ns, pthread_cond_destroy, pthread_cond_init, pthread_cond_wait,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, set_time_slice,
)
from penstock.pyx.log.files cimport dropped, made
from penstock.pyx.log.partition cimport (
    LogSetOwner, Partition, partition_find_id, partition_folder, partition_release,
)
from penstock.pyx.net.fetchlink cimport (
    CLIENT_ID_BYTES, LINK_NONE, ORDER_ADD, ORDER_CONNECT, ORDER_DISCONNECT, ORDER_REMOVE, ORDER_RENEW, Fetcher,
    Followed, Link, NewsItem, NewsQueue, Order, OrderKind, link_add, link_connect, link_disconnect,
    link_free, link_of, link_on_event, link_on_time, link_remove, link_renew,
)
from penstock.pyx.record.frame cimport TOPIC_ID_BYTES

cdef enum:
    FETCHERS_MAX = 64
    EVENTS_MAX = 64
    TIME_SLICE_NS = 1000000
    UNUSED_MS = 30000                 # a connection without a partition is closed after that
    LOOK_MS_MAX = 10000

JOIN_S = 10
KINDS = ("disconnected", "wanted", "rotten", "refused", "error", "begun_again")


class News(NamedTuple):
    """What a fetcher thread has to say; see fetcher.pyi."""

    kind: str
    leader: int
    topic: str
    partition: int
    error: int
    thread: int


# --- the thread ---------------------------------------------------------------------------------------------
cdef void _read_clock(Fetcher* f) noexcept nogil:
    f.now_ms = monotonic_ns() // 1_000_000


cdef void _carry_out(Fetcher* f, const Order* order) noexcept nogil:
    cdef Link* link
    if order.kind == ORDER_RENEW:
        for pair in f.links:
            link_renew(pair.second)
        return
    link = link_of(f, order.leader)
    if order.kind == ORDER_ADD:
        link_add(f, link, order.followed)
    elif order.kind == ORDER_REMOVE:
        link_remove(f, link, order.followed)
    elif order.kind == ORDER_CONNECT:
        link_connect(f, link, order.fd)
    else:
        link_disconnect(f, link)


cdef void _take_orders(Fetcher* f) noexcept nogil:
    cdef vector[Order] orders
    cdef uint64_t count
    cdef size_t i
    eventfd_read(f.wake_fd, &count)
    pthread_mutex_lock(&f.lock)
    orders.swap(f.orders)
    pthread_mutex_unlock(&f.lock)
    for i in range(orders.size()):
        _carry_out(f, &orders[i])


cdef void _look(Fetcher* f) noexcept nogil:
    """At everything that has a time."""
    cdef Link* link
    f.next_ms = f.now_ms + LOOK_MS_MAX
    for pair in f.links:
        link = pair.second
        if link.state != LINK_NONE and link.followed.empty() and f.now_ms - link.used_ms > UNUSED_MS:
            link_disconnect(f, link)
        link_on_time(f, link)


cdef void _run(Fetcher* f) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int64_t left_ms
    cdef int n, i
    block_signals()
    set_time_slice(TIME_SLICE_NS)                     # as network threads have it
    _read_clock(f)
    f.next_ms = f.now_ms
    while not atomic_load32(&f.stopping):
        gate_pass(f.gate)
        left_ms = max(f.next_ms - f.now_ms, <int64_t>0)
        n = epoll_wait(f.epoll, events, EVENTS_MAX, <int>left_ms)
        gate_pass(f.gate)
        _read_clock(f)
        for i in range(n):
            if events[i].data.ptr == NULL:            # before the others: what is added is in the next request
                _take_orders(f)
                f.next_ms = f.now_ms
        for i in range(n):
            if events[i].data.ptr != NULL and not atomic_load32(&f.stopping):
                link_on_event(f, <Link*>events[i].data.ptr, events[i].events)
        if f.now_ms >= f.next_ms:
            _look(f)


# --- its owner ----------------------------------------------------------------------------------------------
cdef bint _open(Fetcher* f, int32_t number) noexcept nogil:
    cdef epoll_event event
    f.number = number
    f.epoll = epoll_create1(EPOLL_CLOEXEC)
    f.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    memset(&event, 0, sizeof(epoll_event))
    event.events = EPOLLIN
    return f.epoll >= 0 and f.wake_fd >= 0 and epoll_ctl(f.epoll, EPOLL_CTL_ADD, f.wake_fd, &event) == 0


cdef void _close(Fetcher* f) noexcept nogil:
    """Its connections, partitions and orders; no thread runs it any more, nor will."""
    _take_orders(f)
    while not f.links.empty():
        link_free(f, at(f.links.begin()).second)
    free(f.spare)
    f.spare = NULL
    f.spare_capacity = 0


cdef void _free(Fetcher* f) noexcept nogil:
    if f.epoll >= 0:
        close(f.epoll)
    if f.wake_fd >= 0:
        close(f.wake_fd)
    pthread_cond_destroy(&f.idle)
    pthread_mutex_destroy(&f.lock)
    dropped[Fetcher](f)


cdef void _give_order(Fetcher* f, OrderKind kind, Followed* one, int32_t leader, int fd) noexcept nogil:
    cdef Order order
    order.kind = kind
    order.followed = one
    order.leader = leader
    order.fd = fd
    pthread_mutex_lock(&f.lock)
    f.orders.push_back(order)
    pthread_mutex_unlock(&f.lock)
    eventfd_write(f.wake_fd, 1)


cdef void _remove(Fetcher* f, Followed* one) noexcept nogil:
    """From now on the thread begins nothing with its log."""
    pthread_mutex_lock(&f.lock)
    one.removed = True
    pthread_mutex_unlock(&f.lock)
    _give_order(f, ORDER_REMOVE, one, one.leader, -1)


cdef void _await_end(Fetcher* f, int64_t number) noexcept nogil:
    """Until the thread doesn't work on a log any more."""
    pthread_mutex_lock(&f.lock)
    while f.working == number:
        pthread_cond_wait(&f.idle, &f.lock)
    pthread_mutex_unlock(&f.lock)


cdef class Following:
    """A partition that a thread follows. Its thread frees it some time after the order to remove it."""

    cdef Followed* one
    cdef Fetcher* fetcher


cdef class Fetchers:
    """The fetcher threads of a broker; see fetcher.pyi."""

    cdef LogSetOwner _logs                            # owns the set
    cdef NewsQueue* _news
    cdef vector[Fetcher*] _fetchers
    cdef Gate _gate
    cdef dict _following                              # (topic, partition) -> Following
    cdef dict _folder_threads                         # a log folder's number -> its thread's
    cdef object _changing                             # a lock of all that follows; nobody waits for a disk under it
    cdef int64_t _added
    cdef list _threads
    cdef bint _started
    cdef bint _stopped

    def __cinit__(
        self, LogSetOwner logs not None, int node_id, int threads, *, int wait_ms=500, int min_bytes=1,
        int partition_bytes=1 << 20, int answer_bytes=10 << 20, int batch_bytes=100 << 20, int answer_ms=30_000
    ):
        cdef Fetcher* f
        cdef bytes client_id
        if not 1 <= threads <= FETCHERS_MAX:
            raise ValueError(f"threads is {threads}, not 1 to {FETCHERS_MAX}")
        if min(wait_ms, min_bytes) < 0 or min(partition_bytes, answer_bytes, batch_bytes, answer_ms) <= 0:
            raise ValueError("a size or time that must be above 0 is not")
        self._logs = logs
        self._following = {}
        self._folder_threads = {}
        self._changing = threading.Lock()
        self._threads = []
        gate_new(&self._gate)
        self._news = made[NewsQueue]()
        pthread_mutex_init(&self._news.lock, NULL)
        self._news.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self._news.fd < 0:
            raise OSError("cannot make the event descriptor of the fetchers' news")
        for number in range(threads):
            f = made[Fetcher]()
            pthread_mutex_init(&f.lock, NULL)
            pthread_cond_init(&f.idle, NULL)
            self._fetchers.push_back(f)
            if not _open(f, number):
                raise OSError("cannot make a fetcher thread's epoll and event descriptors")
            f.news = self._news
            f.gate = &self._gate
            f.logs = logs.set
            f.broker_epoch = -1
            f.batch_bytes = <size_t>batch_bytes
            f.answer_ms = answer_ms
            client_id = f"broker-{node_id}-fetcher-{number}".encode()
            memcpy(f.client_id, PyBytes_AS_STRING(client_id), <size_t>min(len(client_id), CLIENT_ID_BYTES))
            f.terms.client_id.n = <int32_t>min(len(client_id), CLIENT_ID_BYTES)
            f.terms.node_id = node_id
            f.terms.wait_ms = wait_ms
            f.terms.min_bytes = min_bytes
            f.terms.answer_bytes = answer_bytes
            f.terms.partition_bytes = partition_bytes

    def __dealloc__(self):
        # Running threads hold a reference, so none runs here.
        for f in self._fetchers:
            if f.news != NULL:
                _close(f)
            _free(f)
        if self._news != NULL:
            if self._news.fd >= 0:
                close(self._news.fd)
            pthread_mutex_destroy(&self._news.lock)
            dropped[NewsQueue](self._news)
        gate_free(&self._gate)

    @property
    def news_fd(self) -> int:
        return self._news.fd

    @property
    def threads(self) -> int:
        return <int>self._fetchers.size()

    def start(self) -> None:
        with self._changing:
            if self._started or self._stopped:
                raise RuntimeError("start comes once")
            self._started = True
            for number in range(self.threads):
                self._threads.append(
                    threading.Thread(target=self._run, args=(number,), name=f"fetcher-{number}", daemon=True)
                )
            for thread in self._threads:
                thread.start()

    def _run(self, size_t number):
        with nogil:
            _run(self._fetchers[number])

    def stop(self) -> list:
        with self._changing:
            if self._stopped:
                return []
            self._stopped = True
            self._following.clear()
        for f in self._fetchers:
            atomic_store32(&f.stopping, 1)
            eventfd_write(f.wake_fd, 1)
        gate_open(&self._gate)
        hung = []
        until = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))
            if thread.is_alive():
                hung.append(thread.name)
        for i in range(self.threads):
            if f"fetcher-{i}" not in hung:
                _close(self._fetchers[i])
        return hung

    def pause(self) -> None:
        cdef int32_t threads = <int32_t>len(self._threads)
        gate_close(&self._gate)
        for f in self._fetchers:
            eventfd_write(f.wake_fd, 1)
        with nogil:
            gate_await(&self._gate, threads)

    def go_on(self) -> None:
        gate_open(&self._gate)

    cdef Fetcher* _fetcher(self, Partition* partition) except NULL:
        """The thread of its log folder."""
        folder = partition_folder(partition)
        if folder == 0:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log isn't open")
        thread = self._folder_threads.setdefault(folder, len(self._folder_threads) % self.threads)
        return self._fetchers[<size_t>thread]

    def add(self, str topic, bytes topic_id, int partition, int leader) -> None:
        cdef Following following = Following()
        cdef Partition* found = NULL
        cdef Followed* one
        cdef const uint8_t* id = <const uint8_t*>PyBytes_AS_STRING(topic_id)
        if len(topic_id) != TOPIC_ID_BYTES:
            raise ValueError("a topic id has 16 bytes")
        self.remove(topic, partition)
        with self._changing:
            if self._stopped:
                raise RuntimeError("the fetchers have stopped")
            if (topic, partition) in self._following:
                raise RuntimeError(f"{topic}-{partition} was added by two threads")
            with nogil:
                found = partition_find_id(self._logs.set, id, partition)
            if found == NULL:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not held here")
            try:
                following.fetcher = self._fetcher(found)
            except KafkaError:
                partition_release(found)
                raise
            self._added += 1
            one = made[Followed]()
            one.number = self._added
            memcpy(one.key.topic_id, id, TOPIC_ID_BYTES)
            one.key.index = partition
            one.leader = leader
            one.partition = found
            following.one = one
            self._following[topic, partition] = following
            _give_order(following.fetcher, ORDER_ADD, one, leader, -1)

    def remove(self, str topic, int partition) -> None:
        cdef Following following
        cdef int64_t number
        with self._changing:
            following = self._following.pop((topic, partition), None)
            if following is None or self._stopped:
                return
            number = following.one.number
            _remove(following.fetcher, following.one)
        with nogil:
            _await_end(following.fetcher, number)

    def connect(self, int leader, int thread, int fd) -> None:
        if not 0 <= thread < self.threads:
            raise ValueError(f"there is no thread {thread}")
        with self._changing:
            if self._stopped:
                close(fd)
                return
            os.set_blocking(fd, False)
            _give_order(self._fetchers[<size_t>thread], ORDER_CONNECT, NULL, leader, fd)

    def follows(self, int leader) -> bool:
        cdef Following following
        with self._changing:
            for following in self._following.values():
                if following.one.leader == leader:
                    return True
        return False

    def disconnect(self, int leader) -> None:
        with self._changing:
            if not self._stopped:
                for f in self._fetchers:
                    _give_order(f, ORDER_DISCONNECT, NULL, leader, -1)

    def set_broker_epoch(self, int64_t epoch) -> None:
        with self._changing:
            if not self._stopped:
                for f in self._fetchers:
                    atomic_store64(&f.broker_epoch, epoch)
                    _give_order(f, ORDER_RENEW, NULL, -1, -1)

    def take_news(self) -> list:
        cdef vector[NewsItem] items
        cdef uint64_t count
        cdef size_t i
        eventfd_read(self._news.fd, &count)
        pthread_mutex_lock(&self._news.lock)
        items.swap(self._news.items)
        pthread_mutex_unlock(&self._news.lock)
        return [
            News(
                KINDS[<int>items[i].kind], items[i].leader, (<bytes>items[i].topic).decode(), items[i].index,
                items[i].error, items[i].thread,
            )
            for i in range(items.size())
        ]

    def counters(self) -> dict:
        cdef int64_t fetches = 0, received = 0, records = 0, errors = 0, unasked = 0, lag = 0
        cdef Following following
        for f in self._fetchers:
            fetches += atomic_load64(&f.fetches)
            received += atomic_load64(&f.bytes)
            records += atomic_load64(&f.records)
            errors += atomic_load64(&f.errors)
            unasked += atomic_load64(&f.unasked)
        with self._changing:                          # whom it has, the threads don't free
            for following in self._following.values():
                lag = max(lag, atomic_load64(&following.one.lag))
        return {
            "fetches": fetches,
            "bytes": received,
            "records": records,
            "errors": errors,
            "unasked": unasked,
            "partitions": len(self._following),
            "lag": lag,
            "news_lost": atomic_load64(&self._news.lost),
        }
