"""The shell around the coordinators' pure machines: it feeds them requests and time, and carries out what
they decide.

Coordinators of one shape. Each keeps a machine per name (a group, a transactional id), belongs to a
partition of an internal topic by the name's hash, reads that partition when this broker is elected its leader
(on one node: at start) and appends to it afterwards. A request becomes an event whose token is a future; `ask`
waits for it. Appends are done at once, on the loop: one small `pwrite` into the page cache. So what was answered
is in the log when the process is killed.

    request ─► ask ─► step(machine, event, now) ─► Append ─► log ─► Appended ─► step ─► Reply ─► answer
                           ▲ Tick (one heap of monotonic deadlines a coordinator)

In a cluster `Appended` comes when the record is committed, so that the next coordinator has all that was answered.
Until then it is pending and never undone: when the lead is lost the machines are dropped, and whoever waits hears
NOT_COORDINATOR; when it only takes long, whoever waits hears an error to try again, and the record stays.

A step gives back the machine that comes after it, mostly the same one; a group that changes its type is
another.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from penstock import log
from penstock.broker import tasks
from penstock.broker.coordination import statelog
from penstock.broker.coordination.leads import Lead, LeadState, Loading, Pending
from penstock.broker.coordination.machines import Append, Appended, Now, Reply, Tick
from penstock.broker.coordination.parts import Parts
from penstock.broker.coordination.timers import Entry, Machine, Timers
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.broker.topic import internal_settings
from penstock.broker.turns import TurnOrder, Turns
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.log.logmanager import Appended as LogAppended
from penstock.pyx.record.rawbatch import BatchError, RawBatch
from penstock.pyx.wire.message import WireError

BEFORE_APPEND = declare("coordinator.before_append", "a coordinator's record is decided, not yet in the log")
AFTER_APPEND = declare("coordinator.after_append", "a coordinator's record is in the log, not yet answered")

# Machines fed by an hourly sweep before the loop may do something else.
SWEEP_AT_ONCE = 200
# Pending appends that are answered before the loop may do something else.
ANSWERED_AT_ONCE = 64
# How long a request waits for the commit of what it has appended: Kafka's `offsets.commit.timeout.ms`.
COMMIT_PATIENCE_MS = 5_000
# What is read of a log before the loop may do something else.
TURN_BYTES = 16 << 10
# How long the picture of a topic that the store has is waited for before the store is asked again.
PICTURE_S = 5.0
READ_AGAIN_S = 5.0  # after which a partition that couldn't be read is read again

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
        self._asking: dict[asyncio.Future[Any], Entry[M]] = {}  # requests that wait for an answer
        self._partitions = 0  # of the internal topic; 0 until it exists
        self._why_not = ""  # what was said of a topic that couldn't be made
        self._leads: dict[int, Lead[M]] = {}
        self._readers = FolderThreads(f"{self.topic}-load", 1)
        self._order = TurnOrder()
        self._is_damaged = False  # one node: a partition is unreadable
        self._strays = 0  # names that are kept in another partition than theirs by hash: the topic has grown
        self._skip_corrupt: bool = parts.config["penstock.coordinator.skip.corrupt"]
        self._stopped = False
        self.is_alone = True
        """One node, which leads all there is; in a cluster roles come by `elected` and `resigned`."""

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

    @abstractmethod
    def _topics_of(self, machine: M) -> Iterable[str]:
        """The topics of which a machine has something."""

    @abstractmethod
    def _deletion(self, topic: str) -> object:
        """The event that tells a machine of a topic's deletion."""

    def now(self) -> Now:
        """This moment."""
        return Now(self._parts.monotonic_ms(), self._parts.now_ms())

    async def ensure_topic(self) -> None:
        """Create the internal topic at its first use. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""
        if self._partitions or self._sees_topic():
            return
        count, configs = internal_settings(self._parts.config, self.topic)
        try:
            topic = await self._parts.topics.ensure(self.topic, count, configs)
        except KafkaError as error:
            if error.what != self._why_not:  # Clients ask again and again.
                self._why_not = error.what
                _log.warning("topic=%s can't be made, so nothing is coordinated: %s", self.topic, error.what)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.what) from error
        self._partitions = len(topic.partitions)
        if self.is_alone:  # It is new: there is nothing to read.
            for index, state in enumerate(topic.partitions):
                self._leads.setdefault(index, Lead(state.leader_epoch, LeadState.LOADED))

    def _sees_topic(self) -> bool:
        """In a cluster, whether another broker has made it."""
        topic = None if self.is_alone else self._parts.topics.get(self.topic)
        if topic is not None:
            self._partitions = len(topic.partitions)
        return topic is not None

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
        """Raise KafkaError if this broker can say nothing of a name: NOT_COORDINATOR if another one leads its partition,
        COORDINATOR_LOAD_IN_PROGRESS, or COORDINATOR_NOT_AVAILABLE if its part of the log could not be read."""
        if self.is_alone and not self._is_damaged:
            return  # All was read before anybody was served.
        if not self._partitions and not self._sees_topic():
            if self._leads:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic} is new, and not seen here yet")
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.topic} isn't there")
        lead = self._leads.get(self.partition_of(name))
        if lead is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates {name}")
        cluster = self._parts.cluster
        if cluster is not None and cluster.lease_is_over():
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker may coordinate {name} by now")
        if lead.state is LeadState.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the log of {name} is being read")
        if lead.state is LeadState.UNREADABLE or (self._strays and name not in self.entries and self._has_unreadable()):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the log of {name} could not be read")

    def _has_unreadable(self) -> bool:
        return any(lead.state is LeadState.UNREADABLE for lead in self._leads.values())

    @property
    def is_loading(self) -> bool:
        """Whether machines that this broker has to know are still being read."""
        return any(lead.state is LeadState.LOADING for lead in self._leads.values())

    def loaded(self) -> dict[int, Lead[M]]:
        """The partitions of the internal topic whose names this broker coordinates now, as far as it knows."""
        return {
            partition: lead
            for partition, lead in self._leads.items()
            if lead.state is LeadState.LOADED and self._parts.commits.is_committed((self.topic, partition), 0, lead.epoch)
        }

    def epoch_of(self, partition: int) -> int:
        """The leader epoch since which this broker coordinates what a partition of the internal topic has. Raises KafkaError
        NOT_COORDINATOR if it doesn't."""
        lead = self._leads.get(partition)
        if lead is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker leads {self.topic}-{partition}")
        return lead.epoch

    def look_up(self, name: str) -> M | None:
        """As `find`. Raises KafkaError as `check_served` does."""
        self.check_served(name)
        return self.find(name)

    def find(self, name: str) -> M | None:
        """The machine of that name, to be asked and not changed."""
        entry = self.entries.get(name)
        return entry.machine if entry is not None else None

    def _entry(self, name: str) -> Entry[M]:
        entry = self.entries.get(name)
        if entry is None:
            entry = Entry(name, self._new(name), self.partition_of(name))
            self._keep(entry)
        return entry

    def _keep(self, entry: Entry[M]) -> None:
        self.entries[entry.name] = self._leads[entry.partition].entries[entry.name] = entry

    def _drop(self, entry: Entry[M]) -> None:
        del self.entries[entry.name], self._leads[entry.partition].entries[entry.name]

    async def ask(self, name: str, event: Any) -> Any:
        """Feed an event that has a token; its answer. The machine is made if there is none. Raises
        KafkaError.
        """
        await self.ensure_topic()
        self.check_served(name)
        event.token = answer = asyncio.get_running_loop().create_future()
        entry = self._entry(name)
        self._feed(entry, event)
        if answer.done():
            return answer.result()
        self._asking[answer] = entry
        try:
            return await answer
        finally:
            del self._asking[answer]

    def _feed(self, entry: Entry[M], event: object, at: Now | None = None) -> None:
        if self.entries.get(entry.name) is not entry:
            return  # It was forgotten, by a resignation or a deletion: what comes late has no effect.
        now = at or self.now()
        events: deque[object] = deque((event,))
        while events:
            entry.machine, actions = self._step(entry.machine, events.popleft(), now)
            self._carry_out(entry, actions, events)
        self._timers.arm(entry)
        if self._disposable(entry.machine) and self.entries.get(entry.name) is entry:
            self._drop(entry)

    def _carry_out(self, entry: Entry[M], actions: Sequence[object], events: deque[object]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                answer = action.token
                assert isinstance(answer, asyncio.Future)
                if not answer.done():  # Its handler was cancelled: the broker stops.
                    answer.set_result(action.result)
            elif isinstance(action, Append):
                appended = self._append(entry, action)
                if appended is not None:
                    events.append(appended)
            else:
                follows = self._act(entry, action)
                if follows is not None:
                    events.append(follows)

    def _append(self, entry: Entry[M], action: Append) -> Appended | None:
        """None: it is answered later, when it is committed."""
        failpoint(BEFORE_APPEND)
        lead = self._leads[entry.partition]
        written = self._write_log(entry, action, lead.epoch)
        if isinstance(written, int):
            refused = Appended(action.id, written)
            # One that is pending is answered first, as a machine takes its answers in the order of its appends.
            before = next((one for one in reversed(lead.pending) if one.entry is entry), None)
            if before is None:
                return refused
            self._wait_for_commit(lead, before.needed, entry, refused)
            return None
        failpoint(AFTER_APPEND)
        done = Appended(action.id, ErrorCode.NONE, written.base_offset)
        if not written.waits and not lead.pending:
            return done
        self._wait_for_commit(lead, written.needed, entry, done)
        return None

    def _write_log(self, entry: Entry[M], action: Append, led_since: int) -> LogAppended | int:
        """Append the records; an error code if that was refused."""
        try:
            pairs = [self._encode(entry.name, record) for record in action.records]
            now_ms = self._parts.now_ms()
            batches = statelog.build_batches(pairs, now_ms, action.producer_id, action.producer_epoch)
            # All of them at once: either what was decided is in the log, or nothing of it is.
            return self._parts.log_manager.append(self.topic, entry.partition, b"".join(batches), led_since)
        except KafkaError as error:
            _log.warning("append refused: %s topic=%s partition=%d", error, self.topic, entry.partition)
            return error.code
        except BatchError as error:
            return error.code
        except WireError as error:  # The machine waits for its append: it must hear of it.
            _log.error("no record can hold it: %s topic=%s partition=%d", error, self.topic, entry.partition)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        except OSError as error:
            _log.error("append failed: %s topic=%s partition=%d", error, self.topic, entry.partition)
            return ErrorCode.KAFKA_STORAGE_ERROR

    # --- what is pending ------------------------------------------------------------------------------------
    def _wait_for_commit(self, lead: Lead[M], needed: int, entry: Entry[M], event: Appended) -> None:
        lead.pending.append(Pending(needed, entry, event))
        if not lead.is_settling:
            lead.is_settling = True
            self.spawn(self._settle(entry.partition, lead))

    async def _settle(self, partition: int, lead: Lead[M]) -> None:
        """Feed what was appended as it is committed, for as long as something is pending."""
        while lead.pending and self._leads.get(partition) is lead:
            needed = lead.pending[0].needed
            error = await self._parts.commits.wait((self.topic, partition), needed, lead.epoch, COMMIT_PATIENCE_MS)
            if self._leads.get(partition) is not lead:
                return
            if error == ErrorCode.NONE:
                self._answer_committed(partition, lead, ANSWERED_AT_ONCE)
                await asyncio.sleep(0)
            elif error == ErrorCode.REQUEST_TIMED_OUT:
                self._lose_patience(partition, lead)
            else:
                self.resigned(partition)
        lead.is_settling = False

    def _answer_committed(self, partition: int, lead: Lead[M], most: int) -> None:
        while lead.pending and most:
            first = lead.pending[0]
            if not self._parts.commits.is_committed((self.topic, partition), first.needed, lead.epoch):
                return
            lead.pending.popleft()
            most -= 1
            try:
                self._feed(first.entry, first.event)
            except Exception:  # noqa: BLE001 - the others are committed, too
                _log.exception("what %s has appended is committed, and can't be answered", first.entry.name)

    def _lose_patience(self, partition: int, lead: Lead[M]) -> None:
        """Who waits asks again. The records stay, and hold once they are committed."""
        stuck = {id(one.entry) for one in lead.pending}
        waiting = [answer for answer, entry in self._asking.items() if id(entry) in stuck and not answer.done()]
        for answer in waiting:
            answer.set_exception(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the record isn't committed yet"))
        _log.warning(
            "topic=%s partition=%d: %d records wait for replicas that are in sync; %d requests are answered to try again",
            self.topic, partition, len(lead.pending), len(waiting),
        )  # fmt: skip

    def _tick(self, entry: Entry[M]) -> None:
        if self._stopped or self.entries.get(entry.name) is not entry:
            return
        if entry.machine.wake_at_ms <= self._parts.monotonic_ms():
            self._feed(entry, Tick())
        else:
            self._timers.arm(entry)

    def topic_deleted(self, name: str) -> None:
        """Tell every machine that has something of it. When it was our own topic that went, forget all that stood in it: in a
        cluster by resignations, since roles in a topic of the same name may have come before."""
        if name != self.topic:
            for lead in self._leads.values():
                if lead.state is LeadState.LOADING:
                    lead.missed.append(partial(self._tell_deleted, lead.entries, name))
            self._tell_deleted(self.entries, name)
            return
        self._partitions = self._strays = 0
        if self.is_alone:
            self._is_damaged = False
            _log.warning("topic=%s was deleted: forgetting %d machines", name, len(self.entries))
            for partition in list(self._leads):
                self.resigned(partition)

    def _tell_deleted(self, entries: Mapping[str, Entry[M]], name: str) -> None:
        for entry in list(entries.values()):
            if name in self._topics_of(entry.machine):
                self._feed(entry, self._deletion(name))

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

    # --- leads ----------------------------------------------------------------------------------------------
    async def load(self) -> None:
        """One node: read the internal topic, if there is one, and set the machines going."""
        topic = self._parts.topics.get(self.topic)
        if topic is None:
            return
        self._partitions = len(topic.partitions)
        leads: dict[int, Lead[M]] = {index: Lead(state.leader_epoch) for index, state in enumerate(topic.partitions)}
        self._leads = dict(leads)
        loading = self._new_loading()
        for partition, lead in leads.items():
            await self._read(loading, partition, lead)
        self._strays = sum(entry.partition != self._home(name) for name, entry in loading.entries.items())
        if self._strays:
            _log.warning(
                "topic=%s has got more partitions since it was written: %d names stay in the partition that they belonged to",
                self.topic, self._strays,
            )  # fmt: skip
        await self._set_going(loading, leads)
        if self.entries:
            _log.info("loaded %d machines from topic=%s", len(self.entries), self.topic)

    def elected(self, partition: int, epoch: int, unclean_epoch: int = -1) -> None:
        """This broker leads a partition of the internal topic, in that leader epoch: read it, unless its lead only goes on.
        unclean_epoch: the newest that an unclean election began; -1: none."""
        lead = self._leads.get(partition)
        if lead is not None and self._parts.commits.is_committed((self.topic, partition), 0, lead.epoch):
            return
        self.resigned(partition)
        lead = self._leads[partition] = Lead(epoch, unclean_epoch=unclean_epoch)
        self.spawn(self._take_over(partition, lead))

    def resigned(self, partition: int) -> None:
        """This broker leads it no more: forget what it has of it. Everybody who waits hears NOT_COORDINATOR."""
        lead = self._leads.get(partition)
        if lead is None:
            return
        gone = list(lead.entries.values())
        for entry in gone:
            self._drop(entry)
        del self._leads[partition]
        self._forget(partition)
        for entry in gone:
            self._carry_out(entry, self._resign(entry.machine), deque())
        for answer, entry in self._asking.items():
            if entry.partition == partition and not answer.done():
                answer.set_exception(KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates {entry.name}"))
        if gone:
            _log.info("topic=%s partition=%d: %d names are coordinated here no more", self.topic, partition, len(gone))

    async def _take_over(self, partition: int, lead: Lead[M]) -> None:
        """Read a partition and coordinate it, or say why not; what can't be read now may be so later. A load that a resignation
        overtakes has no effect."""
        while True:
            try:
                await self._load(partition, lead)
            except Exception:  # noqa: BLE001 - who asks must not wait for the end of loading for ever
                _log.exception("topic=%s partition=%d is not coordinated", self.topic, partition)
                if self._leads.get(partition) is lead:
                    self.resigned(partition)
                    self._leads[partition] = Lead(lead.epoch, LeadState.UNREADABLE)
                return
            if self._leads.get(partition) is not lead:
                return
            if lead.state is not LeadState.UNREADABLE or lead.is_corrupt:
                break
            await asyncio.sleep(READ_AGAIN_S)
            if self._leads.get(partition) is not lead:
                return
            lead = self._leads[partition] = Lead(lead.epoch, unclean_epoch=lead.unclean_epoch, readings=lead.readings + 1)
        await self._find_deletions(partition, lead)

    async def _load(self, partition: int, lead: Lead[M]) -> None:
        """Serve a partition once all that was read is committed: else an answer could be gone after the next election."""
        begun_ms, loading = self._parts.monotonic_ms(), self._new_loading()
        await self._read(loading, partition, lead)
        while self._leads.get(partition) is lead and lead.state is LeadState.LOADING:
            error = await self._parts.commits.wait((self.topic, partition), loading.end, lead.epoch)
            if error == ErrorCode.NONE:
                break
            if error != ErrorCode.REQUEST_TIMED_OUT:
                return  # The resignation comes, or the next election.
            _log.warning(
                "topic=%s partition=%d: its records up to offset %d wait for replicas that are in sync; until then its names "
                "are not coordinated", self.topic, partition, loading.end,
            )  # fmt: skip
        await self._set_going(loading, {partition: lead})
        if self._leads.get(partition) is lead and loading.end:
            _log.info(
                "topic=%s partition=%d epoch=%d: coordinates %d names since %d ms after its election", self.topic, partition,
                lead.epoch, len(lead.entries), self._parts.monotonic_ms() - begun_ms,
            )  # fmt: skip

    async def _find_deletions(self, partition: int, lead: Lead[M]) -> None:
        """Topics whose deletion no coordinator of this partition has lived to hear of. The store is asked, since the picture of
        a topic may come late; none is believed to be gone that this broker sees, as something new may be stored of it.
        """
        names: set[str] = set()
        async for entry in Turns(self._order).each(list(lead.entries.values())):
            names.update(self._topics_of(entry.machine))
        topics, cluster = self._parts.topics, self._parts.cluster
        for name in sorted(names):
            while cluster is not None and topics.get(name) is None and self._leads.get(partition) is lead:
                if not await cluster.is_gone((name, 0)):  # The picture comes, or the store can't be asked now.
                    await cluster.next_picture(PICTURE_S)
                elif topics.get(name) is None:
                    _log.info("topic=%s is gone, and so is what %s-%d has of it", name, self.topic, partition)
                    self._tell_deleted(lead.entries, name)
                    break

    async def _read(self, loading: Loading[M], partition: int, lead: Lead[M]) -> None:
        """Read a partition up to where it ends now, in turns with the loop's other work; its disk is waited for in a thread."""
        logs, turns = self._parts.log_manager, Turns(self._order)
        loading.partition = partition
        try:
            where = logs.offsets(self.topic, partition)
            offset, loading.end = where.log_start, where.log_end
            while offset < loading.end and self._leads.get(partition) is lead:
                folder = logs.folder_of(self.topic, partition)
                read = statelog.read_batches, logs, self.topic, partition, offset, self._skip_corrupt
                batches = await self._readers.run(folder, *read)
                if not batches:
                    break
                since_turn = 0
                for raw in batches:
                    if raw.base_offset < loading.end:  # A marker that came since is told by `marker_written`.
                        self._load_batch(loading, raw)
                    since_turn += len(raw)
                    if since_turn >= TURN_BYTES:
                        since_turn = 0
                        await turns.take()
                offset = batches[-1].next_offset
            await self._partition_read(loading, turns)
        except (KafkaError, OSError) as error:
            if self._leads.get(partition) is not lead:
                return
            # No machine may act on half of what is stored, so none is loaded from there.
            say = _log.debug if lead.readings else _log.error
            say("topic=%s partition=%d is not coordinated: %s", self.topic, partition, error)
            lead.state, self._is_damaged = LeadState.UNREADABLE, True
            lead.is_corrupt = isinstance(error, KafkaError) and error.code == ErrorCode.CORRUPT_MESSAGE
            self._partition_unread(loading)

    async def _set_going(self, loading: Loading[M], leads: Mapping[int, Lead[M]]) -> None:
        """Let the machines be asked; their time begins now. They are published one by one, and served once all are."""
        if not any(self._leads.get(partition) is lead for partition, lead in leads.items()):
            return  # A resignation has overtaken it; what the next load publishes must not be replaced.
        self._publish(loading)
        async for entry in Turns(self._order).each(loading.entries.values()):
            if self._leads.get(entry.partition) is leads[entry.partition]:
                self._keep(entry)
                self._loaded(entry)
                if self._disposable(entry.machine) and self.entries.get(entry.name) is entry:
                    self._drop(entry)
        for partition, lead in leads.items():
            await self._before_serving(partition, lead)
            if self._leads.get(partition) is lead and lead.state is LeadState.LOADING:
                lead.state = LeadState.LOADED
                for hear in lead.missed:
                    hear()
                lead.missed.clear()

    def _entry_of_record(self, loading: Loading[M], name: str) -> Entry[M] | None:
        """Whose machine a record that is read is for, made if there is none; None: the record doesn't count.

        A name's records lie in one partition, unless the topic has grown. Then those count that lie where the name's hash
        says, or else those that are found first.
        """
        entry, partition = loading.entries.get(name), loading.partition
        if entry is None or (entry.partition != partition and self._home(name) == partition):
            entry = loading.entries[name] = Entry(name, self._new(name), partition)
        return entry if entry.partition == partition else None

    def _new_loading(self) -> Loading[M]:
        return Loading()

    @abstractmethod
    def _load_batch(self, loading: Loading[M], raw: RawBatch) -> None: ...

    async def _partition_read(self, loading: Loading[M], turns: Turns) -> None:
        """All batches of a partition have been handed over."""

    def _partition_unread(self, loading: Loading[M]) -> None:
        """The partition can't be read to its end: what was read of it must not count, nor be taken for the next one's."""
        for name in [name for name, entry in loading.entries.items() if entry.partition == loading.partition]:
            del loading.entries[name]

    def _publish(self, loading: Loading[M]) -> None:
        """What was read holds from now on."""

    async def _before_serving(self, partition: int, lead: Lead[M]) -> None:
        """The machines of a partition are going; nobody is answered yet."""

    def _forget(self, partition: int) -> None:
        """What is known of a partition beside its machines holds no more."""

    @abstractmethod
    def _loaded(self, entry: Entry[M]) -> None: ...

    async def stop(self) -> None:
        """End timers and tasks. Requests that still wait stay unanswered: their connections are closing."""
        self._stopped = True
        self._timers.stop()
        await self._beside.stop()
        self._readers.leave()
