"""The shell around the coordinators' pure machines: it feeds them requests and time, and carries out what
they decide.

Two coordinators of one shape. Each keeps a machine per name (a group, a transactional id), belongs to a
partition of an internal topic by the name's hash, reads that topic at start and appends to it afterwards. A
request becomes an event whose token is a future; `ask` waits for it. Appends are done at once, on the loop:
one small `pwrite` into the page cache, after which the answer goes out. So what was answered is in the log
when the process is killed.

    request ─► ask ─► step(machine, event, now) ─► Append ─► log ─► Appended ─► step ─► Reply ─► answer
                           ▲ Tick (one heap of monotonic deadlines a coordinator)

Markers of a transaction are appended to the data partitions the same way; after one in `__consumer_offsets`
the groups of that partition are told, so that the offsets of the transaction become visible or vanish with
it.
"""

from __future__ import annotations

import asyncio
import heapq
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from penstock import log
from penstock.broker import groups, statelog, transactions
from penstock.broker.context import Context
from penstock.broker.groups import Group, GroupConfig, GroupRecord
from penstock.broker.machines import NEVER, Append, Appended, Now, Reply, Tick, TopicPartition
from penstock.broker.offsets import OffsetRecord
from penstock.broker.producerids import ProducerIds
from penstock.broker.topics import GROUP_OFFSETS, TRANSACTION_STATE, internal_settings
from penstock.broker.transactions import ProducerResult, Transaction, TransactionRecord, WriteMarkers
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.batch import BatchError, RawBatch, marker, marker_type

BEFORE_APPEND = declare("coordinator.before_append", "a coordinator's record is decided, not yet in the log")
AFTER_APPEND = declare("coordinator.after_append", "a coordinator's record is in the log, not yet answered")
BEFORE_MARKER = declare("coordinator.before_marker", "before each transaction marker is appended")
AFTER_MARKERS = declare("coordinator.after_markers", "all markers are appended, completion isn't stored")

# Markers that are written before the loop may do something else; a transaction of more partitions takes
# turns.
MARKERS_AT_ONCE = 64
# Machines looked at by an hourly sweep before the loop may do something else.
SWEEP_AT_ONCE = 200

_log = log.get("broker.coordinator")


class Machine(Protocol):
    """What the shell needs to know of a Group or Transaction."""

    wake_at_ms: int


M = TypeVar("M", Group, Transaction)


@dataclass(slots=True, eq=False)
class Entry(Generic[M]):
    """A machine, the partition of its log, and the deadline that stands in the heap for it."""

    name: str
    machine: M
    partition: int
    armed_ms: int = NEVER


class Timers(Generic[M]):
    """One heap of monotonic deadlines and one loop timer for its earliest; stale entries are skipped when
    due.
    """

    def __init__(self, now_ms: Callable[[], int], due: Callable[[Entry[M]], None]) -> None:
        self._now_ms = now_ms
        self._due: Callable[[Entry[M]], None] = due
        self._heap: list[tuple[int, int, Entry[M]]] = []
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._handle_ms = NEVER

    def arm(self, entry: Entry[M]) -> None:
        """Make sure that the machine is fed a Tick no later than it wants."""
        wake_ms = entry.machine.wake_at_ms
        if wake_ms >= entry.armed_ms:
            return
        entry.armed_ms = wake_ms
        self._count += 1
        heapq.heappush(self._heap, (wake_ms, self._count, entry))
        self._schedule()

    def _schedule(self) -> None:
        if not self._heap or self._heap[0][0] >= self._handle_ms:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle_ms = self._heap[0][0]
        delay_ms = max(0, self._handle_ms - self._now_ms())
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def _fire(self) -> None:
        self._handle, self._handle_ms = None, NEVER
        now_ms = self._now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            wake_ms, _, entry = heapq.heappop(self._heap)
            if entry.armed_ms == wake_ms:
                entry.armed_ms = NEVER
                self._due(entry)
        self._schedule()

    def stop(self) -> None:
        """Let no deadline come any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._heap.clear()


class Coordinator(ABC, Generic[M]):
    """What both coordinators do: keep machines, feed them, append, wake them, forget them."""

    topic: str

    def __init__(self, context: Context) -> None:
        self._context = context
        self.entries: dict[str, Entry[M]] = {}
        self._timers: Timers[M] = Timers(context.monotonic_ms, self._tick)
        self._tasks: set[asyncio.Task[None]] = set()
        self._partitions = 0  # of the internal topic; 0 until it exists
        self._stopped = False

    # What the two differ in.
    @abstractmethod
    def _new(self, name: str) -> M: ...

    @abstractmethod
    def _step(self, machine: M, event: object, now: Now) -> Sequence[object]: ...

    @abstractmethod
    def _disposable(self, machine: M) -> bool: ...

    @abstractmethod
    def _resign(self, machine: M) -> Sequence[object]: ...

    @abstractmethod
    def _encode(self, name: str, record: object) -> statelog.KeyValue: ...

    @abstractmethod
    def _act(self, entry: Entry[M], action: object) -> object | None:
        """Carry out an action that only one of them has; the event that follows at once, if any."""

    def now(self) -> Now:
        """This moment."""
        return Now(self._context.monotonic_ms(), self._context.now_ms())

    async def ensure_topic(self) -> None:
        """Create the internal topic at its first use. Raises KafkaError."""
        if not self._partitions:
            count, configs = internal_settings(self._context.config, self.topic)
            topic = await self._context.topics.ensure_internal(self.topic, count, configs)
            self._partitions = len(topic.partitions)

    def partition_of(self, name: str) -> int:
        """The partition of the internal topic that a name belongs to; the topic has to exist."""
        return statelog.java_hash_partition(name, self._partitions)

    def find(self, name: str) -> M | None:
        """The machine of that name, to be asked and not changed."""
        entry = self.entries.get(name)
        return entry.machine if entry is not None else None

    def _entry(self, name: str) -> Entry[M]:
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = Entry(name, self._new(name), self.partition_of(name))
        return entry

    async def ask(self, name: str, event: Any) -> Any:
        """Feed an event that has a token; its answer. The machine is made if there is none. Raises
        KafkaError.
        """
        await self.ensure_topic()
        event.token = answer = asyncio.get_running_loop().create_future()
        self._feed(self._entry(name), event)
        return await answer

    def _feed(self, entry: Entry[M], event: object) -> None:
        now = self.now()
        events: deque[object] = deque((event,))
        while events:
            self._carry_out(entry, self._step(entry.machine, events.popleft(), now), events)
        self._timers.arm(entry)
        if self._disposable(entry.machine) and self.entries.get(entry.name) is entry:
            del self.entries[entry.name]

    def _carry_out(self, entry: Entry[M], actions: Sequence[object], events: deque[object]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                answer = action.token
                assert isinstance(answer, asyncio.Future)
                if not answer.done():  # Its handler was cancelled: the broker stops.
                    answer.set_result(action.result)
            elif isinstance(action, Append):
                events.append(self._append(entry, action))
            else:
                follows = self._act(entry, action)
                if follows is not None:
                    events.append(follows)

    def _append(self, entry: Entry[M], action: Append) -> Appended:
        failpoint(BEFORE_APPEND)
        base_offset = -1
        try:
            pairs = [self._encode(entry.name, record) for record in action.records]
            now_ms = self._context.now_ms()
            for batch in statelog.build_batches(pairs, now_ms, action.producer_id, action.producer_epoch):
                appended = self._context.partitions.append(self.topic, entry.partition, batch)
                base_offset = appended.base_offset if base_offset < 0 else base_offset
        except KafkaError as error:
            _log.warning("append refused: %s topic=%s partition=%d", error, self.topic, entry.partition)
            return Appended(action.id, error.code)
        except BatchError as error:
            return Appended(action.id, error.code)
        except OSError as error:
            _log.error("append failed: %s topic=%s partition=%d", error, self.topic, entry.partition)
            return Appended(action.id, ErrorCode.KAFKA_STORAGE_ERROR)
        failpoint(AFTER_APPEND)
        return Appended(action.id, ErrorCode.NONE, base_offset)

    def _tick(self, entry: Entry[M]) -> None:
        if self._stopped or self.entries.get(entry.name) is not entry:
            return
        if entry.machine.wake_at_ms <= self._context.monotonic_ms():
            self._feed(entry, Tick())
        else:
            self._timers.arm(entry)

    def topic_deleted(self, name: str, event: Callable[[], object]) -> None:
        """Tell every machine; when it was our own topic that went, forget everything that stood in it."""
        if name != self.topic:
            for entry in list(self.entries.values()):
                self._feed(entry, event())
            return
        _log.warning("topic=%s was deleted: forgetting %d machines", name, len(self.entries))
        for entry in self.entries.values():
            self._carry_out(entry, self._resign(entry.machine), deque())
        self.entries.clear()
        self._partitions = 0

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside; `stop` ends it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def sweep_for_ever(self, every_ms: int, event: Callable[[], object]) -> None:
        """Feed every machine that event every so often, in turns with the loop's other work."""
        while True:
            await asyncio.sleep(every_ms / 1000)
            for count, entry in enumerate(list(self.entries.values()), 1):
                if self.entries.get(entry.name) is entry:
                    self._feed(entry, event())
                if count % SWEEP_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def load(self) -> None:
        """Read the internal topic, if there is one, and set the machines going."""
        topic = self._context.topics.get(self.topic)
        if topic is None:
            return
        self._partitions = len(topic.partitions)
        for partition in range(self._partitions):
            for raw in statelog.read_batches(self._context.partitions, self.topic, partition):
                self._load_batch(partition, raw)
            await asyncio.sleep(0)
        for entry in list(self.entries.values()):
            self._loaded(entry)
            if self._disposable(entry.machine):
                self.entries.pop(entry.name, None)
        if self.entries:
            _log.info("loaded %d machines from topic=%s", len(self.entries), self.topic)

    @abstractmethod
    def _load_batch(self, partition: int, raw: RawBatch) -> None: ...

    @abstractmethod
    def _loaded(self, entry: Entry[M]) -> None: ...

    async def stop(self) -> None:
        """End timers and tasks. Requests that still wait stay unanswered: their connections are closing."""
        self._stopped = True
        self._timers.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class GroupCoordinator(Coordinator[Group]):
    """Consumer groups and their offsets: `context.groups`."""

    topic = GROUP_OFFSETS

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        config = context.config
        self._config = GroupConfig(
            min_session_timeout_ms=config["group.min.session.timeout.ms"],
            max_session_timeout_ms=config["group.max.session.timeout.ms"],
            initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
            max_size=config["group.max.size"],
            offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
            offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
        )
        # Which groups have offsets in the open transaction of a producer, by partition and producer id.
        self._open: dict[tuple[int, int], set[str]] = {}

    def _new(self, name: str) -> Group:
        return Group(name, self._config)

    def _step(self, machine: Group, event: object, now: Now) -> Sequence[object]:
        return groups.step(machine, event, now)[1]

    def _disposable(self, machine: Group) -> bool:
        return groups.is_disposable(machine)

    def _resign(self, machine: Group) -> Sequence[object]:
        self._open.clear()
        return groups.resign(machine)

    def _encode(self, name: str, record: object) -> statelog.KeyValue:
        return statelog.encode_group_record(name, record)

    def _act(self, entry: Entry[Group], action: object) -> object | None:
        raise AssertionError(f"a group has no action {action!r}")

    def fresh_member_id(self, prefix: str) -> str:
        """A member id that nobody has: the client's id (or instance id) and a random uuid, as Kafka makes
        it.
        """
        return f"{prefix}-{uuid.uuid4()}"

    async def commit(self, name: str, event: groups.Commit) -> int | dict[TopicPartition, int]:
        """OffsetCommit and TxnOffsetCommit: an error code for all, or one for each partition. Raises
        KafkaError.
        """
        if name not in self.entries and event.generation >= 0:
            return ErrorCode.ILLEGAL_GENERATION  # Only a group that exists has generations.
        if event.producer_id >= 0:
            await self.ensure_topic()
            self._open.setdefault((self.partition_of(name), event.producer_id), set()).add(name)
        answer: int | dict[TopicPartition, int] = await self.ask(name, event)
        return answer

    def marker_written(self, partition: int, producer_id: int, commit: bool) -> None:
        """A producer's marker is in that partition of `__consumer_offsets`."""
        for name in self._open.pop((partition, producer_id), ()):
            entry = self.entries.get(name)
            if entry is not None:
                self._feed(entry, groups.Marker(producer_id, commit))

    def _load_batch(self, partition: int, raw: RawBatch) -> None:
        if raw.is_control:
            self._load_marker(partition, raw)
            return
        producer_id = raw.producer_id if raw.is_transactional else -1
        for name, record, offset in statelog.read_records(raw, statelog.decode_group_record, self.topic, partition):
            assert isinstance(record, OffsetRecord | GroupRecord)
            entry = self.entries.get(name)
            if entry is None:
                entry = self.entries[name] = Entry(name, self._new(name), partition)
            groups.load(entry.machine, record, offset, producer_id)
            if producer_id >= 0:
                self._open.setdefault((partition, producer_id), set()).add(name)

    def _load_marker(self, partition: int, raw: RawBatch) -> None:
        try:
            commit = marker_type(raw) == "commit"
        except BatchError as error:
            _log.error("topic=%s partition=%d: %s", self.topic, partition, error)
            return
        for name in self._open.pop((partition, raw.producer_id), ()):
            groups.load_marker(self.entries[name].machine, raw.producer_id, commit)

    def _loaded(self, entry: Entry[Group]) -> None:
        groups.loaded(entry.machine, self.now())
        self._timers.arm(entry)


class TransactionCoordinator(Coordinator[Transaction]):
    """Producer ids and transactions: `context.transactions`."""

    topic = TRANSACTION_STATE

    def __init__(self, context: Context, group_coordinator: GroupCoordinator) -> None:
        super().__init__(context)
        self._groups = group_coordinator
        self.producer_ids = ProducerIds(context.store, context.node_id)

    def _new(self, name: str) -> Transaction:
        config = self._context.config
        return Transaction(name, config["transactional.id.expiration.ms"], config["transaction.max.timeout.ms"])

    def _step(self, machine: Transaction, event: object, now: Now) -> Sequence[object]:
        return transactions.step(machine, event, now)[1]

    def _disposable(self, machine: Transaction) -> bool:
        return transactions.is_disposable(machine)

    def _resign(self, machine: Transaction) -> Sequence[object]:
        return transactions.resign(machine)

    def _encode(self, name: str, record: object) -> statelog.KeyValue:
        return statelog.encode_transaction_record(name, record)

    async def init(self, name: str, event: transactions.Init) -> ProducerResult:
        """InitProducerId of a transactional id. Raises KafkaError."""
        return await self._ask_with_id(name, event)

    async def end(self, name: str, event: transactions.End) -> ProducerResult:
        """EndTxn. Raises KafkaError."""
        return await self._ask_with_id(name, event)

    async def _ask_with_id(self, name: str, event: transactions.Init | transactions.End) -> ProducerResult:
        await self.ensure_topic()
        while event.fresh_producer_id < 0:
            machine = self.find(name) or self._new(name)
            if not transactions.needs_producer_id(machine, event):
                break
            event.fresh_producer_id = await self.producer_ids.next()
        result: ProducerResult = await self.ask(name, event)
        return result

    def verify(self, name: str, producer_id: int, producer_epoch: int, partition: TopicPartition) -> int:
        """Whether a partition is in the ongoing transaction of that producer: an error code."""
        machine = self.find(name)
        if machine is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return transactions.verify(machine, producer_id, producer_epoch, partition)

    def _act(self, entry: Entry[Transaction], action: object) -> object | None:
        assert isinstance(action, WriteMarkers)
        if len(action.partitions) > MARKERS_AT_ONCE:
            self.spawn(self._write_many(entry, action))
            return None
        partitions = sorted(action.partitions)
        return self._markers_written(self._write(entry, action, partitions))

    async def _write_many(self, entry: Entry[Transaction], action: WriteMarkers) -> None:
        partitions = sorted(action.partitions)
        all_written = True
        for at in range(0, len(partitions), MARKERS_AT_ONCE):
            all_written &= self._write(entry, action, partitions[at : at + MARKERS_AT_ONCE])
            await asyncio.sleep(0)
        self._feed(entry, self._markers_written(all_written))

    def _markers_written(self, all_written: bool) -> transactions.MarkersWritten:
        failpoint(AFTER_MARKERS)
        return transactions.MarkersWritten(all_written)

    def _write(self, entry: Entry[Transaction], action: WriteMarkers, partitions: Sequence[TopicPartition]) -> bool:
        epoch = self._context.topics.partition(self.topic, entry.partition).leader_epoch
        errors = [
            self.write_marker(partition, action.producer_id, action.producer_epoch, action.commit, epoch)
            for partition in partitions
        ]
        # A deleted topic needs no marker; a producer that was fenced there has none of this transaction open.
        done = (
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        )
        return all(error in done for error in errors)

    def write_marker(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
    ) -> int:
        """Append a marker to a partition and tell the groups if it is one of theirs: an error code."""
        failpoint(BEFORE_MARKER)
        topic, index = partition
        batch = marker(commit, producer_id, producer_epoch, coordinator_epoch, self._context.now_ms())
        try:
            self._context.partitions.append(topic, index, batch)
        except KafkaError as error:
            _log.warning("marker refused: %s topic=%s partition=%d", error, topic, index)
            return error.code
        except OSError as error:
            _log.error("marker failed: %s topic=%s partition=%d", error, topic, index)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if topic == GROUP_OFFSETS:
            self._groups.marker_written(index, producer_id, commit)
        return ErrorCode.NONE

    def _load_batch(self, partition: int, raw: RawBatch) -> None:
        if raw.is_control:
            return
        for name, record, _ in statelog.read_records(raw, statelog.decode_transaction_record, self.topic, partition):
            assert isinstance(record, TransactionRecord)
            entry = self.entries.get(name)
            if entry is None:
                entry = self.entries[name] = Entry(name, self._new(name), partition)
            transactions.load(entry.machine, record)

    def _loaded(self, entry: Entry[Transaction]) -> None:
        events: deque[object] = deque()
        self._carry_out(entry, transactions.loaded(entry.machine, self.now()), events)
        while events:
            self._feed(entry, events.popleft())
        self._timers.arm(entry)

    def live(self) -> Iterator[Transaction]:
        """Every transactional id that has a state."""
        return (entry.machine for entry in self.entries.values() if entry.machine.facts is not None)


class Coordinators:
    """Both coordinators, as the server starts and stops them."""

    def __init__(self) -> None:
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None

    async def start(self, context: Context) -> None:
        """Load the logs, finish decided transactions, start the timers; sets context.groups,
        .transactions.
        """
        context.groups = self._groups = GroupCoordinator(context)
        context.transactions = self._transactions = TransactionCoordinator(context, self._groups)
        await self._groups.load()
        await self._transactions.load()
        config = context.config
        self._groups.spawn(self._groups.sweep_for_ever(config["offsets.retention.check.interval.ms"], groups.Expire))
        every_ms = config["transaction.remove.expired.transaction.cleanup.interval.ms"]
        self._transactions.spawn(self._transactions.sweep_for_ever(every_ms, transactions.Expire))

    async def stop(self) -> None:
        """End timers and tasks; what was answered is in the logs already."""
        if self._transactions is not None:
            await self._transactions.stop()
        if self._groups is not None:
            await self._groups.stop()

    def topic_deleted(self, name: str) -> None:
        """Forget a deleted topic's committed offsets and transactions' partitions."""
        if self._groups is not None and self._transactions is not None:
            self._groups.topic_deleted(name, lambda: groups.TopicDeleted(name))
            self._transactions.topic_deleted(name, lambda: transactions.TopicDeleted(name))
