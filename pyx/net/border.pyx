"""The border between the planes: requests out to the control plane, answers in. See border.pyi."""

import os
import socket
import threading
from array import array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, SIZE_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector
from typing import NamedTuple

from penstock.pyx.linux.gate cimport gate_open
from penstock.pyx.linux.posix cimport (
    atomic_load32, atomic_load64, atomic_load_pointer, atomic_store32, calloc, close, free, memset, monotonic_ns,
)
from penstock.pyx.log.partition cimport LogSetOwner, logset_topic_name, partition_index, partition_topic
from penstock.pyx.log.producerstate cimport next_guard
from penstock.pyx.net.admission cimport LISTENERS_MAX, Listener, admission_free, admission_limit, admission_new
from penstock.pyx.net.busytime cimport BusyTime, busy_ns_until
from penstock.pyx.net.client cimport SOFTWARE_BYTES, Client, client_kept
from penstock.pyx.net.closures cimport CLOSURES_KEPT, DETAIL_BYTES, Closure, Reason, closures_take
from penstock.pyx.net.coldreader cimport (
    READER_FOLDERS_MAX, READER_THREADS_A_FOLDER, reader_free, reader_loop, reader_new, reader_stop,
)
from penstock.pyx.net.connection cimport (
    PRESENCE_GONE, PRESENCE_SENDING, ConnectionCopy, connection_presence, connections_copy,
)
from penstock.pyx.net.control cimport ControlRequest, queue_close
from penstock.pyx.net.counters cimport Counters, counters_add
from penstock.pyx.net.histogram cimport BUCKETS, Histogram, bucket_bound_s, bucket_of
from penstock.pyx.net.mailbox cimport (
    MAIL_RESUME, MAIL_RESUME_LOSE, REACTORS_MAX, Service, on_read, on_worked, token_answer, token_close,
    token_connection, token_name, token_post,
)
from penstock.pyx.net.plane cimport (
    DRAIN_MS, STOP_ABRUPT, STOP_DRAINED, Plane, Stopping, plane_close, plane_hang_up_held, plane_has_room, plane_listen,
    plane_open, plane_pause, plane_shut, plane_stop, plane_take,
)
from penstock.pyx.net.phases import PHASES as PHASE_NAMES
from penstock.pyx.net.reactor cimport reactor_loop
from penstock.pyx.net.requests cimport produce_reason, requests_describe
from penstock.pyx.net.requesttimes cimport (
    API_KEYS, API_VERSIONS, FETCH_FOLLOWER, PHASES, PHASE_LOCAL, PHASE_QUEUE, PHASE_SEND, PHASE_WAITING, SLOW_KEPT,
    RequestCounts, SlowTiming, slow_take,
)
from penstock.pyx.net.workers cimport workers_clear, workers_free, workers_loop, workers_new, workers_stop
from penstock.pyx.record.endian cimport get_i16, get_i32
from penstock.pyx.record.frame cimport (
    API_VERSION_AT, CORRELATION_AT, Reader, RequestHead, Slice, Writer, read_head, read_string, reader_start, write_i32,
    write_raw, writer_free,
)
from penstock.pyx.request.acks cimport ProduceWait, acks_free
from penstock.pyx.request.leaders cimport Address, addresses_free, addresses_new, addresses_set
from penstock.pyx.request.produce cimport (
    PRODUCE_ANSWERED, PRODUCE_HAND_OVER, PRODUCE_HELD, PRODUCE_MALFORMED, PRODUCE_SILENT, ProduceResult,
    ProduceTally, produce_held, produce_serve,
)
from penstock.pyx.request.produceflush cimport NamedFolders, produce_flush, produce_flushes
from penstock.pyx.request.producerequest cimport produce_partitions
from penstock.pyx.request.refusals cimport Sender, refusals_free, refusals_new
from penstock.pyx.request.sessions cimport sessions_free, sessions_new, sessions_unresolve_idle
from penstock.pyx.request.verification cimport Unverified, find_unverified, unverified_free
from penstock.pyx.request.versions cimport (
    FETCH_KEY, PRODUCE_FLEXIBLE_FROM, PRODUCE_KEY, PRODUCE_VERSION_MAX, PRODUCE_VERSION_MIN,
)
from penstock.pyx.wire.header import REQUESTS

cdef enum:
    TAKE_MAX = 256
    INPUT_BYTES_MIN = 1 << 20

BACKLOG = 1024
# A peer that has gone without a word is found after about seven minutes.
KEEPALIVE_IDLE_S = 300
KEEPALIVE_EVERY_S = 30
KEEPALIVE_TIMES = 4
JOIN_S = DRAIN_MS / 1000 + 10


BOUNDS_S = tuple([bucket_bound_s(bucket) for bucket in range(BUCKETS)])


class RequestTimes(NamedTuple):
    """How long requests took; see border.pyi."""

    counts: array
    sum_ns: int


class SlowRequest(NamedTuple):
    """A request that took too long; see border.pyi."""

    request: str
    client_id: str
    peer: str
    topic: str
    bytes: int
    queue_ns: int
    local_ns: int
    waiting_ns: int
    send_ns: int
    when_ms: int


class ThreadFigures(NamedTuple):
    """A thread of the data plane; see border.pyi."""

    name: str
    busy_ns: int
    beats: int
    waiting: bool
    connections: dict


class ConnectionFigures(NamedTuple):
    """A connection that is open; see border.pyi."""

    peer: str
    listener: str
    client_id: str
    software_name: str
    software_version: str
    age_ms: int
    idle_ms: int
    requests: int
    bytes_in: int
    bytes_out: int


def bucket_for(int64_t ns):
    """The number of the bucket that counts a duration; see border.pyi."""
    return bucket_of(ns)


cdef object _api_name(int key):
    if key == FETCH_KEY or key == FETCH_FOLLOWER:     # Kafka's names, as it counts those of followers apart
        return "FetchConsumer" if key == FETCH_KEY else "FetchFollower"
    return REQUESTS[key].__name__.removesuffix("Request") if key in REQUESTS else str(key)


cdef object _client_id(const Client* client):
    return (<const char*>client.id)[:client_kept(client.id_n)].decode("utf-8", "replace")


class UnverifiedBatch(NamedTuple):
    """A partition of a produce that the transaction coordinator has to be asked about; see border.pyi."""

    place: int
    partition: tuple
    producer_id: int
    producer_epoch: int


class Question(NamedTuple):
    """What a transaction coordinator has to be asked before a produce is appended; see border.pyi."""

    transactional_id: str
    batches: list
    guard: int


cdef bint _begin(bytes frame, RequestHead* head, Reader* body) noexcept:
    """The header of a produce; the reader then stands at its body. The records behind it will be written to: the
    bytes came from `take_requests`, and no other thread has them.
    """
    cdef int16_t version
    reader_start(body, <uint8_t*>PyBytes_AS_STRING(frame), <size_t>PyBytes_GET_SIZE(frame))
    version = get_i16(body.p + API_VERSION_AT)
    if not PRODUCE_VERSION_MIN <= version <= PRODUCE_VERSION_MAX:
        return False
    read_head(body, version >= PRODUCE_FLEXIBLE_FROM, head)
    return not body.bad and head.api_key == PRODUCE_KEY


class Closed(NamedTuple):
    """A connection that was closed for what its peer did; see border.pyi."""

    reason: str
    peer: str
    listener: str
    held_bytes: int
    detail: str


# By closures.pxd's Reason: the counters' names.
REASONS = (
    "closed_memory_short", "closed_slow_request", "closed_slow_reader", "closed_address_limit", "closed_tls",
    "closed_http", "closed_request_size", "closed_malformed", "closed_unsupported", "closed_unacknowledged",
    "closed_failed", "closed_fault",
)


cdef tuple _why(ProduceResult result, bytes frame):
    """The reason and the detail for which the connection of a produce that has no answer is closed."""
    cdef char detail[DETAIL_BYTES]
    requests_describe(<uint8_t*>PyBytes_AS_STRING(frame), <int32_t>PyBytes_GET_SIZE(frame), detail)
    return REASONS[produce_reason(result)], (<bytes>detail).decode("ascii")


class Request(NamedTuple):
    """A request that the control plane has to answer; see border.pyi."""

    token: int
    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes
    peer: str
    listener: str
    handed_over: bool = False


cdef class ProduceAnswer:
    """What `append_produce` gives; see border.pyi."""

    cdef Writer bytes
    cdef ProduceWait* acks
    cdef uint32_t topic

    def __dealloc__(self):
        free(self.bytes.p)
        acks_free(self.acks)


cdef class DataPlane:
    """The network threads; see border.pyi."""

    cdef Plane plane
    cdef LogSetOwner _logs                            # owns plane.logs
    cdef list _bound                                  # (socket, its index) before start, then empty
    cdef list _listeners                              # names, by index
    cdef list _reactor_threads
    cdef list _reader_threads
    cdef list _worker_threads
    cdef BusyTime* _busy_times                        # of the readers, then of the workers
    cdef int _folders
    cdef object _stopping                             # a lock
    cdef bint _started
    cdef bint _stopped

    def __cinit__(
        self, *, int network_threads, int node_id, int max_request_bytes, int64_t max_idle_ms,
        int64_t queued_bytes_max, int fetch_max_bytes, LogSetOwner logs not None,
        int fetch_sessions=1000, int64_t fetch_session_eviction_ms=120_000,
        int64_t fetch_sessions_bytes=64 << 20, int64_t frame_ms=60_000, int64_t take_ms=300_000,
        int64_t memory_patience_ms=5_000, int folders=1, int64_t slow_request_ms=500
    ):
        memset(&self.plane, 0, sizeof(Plane))
        self._logs = logs
        self.plane.logs = logs.set
        self.plane.queue.fd = -1
        self._stopped = True                          # until all below worked
        self._stopping = threading.Lock()
        self._bound = []
        self._listeners = []
        self._reactor_threads = []
        self._reader_threads = []
        self._worker_threads = []
        self._folders = folders
        if not 1 <= network_threads <= REACTORS_MAX:
            raise ValueError(f"network_threads is {network_threads}, not 1 to {REACTORS_MAX}")
        if min(max_request_bytes, max_idle_ms, fetch_max_bytes, frame_ms, take_ms, memory_patience_ms) <= 0:
            raise ValueError("a size or time that must be above 0 is not")
        if slow_request_ms < 0:
            raise ValueError("slow_request_ms is below 0")
        self.plane.slow_ns = min(slow_request_ms, <int64_t>INT32_MAX) * 1_000_000
        self.plane.request_bytes_max = max_request_bytes
        self.plane.answer_bytes_max = fetch_max_bytes
        self.plane.idle_ms_max = max_idle_ms
        self.plane.frame_ms_max = frame_ms
        self.plane.take_ms_max = take_ms
        self.plane.input_patience_ms = memory_patience_ms
        self.plane.input_bytes_max = max(queued_bytes_max, <int64_t>INPUT_BYTES_MIN)
        self.plane.queue.bytes_max = self.plane.input_bytes_max
        self.plane.readers = reader_new(on_read)
        self.plane.sessions = sessions_new(fetch_sessions, fetch_session_eviction_ms, fetch_sessions_bytes)
        self.plane.admission = admission_new()
        self.plane.workers = workers_new(
            self.plane.logs, self.plane.input_bytes_max, &self.plane, on_worked, plane_has_room
        )
        self.plane.refusals = refusals_new()
        self.plane.addresses = addresses_new(node_id)
        if self.plane.readers == NULL or self.plane.sessions == NULL or self.plane.admission == NULL:
            raise MemoryError
        if self.plane.workers == NULL:
            raise MemoryError
        if not plane_open(&self.plane, network_threads):
            plane_close(&self.plane)
            raise OSError("cannot make the network threads' epoll and event descriptors")
        self._stopped = False

    def __dealloc__(self):
        # Running threads hold a reference, so none runs here.
        if not self._stopped:
            plane_close(&self.plane)
        if self.plane.queue.fd >= 0:
            queue_close(&self.plane.queue)
        if self.plane.readers != NULL:
            reader_free(self.plane.readers)
        if self.plane.workers != NULL:
            workers_free(self.plane.workers)
        if self.plane.sessions != NULL:
            sessions_free(self.plane.sessions)
        if self.plane.admission != NULL:
            admission_free(self.plane.admission)
        if self.plane.refusals != NULL:
            refusals_free(self.plane.refusals)
        if self.plane.addresses != NULL:
            addresses_free(self.plane.addresses)
        free(self._busy_times)

    @property
    def request_fd(self) -> int:
        return self.plane.queue.fd

    def limit_connections(
        self, int most=INT32_MAX, int rate=0, int most_of_address=INT32_MAX, of_addresses: dict | None = None
    ) -> None:
        cdef unordered_map[string, int32_t] own
        for address, limit in (of_addresses or {}).items():
            # As the network threads write addresses.
            text = f"[{address}]" if ":" in address else address
            own[<string>text.encode("ascii")] = <int32_t>limit
        admission_limit(self.plane.admission, most, rate, most_of_address, own)

    def set_addresses(self, addresses: dict) -> None:
        cdef vector[vector[Address]] listeners
        cdef Address at
        listeners.resize(len(self._listeners))
        for i, name in enumerate(self._listeners):
            for broker, host, port, rack in addresses.get(name, ()):
                at.broker = broker
                at.host = <string>host.encode()
                at.port = port
                at.has_rack = rack is not None
                at.rack = <string>(rack or "").encode()
                listeners[<size_t>i].push_back(at)
        addresses_set(self.plane.addresses, listeners)

    def listen(
        self, host: str, port: int, listener: str, *, int max_connections=INT32_MAX, int rate=0,
        bint kept_open=False, bint between_brokers=False, int send_buffer_bytes=-1, int receive_buffer_bytes=-1,
        congestion: str = ""
    ) -> int:
        cdef Listener* limits = &self.plane.admission.listeners[len(self._listeners)]
        if self._started or self._stopped:
            raise RuntimeError("listen comes before start")
        if len(self._listeners) == LISTENERS_MAX:
            raise ValueError(f"more than {LISTENERS_MAX} listeners")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)   # [::] takes IPv4 connections, too
            # Accepted sockets inherit these.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TIMES)
            if send_buffer_bytes >= 0:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
            if receive_buffer_bytes >= 0:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            if congestion:
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            bound.bind(address)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
        self._bound.append(bound)
        self._listeners.append(listener)
        limits.connections_max = max_connections
        limits.rate.per_second = rate
        limits.kept_open = kept_open
        limits.between_brokers = between_brokers
        return bound.getsockname()[1]

    def start(self) -> None:
        if self._started or self._stopped:
            raise RuntimeError("start comes once")
        self._started = True
        cdef int fd
        for bound in self._bound:
            host, port = bound.getsockname()[:2]
            try:
                bound.listen(BACKLOG)
            except OSError as error:                  # another one listens there, bound at the same time
                raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
            fd = bound.detach()
            if not plane_listen(&self.plane, fd):
                close(fd)
                raise OSError("cannot watch the listening socket")
        self._bound = []
        readers = READER_THREADS_A_FOLDER * min(max(self._folders, 1), READER_FOLDERS_MAX)
        workers = self.plane.reactor_count + 1
        self._busy_times = <BusyTime*>calloc(<size_t>(readers + workers), sizeof(BusyTime))
        if self._busy_times == NULL:
            raise MemoryError
        for i in range(readers):
            thread = threading.Thread(target=self._read, args=(i,), name=f"reader-{i}", daemon=True)
            self._reader_threads.append(thread)
        for i in range(workers):
            thread = threading.Thread(target=self._work, args=(readers + i, i == 0), name=f"worker-{i}", daemon=True)
            self._worker_threads.append(thread)
        for i in range(self.plane.reactor_count):
            self._reactor_threads.append(
                threading.Thread(target=self._serve, args=(i,), name=f"network-{i}", daemon=True)
            )
        for thread in self._reader_threads + self._worker_threads + self._reactor_threads:
            thread.start()

    def _serve(self, int index):
        with nogil:
            reactor_loop(self.plane.reactors[index])

    def _read(self, int number):
        with nogil:
            reader_loop(self.plane.readers, &self._busy_times[number])

    def _work(self, int number, bint light):
        with nogil:
            workers_loop(self.plane.workers, light, &self._busy_times[number])

    def take_requests(self) -> list:
        cdef ControlRequest* request
        cdef ControlRequest* after
        cdef list taken = []
        if self._stopped:
            return taken
        request = plane_take(&self.plane, TAKE_MAX)
        while request != NULL:
            after = request.next
            taken.append(
                Request(
                    request.token,
                    get_i16(request.frame),
                    get_i16(request.frame + API_VERSION_AT),
                    get_i32(request.frame + CORRELATION_AT),
                    PyBytes_FromStringAndSize(<char*>request.frame, request.n),
                    (<bytes>request.peer).decode("ascii"),
                    self._listeners[request.listener],
                    request.handed_over,
                )
            )
            free(request)
            request = after
        return taken

    def answer(self, uint64_t token, frame, int64_t begun_ns=0, int64_t local_ns=0) -> None:
        cdef Writer writer
        cdef Service service
        cdef Py_buffer view
        memset(&writer, 0, sizeof(Writer))
        memset(&service, 0, sizeof(Service))
        service.begun_ns = begun_ns
        service.local_ns = local_ns
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        write_i32(&writer, <int32_t>view.len)
        write_raw(&writer, view.buf, <size_t>view.len)
        PyBuffer_Release(&view)
        if writer.failed:
            free(writer.p)
            raise MemoryError
        token_answer(&self.plane, token, &writer, NULL, &service)

    def name_software(self, uint64_t token, str name, str version) -> None:
        cdef bytes first = name.encode()[:SOFTWARE_BYTES]
        cdef bytes both = first + version.encode()[:SOFTWARE_BYTES]
        cdef Writer names
        memset(&names, 0, sizeof(Writer))
        write_raw(&names, PyBytes_AS_STRING(both), <size_t>PyBytes_GET_SIZE(both))
        if names.failed:
            free(names.p)
            raise MemoryError
        token_name(&self.plane, token, &names, <size_t>PyBytes_GET_SIZE(first))

    def close_connection(self, uint64_t token, reason: str = "closed_failed", detail: str = "") -> None:
        cdef bytes text = detail.encode("ascii", "backslashreplace") + bytes(1)
        cdef int why = REASONS.index(reason)
        cdef Writer words
        memset(&words, 0, sizeof(Writer))
        write_raw(&words, PyBytes_AS_STRING(text), <size_t>PyBytes_GET_SIZE(text))
        if words.failed:
            writer_free(&words)
        token_close(&self.plane, token, <Reason>why, &words)

    def is_connected(self, uint64_t token) -> bool:
        return not self._stopped and connection_presence(&self.plane, token) != PRESENCE_GONE

    def is_sending(self, uint64_t token) -> bool:
        return not self._stopped and connection_presence(&self.plane, token) == PRESENCE_SENDING

    def divert(self, int api_key, bint on) -> None:
        if api_key not in (PRODUCE_KEY, FETCH_KEY):
            raise ValueError("only Produce (0) and Fetch (1) can be diverted")
        with self._stopping:
            bits = atomic_load32(&self.plane.diverted)
            atomic_store32(&self.plane.diverted, bits | 1 << api_key if on else bits & ~(1 << api_key))

    def resume(self, request, *, bint lose_answer=False) -> None:
        cdef Writer writer
        cdef bytes frame = request.frame
        memset(&writer, 0, sizeof(Writer))
        if request.api_key not in (PRODUCE_KEY, FETCH_KEY):
            raise ValueError("only Produce (0) and Fetch (1) are served by the network threads")
        write_raw(&writer, PyBytes_AS_STRING(frame), <size_t>PyBytes_GET_SIZE(frame))
        if writer.failed:
            free(writer.p)
            raise MemoryError
        token_post(&self.plane, request.token, MAIL_RESUME_LOSE if lose_answer else MAIL_RESUME, &writer)

    def unverified(self, request) -> object:
        cdef bytes frame = request.frame
        cdef int64_t guard = next_guard()             # before the logs are looked at
        cdef vector[Unverified] found
        cdef RequestHead head
        cdef Reader body
        cdef Slice transactional_id
        cdef const char* name
        cdef size_t i, n
        cdef list asked = []
        if not _begin(frame, &head, &body):
            return Question("", asked, guard)
        with nogil:
            find_unverified(self.plane.logs, &head, body, &found)
        if found.empty():
            return Question("", asked, guard)
        transactional_id = read_string(&body, head.api_version >= PRODUCE_FLEXIBLE_FROM, True)
        for i in range(found.size()):
            name = partition_topic(found[i].partition, &n)
            asked.append(
                UnverifiedBatch(
                    found[i].place,
                    (name[:n].decode(), partition_index(found[i].partition)),
                    found[i].producer_id,
                    found[i].producer_epoch,
                )
            )
        unverified_free(found)
        return Question((<char*>transactional_id.p)[:transactional_id.n].decode(errors="replace"), asked, guard)

    def flushes(self, request) -> frozenset:
        cdef bytes frame = request.frame
        cdef RequestHead head
        cdef Reader body
        cdef NamedFolders folders
        cdef bint flushes
        cdef size_t i
        folders.count = 0
        if not _begin(frame, &head, &body):
            return frozenset()
        with nogil:
            flushes = produce_flushes(self.plane.logs, &head, body, &folders)
        return frozenset([folders.folder[i] for i in range(folders.count)]) if flushes else frozenset()

    def held(self, request) -> bool:
        cdef bytes frame = request.frame
        cdef RequestHead head
        cdef Reader body
        cdef bint held
        if not _begin(frame, &head, &body):
            return False
        with nogil:
            held = produce_held(self.plane.logs, &head, body)
        return held

    cdef ProduceResult serve_produce(
        self, request, const int16_t* verdicts, int64_t guard, Writer* answer, ProduceWait** acks, uint32_t* topic
    ):
        """`produce_serve` of a request; counts what it appended. The caller frees the answer's bytes, and `acks`."""
        cdef bytes frame = request.frame
        cdef Sender sender
        cdef RequestHead head
        cdef Reader body
        cdef ProduceTally tally
        cdef ProduceResult result
        memset(answer, 0, sizeof(Writer))
        memset(&tally, 0, sizeof(ProduceTally))
        acks[0] = NULL
        topic[0] = 0
        sender.refusals = self.plane.refusals
        sender.connection = token_connection(request.token)
        sender.addresses = self.plane.addresses
        sender.listener = self._listeners.index(request.listener)
        if not _begin(frame, &head, &body):
            return PRODUCE_MALFORMED
        with nogil:
            result = produce_serve(self.plane.logs, &sender, &head, body, answer, acks, &tally, verdicts, guard, topic)
        # With the GIL: the loop and the threads of flushing produces add.
        self.plane.produced.batches += tally.batches
        self.plane.produced.bytes += tally.bytes
        self.plane.produced.errors += tally.errors
        return result

    def serve_flushing(self, request) -> bool:
        cdef Writer answer
        cdef Service service
        cdef ProduceWait* acks
        cdef ProduceResult result
        memset(&service, 0, sizeof(Service))
        service.begun_ns = monotonic_ns()
        service.local_ns = INT64_MAX                  # all of it
        result = self.serve_produce(request, NULL, 0, &answer, &acks, &service.topic)
        if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
            token_answer(&self.plane, request.token, &answer, acks, &service)
            return True
        free(answer.p)
        acks_free(acks)
        if result == PRODUCE_HAND_OVER or result == PRODUCE_HELD:
            return False
        self.close_connection(request.token, *_why(result, request.frame))
        return True

    def append_produce(self, request, dict refused, int64_t guard) -> object:
        cdef bytes frame = request.frame
        cdef vector[int16_t] verdicts
        cdef RequestHead head
        cdef Reader body
        cdef ProduceAnswer answer = ProduceAnswer()
        cdef int64_t partitions = -1
        cdef ProduceResult result
        if _begin(frame, &head, &body):
            partitions = produce_partitions(&head, body)
        # Never empty: its address says that a coordinator was asked. Of a malformed request nobody reads it.
        verdicts.resize(<size_t>max(partitions, <int64_t>0) + 1)
        for place, error in refused.items():
            if not 0 <= place < partitions:
                raise ValueError(f"the request has no partition {place}")
            verdicts[<size_t>place] = error
        result = self.serve_produce(request, verdicts.data(), guard, &answer.bytes, &answer.acks, &answer.topic)
        if result == PRODUCE_ANSWERED or result == PRODUCE_SILENT:
            return answer
        self.close_connection(request.token, *_why(result, frame))
        return None

    def flush_produce(self, request) -> None:
        cdef bytes frame = request.frame
        cdef RequestHead head
        cdef Reader body
        cdef int result
        if not _begin(frame, &head, &body):
            return
        with nogil:
            result = produce_flush(self.plane.logs, &head, body)
        if result != 0:
            raise OSError(result, os.strerror(result))

    def answer_produce(self, request, ProduceAnswer answer not None, int64_t begun_ns=0, int64_t local_ns=0) -> None:
        cdef Service service
        cdef ProduceWait* acks = answer.acks
        memset(&service, 0, sizeof(Service))
        service.begun_ns = begun_ns
        service.local_ns = local_ns
        service.topic = answer.topic
        answer.acks = NULL
        token_answer(&self.plane, request.token, &answer.bytes, acks, &service)

    def counters(self) -> dict:
        cdef Counters total
        cdef ProduceTally produced
        cdef int i
        memset(&total, 0, sizeof(Counters))
        produced = self.plane.produced
        for i in range(self.plane.reactor_count):
            counters_add(&total, &self.plane.reactors[i].counters)
            produced.batches += self.plane.reactors[i].produced.batches
            produced.bytes += self.plane.reactors[i].produced.bytes
            produced.errors += self.plane.reactors[i].produced.errors
        counted = dict(total)
        counted["produce_batches"] = produced.batches
        counted["produce_bytes"] = produced.bytes
        counted["produce_errors"] = produced.errors
        counted["queued_bytes"] = self.plane.queue.bytes
        counted["working_bytes"] = self.plane.workers.bytes
        counted["fetch_sessions"] = self.plane.sessions.by_id.size()
        counted["fetch_session_partitions"] = self.plane.sessions.partitions
        counted["fetch_session_bytes"] = self.plane.sessions.bytes
        counted["fetch_session_evictions"] = self.plane.sessions.evictions
        counted["input_bytes"] = atomic_load64(&self.plane.input_bytes)
        counted["slow_requests_lost"] = sum([
            self.plane.reactors[i].times.slow_lost for i in range(self.plane.reactor_count)
        ])
        return counted

    cdef const RequestCounts* counts_of(self, int reactor, int key) noexcept:
        """NULL: that network thread has served none."""
        return <const RequestCounts*>atomic_load_pointer(<void**>&self.plane.reactors[reactor].times.counts[key])

    def request_times(self) -> dict:
        cdef const RequestCounts* counts
        cdef const Histogram* one
        cdef Histogram total
        cdef int key, phase, i, bucket
        cdef bint found
        cdef dict times = {}
        for key in range(API_KEYS):
            for phase in range(PHASES):
                memset(&total, 0, sizeof(Histogram))
                found = False
                for i in range(self.plane.reactor_count):
                    counts = self.counts_of(i, key)
                    if counts == NULL:
                        continue
                    found = True
                    one = &counts.phases[phase]
                    total.sum_ns += atomic_load64(&one.sum_ns)
                    for bucket in range(BUCKETS + 1):
                        total.counts[bucket] += atomic_load64(&one.counts[bucket])
                if not found:
                    break
                counted = array("q", PyBytes_FromStringAndSize(<char*>total.counts, sizeof(total.counts)))
                times[_api_name(key), PHASE_NAMES[phase]] = RequestTimes(counted, total.sum_ns)
        return times

    def requests_by_version(self) -> dict:
        cdef const RequestCounts* counts
        cdef int64_t n
        cdef int key, version, i
        cdef dict requests = {}
        for key in range(API_KEYS):
            name = _api_name(key)
            for i in range(self.plane.reactor_count):
                counts = self.counts_of(i, key)
                for version in range(API_VERSIONS if counts != NULL else 0):
                    n = atomic_load64(&counts.versions[version])
                    if n:
                        requests[name, version] = requests.get((name, version), 0) + n
        return requests

    def slow_counts(self) -> dict:
        cdef const RequestCounts* counts
        cdef int key, i
        cdef dict slow = {}
        for key in range(API_KEYS):
            for i in range(self.plane.reactor_count):
                counts = self.counts_of(i, key)
                if counts != NULL:
                    name = _api_name(key)
                    slow[name] = slow.get(name, 0) + atomic_load64(&counts.slow)
        return slow

    def slow_requests(self) -> list:
        cdef vector[SlowTiming] taken
        cdef SlowTiming* one
        cdef string topic
        cdef int32_t i, j, n
        cdef list slow = []
        taken.resize(SLOW_KEPT)
        for i in range(self.plane.reactor_count):
            n = slow_take(&self.plane.reactors[i].times, taken.data())
            for j in range(n):
                one = &taken[<size_t>j]
                topic.clear()
                if one.topic:
                    logset_topic_name(self.plane.logs, one.topic, topic)
                slow.append(SlowRequest(
                    _api_name(one.api_key), _client_id(&one.client), (<bytes>one.peer).decode("ascii"),
                    (<bytes>topic).decode(), one.bytes, one.passed_ns[<int>PHASE_QUEUE],
                    one.passed_ns[<int>PHASE_LOCAL], one.passed_ns[<int>PHASE_WAITING],
                    one.passed_ns[<int>PHASE_SEND], one.ended_ms,
                ))
        return slow

    def threads(self) -> list:
        cdef int64_t now_ns = monotonic_ns(), busy_ns
        cdef bint waiting = True
        cdef int i, j
        cdef list figures = []
        for i in range(self.plane.reactor_count):
            busy_ns = busy_ns_until(&self.plane.reactors[i].busy, now_ns, &waiting)
            connections = {
                name: self.plane.reactors[i].listening[j] for j, name in enumerate(self._listeners)
            }
            figures.append(ThreadFigures(
                f"network-{i}", busy_ns, atomic_load64(&self.plane.reactors[i].busy.beats), waiting, connections
            ))
        for i, thread in enumerate(self._reader_threads + self._worker_threads):
            busy_ns = busy_ns_until(&self._busy_times[i], now_ns, &waiting)
            figures.append(ThreadFigures(
                thread.name, busy_ns, atomic_load64(&self._busy_times[i].beats), waiting, {}
            ))
        return figures

    cdef void copy_connections(self, size_t most, vector[ConnectionCopy]& copies):
        """Those that are open; a few that come meanwhile have room."""
        cdef size_t room = TAKE_MAX
        cdef int i
        for i in range(self.plane.reactor_count):
            room += <size_t>max(atomic_load64(&self.plane.reactors[i].counters.connections), <int64_t>0)
        copies.resize(min(room, most))
        with nogil:
            room = connections_copy(&self.plane, copies.data(), copies.size())
        copies.resize(room)

    def connections(self, size_t most=10_000) -> list:
        cdef vector[ConnectionCopy] copies
        cdef int64_t now_ms = monotonic_ns() // 1_000_000
        cdef ConnectionCopy* one
        cdef size_t i
        cdef list figures = []
        self.copy_connections(most, copies)
        for i in range(copies.size()):
            one = &copies[i]
            figures.append(ConnectionFigures(
                (<bytes>one.peer).decode("ascii"), self._listeners[one.listener], _client_id(&one.client),
                (<char*>one.client.software_name)[:one.client.software_name_n].decode("ascii", "replace"),
                (<char*>one.client.software_version)[:one.client.software_version_n].decode("ascii", "replace"),
                max(now_ms - one.opened_ms, 0), max(now_ms - one.active_ms, 0), one.requests, one.bytes_in,
                one.bytes_out,
            ))
        return figures

    def software(self) -> dict:
        cdef vector[ConnectionCopy] copies
        cdef unordered_map[string, int64_t] found
        cdef string both
        cdef Client* client
        cdef size_t i
        cdef dict counted, software = {}
        self.copy_connections(SIZE_MAX, copies)
        with nogil:
            for i in range(copies.size()):
                client = &copies[i].client
                both.assign(<char*>client.software_name, client.software_name_n)
                both.push_back(0)
                both.append(<char*>client.software_version, client.software_version_n)
                found[both] += 1
        counted = found
        for names, connections in counted.items():
            name, version = (<bytes>names).decode("ascii", "replace").split("\0")
            software[name, version] = connections
        return software

    def closures(self) -> list:
        cdef Closure taken[CLOSURES_KEPT]
        cdef int32_t i, n = closures_take(&self.plane.closed, taken)
        return [
            Closed(
                REASONS[taken[i].reason],
                (<bytes>taken[i].peer).decode("ascii"),
                self._listeners[taken[i].listener],
                taken[i].held_bytes,
                (<bytes>taken[i].detail).decode("ascii"),
            )
            for i in range(n)
        ]

    def stop(self) -> None:
        with self._stopping:
            if not self._stopped:
                self._stop(STOP_DRAINED)

    def abort(self) -> None:
        with self._stopping:
            if not self._stopped:
                self._stop(STOP_ABRUPT)

    def pause(self) -> None:
        with self._stopping:
            if not self._started or self._stopped:
                raise RuntimeError("the network threads don't run")
            with nogil:
                plane_pause(&self.plane)

    def go_on(self) -> None:
        with self._stopping:
            if not self._stopped:
                gate_open(&self.plane.gate)

    def shut(self, bint shut) -> None:
        with self._stopping:
            if self._started and not self._stopped:
                plane_shut(&self.plane, shut)

    def hang_up_held(self) -> None:
        with self._stopping:
            if self._started and not self._stopped:
                plane_hang_up_held(&self.plane)

    cdef _stop(self, Stopping how):
        plane_stop(&self.plane, how)
        for thread in self._reactor_threads:
            thread.join(JOIN_S)
            if thread.is_alive():
                raise RuntimeError(f"`{thread.name}` did not stop")
        reader_stop(self.plane.readers)
        workers_stop(self.plane.workers)
        for thread in self._reader_threads + self._worker_threads:
            thread.join()
        workers_clear(self.plane.workers)
        for bound in self._bound:
            bound.close()
        self._stopped = True
        plane_close(&self.plane)
        sessions_unresolve_idle(self.plane.sessions, INT64_MAX)   # the logs are closed after this
