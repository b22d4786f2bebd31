"""The shell around the coordinators' pure machines: it feeds them requests and time, and carries out what
they decide.

Coordinators of one shape. Each keeps a machine per name (a group, a transactional id), belongs to a
partition of an internal topic by the name's hash, reads that topic at start and appends to it afterwards. A
request becomes an event whose token is a future; `ask` waits for it. Appends are done at once, on the loop:
one small `pwrite` into the page cache, after which the answer goes out. So what was answered is in the log
when the process is killed.

    request ─► ask ─► step(machine, event, now) ─► Append ─► log ─► Appended ─► step ─► Reply ─► answer
                           ▲ Tick (one heap of monotonic deadlines a coordinator)

A step gives back the machine that comes after it, mostly the same one; a group that changes its type is
another.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from penstock import log
from penstock.broker import tasks
from penstock.broker.coordination import statelog
from penstock.broker.coordination.machines import Append, Appended, Now, Reply, Tick
from penstock.broker.coordination.parts import Parts
from penstock.broker.coordination.timers import Entry, Machine, Timers
from penstock.broker.topic import internal_settings
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.record.rawbatch import BatchError, RawBatch
from penstock.pyx.wire.message import WireError

BEFORE_APPEND = declare("coordinator.before_append", "a coordinator's record is decided, not yet in the log")
AFTER_APPEND = declare("coordinator.after_append", "a coordinator's record is in the log, not yet answered")

# Machines fed by an hourly sweep before the loop may do something else.
SWEEP_AT_ONCE = 200

_log = log.get(__name__)


M = TypeVar("M", bound=Machine)


class Coordinator(ABC, Generic[M]):
    """What both coordinators do: keep machines, feed them, append, wake them, forget them."""

    topic: str

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.entries: dict[str, Entry[M]] = {}
        self._timers: Timers[M] = Timers(parts.monotonic_ms, self._tick)
        self._beside = tasks.Group(f"coordinator of {self.topic}")
        self._partitions = 0  # of the internal topic; 0 until it exists
        self._lost: set[int] = set()  # those that could not be read: their disk has failed, or a record is corrupt
        self._strays = 0  # names that are kept in another partition than theirs by hash: the topic has grown
        self._skip_corrupt: bool = parts.config["penstock.coordinator.skip.corrupt"]
        self._stopped = False
        self.serves = True
        """False in a cluster, which has no groups and transactions yet: whoever asks hears COORDINATOR_NOT_AVAILABLE."""

    # What the two differ in.
    @abstractmethod
    def _new(self, name: str) -> M: ...

    @abstractmethod
    def _step(self, machine: M, event: object, now: Now) -> tuple[M, Sequence[object]]: ...

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
        return Now(self._parts.monotonic_ms(), self._parts.now_ms())

    async def ensure_topic(self) -> None:
        """Create the internal topic at its first use. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""
        self._check_serves()
        if not self._partitions:
            count, configs = internal_settings(self._parts.config, self.topic)
            try:
                topic = await self._parts.topics.ensure(self.topic, count, configs)
            except KafkaError as error:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.what) from error
            self._partitions = len(topic.partitions)

    def _check_serves(self) -> None:
        if not self.serves:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a cluster serves no groups and transactions yet")

    def partition_of(self, name: str) -> int:
        """The partition of the internal topic that a name is kept in; the topic has to exist.

        What is stored stays where it is, also if the topic has grown since.
        """
        entry = self.entries.get(name)
        return self._home(name) if entry is None else entry.partition

    def _home(self, name: str) -> int:
        """The partition that a name belongs to by its hash."""
        return statelog.java_hash_partition(name, self._partitions)

    def check_served(self, name: str) -> None:
        """Raise KafkaError COORDINATOR_NOT_AVAILABLE if the name's part of the log could not be read."""
        self._check_serves()
        lost = self._lost and self.partition_of(name) in self._lost
        if lost or (self._lost and self._strays and name not in self.entries):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the log of {name} could not be read")

    def look_up(self, name: str) -> M | None:
        """As `find`. Raises KafkaError COORDINATOR_NOT_AVAILABLE if it can't be known whether there is one."""
        self.check_served(name)
        return self.find(name)

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
        self.check_served(name)
        event.token = answer = asyncio.get_running_loop().create_future()
        self._feed(self._entry(name), event)
        return await answer

    def _feed(self, entry: Entry[M], event: object, at: Now | None = None) -> None:
        now = at or self.now()
        events: deque[object] = deque((event,))
        while events:
            entry.machine, actions = self._step(entry.machine, events.popleft(), now)
            self._carry_out(entry, actions, events)
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
        try:
            pairs = [self._encode(entry.name, record) for record in action.records]
            now_ms = self._parts.now_ms()
            batches = statelog.build_batches(pairs, now_ms, action.producer_id, action.producer_epoch)
            # All of them at once: either what was decided is in the log, or nothing of it is.
            appended = self._parts.log_manager.append(self.topic, entry.partition, b"".join(batches))
        except KafkaError as error:
            _log.warning("append refused: %s topic=%s partition=%d", error, self.topic, entry.partition)
            return Appended(action.id, error.code)
        except BatchError as error:
            return Appended(action.id, error.code)
        except WireError as error:  # The machine waits for its append: it must hear of it.
            _log.error("no record can hold it: %s topic=%s partition=%d", error, self.topic, entry.partition)
            return Appended(action.id, ErrorCode.UNKNOWN_SERVER_ERROR)
        except OSError as error:
            _log.error("append failed: %s topic=%s partition=%d", error, self.topic, entry.partition)
            return Appended(action.id, ErrorCode.KAFKA_STORAGE_ERROR)
        failpoint(AFTER_APPEND)
        return Appended(action.id, ErrorCode.NONE, appended.base_offset)

    def _tick(self, entry: Entry[M]) -> None:
        if self._stopped or self.entries.get(entry.name) is not entry:
            return
        if entry.machine.wake_at_ms <= self._parts.monotonic_ms():
            self._feed(entry, Tick())
        else:
            self._timers.arm(entry)

    def topic_deleted(self, name: str, event: Callable[[], object]) -> None:
        """Feed it to every machine; when it was our own topic that went, forget everything that stood in it."""
        if name != self.topic:
            for entry in list(self.entries.values()):
                self._feed(entry, event())
            return
        _log.warning("topic=%s was deleted: forgetting %d machines", name, len(self.entries))
        for entry in self.entries.values():
            self._carry_out(entry, self._resign(entry.machine), deque())
        self.entries.clear()
        self._partitions = self._strays = 0
        self._lost.clear()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside; `stop` ends it."""
        self._beside.start(work)

    async def sweep_for_ever(self, every_ms: int, event: Callable[[], object]) -> None:
        """Feed every machine that event every so often, in turns with the loop's other work. What it is for is to forget
        what is old, so it comes by the clock of ages."""
        while True:
            await asyncio.sleep(every_ms / 1000)
            for count, entry in enumerate(list(self.entries.values()), 1):
                if self.entries.get(entry.name) is entry:
                    try:
                        self._feed(entry, event(), Now(self._parts.monotonic_ms(), self._parts.age_now_ms()))
                    except Exception:  # noqa: BLE001 - the others are looked at all the same
                        _log.exception("the sweep of %s has failed", entry.name)
                if count % SWEEP_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def load(self) -> None:
        """Read the internal topic, if there is one, and set the machines going."""
        topic = self._parts.topics.get(self.topic)
        if topic is None:
            return
        self._partitions = len(topic.partitions)
        for partition in range(self._partitions):
            self._partition_begins(partition)
            try:
                for raw in statelog.read_batches(self._parts.log_manager, self.topic, partition, self._skip_corrupt):
                    self._load_batch(partition, raw)
                self._partition_read(partition)
            except (KafkaError, OSError) as error:
                # No machine may act on half of what is stored, so none is loaded from there.
                _log.error("topic=%s partition=%d is not coordinated: %s", self.topic, partition, error)
                self._lost.add(partition)
                self.entries = {name: entry for name, entry in self.entries.items() if entry.partition != partition}
            await asyncio.sleep(0)
        self._strays = sum(entry.partition != self._home(name) for name, entry in self.entries.items())
        if self._strays:
            _log.warning(
                "topic=%s has got more partitions since it was written: %d names stay in the partition that they belonged to",
                self.topic, self._strays,
            )  # fmt: skip
        for entry in list(self.entries.values()):
            self._loaded(entry)
            if self._disposable(entry.machine):
                self.entries.pop(entry.name, None)
        if self.entries:
            _log.info("loaded %d machines from topic=%s", len(self.entries), self.topic)

    def _entry_of_record(self, name: str, partition: int) -> Entry[M] | None:
        """Whose machine a record of that partition is for, made if there is none; None: the record doesn't count.

        A name's records lie in one partition, unless the topic has grown. Then those count that lie where the name's hash
        says, or else those that are found first.
        """
        entry = self.entries.get(name)
        if entry is None or (entry.partition != partition and self._home(name) == partition):
            entry = self.entries[name] = Entry(name, self._new(name), partition)
        return entry if entry.partition == partition else None

    @abstractmethod
    def _load_batch(self, partition: int, raw: RawBatch) -> None: ...

    def _partition_begins(self, partition: int) -> None:
        """The batches of a partition are about to be handed over."""

    def _partition_read(self, partition: int) -> None:
        """All batches of a partition have been handed over."""

    @abstractmethod
    def _loaded(self, entry: Entry[M]) -> None: ...

    async def stop(self) -> None:
        """End timers and tasks. Requests that still wait stay unanswered: their connections are closing."""
        self._stopped = True
        self._timers.stop()
        await self._beside.stop()
