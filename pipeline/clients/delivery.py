"""Records on their way: what `Producer.send` and `send_many` give back, and the batch that both wait for."""

from __future__ import annotations

from collections.abc import Callable

from penstock import log
from penstock.errors import KafkaError
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.outgoing import Columns
from penstock.pipeline.clients.producerrecord import QueuedBatch, RecordMetadata
from penstock.pipeline.clients.sender import Produced
from penstock.pyx.producer.recordqueue import ProducerBatch, SentRecord
from penstock.pyx.record.builder import BatchBuilder

OnDelivery = Callable[[KafkaError | None, RecordMetadata | None], None]
Wait = Callable[[Callable[[], bool], float | None], None]
"""Waits until a condition holds, for so many seconds at most. Raises TimeoutError."""
Acknowledge = Callable[[RecordMetadata, KafkaError | None], None]
"""Hears of each record what became of it, before the record's own callback. Raises nothing."""


class Batch(ProducerBatch):
    """Records of one partition that are stored together or fail together."""

    __slots__ = ("_bulks", "acknowledge", "deadline", "done", "error", "produced", "ripe_at", "wait")

    def __init__(
        self,
        tp: TopicPartition,
        builder: BatchBuilder,
        ripe_at: float,
        deadline: float,
        wait: Wait,
        acknowledge: Acknowledge | None = None,
    ) -> None:
        super().__init__(tp, builder, acknowledge is not None)
        self.ripe_at = ripe_at
        self.deadline = deadline
        self.wait = wait
        self.acknowledge = acknowledge
        self.produced: Produced | None = None
        self.error: KafkaError | None = None
        self.done = False
        self._bulks: dict[BulkDelivery, int] = {}  # how many records each has in here

    @property
    def queued(self) -> QueuedBatch:
        """What a handler hears of it."""
        return QueuedBatch(*self.tp, self.builder.count, self.size)

    def add_bulk(self, bulk: BulkDelivery, records: int, size: int) -> None:
        """The builder has taken records of a `send_many`."""
        if bulk not in self._bulks:
            bulk._unfinished += 1
        self._bulks[bulk] = self._bulks.get(bulk, 0) + records
        self.size += size

    def finish(self, produced: Produced | None, error: KafkaError | None) -> None:
        """It is stored or has failed."""
        self.produced, self.error, self.done = produced, error, True
        for bulk, records in self._bulks.items():
            bulk._finish(records, error)
        self._bulks.clear()

    def call_back(self, logger: log.Fields) -> None:
        """Call what waits for its records, and free them."""
        for delivery in self.heard:
            if self.acknowledge is not None:
                self.acknowledge(delivery.metadata(), self.error)
            try:
                delivery._call_back()
            except Exception:
                logger.exception("a delivery callback raised")
        self.heard.clear()
        self.builder.clear()


class Delivery(SentRecord):
    """A record on its way: a future. Waiting in a callback of the producer is refused."""

    __slots__ = ()
    _batch: Batch
    timestamp_ms: int
    record_id: bytes | None
    """With `record.id`: the id that the record had or was given. Who sends it again gives it that."""

    def done(self) -> bool:
        """Whether it is stored or has failed."""
        return self._batch.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until it is stored. Raises KafkaError if it failed, TimeoutError if that takes too long."""
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self.metadata()

    def metadata(self) -> RecordMetadata:
        """Where it is stored, without waiting; the offset is -1 while it isn't, or where nobody knows."""
        produced = self._batch.produced
        if produced is None:
            return RecordMetadata(*self._batch.tp, -1, self.timestamp_ms)
        offset = -1 if produced.base_offset < 0 else produced.base_offset + self._index
        stored_at = produced.log_append_time_ms
        return RecordMetadata(*self._batch.tp, offset, self.timestamp_ms if stored_at < 0 else stored_at)

    def exception(self, timeout_s: float | None = None) -> KafkaError | None:
        """Wait; the error, or None when it is stored."""
        self._batch.wait(self.done, timeout_s)
        return self._batch.error

    def _call_back(self) -> None:
        if self._on_delivery is not None:
            error = self._batch.error
            self._on_delivery(error, None if error is not None else self.metadata())


class BulkDelivery:
    """The records of one `send_many` on their way."""

    def __init__(self, wait: Wait, count: int, columns: Columns | None) -> None:
        self.count = count
        self.columns = columns
        """With `record.id`: the records with their ids, for who has to send them again."""
        self.failed = 0
        self.error: KafkaError | None = None
        self._wait = wait
        self._unfinished = 0  # batches

    def _finish(self, records: int, error: KafkaError | None) -> None:
        self._unfinished -= 1
        if error is not None:
            self.failed += records
            self.error = self.error or error

    def done(self) -> bool:
        """Whether every record is stored or has failed."""
        return not self._unfinished

    def result(self, timeout_s: float | None = None) -> int:
        """Wait until all are stored; gives how many. Raises the first KafkaError, or TimeoutError."""
        self._wait(self.done, timeout_s)
        if self.error is not None:
            raise self.error
        return self.count
