"""Records by partition until they are sent: the open batch that records are added to, and closed ones in their order.

Threads add, the loop takes. A batch is closed when it is full (`batch.size`, `batch.num.messages`), has waited for `linger.ms`,
or somebody flushes or waits for room in `buffer.memory` or `queue.buffering.max.messages`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable

from penstock import log
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.background import BackgroundLoop
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.delivery import Acknowledge, Batch, BulkDelivery
from penstock.pipeline.clients.outgoing import Columns, append_columns, headers_of
from penstock.pipeline.clients.queuehandler import Hooks
from penstock.pipeline.clients.sender import Produced
from penstock.pyx.producer.enqueuer import RECORD_OVERHEAD_BYTES
from penstock.pyx.producer.recordqueue import Line, RecordQueue
from penstock.pyx.record.builder import BatchBuilder

BATCH_BYTES_MIN = 64  # a header and a little: the builder takes one record in any case


class Accumulator:
    """The batches of a producer, and its `queue`, into which records go one by one.

    `wake` is called with a partition when the loop has to look at it, `check_open` raises where no record may be added now
    (there is no transaction). `acknowledge` hears of each record, `hooks` of batches that failed.
    """

    def __init__(
        self,
        config: Config,
        background: BackgroundLoop,
        wake: Callable[[TopicPartition], None],
        check_open: Callable[[], None] | None,
        acknowledge: Acknowledge | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._codec = properties.CODECS[config["compression.type"]]
        self._level = config.get(f"compression.{config['compression.type']}.level", -1)
        linger_ms = 0 if config["producer.type"] == "sync" and "linger.ms" not in config.given else config["linger.ms"]
        self._linger_s = linger_ms / 1000
        self._delivery_s = config["delivery.timeout.ms"] / 1000
        if "delivery.timeout.ms" not in config.given:  # as in Kafka: a batch that has lingered has time for a request
            self._delivery_s = max(self._delivery_s, (linger_ms + config["request.timeout.ms"]) / 1000)
        self._acknowledge = acknowledge
        self._hooks = hooks
        self._background = background
        self._wake = wake
        # Guards the queue and the done flags of batches; those who add, flush or want a result wait for changes. It is
        # entered by itself, not by the condition, whose entering is Python: Ctrl-C within that would leave it taken for good.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.queue: RecordQueue[Batch] = RecordQueue(
            self,
            self._lock,
            check_open,
            batch_bytes=config["batch.size"],
            batch_records=config["batch.num.messages"],
            memory_limit=config["buffer.memory"],
            queue_limit=config["queue.buffering.max.messages"],
        )
        self._flying: set[Batch] = set()  # batches that are neither stored nor failed, open ones too
        self._log = log.get(__name__, client_id=config["client.id"])

    def append_columns(self, tp: TopicPartition, bulk: BulkDelivery, columns: Columns, block_until: float) -> None:
        """Add many records of one partition, waiting for room as often as it takes."""
        count = len(columns.timestamps)
        header_data, _ = headers_of(columns)
        in_all = len(columns.key_data) + len(columns.value_data) + (0 if header_data is None else len(header_data))
        average = in_all // count + RECORD_OVERHEAD_BYTES
        queue, line = self.queue, self.queue.line(tp)
        first = 0
        while first < count:
            with self._lock:
                self.reserve(min(average * (count - first), queue.batch_bytes), block_until)
                queue.check()
                first += queue.change(self._append_some, line, bulk, columns, first)

    def _append_some(self, line: Line[Batch], bulk: BulkDelivery, columns: Columns, first: int) -> int:
        """Add what one batch takes of them; how many records that is."""
        queue, count = self.queue, len(columns.timestamps)
        batch = line.open or self.open_batch(line)
        before = batch.builder.size_in_bytes
        room = min(queue.batch_records - batch.builder.count, queue.queue_limit - queue.queued)
        taken = append_columns(batch.builder, columns, first, room)
        if taken:
            grown = batch.builder.size_in_bytes - before
            queue.memory_bytes += grown
            queue.queued += taken
            batch.add_bulk(bulk, taken, grown)
        if first + taken < count or queue.is_full(batch):
            self.close_batch(line)
        return taken

    # With the lock held

    def reserve(self, size: int, block_until: float) -> None:
        """Wait for room. A record larger than all of `buffer.memory` may go when nothing else is there."""
        while not self.queue.closed and (full := self._full(size)):
            if self._background.inside:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{full}, in a callback, which can't wait for room")
            self._close_open_batches()
            left_s = block_until - time.monotonic()
            if left_s <= 0 or not self._changed.wait(min(left_s, threading.TIMEOUT_MAX)):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{full}, and `max.block.ms` is over")

    def _full(self, size: int) -> str:
        """Why there is no room for so many bytes more; empty if there is."""
        queue = self.queue
        if queue.queued >= queue.queue_limit:
            return f"{queue.queued} records wait, as many as `queue.buffering.max.messages` allows"
        if queue.memory_bytes and queue.memory_bytes + size > queue.memory_limit:
            return f"`buffer.memory` is full: {queue.memory_bytes} bytes of records wait"
        return ""

    def open_batch(self, line: Line[Batch]) -> Batch:
        """Give a partition its open batch."""
        now = time.monotonic()
        builder = BatchBuilder(self._codec, self._level, max(BATCH_BYTES_MIN, self.queue.batch_bytes))
        batch = Batch(line.tp, builder, now + self._linger_s, now + self._delivery_s, self.wait, self._acknowledge)
        # A signal handler may raise after a call: it finds the batch in both places or in none, and the loop awake.
        line.open = batch
        try:
            self._flying.add(batch)
        finally:
            self._wake(line.tp)
        return batch

    def close_batch(self, line: Line[Batch]) -> None:
        """Close the open batch of a partition, which may be sent then."""
        batch = line.open
        assert batch is not None
        # A signal handler may raise after a call: it finds the batch in one place, and the loop awake.
        line.open = None
        try:
            line.closed.append(batch)
        finally:
            self._wake(line.tp)

    def drop_batch(self, line: Line[Batch]) -> None:
        """Forget the open batch of a partition, into which no record has come."""
        assert line.open is not None
        self._flying.discard(line.open)
        line.open = None

    def _close_open_batches(self) -> None:
        for line in self.queue.lines.values():
            if line.open is not None:
                self.close_batch(line)

    # The loop takes

    def next(self, tp: TopicPartition, ripe: bool = False) -> Batch | float:
        """A partition's next batch, be it the open one if that is `ripe`. Without one: the seconds until it may have one,
        infinity if records have to come first."""
        with self._lock:
            line = self.queue.lines[tp]
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
            self.queue.lines[tp].closed.extendleft(reversed(list(batches)))

    def take_all(self, overdue: bool = False) -> list[Batch]:
        """All batches that were not taken yet, or those alone whose time is over."""
        now = time.monotonic()
        taken: list[Batch] = []
        with self._lock:
            for line in self.queue.lines.values():
                while line.closed and (not overdue or line.closed[0].deadline < now):
                    taken.append(line.closed.popleft())
                if line.open is not None and (not overdue or line.open.deadline < now):
                    taken.append(line.open)
                    line.open = None
        return taken

    def next_deadline(self) -> float:
        """When the time of the first batch is over that was not taken yet; infinity without one."""
        with self._lock:
            firsts = (line.closed[0] if line.closed else line.open for line in self.queue.lines.values())
            return min((batch.deadline for batch in firsts if batch is not None), default=math.inf)

    def finish(self, batch: Batch, produced: Produced | None, error: KafkaError | None) -> None:
        """A batch is stored or has failed: free its memory, wake the threads that wait, call the callbacks."""
        with self._lock:
            batch.finish(produced, error)
            self.queue.memory_bytes -= batch.size
            self.queue.queued -= batch.builder.count
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
            self.queue.closed = True
            self._changed.notify_all()
