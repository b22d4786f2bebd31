"""Records by partition until they are sent: the open batch that records are added to, and closed ones in their order.

Threads add, the loop takes. A batch is closed when it is full (`batch.size`, `batch.num.messages`), has waited for `linger.ms`,
or somebody flushes or waits for room in `buffer.memory` or `queue.buffering.max.messages`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock import log
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.background import BackgroundLoop
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.delivery import Acknowledge, Batch, BulkDelivery, Delivery
from penstock.pipeline.clients.outgoing import Columns, append_columns, headers_of
from penstock.pipeline.clients.producerrecord import Headers
from penstock.pipeline.clients.queuehandler import Hooks
from penstock.pipeline.clients.sender import Produced
from penstock.pyx.record.builder import BatchBuilder

RECORD_OVERHEAD_BYTES = 32  # more than the varints of a record take
BATCH_BYTES_MIN = 64  # a header and a little: the builder takes one record in any case


@dataclass(eq=False, slots=True)
class _Line:
    tp: TopicPartition
    closed: deque[Batch] = field(default_factory=deque)
    open: Batch | None = None


class Accumulator:
    """The batches of a producer. `wake` is called with a partition when the loop has to look at it, `check_open` raises where
    no record may be added now (there is no transaction). `acknowledge` hears of each record, `hooks` of batches that failed."""

    def __init__(
        self,
        config: Config,
        background: BackgroundLoop,
        wake: Callable[[TopicPartition], None],
        check_open: Callable[[], None] | None,
        acknowledge: Acknowledge | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.closed = False
        self._codec = properties.CODECS[config["compression.type"]]
        self._level = config.get(f"compression.{config['compression.type']}.level", -1)
        self._batch_bytes: int = config["batch.size"]
        self._batch_records: int = config["batch.num.messages"]
        linger_ms = 0 if config["producer.type"] == "sync" and "linger.ms" not in config.given else config["linger.ms"]
        self._linger_s = linger_ms / 1000
        self._delivery_s = config["delivery.timeout.ms"] / 1000
        self._memory_limit: int = config["buffer.memory"]
        self._queue_limit: int = config["queue.buffering.max.messages"]
        self._acknowledge = acknowledge
        self._hooks = hooks
        self._background = background
        self._wake = wake
        self._check_open = check_open
        # Guards lines, memory and the done flags of batches; those who add, flush or want a result wait for changes. It is
        # entered by itself, not by the condition, whose entering is Python: Ctrl-C within that would leave it taken for good.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._lines: dict[TopicPartition, _Line] = {}
        self._memory_bytes = 0
        self._queued = 0  # records
        self._flying: set[Batch] = set()  # batches that are neither stored nor failed, open ones too
        self._log = log.get(__name__, client_id=config["client.id"])

    def append(
        self,
        tp: TopicPartition,
        delivery: Delivery,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size: int,
        block_until: float,
        bulk: BulkDelivery | None = None,
    ) -> bool:
        """Add a record, maybe one of a `send_many`, waiting for room. Gives whether that filled a batch."""
        filled = False
        with self._lock:
            self._reserve(size, block_until)
            line = self._line(tp)
            batch = line.open
            if batch is not None and not batch.builder.append(key, value, delivery.timestamp_ms, headers):
                self._close_batch(line)
                batch, filled = None, True
            if batch is None:
                batch = self._open_batch(line)
                try:
                    batch.builder.append(key, value, delivery.timestamp_ms, headers)
                except BaseException:
                    self._flying.discard(batch)
                    line.open = None
                    raise
            batch.add(delivery, size)
            if bulk is not None:
                batch.add_bulk(bulk, 1, 0)
            self._memory_bytes += size
            self._queued += 1
            if self._is_full(batch):
                self._close_batch(line)
                filled = True
        return filled

    def append_columns(self, tp: TopicPartition, bulk: BulkDelivery, columns: Columns, block_until: float) -> None:
        """Add many records of one partition, waiting for room as often as it takes."""
        count = len(columns.timestamps)
        header_data, _ = headers_of(columns)
        in_all = len(columns.key_data) + len(columns.value_data) + (0 if header_data is None else len(header_data))
        average = in_all // count + RECORD_OVERHEAD_BYTES
        first = 0
        while first < count:
            with self._lock:
                self._reserve(min(average * (count - first), self._batch_bytes), block_until)
                line = self._line(tp)
                batch = line.open or self._open_batch(line)
                before = batch.builder.size_in_bytes
                room = min(self._batch_records - batch.builder.count, self._queue_limit - self._queued)
                taken = append_columns(batch.builder, columns, first, room)
                if taken:
                    grown = batch.builder.size_in_bytes - before
                    self._memory_bytes += grown
                    self._queued += taken
                    batch.add_bulk(bulk, taken, grown)
                    first += taken
                if first < count or self._is_full(batch):
                    self._close_batch(line)

    # With the lock held

    def _reserve(self, size: int, block_until: float) -> None:
        """Wait for room. A record larger than all of `buffer.memory` may go when nothing else is there."""
        while not self.closed and (full := self._full(size)):
            if self._background.inside:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{full}, in a callback, which can't wait for room")
            self._close_open_batches()
            left_s = block_until - time.monotonic()
            if left_s <= 0 or not self._changed.wait(min(left_s, threading.TIMEOUT_MAX)):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{full}, and `max.block.ms` is over")

    def _full(self, size: int) -> str:
        """Why there is no room for so many bytes more; empty if there is."""
        if self._queued >= self._queue_limit:
            return f"{self._queued} records wait, as many as `queue.buffering.max.messages` allows"
        if self._memory_bytes and self._memory_bytes + size > self._memory_limit:
            return f"`buffer.memory` is full: {self._memory_bytes} bytes of records wait"
        return ""

    def _is_full(self, batch: Batch) -> bool:
        return batch.builder.size_in_bytes >= self._batch_bytes or batch.builder.count >= self._batch_records

    def _line(self, tp: TopicPartition) -> _Line:
        if self.closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer is closed")
        if self._check_open is not None:
            self._check_open()
        line = self._lines.get(tp)
        if line is None:
            line = self._lines[tp] = _Line(tp)
        return line

    def _open_batch(self, line: _Line) -> Batch:
        now = time.monotonic()
        builder = BatchBuilder(self._codec, self._level, max(BATCH_BYTES_MIN, self._batch_bytes))
        batch = line.open = Batch(line.tp, builder, now + self._linger_s, now + self._delivery_s, self.wait, self._acknowledge)
        self._flying.add(batch)
        self._wake(line.tp)
        return batch

    def _close_batch(self, line: _Line) -> None:
        assert line.open is not None
        line.closed.append(line.open)
        line.open = None
        self._wake(line.tp)

    def _close_open_batches(self) -> None:
        for line in self._lines.values():
            if line.open is not None:
                self._close_batch(line)

    # The loop takes

    def next(self, tp: TopicPartition, ripe: bool = False) -> Batch | float:
        """A partition's next batch, be it the open one if that is `ripe`. Without one: the seconds until it may have one,
        infinity if records have to come first."""
        with self._lock:
            line = self._lines[tp]
            if line.closed:
                return line.closed.popleft()
            batch = line.open
            if batch is None:
                return math.inf
            left_s = batch.ripe_at - time.monotonic()
            if left_s > 0 and not ripe:
                return left_s
            line.open = None
            return batch

    def put_back(self, tp: TopicPartition, batches: Iterable[Batch]) -> None:
        """Batches that were taken go again, before all others of their partition."""
        with self._lock:
            self._lines[tp].closed.extendleft(reversed(list(batches)))

    def take_all(self, overdue: bool = False) -> list[Batch]:
        """All batches that were not taken yet, or those alone whose time is over."""
        now = time.monotonic()
        taken: list[Batch] = []
        with self._lock:
            for line in self._lines.values():
                while line.closed and (not overdue or line.closed[0].deadline < now):
                    taken.append(line.closed.popleft())
                if line.open is not None and (not overdue or line.open.deadline < now):
                    taken.append(line.open)
                    line.open = None
        return taken

    def finish(self, batch: Batch, produced: Produced | None, error: KafkaError | None) -> None:
        """A batch is stored or has failed: free its memory, wake the threads that wait, call the callbacks."""
        with self._lock:
            batch.finish(produced, error)
            self._memory_bytes -= batch.size
            self._queued -= batch.builder.count
            self._flying.discard(batch)
            self._changed.notify_all()
        if error is not None and self._hooks is not None:
            self._hooks.call("dropped", batch.queued, error)
        batch.call_back(self._log)

    # Waiting and ending

    @property
    def undelivered(self) -> int:
        """How many batches are neither stored nor failed."""
        return len(self._flying)

    def wait(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until something holds that `finish` changes. Raises TimeoutError, and RuntimeError in a callback."""
        with self._lock:
            if done():
                return
            if self._background.inside:
                raise RuntimeError("a callback of the producer cannot wait for it")
            if not self._changed.wait_for(done, timeout_s):
                raise TimeoutError("not everything is delivered yet")

    def flush(self, timeout_s: float | None = None) -> None:
        """Close all batches and wait until those that were begun before are stored or have failed. Raises TimeoutError."""
        with self._lock:
            self._close_open_batches()
            waiting = list(self._flying)  # not those that others begin while we wait
        self.wait(lambda: all(batch.done for batch in waiting), timeout_s)

    def close(self) -> None:
        """Take no more records; who waits for room is woken."""
        with self._lock:
            self.closed = True
            self._changed.notify_all()
