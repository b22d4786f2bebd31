"""Records in: a synchronous producer with Kafka's properties over an asyncio loop in a thread.

`send` appends to the open batch of a partition in the caller's thread, in Cython (`pyx/producer`); the loop is woken once a
batch (the accumulator), not once a record, and hands batches to the sender (the dispatcher).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import log
from penstock.config import ConfigError
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.accumulator import Accumulator
from penstock.pipeline.clients.background import Question, SyncClient, UnderWay
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.delivery import BulkDelivery, Delivery, OnDelivery
from penstock.pipeline.clients.dispatcher import Dispatcher
from penstock.pipeline.clients.interceptors import Interceptor, Interceptors
from penstock.pipeline.clients.outgoing import Columns, Lists, Taken, headers_of, records_of
from penstock.pipeline.clients.partitioner import PartitionChoice, Partitioner
from penstock.pipeline.clients.partitionlists import with_metadata
from penstock.pipeline.clients.producerrecord import Headers, ProducerRecord, QueuedBatch, RecordMetadata
from penstock.pipeline.clients.queuehandler import Hooks, QueueHandler
from penstock.pipeline.clients.recordid import RecordId
from penstock.pipeline.clients.transaction import TransactionalSender, TransactionState
from penstock.pyx.producer.enqueuer import RECORD_OVERHEAD_BYTES, Enqueuer, TopicPartitions

__all__ = ["BulkDelivery", "Delivery", "Producer", "RecordMetadata"]

Serializer = Callable[[Any], bytes | None]
CLOSE_TIMEOUT_S = 60.0


class Producer(SyncClient[Client]):
    """Sends records. Threads may share one. Records that were not flushed when the process ends without `close` are lost.

        with Producer("host:9092", **{"linger.ms": 20, "compression.type": "lz4"}) as producer:
            delivery = producer.send("events", key=b"id", value=b"...")
            producer.flush()
            delivery.result().offset

    Idempotent unless `acks` or `enable.idempotence` say otherwise. With `transactional.id`: `begin`, sends, maybe
    `send_offsets`, then `commit` or `abort`. The constructor then fences an older producer of that identity and aborts what it
    left open; every method raises Fenced once a newer one has the identity. Callbacks run in the producer's own thread and must
    not wait.

    `partitioner` is a function of one's own in place of `partitioner.class`, or a name that this takes. `interceptors` see and
    may change each record, and hear what became of it; `handler` has hooks at each stage of the queue.

    Raises ConfigError for a property that is unknown, wrong or given twice, and KafkaError if no broker gives the
    `transactional.id` within `max.block.ms`.
    """

    def __init__(
        self,
        bootstrap: str = "",
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: Partitioner | str | None = None,
        interceptors: Sequence[Interceptor] = (),
        handler: QueueHandler | None = None,
        **given: object,
    ) -> None:
        if partitioner is not None and {"partitioner.class", "partitioner_class"} & given.keys():
            raise ConfigError("`partitioner` and `partitioner.class` are given: leave one of them out")
        if isinstance(partitioner, str):
            given["partitioner.class"] = partitioner
        super().__init__(Client, bootstrap, properties.PRODUCER, given)
        config = self.config
        own = partitioner if callable(partitioner) else None
        self._choice = PartitionChoice(
            own or config["partitioner.class"], config["partitioner.ignore.keys"], config["batch.size"]
        )
        self._waits = config["producer.type"] == "sync"
        self._record_id = None if config["record.id"] is None else RecordId(config["record.id"])
        self._block_s = config["max.block.ms"] / 1000
        self._partitions: dict[str, TopicPartitions] = {}
        self._questions: dict[str, Question[tuple[int, list[int]]]] = {}  # for those
        self._log = log.get(__name__, client_id=config["client.id"])
        with self._beginning():
            self._interceptors = Interceptors(interceptors, config["client.id"]) if interceptors else None
            self._hooks = None if handler is None else Hooks(handler, config["client.id"])
            self._transaction: TransactionalSender | None = None
            if config["transactional.id"] is not None:
                self._transaction = self._call(self._take_identity(config["transactional.id"]), self._block_s)
            check_open = None if self._transaction is None else self._transaction.check_open
            acknowledge = None if self._interceptors is None else self._interceptors.on_acknowledgement
            self._accumulator = Accumulator(config, self._background, self._wake, check_open, acknowledge, self._hooks)
            self._enqueuer = Enqueuer(
                self._accumulator.queue,
                self._choice,
                Delivery,
                self._partitions,
                self._partitions_of,
                key_serializer=key_serializer,
                value_serializer=value_serializer,
                give_id=None if self._record_id is None else self._record_id.give,
                watching=None if self._hooks is None else partial(_watching, self._hooks),
                block_s=self._block_s,
                record_bytes=config["max.request.size"],
            )
            self._dispatcher = Dispatcher(self._client, self._accumulator, self._transaction, self._hooks)

    async def _take_identity(self, transactional_id: str) -> TransactionalSender:
        before_request = None if self._hooks is None else partial(self._hooks.call, "before_request")
        transaction = TransactionalSender(self._client, transactional_id, self.config["transaction.timeout.ms"], before_request)
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
        """Put a record on its way. Waits (at most `max.block.ms`) for metadata and for room in the queue; with
        `producer.type=sync` until the record is stored.

        Key and value are bytes or None unless there are serializers. Raises TypeError or ValueError for a bad
        record, KafkaError for one that is too large, an unknown topic or partition, or when the wait was too
        long; with `sync` also when it could not be stored.
        """
        if self._interceptors is None:
            delivery = self._enqueuer.enqueue(topic, key, value, timestamp_ms, headers, partition, on_delivery)
        else:
            record = ProducerRecord(topic, key, value, timestamp_ms, headers, partition)
            delivery = self._intercept(self._interceptors, record, on_delivery)
        if self._waits:
            delivery.result()
        return delivery

    def _intercept(self, interceptors: Interceptors, record: ProducerRecord, on_delivery: OnDelivery | None) -> Delivery:
        record = interceptors.on_send(record)
        with _acknowledging(interceptors, [record]):
            return self._enqueuer.enqueue(*record, on_delivery)

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
        half-way, the records before are on their way. There are no serializers here.
        """
        if columns is None:
            columns = Lists(keys, values, timestamps, headers)
        if self._interceptors is not None or (self._hooks is not None and self._hooks.of_records):
            bulk = self._send_each(topic, columns, partition)
        else:
            bulk = self._send_columns(topic, columns, partition)
        if self._waits:
            bulk.result()
        return bulk

    def _send_columns(self, topic: str, columns: Columns, partition: int | None) -> BulkDelivery:
        if self._record_id is not None:
            columns = self._record_id.give_all(columns)
        count = len(columns.timestamps)
        bulk = BulkDelivery(self._accumulator.wait, count, None if self._record_id is None else columns)
        if count == 0:
            return bulk
        block_until = time.monotonic() + self._block_s
        known = self._partitions_of(topic, block_until)
        lengths = np.diff(columns.key_starts) + np.diff(columns.value_starts)
        _, header_starts = headers_of(columns)
        if header_starts is not None:
            lengths = lengths + np.diff(header_starts)
        self._enqueuer.check_size(int(lengths.max()) + RECORD_OVERHEAD_BYTES, topic)
        sticky = None
        if partition is None:
            chosen, sticky = self._choice.choose_many(topic, columns, known.count, known.available)
        else:
            chosen = np.full(count, partition, np.int64)
        order = np.argsort(chosen, kind="stable")
        bounds = np.flatnonzero(np.diff(chosen[order])) + 1
        for rows in np.split(order, bounds):
            number = int(chosen[rows[0]])
            known.check(topic, number)
            part = columns if rows.size == count else Taken(columns, rows)
            self._accumulator.append_columns((topic, number), bulk, part, block_until)
        if sticky is not None:
            self._choice.sticky.add(topic, int(lengths[sticky].sum()), True, known.available)
        return bulk

    def _send_each(self, topic: str, columns: Columns, partition: int | None) -> BulkDelivery:
        """The slow way of many records: interceptors and hooks want each of them."""
        sent = [
            ProducerRecord(topic, one.key, one.value, one.timestamp_ms, one.headers, partition) for one in records_of(columns)
        ]
        if self._interceptors is not None:
            sent = [self._interceptors.on_send(record) for record in sent]
        kept = None
        if self._record_id is not None and sent:
            _, keys, values, timestamps, headers, _ = zip(*sent, strict=True)
            kept = self._record_id.give_all(Lists(keys, values, timestamps, headers))
            sent = [
                record._replace(key=one.key, headers=one.headers) for record, one in zip(sent, records_of(kept), strict=True)
            ]
        bulk = BulkDelivery(self._accumulator.wait, len(sent), kept)
        waiting = iter(sent)
        with _acknowledging(self._interceptors, waiting):  # those behind one that is refused
            for record in waiting:
                with _acknowledging(self._interceptors, [record]):
                    self._enqueuer.enqueue(*record, None, bulk)
        return bulk

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Waits for metadata as `send` does."""
        return list(range(self._partitions_of(topic, time.monotonic() + self._block_s).count))

    def _partitions_of(self, topic: str, block_until: float) -> TopicPartitions:
        known = self._partitions.get(topic)
        now = time.monotonic()
        if known is not None and known.expires_at > now:
            return known
        if self._accumulator.queue.closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer is closed")
        left_s = max(0.0, block_until - now)

        async def ask() -> tuple[int, list[int]]:
            await self._client.leader(topic, 0, timeout_ms=left_s * 1000)
            parts = (await self._client.metadata([topic])).topic(topic).partitions
            return len(parts), [number for number, info in parts.items() if info.leader >= 0] or list(parts)

        try:
            # Its answer serves the next send, too: where `max.block.ms` is 0 none would ever have the time.
            count, available = self._questions.setdefault(topic, Question(self._background)).answer(left_s, ask)
        except UnderWay:
            raise self._client.no_answer(left_s * 1000) from None
        known = self._partitions[topic] = TopicPartitions(count, available, now + self.config["metadata.max.age.ms"] / 1000)
        return known

    # Waiting and ending

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all open batches now and wait until everything sent before is stored or has failed.

        Raises TimeoutError. Deliveries and callbacks have the failures, not this.
        """
        self._accumulator.flush(timeout_s)

    def close(self, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
        """Flush, or abort the transaction that is open, for at most so long, then stop. What is not stored by then fails.
        Closing twice is nothing."""
        if self._accumulator.queue.closed:
            return
        if timeout_s is not None:
            self._close_by = time.monotonic() + min(timeout_s, threading.TIMEOUT_MAX)
        try:
            self._send_last()
            left_s = None if timeout_s is None else self._limit_s(timeout_s)
            if self._transaction is None:
                self.flush(left_s)
            elif self._transaction.state in (TransactionState.OPEN, TransactionState.MUST_ABORT):
                # Readers of committed records would wait for it until it times out.
                self._background.call(self._abort(self._transaction), left_s)
        except KafkaError as error:
            self._log.warning("closed with an open transaction: %s", error)
        except TimeoutError:
            self._log.warning("closed with %d batches not delivered", self._accumulator.undelivered)
        finally:
            self._accumulator.close()
            self._end()
            if self._interceptors is not None:
                self._interceptors.close()
            if self._hooks is not None:
                self._hooks.call("close")

    def _send_last(self) -> None:
        """Send what the handler wants to send at the very end."""
        waits, self._waits = self._waits, False  # not without a limit
        for record in [] if self._hooks is None else self._hooks.last_records():
            self._block_s = self._enqueuer.block_s = self._limit_s(self._block_s)
            try:
                delivery = self.send(*record)
                if waits:
                    delivery.result(self._limit_s(threading.TIMEOUT_MAX))
            except Exception:  # noqa: BLE001  users' code raises anything
                self._log.exception("a record of the hook last_batch was not sent")

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
        """Give the transaction up; its records that were not sent fail. Raises Fenced or KafkaError."""
        self._background.call(self._abort(self._transactional()))

    async def _abort(self, transaction: TransactionalSender) -> None:
        self._dispatcher.discard(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted"))
        await transaction.abort()

    def _transactional(self) -> TransactionalSender:
        if self._transaction is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the producer has no `transactional.id`")
        return self._transaction


@contextmanager
def _acknowledging(interceptors: Interceptors | None, records: Iterable[ProducerRecord]) -> Iterator[None]:
    """Around what takes records that interceptors gave: they hear of their failure, too."""
    try:
        yield
    except Exception as error:
        if interceptors is None:
            raise
        for record in records:
            partition = -1 if record.partition is None else record.partition
            timestamp_ms = -1 if record.timestamp_ms is None else record.timestamp_ms
            interceptors.on_acknowledgement(RecordMetadata(record.topic, partition, -1, timestamp_ms), error)
        raise


@contextmanager
def _watching(hooks: Hooks, size_bytes: int, topic: str, *fields: Any) -> Iterator[None]:
    """Around a record's way into the queue."""
    record = ProducerRecord(topic, *fields)
    hooks.call("before_enqueue", record)
    try:
        yield
    except Exception as error:
        hooks.call("after_enqueue", record, False)
        hooks.call("dropped", QueuedBatch(record.topic, record.partition or 0, 1, size_bytes), error)
        raise
    hooks.call("after_enqueue", record, True)
