"""Records in: a synchronous producer with Kafka's properties over an asyncio loop in a thread.

    producer = Producer("host:9092", **{"linger.ms": 20, "compression.type": "lz4"})
    delivery = producer.send("events", key=b"id", value=b"...")
    producer.flush()
    delivery.result().offset

`send` appends to the open batch of a partition in the caller's thread; the loop is woken once a batch, not
once a record. A batch is closed when it is full or has waited for `linger.ms`; its sequence numbers are given
when its turn comes, so a batch that the broker refused for good leaves no gap behind it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.background import BackgroundLoop
from penstock.pipeline.clients.client import ANY_NODE, Client, TopicPartition
from penstock.pipeline.clients.outgoing import Columns, Headers, Lists, Taken, headers_of
from penstock.pipeline.clients.partitioner import Partitioner, Sticky, partition_for, partitions_for
from penstock.pipeline.clients.recordid import RecordId
from penstock.pipeline.clients.sender import Produced, Sender
from penstock.pipeline.clients.transaction import WAITING, TransactionalSender
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.messages import InitProducerIdRequest

Serializer = Callable[[Any], bytes | None]
RECORD_OVERHEAD_BYTES = 32  # more than the varints of a record take
BATCH_BYTES_MIN = 64  # a header and a little: the builder takes one record in any case
SEQUENCE_MASK = 0x7FFFFFFF
CLOSE_TIMEOUT_S = 60.0
# Codes that say for certain: not stored, because of the sequence number. The batch may go again under a new
# identity.
REFUSED = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class RecordMetadata(NamedTuple):
    """Where a record was stored. `offset` is -1 where the broker did not say (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


OnDelivery = Callable[[KafkaError | None, RecordMetadata | None], None]


@dataclass(eq=False, slots=True)
class _Batch:
    tp: TopicPartition
    builder: BatchBuilder
    ripe_at: float
    deadline: float
    size: int = 0
    deliveries: list[Delivery] = field(default_factory=list)
    bulks: list[BulkDelivery] = field(default_factory=list)
    produced: Produced | None = None
    error: KafkaError | None = None
    done: bool = False


class Delivery:
    """A record on its way: a future. Waiting in a callback of the producer is refused."""

    __slots__ = ("_batch", "_index", "_on_delivery", "_producer", "record_id", "timestamp_ms")

    def __init__(
        self,
        producer: Producer,
        batch: _Batch,
        index: int,
        timestamp_ms: int,
        on_delivery: OnDelivery | None,
        record_id: bytes | None,
    ) -> None:
        self._producer = producer
        self._batch = batch
        self._index = index
        self._on_delivery = on_delivery
        self.timestamp_ms = timestamp_ms
        self.record_id = record_id
        """With `record.id`: the id that the record had or was given. Who sends it again gives it that."""

    def done(self) -> bool:
        """Whether it is stored or has failed."""
        return self._batch.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until it is stored. Raises KafkaError if it failed, TimeoutError if that takes too long."""
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        produced = self._batch.produced
        assert produced is not None
        offset = -1 if produced.base_offset < 0 else produced.base_offset + self._index
        stored_at = produced.log_append_time_ms
        return RecordMetadata(*self._batch.tp, offset, self.timestamp_ms if stored_at < 0 else stored_at)

    def exception(self, timeout_s: float | None = None) -> KafkaError | None:
        """Wait; the error, or None when it is stored."""
        self._producer._wait(lambda: self._batch.done, timeout_s)
        return self._batch.error

    def _finish(self) -> None:
        if self._on_delivery is not None:
            error = self._batch.error
            self._on_delivery(error, None if error is not None else self.result())


class BulkDelivery:
    """The records of one `send_many` on their way."""

    def __init__(self, producer: Producer, count: int, columns: Columns | None) -> None:
        self.count = count
        self.columns = columns
        """With `record.id`: the records with their ids, for who has to send them again."""
        self.failed = 0
        self.error: KafkaError | None = None
        self._producer = producer
        self._batches: dict[int, tuple[_Batch, int]] = {}

    def _add(self, batch: _Batch, records: int) -> None:
        known = self._batches.get(id(batch))
        self._batches[id(batch)] = (batch, records if known is None else known[1] + records)
        if known is None:
            batch.bulks.append(self)

    def _finish(self, batch: _Batch) -> None:
        _, records = self._batches.pop(id(batch))
        if batch.error is not None:
            self.failed += records
            self.error = self.error or batch.error

    def done(self) -> bool:
        """Whether every record is stored or has failed."""
        return not self._batches

    def result(self, timeout_s: float | None = None) -> int:
        """Wait until all are stored; gives how many. Raises the first KafkaError, or TimeoutError."""
        self._producer._wait(self.done, timeout_s)
        if self.error is not None:
            raise self.error
        return self.count


@dataclass(eq=False, slots=True)
class _Line:
    """A partition's batches: closed ones in order, the open one, and what the loop knows of those under way."""

    tp: TopicPartition
    closed: deque[_Batch] = field(default_factory=deque)
    open: _Batch | None = None
    in_flight: int = 0
    refused: list[_Batch] = field(default_factory=list)
    identity: tuple[int, int] | None = None
    sequence: int = 0
    timer: asyncio.TimerHandle | None = None


class Producer:
    """Sends records; see the module. Threads may share one. Close it: what was not flushed before is lost.

    Idempotent unless `acks` or `enable.idempotence` say otherwise. With `transactional.id`: `begin`, sends,
    maybe `send_offsets`, then `commit` or `abort`; every method raises Fenced once a newer producer has the
    identity. Callbacks run in the producer's own thread and must not wait.
    """

    def __init__(
        self,
        bootstrap: str = "",
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        **given: object,
    ) -> None:
        self.config = config = properties.load(properties.PRODUCER, given)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._sticky = Sticky()
        self._record_id = None if config["record.id"] is None else RecordId(config["record.id"])
        self._acks = {"all": -1, "-1": -1, "0": 0, "1": 1}[config["acks"]]
        self._idempotent = config["enable.idempotence"] and self._acks == -1 and config["retries"] > 0
        self._codec = properties.CODECS[config["compression.type"]]
        self._level = config.get(f"compression.{config['compression.type']}.level", -1)
        self._batch_bytes: int = config["batch.size"]
        self._linger_s = config["linger.ms"] / 1000
        self._log = log.get(__name__, client_id=config["client.id"])
        # Guards lines, memory and the done flags of batches; send, flush and results wait for changes. It is entered by itself,
        # not by the condition, whose entering is Python: Ctrl-C within that would leave it taken for good.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._lines: dict[TopicPartition, _Line] = {}
        self._memory_bytes = 0
        self._flying: set[_Batch] = set()  # batches that are neither stored nor failed, open ones too
        self._partitions: dict[str, tuple[float, int, list[int]]] = {}  # expiry, count, those with a leader
        self._closed = False
        self._identity: tuple[int, int] | None = None if self._idempotent else (-1, -1)
        self._identifying: asyncio.Task[None] | None = None
        self._client = Client.from_config(bootstrap, config)
        self._background = BackgroundLoop("penstock-producer")
        self._transaction: TransactionalSender | None = None
        try:
            self._sender: Sender = self._background.call(self._start())
        except BaseException:
            self._background.stop()
            raise

    async def _start(self) -> Sender:
        transactional_id = self.config["transactional.id"]
        if transactional_id is not None:
            timeout_ms = self.config["transaction.timeout.ms"]
            self._transaction = TransactionalSender(self._client, transactional_id, timeout_ms)
            await self._transaction.init()
        return Sender(self._client, acks=self._acks, idempotent=self._idempotent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Sending

    def send(
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Put a record on its way. Waits (at most `max.block.ms`) for metadata and for room in
        `buffer.memory`.

        Key and value are bytes or None unless there are serializers. Raises TypeError or ValueError for a bad
        record, KafkaError for one that is too large, an unknown topic or partition, or when the wait was too
        long.
        """
        key = _payload("key", key, self._key_serializer)
        value = _payload("value", value, self._value_serializer)
        record_id = None
        if self._record_id is not None:
            key, headers, record_id = self._record_id.give(key, headers)
        size = len(key or b"") + len(value or b"") + RECORD_OVERHEAD_BYTES
        size += sum(len(name) + len(data or b"") + 6 for name, data in headers)
        if size > self.config["max.request.size"]:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a record of {size} bytes for `{topic}`")
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        block_until = time.monotonic() + self.config["max.block.ms"] / 1000
        count, available = self._partition_counts(topic, block_until)
        sticky = False
        if partition is None:
            partition, sticky = self._choose(topic, key, count, available)
        if not 0 <= partition < count:
            text = f"`{topic}` partition {partition}: it has {count}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        with self._lock:
            self._reserve(size, block_until)
            line = self._line((topic, partition))
            batch = line.open
            if batch is None or not batch.builder.append(key, value, timestamp_ms, headers):
                if batch is not None:
                    self._close_batch(line)
                    if sticky:
                        self._sticky.next(topic, available)
                batch = self._open_batch(line)
                try:
                    batch.builder.append(key, value, timestamp_ms, headers)
                except BaseException:
                    self._drop_open(line)
                    raise
            delivery = Delivery(self, batch, len(batch.deliveries), timestamp_ms, on_delivery, record_id)
            batch.deliveries.append(delivery)
            batch.size += size
            self._memory_bytes += size
            if batch.builder.size_in_bytes >= self._batch_bytes:
                self._close_batch(line)
                if sticky:
                    self._sticky.next(topic, available)
        return delivery

    def send_many(
        self,
        topic: str,
        keys: Sequence[bytes | None] | None = None,
        values: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | npt.NDArray[np.int64] | None = None,
        partition: int | None = None,
        columns: Columns | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> BulkDelivery:
        """Put many records on their way: lists of keys, values and headers (each may be left out), or columns.

        Order within a partition is that of the lists. Waits and raises as `send` does; when it raises
        half-way, the records before are on their way.
        """
        if columns is None:
            columns = Lists(keys, values, timestamps, headers)
        if self._record_id is not None:
            columns = self._record_id.give_all(columns)
        count = len(columns.timestamps)
        bulk = BulkDelivery(self, count, None if self._record_id is None else columns)
        if count == 0:
            return bulk
        block_until = time.monotonic() + self.config["max.block.ms"] / 1000
        partition_count, available = self._partition_counts(topic, block_until)
        lengths = np.diff(columns.key_starts) + np.diff(columns.value_starts)
        _, header_starts = headers_of(columns)
        if header_starts is not None:
            lengths = lengths + np.diff(header_starts)
        longest = int(lengths.max())
        if longest + RECORD_OVERHEAD_BYTES > self.config["max.request.size"]:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a record of {longest} bytes for `{topic}`")
        chosen = self._choose_many(topic, columns, partition, partition_count, available)
        order = np.argsort(chosen, kind="stable")
        bounds = np.flatnonzero(np.diff(chosen[order])) + 1
        for rows in np.split(order, bounds):
            part = columns if rows.size == count else Taken(columns, rows)
            self._send_columns((topic, int(chosen[rows[0]])), part, bulk, block_until)
        return bulk

    def _send_columns(self, tp: TopicPartition, columns: Columns, bulk: BulkDelivery, block_until: float) -> None:
        count = len(columns.timestamps)
        header_data, header_starts = headers_of(columns)
        in_all = len(columns.key_data) + len(columns.value_data) + (0 if header_data is None else len(header_data))
        average = in_all // count + RECORD_OVERHEAD_BYTES
        first = 0
        while first < count:
            with self._lock:
                self._reserve(min(average * (count - first), self._batch_bytes), block_until)
                line = self._line(tp)
                batch = line.open or self._open_batch(line)
                before = batch.builder.size_in_bytes
                taken = batch.builder.append_columns(
                    timestamps=columns.timestamps.data,
                    key_data=columns.key_data.data,
                    key_starts=columns.key_starts.data,
                    key_null=columns.key_null.data,
                    value_data=columns.value_data.data,
                    value_starts=columns.value_starts.data,
                    value_null=columns.value_null.data,
                    header_data=None if header_data is None else header_data.data,
                    header_starts=None if header_starts is None else header_starts.data,
                    first=first,
                )
                if taken:
                    grown = batch.builder.size_in_bytes - before
                    batch.size += grown
                    self._memory_bytes += grown
                    bulk._add(batch, taken)
                    first += taken
                if first < count or batch.builder.size_in_bytes >= self._batch_bytes:
                    self._close_batch(line)

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Waits for metadata as `send` does."""
        count, _ = self._partition_counts(topic, time.monotonic() + self.config["max.block.ms"] / 1000)
        return list(range(count))

    def _partition_counts(self, topic: str, block_until: float) -> tuple[int, list[int]]:
        known = self._partitions.get(topic)
        now = time.monotonic()
        if known is not None and known[0] > now:
            return known[1], known[2]
        if self._closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer is closed")
        left_s = max(0.0, block_until - now)

        async def ask() -> tuple[int, list[int]]:
            await self._client.leader(topic, 0, timeout_ms=left_s * 1000)
            cluster = await self._client.metadata([topic])
            parts = cluster.topics[topic].partitions if topic in cluster.topics else {}
            if not parts:
                code = cluster.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                raise KafkaError(code, f"topic `{topic}`")
            return len(parts), [number for number, info in parts.items() if info.leader >= 0] or list(parts)

        try:
            count, available = self._background.call(ask(), left_s)
        except TimeoutError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"metadata of `{topic}`") from None
        self._partitions[topic] = now + self.config["metadata.max.age.ms"] / 1000, count, available
        return count, available

    def _choose(self, topic: str, key: bytes | None, count: int, available: Sequence[int]) -> tuple[int, bool]:
        """A partition, and whether it is the sticky one."""
        if self._partitioner is not None:
            return self._partitioner(topic, key, count), False
        if key is None or self.config["partitioner.ignore.keys"]:
            return self._sticky.partition(topic, available), True
        return partition_for(key, count), False

    def _choose_many(
        self, topic: str, columns: Columns, partition: int | None, count: int, available: Sequence[int]
    ) -> npt.NDArray[np.int64]:
        rows = len(columns.timestamps)
        if partition is not None:
            if not 0 <= partition < count:
                text = f"`{topic}` partition {partition}: it has {count}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
            return np.full(rows, partition, np.int64)
        if self._partitioner is not None:
            keys = [
                None if null else columns.key_data[start:end].tobytes()
                for null, start, end in zip(columns.key_null, columns.key_starts, columns.key_starts[1:], strict=False)
            ]
            return np.array([self._partitioner(topic, key, count) for key in keys], np.int64)
        sticky = self._sticky.partition(topic, available)
        if self.config["partitioner.ignore.keys"]:
            return np.full(rows, sticky, np.int64)
        chosen = partitions_for(columns.key_data, columns.key_starts, count)
        if columns.key_null.any():
            chosen[columns.key_null] = sticky
            self._sticky.next(topic, available)
        return chosen

    # Batches; all of these with self._lock held

    def _line(self, tp: TopicPartition) -> _Line:
        if self._closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer is closed")
        if self._transaction is not None:
            self._transaction.check_open()
        line = self._lines.get(tp)
        if line is None:
            line = self._lines[tp] = _Line(tp)
        return line

    def _reserve(self, size: int, block_until: float) -> None:
        """Wait for room in `buffer.memory`. A record larger than all of it may go when nothing else is there."""
        limit = self.config["buffer.memory"]
        while self._memory_bytes and self._memory_bytes + size > limit and not self._closed:
            if self._background.inside:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "`buffer.memory` is full, in a callback")
            for line in self._lines.values():
                if line.open is not None:
                    self._close_batch(line)
            left_s = block_until - time.monotonic()
            if left_s <= 0 or not self._changed.wait(min(left_s, threading.TIMEOUT_MAX)):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "`buffer.memory` is full")

    def _open_batch(self, line: _Line) -> _Batch:
        now = time.monotonic()
        builder = BatchBuilder(self._codec, self._level, max(BATCH_BYTES_MIN, self._batch_bytes))
        deadline = now + self.config["delivery.timeout.ms"] / 1000
        line.open = _Batch(line.tp, builder, now + self._linger_s, deadline)
        self._flying.add(line.open)
        self._wake(line)
        return line.open

    def _drop_open(self, line: _Line) -> None:
        """The first record of a fresh batch was refused by the builder."""
        assert line.open is not None
        self._flying.discard(line.open)
        line.open = None

    def _close_batch(self, line: _Line) -> None:
        assert line.open is not None
        line.closed.append(line.open)
        line.open = None
        self._wake(line)

    def _wake(self, line: _Line) -> None:
        self._background.loop.call_soon_threadsafe(self._pump, line)

    # The loop's side

    def _pump(self, line: _Line) -> None:
        """Hand batches of a partition to the sender while there is room; set a timer for one that lingers."""
        window = self.config["max.in.flight.requests.per.connection"]
        while line.in_flight < window:
            identity = self._ready_identity(line)
            if identity is None:
                return
            batch = self._next_batch(line)
            if batch is None:
                return
            line.in_flight += 1
            try:
                future = self._submit(line, batch, identity)
            except (KafkaError, ValueError) as error:
                line.in_flight -= 1
                failure = error if isinstance(error, KafkaError) else _unsendable(error)
                self._finish(batch, None, failure)
                continue
            future.add_done_callback(partial(self._answered, line, batch))

    def _ready_identity(self, line: _Line) -> tuple[int, int] | None:
        """The producer id and epoch for the line's next batch, or None if that has to wait."""
        if self._transaction is not None:
            return self._transaction.producer_id, self._transaction.producer_epoch
        if self._identity is None:
            if self._identifying is None:
                self._identifying = asyncio.create_task(self._identify())
            return None
        if line.identity != self._identity:
            if line.in_flight:  # an older identity's batches first, or a retry could be overtaken
                return None
            line.identity, line.sequence = self._identity, 0
        return self._identity

    async def _identify(self) -> None:
        """Get a producer id, for as long as it takes; batches whose time is over fail meanwhile."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

        async def attempt() -> tuple[int, int]:
            answer = await self._client.send(ANY_NODE, request)
            if answer.error_code:
                raise KafkaError(answer.error_code, "producer id")
            return answer.producer_id, answer.producer_epoch

        try:
            while self._identity is None:
                try:
                    self._identity = await self._client.retry(attempt, timeout_ms=1_000, also=WAITING)
                except KafkaError as error:
                    self._expire(error)
        finally:
            self._identifying = None
        for line in list(self._lines.values()):
            self._pump(line)

    def _expire(self, error: KafkaError) -> None:
        """Fail what can't be sent for want of a producer id: all of it if no retry helps, else what is
        overdue.
        """
        now = time.monotonic()
        expired: list[_Batch] = []
        with self._lock:
            for line in self._lines.values():
                if line.open is not None and (not error.retriable or line.open.deadline < now):
                    line.closed.append(line.open)
                    line.open = None
                while line.closed and (not error.retriable or line.closed[0].deadline < now):
                    expired.append(line.closed.popleft())
        for batch in expired:
            self._finish(batch, None, error)

    def _next_batch(self, line: _Line) -> _Batch | None:
        with self._lock:
            if line.closed:
                return line.closed.popleft()
            batch = line.open
            if batch is None:
                return None
            left_s = batch.ripe_at - time.monotonic()
            if left_s <= 0:
                line.open = None
                return batch
        if line.timer is not None:
            line.timer.cancel()
        line.timer = self._background.loop.call_later(left_s, self._pump, line)
        return None

    def _submit(self, line: _Line, batch: _Batch, identity: tuple[int, int]) -> asyncio.Future[Produced]:
        count = batch.builder.count
        if self._transaction is not None:
            self._transaction.check_open()
            sequence = self._transaction.next_sequence(batch.tp, count)
            data = batch.builder.build(*identity, sequence, True)
            return self._transaction.submit(batch.tp, [data])
        if not self._idempotent:
            return self._sender.submit(batch.tp, [batch.builder.build()], batch.deadline)
        data = batch.builder.build(*identity, line.sequence, False)
        line.sequence = (line.sequence + count) & SEQUENCE_MASK
        return self._sender.submit(batch.tp, [data], batch.deadline)

    def _answered(self, line: _Line, batch: _Batch, future: asyncio.Future[Produced]) -> None:
        line.in_flight -= 1
        error = None if future.cancelled() else future.exception()
        if error is None and not future.cancelled():
            self._finish(batch, future.result(), None)
        else:
            closed = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed")
            self._failed(line, batch, error if isinstance(error, KafkaError) else closed)
        if not line.in_flight and line.refused:
            with self._lock:
                line.closed.extendleft(reversed(line.refused))
            line.refused.clear()
        self._pump(line)

    def _failed(self, line: _Line, batch: _Batch, error: KafkaError) -> None:
        """A gap in the sequence numbers is left: everything after it needs a new producer id."""
        if self._idempotent and self._transaction is None and line.identity == self._identity:
            self._log.info("`%s` partition %d: new producer id after %s", *line.tp, error)
            self._identity = None
        refused = self._transaction is None and error.code in REFUSED
        if refused and time.monotonic() < batch.deadline:
            line.refused.append(batch)
        else:
            self._finish(batch, None, error)

    def _finish(self, batch: _Batch, produced: Produced | None, error: KafkaError | None) -> None:
        """A batch is stored or has failed: free its memory, wake the threads that wait, call the callback."""
        with self._lock:
            batch.produced, batch.error, batch.done = produced, error, True
            self._memory_bytes -= batch.size
            self._flying.discard(batch)
            for bulk in batch.bulks:
                bulk._finish(batch)
            self._changed.notify_all()
        for delivery in batch.deliveries:
            try:
                delivery._finish()
            except Exception:  # noqa: BLE001  a user's callback must not stop the producer
                self._log.exception("a delivery callback raised")
        batch.deliveries.clear()
        batch.builder.clear()

    # Waiting and ending

    def _wait(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        with self._lock:
            if done():
                return
            if self._background.inside:
                raise RuntimeError("a callback of the producer cannot wait for it")
            if not self._changed.wait_for(done, timeout_s):
                raise TimeoutError("not everything is delivered yet")

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all open batches now and wait until everything sent before is stored or has failed.

        Raises TimeoutError. Deliveries and callbacks have the failures, not this.
        """
        with self._lock:
            for line in self._lines.values():
                if line.open is not None:
                    self._close_batch(line)
            waiting = list(self._flying)  # not those that others begin while we wait
        self._wait(lambda: all(batch.done for batch in waiting), timeout_s)

    def close(self, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
        """Flush for at most so long, then stop. What is not stored by then fails. Closing twice is nothing."""
        with self._lock:
            if self._closed:
                return
        try:
            if self._transaction is None:
                self.flush(timeout_s)
        except TimeoutError:
            self._log.warning("closed with %d batches not delivered", len(self._flying))
        finally:
            with self._lock:
                self._closed = True
                self._changed.notify_all()
            self._background.call(self._shut())
            self._background.stop()

    async def _shut(self) -> None:
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed")
        if self._identifying is not None:
            self._identifying.cancel()
        self._discard(error)
        if self._transaction is not None:
            await self._transaction.close()
        await self._sender.close(error)
        await asyncio.sleep(0)  # the callbacks of what just failed run
        self._discard(error)
        await self._client.close()

    def _discard(self, error: KafkaError) -> None:
        """Fail every batch that was not handed to the sender."""
        dropped: list[_Batch] = []
        with self._lock:
            for line in self._lines.values():
                dropped += [*line.closed, *line.refused]
                if line.open is not None:
                    dropped.append(line.open)
                line.closed.clear()
                line.refused.clear()
                line.open = None
        for batch in dropped:
            self._finish(batch, None, error)

    # Transactions

    def begin(self) -> None:
        """Open a transaction. Raises Fenced or KafkaError."""
        self._background.call(self._transactional().begin())

    def send_offsets(self, offsets: Mapping[TopicPartition, int | tuple[int, str]], group: str, **membership: Any) -> None:
        """Commit a consumer group's offsets with this transaction. `membership` takes `generation_id`,
        `member_id` and `group_instance_id` (as `Consumer.membership()` gives them), so that a member that was
        replaced is refused."""
        pairs = {tp: (at, "") if isinstance(at, int) else at for tp, at in offsets.items()}
        self._background.call(self._transactional().send_offsets(group, pairs, **membership))

    def commit(self) -> None:
        """Flush and commit. Raises KafkaError when a send of the transaction failed: then `abort`."""
        transaction = self._transactional()
        self.flush()
        self._background.call(transaction.commit())

    def abort(self) -> None:
        """Give the transaction up; its records that were not sent fail."""
        transaction = self._transactional()
        error = KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted")

        async def work() -> None:
            self._discard(error)
            await transaction.abort()

        self._background.call(work())

    def _transactional(self) -> TransactionalSender:
        if self._transaction is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the producer has no `transactional.id`")
        return self._transaction


def _payload(what: str, data: Any, serializer: Serializer | None) -> bytes | None:
    if serializer is not None:
        data = serializer(data)
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"a record's {what} is bytes or None, not {type(data).__name__} (or give a serializer)")


def _unsendable(error: ValueError) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, str(error))
