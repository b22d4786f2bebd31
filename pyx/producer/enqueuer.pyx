"""A record on its way into a producer's queue; see enqueuer.pyi."""

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, clockid_t, timespec

from penstock.pyx.producer.partitioning cimport Choice
from penstock.pyx.producer.recordqueue cimport Line, RecordQueue, SentRecord, sent_record

from penstock.errors import ErrorCode, KafkaError

cdef enum:
    OVERHEAD_BYTES = 32         # more than the varints of a record take
    HEADER_OVERHEAD_BYTES = 6

cdef extern from "Python.h":
    Py_ssize_t PyNumber_AsSsize_t(object, void*) except? -1

RECORD_OVERHEAD_BYTES = OVERHEAD_BYTES


cdef inline int64_t _now_ns(clockid_t clock) noexcept nogil:
    cdef timespec now
    clock_gettime(clock, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef bytes _payload(str what, object data, object serializer):
    if serializer is not None:
        data = serializer(data)
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"a record's {what} is bytes or None, not {type(data).__name__} (or give a serializer)")


cdef tuple _listed(object headers):
    """Headers that can be walked more than once."""
    try:
        return tuple(headers)
    except TypeError:
        raise _not_headers(headers) from None


cdef object _not_headers(object headers):
    return TypeError(f'headers are pairs of a name and bytes or None, such as [("id", b"1")], not {headers!r}')


cdef int64_t _size(bytes key, bytes value, object headers) except -1:
    cdef int64_t size = OVERHEAD_BYTES
    if key is not None:
        size += PyBytes_GET_SIZE(key)
    if value is not None:
        size += PyBytes_GET_SIZE(value)
    return size + _headers_size(headers)


cdef int64_t _headers_size(object headers) except -1:
    cdef int64_t size = 0
    try:
        for name, data in headers:
            size += len(name) + len(data or b"") + HEADER_OVERHEAD_BYTES
    except (TypeError, ValueError):
        raise _not_headers(headers) from None
    return size


@cython.final
cdef class TopicPartitions:
    """See enqueuer.pyi."""

    cdef readonly Py_ssize_t count
    cdef readonly object available
    cdef readonly double expires_at
    cdef list lines

    def __init__(self, Py_ssize_t count, available, double expires_at):
        self.count = count
        self.available = available
        self.expires_at = expires_at
        self.lines = [None] * count

    cpdef check(self, topic, Py_ssize_t partition):
        """See enqueuer.pyi."""
        if not 0 <= partition < self.count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"`{topic}` partition {partition}: it has {self.count}")


@cython.final
cdef class Enqueuer:
    """See enqueuer.pyi."""

    cdef RecordQueue queue
    cdef Choice choice
    cdef object kind
    cdef dict topics
    cdef object look_up
    cdef object key_serializer
    cdef object value_serializer
    cdef object give_id
    cdef object watching
    cdef public double block_s
    cdef int64_t record_bytes

    def __init__(
        self, RecordQueue queue not None, Choice choice not None, kind, dict topics not None, look_up, *,
        key_serializer, value_serializer, give_id, watching, double block_s, int64_t record_bytes
    ):
        self.queue = queue
        self.choice = choice
        self.kind = kind
        self.topics = topics
        self.look_up = look_up
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        self.give_id = give_id
        self.watching = watching
        self.block_s = block_s
        self.record_bytes = record_bytes

    def enqueue(self, topic, key, value, timestamp_ms, headers, partition, on_delivery, bulk=None):
        """See enqueuer.pyi."""
        cdef bytes key_bytes, value_bytes
        cdef TopicPartitions known
        cdef SentRecord record
        cdef Line line
        cdef int64_t size
        cdef double now, block_until
        cdef Py_ssize_t number
        cdef bint sticky = False
        cdef bint filled = False
        record_id = None
        # The records of a `send_many` are serialized.
        key_bytes = _payload("key", key, self.key_serializer if bulk is None else None)
        value_bytes = _payload("value", value, self.value_serializer if bulk is None else None)
        if self.give_id is not None:
            key_bytes, headers, record_id = self.give_id(key_bytes, headers)
        if type(headers) is not list and type(headers) is not tuple:
            headers = _listed(headers)
        size = _size(key_bytes, value_bytes, headers)
        self.check_size(size, topic)
        now = _now_ns(CLOCK_MONOTONIC) / 1e9
        block_until = now + self.block_s
        known = self.topics.get(topic)
        if known is None or known.expires_at <= now:
            known = self.look_up(topic, block_until)
        if partition is None:
            number = self.choice.choose_one(topic, key_bytes, known.count, known.available, &sticky)
        else:
            number = PyNumber_AsSsize_t(partition, NULL)  # the nearest one, of a number that is too large
        known.check(topic, number)
        line = known.lines[number]
        if line is None:
            line = known.lines[number] = self.queue.line((topic, number))
        timestamp_ms = _now_ns(CLOCK_REALTIME) // 1_000_000 if timestamp_ms is None else PyNumber_Index(timestamp_ms)
        record = sent_record(self.kind, timestamp_ms, on_delivery, record_id)
        if self.watching is None:
            filled = self.queue.append(line, record, key_bytes, value_bytes, headers, size, block_until, bulk)
        else:
            with self.watching(size, topic, key_bytes, value_bytes, record.timestamp_ms, headers, number):
                filled = self.queue.append(line, record, key_bytes, value_bytes, headers, size, block_until, bulk)
        if sticky:
            self.choice.sticky.note(topic, size, filled, known.available)
        return record

    cpdef check_size(self, int64_t size, topic):
        """See enqueuer.pyi."""
        if size > self.record_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a record of {size} bytes for `{topic}`")
