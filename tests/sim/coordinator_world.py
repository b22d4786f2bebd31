"""A seeded world around the coordinators' pure machines: members, producers, a network that loses, crashes.

Time is a number, the network and the disks are queues, chance is one `random.Random(seed)`: the same seed
gives the same run. The coordinator is the real machines with the shell's rules (`broker/coordination/machines.py`); its
logs are lists. A crash forgets the machines, and of the appends that were under way only a first part may
have reached the logs; then the machines are made again from the logs.

What is checked all the time, and at the end (`World.check`):

- a request is answered at most once;
- in one generation every partition has one owner, and generations that were handed out only grow;
- what a group shows equals a plain reading of the log (`OffsetReader`, written without the machines), so that
  an acknowledged commit is never lost and an offset of a transaction shows only when its marker says commit;
- a transaction's records are committed in all partitions or in none, as the answer of EndTxn said, and
  committed only if its producer asked for it; no marker ends records of another transaction;
- no transaction hangs, however late a request comes, or comes twice (EndTxn twice only with transactions v2: a
  producer of v1 gives it nothing to tell it by);
- when the faults stop, groups become stable and transactions end.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sim.clockwork import Clockwork

from penstock.broker.configs.groupconfig import GroupConfig
from penstock.broker.coordination.classicgroups import events as classic_events
from penstock.broker.coordination.classicgroups import machine as classic_machine
from penstock.broker.coordination.classicgroups import state as classic_state
from penstock.broker.coordination.classicgroups.state import Group, GroupRecord, GroupState
from penstock.broker.coordination.groupoffsets import Commit, Marker
from penstock.broker.coordination.machines import Append, Appended, Reply, Tick, TopicPartition
from penstock.broker.coordination.offsets import Committed, OffsetRecord
from penstock.broker.coordination.transactions import machine as transaction_machine
from penstock.broker.coordination.transactions.events import (
    AddPartitions,
    End,
    Init,
    MarkersWritten,
    ProducerResult,
    WriteMarkers,
)
from penstock.broker.coordination.transactions.partitions import verify
from penstock.broker.coordination.transactions.producers import needs_producer_id
from penstock.broker.coordination.transactions.state import (
    PREPARED,
    Facts,
    Transaction,
    TransactionConfig,
    TransactionRecord,
    TransactionState,
    is_disposable,
)
from penstock.errors import ErrorCode as E
from penstock.errors import KafkaError

OFFSETS: TopicPartition = ("__consumer_offsets", 0)
STATE: TopicPartition = ("__transaction_state", 0)
DATA: list[TopicPartition] = [("data", number) for number in range(3)]
SESSION_MS, REBALANCE_MS, TXN_TIMEOUT_MS, LOST_AFTER_MS = 10_000, 20_000, 8_000, 15_000
PRODUCE_LOST_AFTER_MS = 2_000
CONFIG = GroupConfig(initial_rebalance_delay_ms=200, max_size=5)
GROUPS = ("g1", "g2")


@dataclass
class Written:
    """One thing in a log: records of a machine, a marker, or data of a transaction."""

    kind: str
    owner: str = ""
    records: tuple[object, ...] = ()
    producer_id: int = -1
    producer_epoch: int = -1
    commit: bool = False
    transaction: int = -1
    sequence: int = -1
    version: int = 0  # of transactions: a marker's, or its client's


@dataclass
class Log:
    """A partition: what it holds, what is on its way to it, and the producer epochs that it has seen."""

    name: TopicPartition
    written: list[Written] = field(default_factory=list)
    queue: deque[tuple[Written, Callable[[int, int], None]]] = field(default_factory=deque)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)  # the next one of a producer's epoch
    open: set[int] = field(default_factory=set)  # producers with a transaction
    ended: dict[int, int] = field(default_factory=dict)  # where a producer's last marker stands
    end: int = 0

    def append(self, item: Written) -> int:
        """Kafka's rules for producers: an older epoch is refused, sequences have no gap, a repeat is dropped."""
        producer = item.producer_id
        if producer >= 0:
            epoch = self.epochs.get(producer, -1)
            if item.producer_epoch < epoch:
                return E.INVALID_PRODUCER_EPOCH
            if item.kind == "marker" and item.version >= 2 and item.producer_epoch == epoch and producer in self.open:
                return E.INVALID_PRODUCER_EPOCH
            if item.producer_epoch > epoch:
                self.sequences[producer] = 0
            if item.kind == "data":
                expected = self.sequences.get(producer, 0)
                if item.sequence != expected:
                    return E.NONE if item.sequence < expected else E.OUT_OF_ORDER_SEQUENCE_NUMBER
                self.sequences[producer] = expected + 1
            self.epochs[producer] = item.producer_epoch
            (self.open.discard if item.kind == "marker" else self.open.add)(producer)
            if item.kind == "marker":
                self.ended[producer] = len(self.written)
        self.written.append(item)
        self.end += max(1, len(item.records))
        return E.NONE

    def begins(self, item: Written) -> bool:
        """Whether a batch would begin its producer's transaction here."""
        epoch = self.epochs.get(item.producer_id, -1)
        goes_on = item.producer_id in self.open and item.producer_epoch == epoch
        return not goes_on and item.producer_epoch >= epoch

    def offset(self) -> int:
        """Of the next record; a batch of several takes as many."""
        return self.end


class Violation(AssertionError):
    """An invariant does not hold."""


class OffsetReader:
    """A plain reading of the offsets' log: the newest record wins, a transaction's counts from its own
    place.
    """

    def __init__(self) -> None:
        self.place = 0
        self.shown: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        self.pending: dict[int, list[tuple[str, TopicPartition, int, int]]] = {}

    def read(self, written: list[Written]) -> dict[tuple[str, TopicPartition], int]:
        """What is committed after all of the log; only what is new since the last time is looked at."""
        for item in written[self.place :]:
            self._read(item)
            self.place += 1
        return {where: offset for where, (offset, _) in self.shown.items()}

    def _read(self, item: Written) -> None:
        if item.kind == "marker":
            for owner, key, offset, at in self.pending.pop(item.producer_id, []):
                if item.commit and self.shown.get((owner, key), (-1, -1))[1] < at:
                    self.shown[owner, key] = (offset, at)
        for record in item.records:
            if not isinstance(record, OffsetRecord) or record.value is None:
                continue
            key = (record.topic, record.partition)
            if item.producer_id >= 0:
                entry = (item.owner, key, record.value.offset, self.place)
                self.pending.setdefault(item.producer_id, []).append(entry)
            else:
                self.shown[item.owner, key] = (record.value.offset, self.place)


class World(Clockwork):
    """One run. `run()` plays it, `check()` at its end raises Violation. guarded: as the broker does; else a produce that
    begins a transaction is appended whatever came since its coordinator was asked.
    """

    def __init__(self, seed: int, duration_ms: int = 120_000, *, guarded: bool = True) -> None:
        super().__init__(seed, duration_ms)
        self.guarded = guarded
        self.logs = {name: Log(name) for name in (OFFSETS, STATE, *DATA)}
        self.reader = OffsetReader()
        self.incarnation = 0
        self.groups: dict[str, Group] = {}
        self.transactions: dict[str, Transaction] = {}
        self.txn_config = TransactionConfig(1 << 50, 60_000)
        self.next_producer_id = itertools.count(1_000)
        self.next_member_id = itertools.count(1)
        self.next_transaction = itertools.count(1)
        self.owners: dict[tuple[str, int, int], str] = {}
        self.highest_generation: dict[str, int] = {}
        self.asked_commit: set[int] = set()
        self.answered: dict[int, bool] = {}  # transaction -> committed, as EndTxn's answer said
        self.acknowledged: list[tuple[str, TopicPartition, int]] = []
        self.members = [Member(self, GROUPS[n % 2], f"i{n}" if n % 3 == 0 else None) for n in range(6)]
        # Of both versions of transactions, and such that share an identity.
        names = (("tx0", 0), ("tx1", 2), ("tx0", 2), ("tx2", 0), ("tx2", 0), ("tx1", 2))
        self.producers = [Producer(self, name, GROUPS[n % 2], version) for n, (name, version) in enumerate(names)]

    def run(self) -> World:
        """Play all of it: with faults, then without, until everything has come to rest."""
        actors: list[Member | Producer] = [*self.members, *self.producers]
        for actor in actors:
            self.later(self.random.randrange(2_000), actor.start)
        self.later(5_000, self.maybe_crash)
        self.play(self.duration_ms)
        self.faults = False
        self.play(self.duration_ms + 90_000)
        self.check_rest()
        for producer in self.producers:
            producer.stopped = True
        for member in self.members:
            member.alive = False
        self.play(self.duration_ms + 150_000)
        self.crash()
        self.play(self.duration_ms + 200_000)
        self.check()
        return self

    # --- the network ----------------------------------------------------------------------------------------

    def ask(self, kind: str, name: str, event: Any, then: Callable[[Any], None]) -> None:
        """Send a request; `then` gets the answer, or None if nothing came in time."""
        done: list[bool] = []

        def finish(answer: Any) -> None:
            if not done:
                done.append(True)
                then(answer)

        self.later(LOST_AFTER_MS * 3 if kind == "join" else LOST_AFTER_MS, lambda: finish(None))
        if self.fault(0.02):
            return
        incarnation_delay = self.random.randrange(1, 40)
        event.token = Token(self, finish)
        self.later(incarnation_delay, lambda: self._arrive(kind, name, event))
        if isinstance(event, End) and event.raises_epoch and self.fault(0.1):
            again = replace(event, token=Token(self, lambda answer: None))
            self.later(self.random.randrange(1, TXN_TIMEOUT_MS), lambda: self._arrive(kind, name, again))

    def produce(self, name: str, partition: TopicPartition, item: Written, then: Callable[[int | None], None]) -> None:
        """Send a batch: it may be lost, come twice or much later; `then` gets the error, or None if none came in time."""
        done: list[bool] = []

        def finish(error: int) -> None:
            if not done and not self.fault(0.02):
                done.append(True)
                self.later(self.random.randrange(1, 40), lambda: then(error))

        def give_up() -> None:
            if not done:
                done.append(True)
                then(None)

        self.later(PRODUCE_LOST_AFTER_MS, give_up)
        for _ in range(2 if self.fault(0.05) else 1):
            if not self.fault(0.03):
                late = self.fault(0.05)
                delay_ms = self.random.randrange(1, 3 * TXN_TIMEOUT_MS if late else 40)
                self.later(delay_ms, lambda: self._produced(name, partition, item, finish))

    def _produced(self, name: str, partition: TopicPartition, item: Written, finish: Callable[[int], None]) -> None:
        """As a broker does that isn't the coordinator: a batch that begins a transaction is verified, or added, and appended
        some time later, if no marker of its producer came since the question.
        """
        log = self.logs[partition]
        if not log.begins(item):
            self._append_data(log, item, finish)
            return
        self.count("begun in a partition")
        guard = len(log.written)

        def append() -> None:
            if self.guarded and log.begins(item) and log.ended.get(item.producer_id, -1) >= guard:
                self.count("refused by its guard")
                finish(E.NOT_ENOUGH_REPLICAS)
            else:
                self._append_data(log, item, finish)

        def added(error: int) -> None:
            # What was stored meanwhile counts: the coordinator adds and verifies in one step.
            verdict = error or verify(self.transaction(name), item.producer_id, item.producer_epoch, partition)
            if verdict:
                self.count(f"refused {KafkaError(verdict).name} v{item.version}")
                finish(verdict)
            else:
                late = self.fault(0.05)
                self.later(self.random.randrange(1, TXN_TIMEOUT_MS if late else 40), append)

        if item.version < 2:
            added(E.NONE)
            return
        event = AddPartitions(
            Token(self, added, self.incarnation, direct=True), item.producer_id, item.producer_epoch, [partition], 2
        )
        self.feed_transaction(name, event)

    def _append_data(self, log: Log, item: Written, finish: Callable[[int], None]) -> None:
        finish(log.append(item))

    def _arrive(self, kind: str, name: str, event: Any) -> None:
        event.token.incarnation = self.incarnation
        if kind == "transaction":
            machine = self.transaction(name)
            if needs_producer_id(machine, event):
                event.fresh_producer_id = next(self.next_producer_id)
            self.feed_transaction(name, event)
        elif isinstance(event, Commit) and event.producer_id >= 0:
            tx = token_of(event).transactional_id
            if token_of(event).version >= 2:
                self._commit_adding(name, tx, event)
                return
            error = verify(self.transaction(tx), event.producer_id, event.producer_epoch, OFFSETS)
            if error:
                token_of(event).answer(error)
            else:
                self.feed_group(name, event)
        elif isinstance(event, Commit) and event.generation >= 0 and name not in self.groups:
            token_of(event).answer(E.ILLEGAL_GENERATION)
        else:
            self.feed_group(name, event)

    def _commit_adding(self, group: str, name: str, event: Commit) -> None:
        incarnation = self.incarnation

        def added(error: int) -> None:
            verdict = error or verify(self.transaction(name), event.producer_id, event.producer_epoch, OFFSETS)
            if verdict or incarnation != self.incarnation:
                token_of(event).answer(verdict or E.NOT_COORDINATOR)
            else:
                self.feed_group(group, event)

        token = Token(self, added, incarnation, direct=True)
        adding = AddPartitions(token, event.producer_id, event.producer_epoch, [OFFSETS], 2)
        self.feed_transaction(name, adding)

    # --- the coordinator's shell ----------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """The machine of a group."""
        return self.groups.setdefault(name, Group(name, CONFIG))

    def transaction(self, name: str) -> Transaction:
        """The machine of a transactional id."""
        return self.transactions.setdefault(name, Transaction(name, self.txn_config))

    def feed_group(self, name: str, event: object) -> None:
        """One event, its actions, and when to look again."""
        machine = self.group(name)
        _, actions = classic_machine.step(machine, event, self.now)
        self.carry_out(name, actions, self.feed_group, OFFSETS)
        if classic_state.is_disposable(machine):
            self.groups.pop(name, None)
        self._watch_group(name, machine)

    def _watch_group(self, name: str, machine: Group) -> None:
        self.wake(machine, lambda: self.groups.get(name) is machine, lambda: self.feed_group(name, Tick()))

    def feed_transaction(self, name: str, event: object) -> None:
        """The same for a transaction."""
        machine = self.transaction(name)
        _, actions = transaction_machine.step(machine, event, self.now)
        self.carry_out(name, actions, self.feed_transaction, STATE)
        if is_disposable(machine):
            self.transactions.pop(name, None)
        self._watch_transaction(name, machine)

    def _watch_transaction(self, name: str, machine: Transaction) -> None:
        self.wake(
            machine,
            lambda: self.transactions.get(name) is machine,
            lambda: self.feed_transaction(name, Tick()),
        )

    def wake(self, machine: Group | Transaction, alive: Callable[[], bool], tick: Callable[[], None]) -> None:
        """Tick no later than the machine wants."""
        due = machine.wake_at_ms
        if due > self.now_ms + 10_000_000:
            return

        def fire() -> None:
            if alive() and machine.wake_at_ms <= self.now_ms:
                tick()

        self.later(due - self.now_ms, fire)

    def carry_out(self, name: str, actions: Any, feed: Callable[[str, object], None], log: TopicPartition) -> None:
        """Replies go out, appends and markers into the queues of their logs."""
        for action in actions:
            if isinstance(action, Reply):
                assert isinstance(action.token, Token)
                action.token.answer(action.result)
            elif isinstance(action, Append):
                self._queue_append(name, action, feed, log)
            else:
                assert isinstance(action, WriteMarkers)
                self._queue_markers(name, action)

    def _queue_append(self, name: str, action: Append, feed: Callable[[str, object], None], log: TopicPartition) -> None:
        item = Written("records", name, tuple(action.records), action.producer_id, action.producer_epoch)
        # The log keeps values, as bytes would be: the machine may change its own objects afterwards.
        item.records = tuple(
            replace(record, value=replace(record.value)) if isinstance(record, OffsetRecord) and record.value else record
            for record in item.records
        )
        self.put(log, item, lambda error, offset: feed(name, Appended(action.id, error, offset)))

    def _queue_markers(self, name: str, action: WriteMarkers) -> None:
        partitions = sorted(action.partitions)
        self.random.shuffle(partitions)
        left = len(partitions)
        errors: list[int] = []

        def one(partition: TopicPartition) -> Callable[[int, int], None]:
            def ended(error: int, offset: int) -> None:
                nonlocal left
                left -= 1
                errors.append(error)
                if partition == OFFSETS and not error:
                    self._tell_groups(action)
                if not left:
                    refused = [e for e in errors if e not in (E.NONE, E.INVALID_PRODUCER_EPOCH)]
                    self.feed_transaction(name, MarkersWritten(not refused))

            return ended

        if not partitions:
            incarnation = self.incarnation
            self.later(0, lambda: self._no_markers(name, incarnation))
        for partition in partitions:
            item = Written(
                "marker",
                producer_id=action.producer_id,
                producer_epoch=action.producer_epoch,
                commit=action.commit,
                version=action.version,
            )
            self.put(partition, item, one(partition))

    def _no_markers(self, name: str, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self.feed_transaction(name, MarkersWritten(True))

    def _tell_groups(self, action: WriteMarkers) -> None:
        for name in list(self.groups):
            self.feed_group(name, Marker(action.producer_id, action.commit))

    def put(self, log: TopicPartition, item: Written, ended: Callable[[int, int], None]) -> None:
        """An append begins; it ends after a while, unless the coordinator is gone by then."""
        self.logs[log].queue.append((item, ended))
        incarnation = self.incarnation
        self.later(self.random.randrange(0, 8), lambda: self._disk(log, incarnation))

    def _disk(self, name: TopicPartition, incarnation: int) -> None:
        log = self.logs[name]
        if incarnation != self.incarnation or not log.queue:
            return
        item, ended = log.queue.popleft()
        if self.fault(0.01):
            self.count("append refused")
            ended(E.NOT_ENOUGH_REPLICAS, -1)
            return
        offset = log.offset()
        error = log.append(item)
        ended(error, offset if not error else -1)
        if name == OFFSETS:
            self.check_offsets()

    # --- crashes --------------------------------------------------------------------------------------------

    def maybe_crash(self) -> None:
        """Every few seconds it may happen."""
        if self.fault(0.25):
            self.crash()
        if self.faults:
            self.later(self.random.randrange(1_000, 8_000), self.maybe_crash)

    def crash(self) -> None:
        """Forget everything but the logs; of what was on its way a first part has arrived."""
        self.count("crash")
        self.incarnation += 1
        for log in self.logs.values():
            arrives = self.random.randint(0, len(log.queue))
            for item, _ in list(log.queue)[:arrives]:
                log.append(item)
            log.queue.clear()
        self.groups.clear()
        self.transactions.clear()
        self._load_groups()
        self._load_transactions()
        self.check_offsets()

    def _load_groups(self) -> None:
        offset = 0
        for item in self.logs[OFFSETS].written:
            if item.kind == "marker":
                for group in self.groups.values():
                    group.offsets.end_transaction(item.producer_id, item.commit)
            for record in item.records:
                assert isinstance(record, OffsetRecord | GroupRecord)
                if isinstance(record, OffsetRecord) and record.value is not None:
                    record = replace(record, value=replace(record.value))
                classic_machine.load(self.group(item.owner), record, offset, item.producer_id)
                offset += 1
            offset += 0 if item.records else 1
        for name, group in list(self.groups.items()):
            classic_machine.loaded(group, self.now)
            if classic_state.is_disposable(group):
                del self.groups[name]
            else:
                self._watch_group(name, group)

    def _load_transactions(self) -> None:
        for item in self.logs[STATE].written:
            for record in item.records:
                assert isinstance(record, TransactionRecord)
                transaction_machine.load(self.transaction(item.owner), record)
        for name, machine in list(self.transactions.items()):
            self.carry_out(name, transaction_machine.loaded(machine, self.now), self.feed_transaction, STATE)
            self._watch_transaction(name, machine)

    # --- checks ---------------------------------------------------------------------------------------------

    def require(self, holds: bool, what: str) -> None:
        """Raise Violation with the seed."""
        if not holds:
            raise Violation(f"seed {self.seed} at {self.now_ms} ms: {what}")

    def owned(self, group: str, generation: int, partition: int, member: str) -> None:
        """A member was given a partition."""
        owner = self.owners.setdefault((group, generation, partition), member)
        self.require(owner == member, f"{group} generation {generation}: {partition} is {owner}'s and {member}'s")

    def handed_out(self, group: str, generation: int) -> None:
        """A generation was handed out with an assignment."""
        highest = self.highest_generation.get(group, 0)
        self.require(generation >= highest, f"{group}: generation {generation} after {highest}")
        self.highest_generation[group] = generation

    def check_offsets(self) -> None:
        """What the groups show is what the log says."""
        expected = self.reader.read(self.logs[OFFSETS].written)
        shown = {
            (name, key): value.offset for name, group in self.groups.items() for key, value in group.offsets.committed.items()
        }
        self.require(shown == expected, f"groups show {shown}, the log says {expected}")

    def check_rest(self) -> None:
        """Some time after the last fault everybody who lives has work, and nothing hangs."""
        for name, group in self.groups.items():
            alive = {m.id for m in self.members if m.alive and m.group == name}
            if alive:
                self.require(group.state is GroupState.STABLE, f"{name} is {group.state.value} at rest")
                self.require(set(group.members) == alive, f"{name} has {set(group.members)}, alive are {alive}")

    def check(self) -> None:
        """What must hold of the whole run."""
        for name, machine in self.transactions.items():
            facts = machine.facts
            assert facts is not None
            settled = facts.state not in (*PREPARED, TransactionState.ONGOING)
            self.require(settled, f"{name} is still {facts.state.shown}")
        outcomes: dict[int, set[bool]] = {}
        for partition in DATA:
            for number, committed in self._outcomes(self.logs[partition]):
                outcomes.setdefault(number, set()).add(committed)
        for number, found in outcomes.items():
            self.require(len(found) == 1, f"transaction {number} is committed and aborted")
            [committed] = found
            self.require(not committed or number in self.asked_commit, f"{number}: nobody asked for this commit")
            told = self.answered.get(number, committed)
            self.require(told == committed, f"{number}: answered {told}, the partitions say {committed}")
        self._check_transaction_log()
        log = [record for item in self.logs[OFFSETS].written for record in item.records]
        stored = {(r.topic, r.partition, r.value.offset) for r in log if isinstance(r, OffsetRecord) and r.value}
        for _, key, offset in self.acknowledged:
            self.require((*key, offset) in stored, f"the acknowledged commit {key}={offset} is in no log")

    def _outcomes(self, log: Log) -> list[tuple[int, bool]]:
        found: list[tuple[int, bool]] = []
        pending: dict[int, list[int]] = {}
        for item in log.written:
            if item.kind == "data":
                pending.setdefault(item.producer_id, []).append(item.transaction)
            elif item.kind == "marker":
                found += [(number, item.commit) for number in pending.pop(item.producer_id, [])]
        left = [number for numbers in pending.values() for number in numbers]
        self.require(not left, f"{log.name} has hanging transactions {left}")
        return found

    def _check_transaction_log(self) -> None:
        """A decision is followed by its own completion only."""
        allowed = {
            TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
            TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
        }
        last: dict[str, Facts] = {}
        for item in self.logs[STATE].written:
            for record in item.records:
                assert isinstance(record, TransactionRecord) and record.value is not None
                before = last.get(item.owner)
                if before is not None and before.state in allowed:
                    holds = record.value.state is allowed[before.state]
                    self.require(holds, f"{item.owner}: {record.value.state.shown} after {before.state.shown}")
                last[item.owner] = record.value


@dataclass
class Token:
    """The way back of one request; an answer of a coordinator that is gone gets lost."""

    world: World
    finish: Callable[[Any], None]
    incarnation: int = -1
    answered: bool = False
    direct: bool = False  # asked inside the broker: nothing gets lost
    version: int = 0
    transactional_id: str = ""
    on_answer: Callable[[Any], None] | None = None

    def answer(self, result: Any) -> None:
        """The coordinator's reply."""
        self.world.require(not self.answered, "a request is answered twice")
        self.answered = True
        if self.on_answer is not None:
            self.on_answer(result)
        if self.direct:
            self.finish(result)
        elif not self.world.fault(0.02):
            self.world.later(self.world.random.randrange(1, 40), lambda: self.finish(result))


def token_of(event: Any) -> Token:
    """To the machines a token is any object."""
    assert isinstance(event.token, Token)
    return event.token


class Member:
    """A consumer: joins, syncs, beats, commits; may leave, die, or come back under its instance id."""

    def __init__(self, world: World, group: str, instance: str | None) -> None:
        self.world = world
        self.group = group
        self.instance = instance
        self.id = ""
        self.generation = -1
        self.parts: tuple[int, ...] = ()
        self.alive = True
        self.life = 0
        self.offset = itertools.count(1)

    def start(self) -> None:
        """Begin (again) without an id."""
        self.alive = True
        self.life += 1
        self.id, self.generation = "", -1
        self.join()

    def _then(self, action: Callable[[Any], None]) -> Callable[[Any], None]:
        """Only if it is still the same life of this member."""
        life = self.life
        return lambda answer: action(answer) if self.alive and self.life == life else None

    def join(self) -> None:
        """Ask to be in the next generation."""
        world = self.world
        event = classic_events.Join(
            None,
            self.id,
            f"m{next(world.next_member_id)}",
            self.instance,
            self.instance is None,
            bool(world.random.getrandbits(1)),
            "c",
            "/h",
            REBALANCE_MS,
            SESSION_MS,
            "consumer",
            (("range", b""),),
        )
        world.ask("join", self.group, event, self._then(self.joined))

    def joined(self, answer: classic_events.JoinResult | None) -> None:
        """Sync, or try again."""
        if answer is None or answer.error in (E.REBALANCE_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE):
            self.join()
        elif answer.error == E.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            self.join()
        elif answer.error == E.FENCED_INSTANCE_ID:
            self.alive = False
        elif answer.error:
            self.id = ""
            self.world.later(500, lambda: self._then(lambda _: self.join())(None))
        else:
            self.id, self.generation = answer.member_id, answer.generation
            self.sync(answer)

    def sync(self, joined: classic_events.JoinResult) -> None:
        """The leader shares out six partitions."""
        shares: dict[str, bytes] = {}
        if joined.leader == self.id and not joined.skip_assignment:
            ids = [member for member, _, _ in joined.members]
            shares = {member: bytes(range(n, 6, len(ids))) for n, member in enumerate(ids)}
        event = classic_events.Sync(None, self.id, self.instance, self.generation, None, None, shares)
        generation = self.generation
        self.world.ask("sync", self.group, event, self._then(lambda answer: self.synced(answer, generation)))
        if event.token is not None:
            member = self.id
            token_of(event).on_answer = lambda result: self.given(result, generation, member)

    def given(self, result: classic_events.SyncResult, generation: int, member: str) -> None:
        """What the coordinator hands out, whether or not the answer arrives."""
        if not result.error:
            self.world.handed_out(self.group, generation)
            self.world.count("assignment")
            if self.instance is None:  # A static member's share passes to its next id.
                for partition in result.assignment:
                    self.world.owned(self.group, generation, partition, member)

    def synced(self, answer: classic_events.SyncResult | None, generation: int) -> None:
        """Work, or join again."""
        if answer is None or answer.error:
            if answer is not None and answer.error == E.UNKNOWN_MEMBER_ID:
                self.id = ""
            if answer is not None and answer.error == E.FENCED_INSTANCE_ID:
                self.alive = False
                return
            self.join()
            return
        self.parts = tuple(answer.assignment)
        self.work()

    def work(self) -> None:
        """One round: mostly a heartbeat or a commit."""
        world = self.world
        if world.fault(0.03):
            world.count("member died")
            self.alive = False
            world.later(world.random.randrange(100, 20_000), self.start)
        elif world.fault(0.03):
            event = classic_events.Leave(None, [(self.id, self.instance)])
            world.ask("leave", self.group, event, lambda answer: None)
            self.alive = False
            world.later(world.random.randrange(100, 20_000), self.start)
        elif self.parts and world.random.random() < 0.4:
            self.commit()
        else:
            beat = classic_events.Heartbeat(None, self.id, self.instance, self.generation)
            world.ask("heartbeat", self.group, beat, self._then(self.beaten))

    def commit(self) -> None:
        """Commit one of its partitions, or one that transactions commit as well."""
        key = ("topic", self.world.random.choice(self.parts))
        if self.world.random.random() < 0.3:
            key = ("input", self.world.random.randrange(2))
        offset = self.generation * 1_000_000 + next(self.offset)
        commits = {key: Committed(offset, -1, "", -1)}
        event = Commit(None, self.id, self.instance, self.generation, commits)
        self.world.ask("commit", self.group, event, self._then(self.beaten))
        if event.token is not None:

            def note(result: Any) -> None:
                if isinstance(result, dict) and not result[key]:
                    self.world.count("commit")
                    self.world.acknowledged.append((self.group, key, offset))

            token_of(event).on_answer = note

    def beaten(self, answer: Any) -> None:
        """Go on, or join again."""
        error = next(iter(answer.values())) if isinstance(answer, dict) else answer
        if error in (E.UNKNOWN_MEMBER_ID,):
            self.id = ""
            self.join()
        elif error == E.FENCED_INSTANCE_ID:
            self.alive = False
        elif error in (E.ILLEGAL_GENERATION, E.REBALANCE_IN_PROGRESS):
            self.join()
        else:
            self.world.later(self.world.random.randrange(500, 3_000), lambda: self._then(lambda _: self.work())(None))


class Producer:
    """A transactional producer of one version of the protocol; two of them may share an identity and fence each other."""

    def __init__(self, world: World, name: str, group: str, version: int) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.version = version
        self.id, self.epoch = -1, -1
        self.number = -1
        self.sequences: dict[TopicPartition, int] = {}
        self.unsure = False  # a batch may or may not have been stored
        self.stopped = False
        self.offset = itertools.count(1)

    def start(self) -> None:
        """Become the one producer of this identity."""
        if not self.stopped:
            self.ask(Init(None, TXN_TIMEOUT_MS), self.initialised)

    def ask(self, event: Any, then: Callable[[Any], None]) -> None:
        """A request to the transaction coordinator."""
        self.world.ask("transaction", self.name, event, then)

    def again(self) -> None:
        """Start over after a while, as a restarted process would."""
        self.world.later(self.world.random.randrange(1_000, 15_000), self.start)

    def go_on_as(self, producer_id: int, epoch: int) -> None:
        """Sequences begin at 0 in each epoch."""
        if (producer_id, epoch) != (self.id, self.epoch):
            self.sequences.clear()
            self.unsure = False
        self.id, self.epoch = producer_id, epoch

    def initialised(self, answer: ProducerResult | None) -> None:
        """Begin, or wait for an older transaction to end."""
        if answer is None or answer.error:
            self.world.later(100, self.start)
            return
        self.go_on_as(answer.producer_id, answer.producer_epoch)
        self.begin()

    def begin(self) -> None:
        """A new transaction over some data partitions, often with offsets."""
        if self.stopped:
            return
        self.number = next(self.world.next_transaction)
        count = self.world.random.randint(1, len(DATA))
        partitions = self.world.random.sample(DATA, count)
        with_offsets = self.world.random.random() < 0.7
        if self.version >= 2:
            self.added(E.NONE, partitions, with_offsets)
            return
        wanted = [*partitions, *([OFFSETS] if with_offsets else [])]
        event = AddPartitions(None, self.id, self.epoch, wanted)
        self.ask(event, lambda answer: self.added(answer, partitions, with_offsets))

    def added(self, answer: int | None, partitions: list[TopicPartition], with_offsets: bool) -> None:
        """Write."""
        if answer == E.CONCURRENT_TRANSACTIONS:
            self.world.later(50, self.begin)
        elif answer != E.NONE:
            self.again()
        elif self.world.fault(0.05):
            self.world.count("producer paused")
            pause = self.world.random.randrange(TXN_TIMEOUT_MS * 2)
            self.world.later(pause, lambda: self.write(partitions, with_offsets))
        else:
            self.write(partitions, with_offsets)

    def write(self, partitions: list[TopicPartition], with_offsets: bool) -> None:
        """One batch to each partition, one after the other."""
        if not partitions:
            self.write_offsets(with_offsets)
            return
        partition = partitions[0]
        sequence = self.sequences.get(partition, 0)
        item = Written(
            "data",
            producer_id=self.id,
            producer_epoch=self.epoch,
            transaction=self.number,
            sequence=sequence,
            version=self.version,
        )
        self.unsure = True
        self.send(item, partitions, with_offsets, self.world.random.choice((0, 0, 4)))

    def send(self, item: Written, partitions: list[TopicPartition], with_offsets: bool, tries: int) -> None:
        """Send it until it is stored; not for ever."""

        def answered(error: int | None) -> None:
            if error == E.NONE:
                self.unsure = False
                self.sequences[partitions[0]] = item.sequence + 1
                self.write(partitions[1:], with_offsets)
            elif error == E.INVALID_PRODUCER_EPOCH:
                self.world.count("zombie refused")
                self.fenced()
            elif tries and error in (None, E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_ENOUGH_REPLICAS):
                pause = self.world.random.randrange(20, 200)
                self.world.later(pause, lambda: self.send(item, partitions, with_offsets, tries - 1))
            elif error is None or error == E.TRANSACTION_ABORTABLE:
                self.end(commit=False)
            else:
                self.again()

        self.world.produce(self.name, partitions[0], item, answered)

    def fenced(self) -> None:
        """Start over; with version 2 an abort may tell the epoch to go on with."""
        if self.version >= 2 and self.world.random.random() < 0.5:
            self.end(commit=False)
        else:
            self.again()

    def write_offsets(self, with_offsets: bool) -> None:
        """The group's offsets, if this transaction has some."""
        if not with_offsets:
            self.end()
            return
        key = ("input", self.world.random.randrange(2))
        commits = {key: Committed(self.number * 1_000 + next(self.offset), -1, "", -1)}
        event = Commit(None, "", None, -1, commits, producer_id=self.id, producer_epoch=self.epoch)
        self.world.ask("commit", self.group, event, self.offsets_written)
        if event.token is not None:
            token_of(event).transactional_id = self.name
            token_of(event).version = self.version

    def offsets_written(self, answer: Any) -> None:
        """End, if they were taken."""
        if isinstance(answer, dict) and not any(answer.values()):
            self.world.count("offsets in a transaction")
            self.end()
        else:
            self.end(commit=False)

    def end(self, commit: bool | None = None) -> None:
        """Commit mostly; sometimes abort, sometimes just die."""
        if self.world.fault(0.1):
            self.world.count("producer died")
            self.again()
            return
        wanted = self.world.random.random() < 0.7 if commit is None else commit
        if wanted:
            self.world.asked_commit.add(self.number)
        self.ask_end(wanted, self.number)

    def ask_end(self, commit: bool, number: int) -> None:
        """EndTxn, also again."""
        event = End(None, self.id, self.epoch, commit, self.version >= 2)
        self.ask(event, lambda answer: self.ended(answer, commit, number))

    def ended(self, answer: ProducerResult | None, commit: bool, number: int) -> None:
        """The next one; an answer that got lost is asked for again."""
        if answer is None or answer.error in (E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_NOT_AVAILABLE):
            self.world.later(50, lambda: self.ask_end(commit, number))
        elif answer.error:
            self.again()
        else:
            self.world.count(f"{'committed' if commit else 'aborted'} v{self.version}")
            self.world.count("committed" if commit else "aborted")
            self.world.answered[number] = commit
            self.go_on_as(answer.producer_id, answer.producer_epoch)
            # A batch of the first protocol that may still come could join the next transaction: that takes a new epoch.
            next_step = self.again if self.unsure else self.begin
            self.world.later(self.world.random.randrange(20, 1_000), next_step)
