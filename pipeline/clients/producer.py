"""Records in: a synchronous producer with Kafka's properties over an asyncio loop in a thread.

    producer = Producer("host:9092", **{"linger.ms": 20, "compression.type": "lz4"})
    delivery = producer.send("events", key=b"id", value=b"...")
    producer.flush()
    delivery.result().offset

`send` appends to the open batch of a partition in the caller's thread (the accumulator); the loop is woken once a batch, not
once a record, and hands batches to the sender (the dispatcher).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import log
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.accumulator import RECORD_OVERHEAD_BYTES, Accumulator
from penstock.pipeline.clients.background import SyncClient
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.delivery import BulkDelivery, Delivery, OnDelivery, RecordMetadata
from penstock.pipeline.clients.dispatcher import Dispatcher
from penstock.pipeline.clients.outgoing import Columns, Headers, Lists, Taken, headers_of
from penstock.pipeline.clients.partitioner import PartitionChoice, Partitioner
from penstock.pipeline.clients.partitionlists import with_metadata
from penstock.pipeline.clients.recordid import RecordId
from penstock.pipeline.clients.transaction import TransactionalSender

__all__ = ["BulkDelivery", "Delivery", "Producer", "RecordMetadata"]

Serializer = Callable[[Any], bytes | None]
CLOSE_TIMEOUT_S = 60.0


class Producer(SyncClient[Client]):
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
        super().__init__(Client, bootstrap, properties.PRODUCER, given)
        config = self.config
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._choice = PartitionChoice(partitioner, config["partitioner.ignore.keys"])
        self._record_id = None if config["record.id"] is None else RecordId(config["record.id"])
        self._block_s = config["max.block.ms"] / 1000
        self._record_bytes: int = config["max.request.size"]
        self._partitions: dict[str, tuple[float, int, list[int]]] = {}  # expiry, count, those with a leader
        self._log = log.get(__name__, client_id=config["client.id"])
        with self._beginning():
            self._transaction = self._call(self._take_identity(), self._block_s)
            check_open = None if self._transaction is None else self._transaction.check_open
            self._accumulator = Accumulator(config, self._background, self._wake, check_open)
            self._dispatcher = Dispatcher(self._client, self._accumulator, self._transaction)

    async def _take_identity(self) -> TransactionalSender | None:
        if self.config["transactional.id"] is None:
            return None
        transaction = TransactionalSender(self._client, self.config["transactional.id"], self.config["transaction.timeout.ms"])
        await transaction.init()
        return transaction

    def _wake(self, tp: TopicPartition) -> None:
        self._background.loop.call_soon_threadsafe(self._dispatcher.pump, tp)

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
        self._check_size(size, topic)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        block_until = time.monotonic() + self._block_s
        count, available = self._partition_counts(topic, block_until)
        sticky = False
        if partition is None:
            partition, sticky = self._choice.choose(topic, key, count, available)
        _check_partition(topic, partition, count)
        delivery = Delivery(timestamp_ms, on_delivery, record_id)
        filled = self._accumulator.append((topic, partition), delivery, key, value, headers, size, block_until)
        if filled and sticky:
            self._choice.sticky.next(topic, available)
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
        bulk = BulkDelivery(self._accumulator.wait, count, None if self._record_id is None else columns)
        if count == 0:
            return bulk
        block_until = time.monotonic() + self._block_s
        partition_count, available = self._partition_counts(topic, block_until)
        lengths = np.diff(columns.key_starts) + np.diff(columns.value_starts)
        _, header_starts = headers_of(columns)
        if header_starts is not None:
            lengths = lengths + np.diff(header_starts)
        self._check_size(int(lengths.max()) + RECORD_OVERHEAD_BYTES, topic)
        if partition is None:
            chosen = self._choice.choose_many(topic, columns, partition_count, available)
        else:
            chosen = np.full(count, partition, np.int64)
        order = np.argsort(chosen, kind="stable")
        bounds = np.flatnonzero(np.diff(chosen[order])) + 1
        for rows in np.split(order, bounds):
            number = int(chosen[rows[0]])
            _check_partition(topic, number, partition_count)
            part = columns if rows.size == count else Taken(columns, rows)
            self._accumulator.append_columns((topic, number), bulk, part, block_until)
        return bulk

    def _check_size(self, size: int, topic: str) -> None:
        if size > self._record_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a record of {size} bytes for `{topic}`")

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Waits for metadata as `send` does."""
        count, _ = self._partition_counts(topic, time.monotonic() + self._block_s)
        return list(range(count))

    def _partition_counts(self, topic: str, block_until: float) -> tuple[int, list[int]]:
        known = self._partitions.get(topic)
        now = time.monotonic()
        if known is not None and known[0] > now:
            return known[1], known[2]
        if self._accumulator.closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer is closed")
        left_s = max(0.0, block_until - now)

        async def ask() -> tuple[int, list[int]]:
            await self._client.leader(topic, 0, timeout_ms=left_s * 1000)
            parts = (await self._client.metadata([topic])).topic(topic).partitions
            return len(parts), [number for number, info in parts.items() if info.leader >= 0] or list(parts)

        try:
            count, available = self._background.call(ask(), left_s)
        except TimeoutError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"metadata of `{topic}`") from None
        self._partitions[topic] = now + self.config["metadata.max.age.ms"] / 1000, count, available
        return count, available

    # Waiting and ending

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all open batches now and wait until everything sent before is stored or has failed.

        Raises TimeoutError. Deliveries and callbacks have the failures, not this.
        """
        self._accumulator.flush(timeout_s)

    def close(self, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
        """Flush for at most so long, then stop. What is not stored by then fails. Closing twice is nothing."""
        if self._accumulator.closed:
            return
        try:
            if self._transaction is None:
                self.flush(timeout_s)
        except TimeoutError:
            self._log.warning("closed with %d batches not delivered", self._accumulator.undelivered)
        finally:
            self._accumulator.close()
            self._end()

    async def _shut(self) -> None:
        await self._dispatcher.close()

    # Transactions

    def begin(self) -> None:
        """Open a transaction. Raises Fenced or KafkaError."""
        self._call(self._transactional().begin(), self._block_s)

    def send_offsets(self, offsets: Mapping[TopicPartition, int | tuple[int, str]], group: str, **membership: Any) -> None:
        """Commit a consumer group's offsets with this transaction. `membership` takes `generation_id`,
        `member_id` and `group_instance_id` (as `Consumer.membership()` gives them), so that a member that was
        replaced is refused."""
        self._background.call(self._transactional().send_offsets(group, with_metadata(offsets), **membership))

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
            self._dispatcher.discard(error)
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


def _check_partition(topic: str, partition: int, count: int) -> None:
    if not 0 <= partition < count:
        text = f"`{topic}` partition {partition}: it has {count}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
