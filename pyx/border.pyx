"""The border between the planes: requests out to the control plane, answers in. See border.pyi."""
import socket
import threading
from typing import NamedTuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.pyx.control cimport queue_close
from penstock.pyx.endian cimport get_i16, get_i32
from penstock.pyx.frame cimport API_VERSION_AT, CORRELATION_AT, Writer, write_i32, write_raw
from penstock.pyx.partition cimport LogSetOwner
from penstock.pyx.posix cimport atomic_load64, close, free, memset
from penstock.pyx.produce cimport ProduceTally
from penstock.pyx.plane cimport (
    DRAIN_MS,
    LISTENERS_MAX,
    MAIL_ANSWER,
    MAIL_CLOSE,
    REACTORS_MAX,
    ControlRequest,
    Counters,
    Plane,
)
from penstock.pyx.reactor cimport (
    on_warm,
    plane_close,
    plane_listen,
    plane_open,
    plane_stop,
    plane_take,
    reactor_loop,
    token_post,
)
from penstock.pyx.reader cimport reader_free, reader_loop, reader_new, reader_stop

cdef enum:
    TAKE_MAX = 256
    READER_THREADS = 2
    INPUT_BYTES_LEAST = 1 << 20

BACKLOG = 1024
JOIN_S = DRAIN_MS / 1000 + 10


class Request(NamedTuple):
    """A request that the control plane has to answer; see border.pyi."""

    token: int
    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes
    peer: str
    listener: str


cdef class DataPlane:
    """The network threads; see border.pyi."""

    cdef Plane plane
    cdef LogSetOwner _logs                            # owns plane.logs
    cdef list _bound                                  # (socket, its index) before start, then empty
    cdef list _listeners                              # names, by index
    cdef list _reactor_threads
    cdef list _reader_threads
    cdef object _stopping                             # a lock
    cdef bint _started
    cdef bint _stopped

    def __cinit__(self, *, int network_threads, int node_id, int max_request_bytes, int64_t max_idle_ms,
                  int64_t queued_bytes_max, int fetch_max_bytes, LogSetOwner logs not None):
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
        if not 1 <= network_threads <= REACTORS_MAX:
            raise ValueError(f"network_threads is {network_threads}, not 1 to {REACTORS_MAX}")
        if max_request_bytes <= 0 or max_idle_ms <= 0 or fetch_max_bytes <= 0:
            raise ValueError("max_request_bytes, max_idle_ms and fetch_max_bytes must be above 0")
        self.plane.request_bytes_max = max_request_bytes
        self.plane.answer_bytes_max = fetch_max_bytes
        self.plane.idle_ms_max = max_idle_ms
        self.plane.input_bytes_max = max(queued_bytes_max, <int64_t>INPUT_BYTES_LEAST)
        self.plane.queue.bytes_max = self.plane.input_bytes_max
        self.plane.readers = reader_new(on_warm)
        if self.plane.readers == NULL:
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

    @property
    def request_fd(self) -> int:
        return self.plane.queue.fd

    def listen(self, host: str, port: int, listener: str) -> int:
        if self._started or self._stopped:
            raise RuntimeError("listen comes before start")
        if len(self._bound) == LISTENERS_MAX:
            raise ValueError(f"more than {LISTENERS_MAX} listeners")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
        self._bound.append(bound)
        self._listeners.append(listener)
        return bound.getsockname()[1]

    def start(self) -> None:
        if self._started or self._stopped:
            raise RuntimeError("start comes once")
        self._started = True
        cdef int fd
        for bound in self._bound:
            bound.listen(BACKLOG)
            fd = bound.detach()
            if not plane_listen(&self.plane, fd):
                close(fd)
                raise OSError("cannot watch the listening socket")
        self._bound = []
        for i in range(READER_THREADS):
            self._reader_threads.append(
                threading.Thread(target=self._read, name=f"reader-{i}", daemon=True)
            )
        for i in range(self.plane.reactor_count):
            self._reactor_threads.append(
                threading.Thread(target=self._serve, args=(i,), name=f"network-{i}", daemon=True)
            )
        for thread in self._reader_threads + self._reactor_threads:
            thread.start()

    def _serve(self, int index):
        with nogil:
            reactor_loop(self.plane.reactors[index])

    def _read(self):
        with nogil:
            reader_loop(self.plane.readers)

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
                )
            )
            free(request)
            request = after
        return taken

    def answer(self, uint64_t token, frame) -> None:
        cdef Writer writer
        cdef Py_buffer view
        memset(&writer, 0, sizeof(Writer))
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        write_i32(&writer, <int32_t>view.len)
        write_raw(&writer, view.buf, <size_t>view.len)
        PyBuffer_Release(&view)
        if writer.failed:
            free(writer.p)
            raise MemoryError
        token_post(&self.plane, token, MAIL_ANSWER, &writer)

    def close_connection(self, uint64_t token) -> None:
        cdef Writer nothing
        memset(&nothing, 0, sizeof(Writer))
        token_post(&self.plane, token, MAIL_CLOSE, &nothing)

    def counters(self) -> dict:
        cdef Counters total
        cdef ProduceTally produced
        cdef Counters* one
        cdef int i
        cdef size_t field
        memset(&total, 0, sizeof(Counters))
        memset(&produced, 0, sizeof(ProduceTally))
        for i in range(self.plane.reactor_count):
            one = &self.plane.reactors[i].counters
            for field in range(sizeof(Counters) // sizeof(int64_t)):
                (<int64_t*>&total)[field] += (<int64_t*>one)[field]
            produced.batches += self.plane.reactors[i].produced.batches
            produced.bytes += self.plane.reactors[i].produced.bytes
            produced.errors += self.plane.reactors[i].produced.errors
        counted = dict(total)
        counted["produce_batches"] = produced.batches
        counted["produce_bytes"] = produced.bytes
        counted["produce_errors"] = produced.errors
        counted["queued_bytes"] = self.plane.queue.bytes
        counted["input_bytes"] = atomic_load64(&self.plane.input_bytes)
        return counted

    def stop(self) -> None:
        with self._stopping:
            if not self._stopped:
                self._stop()

    def _stop(self):
        plane_stop(&self.plane)
        for thread in self._reactor_threads:
            thread.join(JOIN_S)
            if thread.is_alive():
                raise RuntimeError(f"`{thread.name}` did not stop")
        reader_stop(self.plane.readers)
        for thread in self._reader_threads:
            thread.join()
        for bound in self._bound:
            bound.close()
        self._stopped = True
        plane_close(&self.plane)
