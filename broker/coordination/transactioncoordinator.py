"""The transaction coordinator: producer ids, transactional ids, and the markers of their transactions.

Markers of a transaction are appended to the data partitions as the shell appends records, in a cluster by the leaders of
these; after one in `__consumer_offsets` the groups of that partition hear of it, so that the offsets of the transaction
become visible or vanish with it (`markers.py`, `delivery.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock import log
from penstock.broker.configs.features import TRANSACTION_VERSION
from penstock.broker.configs.flushes import Flushes
from penstock.broker.coordination import powercut, statelog
from penstock.broker.coordination.delivery import Delivery
from penstock.broker.coordination.flushing import LogFlusher
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.leads import Lead, Loading
from penstock.broker.coordination.losses import Losses, is_ongoing
from penstock.broker.coordination.machines import Now, TopicPartition
from penstock.broker.coordination.markers import FENCED, Markers, is_done
from penstock.broker.coordination.parts import BrokerSender, Parts
from penstock.broker.coordination.producerids import BELIEVED, ProducerIds
from penstock.broker.coordination.shell import Coordinator
from penstock.broker.coordination.timers import Entry
from penstock.broker.coordination.transactions import machine as transaction_machine
from penstock.broker.coordination.transactions.events import (
    AddPartitions,
    End,
    Init,
    MarkersLate,
    MarkersWritten,
    PowerCut,
    ProducerResult,
    RecordsLost,
    TopicDeleted,
    WriteMarkers,
)
from penstock.broker.coordination.transactions.partitions import verify
from penstock.broker.coordination.transactions.producers import needs_producer_id
from penstock.broker.coordination.transactions.state import (
    RETRY_MS,
    Facts,
    Transaction,
    TransactionConfig,
    TransactionRecord,
    TransactionState,
    is_disposable,
    is_fenced,
)
from penstock.broker.topic import TRANSACTION_STATE, partition_in
from penstock.broker.transactionmessages import Fate, Marker, MarkerAnswer, OpenTransaction, TopicIds
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.record.rawbatch import RawBatch

BEFORE_MARKERS = declare("coordinator.before_markers", "in a cluster: a transaction is decided, its markers aren't sent")
AFTER_MARKERS = declare("coordinator.after_markers", "all markers are appended, completion isn't stored")

# Markers that are written before the loop may do something else; a transaction of more partitions takes turns.
MARKERS_AT_ONCE = 64
# Producers that are fenced before the loop may do something else.
FENCED_AT_ONCE = 200
# How often it is looked whether the fences of a log that was led uncleanly are stored.
FENCED_LOOK_S = 0.05
# In a cluster: the client hears of a decision after this time, though its markers are still on their way.
LATE_S = 0.2

_log = log.get(__name__)


@dataclass(slots=True, eq=False)
class TransactionLoading(Loading[Transaction]):
    """Transactional ids as they are read."""

    epochs: dict[str, int] = field(default_factory=dict)
    """In which leader epoch the newest record of each was written."""


class TransactionCoordinator(Coordinator[Transaction]):
    """Producer ids and transactions: `context.transactions`."""

    topic = TRANSACTION_STATE

    def __init__(self, parts: Parts, group_coordinator: GroupCoordinator) -> None:
        super().__init__(parts)
        self.markers = Markers(parts, group_coordinator)
        self._delivery = Delivery(parts, self.markers)
        self._losses = Losses(parts)
        config = parts.config
        self._config = TransactionConfig(config["transactional.id.expiration.ms"], config["transaction.max.timeout.ms"])
        self.producer_ids = ProducerIds(parts.store, parts.node_id, self._highest_producer_id, parts.now_ms)
        self._flushes = Flushes.of(config["penstock.transaction.flush"])
        self._flusher = LogFlusher(parts.log_manager, self._folder_of)
        self._outdated: dict[str, int] = {}
        """Ids that are still to be fenced, as an unclean election of their log may have taken their newest states; with the
        partition of each."""
        self.is_cut = False
        """What wasn't flushed may be gone, until `after_power_cut`."""
        self.was_flushed = Flushes.NONE
        """Which transactions were flushed before that power cut."""

    def _new(self, name: str) -> Transaction:
        return Transaction(name, self._config)

    def _step(self, machine: Transaction, event: object, now: Now) -> tuple[Transaction, Sequence[object]]:
        self._config.version = self._parts.features.level(TRANSACTION_VERSION)
        return transaction_machine.step(machine, event, now)

    def _disposable(self, machine: Transaction) -> bool:
        return is_disposable(machine)

    def _resign(self, machine: Transaction) -> Sequence[object]:
        return transaction_machine.resign(machine)

    def _encode(self, name: str, record: object) -> statelog.KeyValue:
        return statelog.encode_transaction_record(name, record)

    def _topics_of(self, machine: Transaction) -> Iterable[str]:
        return () if machine.facts is None else (topic for topic, _ in machine.facts.partitions)

    def _deletion(self, topic: str) -> TopicDeleted:
        return TopicDeleted(topic)

    async def init(self, name: str, event: Init) -> ProducerResult:
        """InitProducerId of a transactional id. Raises KafkaError."""
        self._check_recovered()
        result = await self._ask_with_id(name, event)
        await self._flush_answer(name, result)  # an epoch that is lost would be given to another
        return result

    async def end(self, name: str, event: End) -> ProducerResult:
        """EndTxn. Raises KafkaError."""
        self._check_recovered()
        if event.commit and self._covers(name):
            await self._flush_written(name)
        cluster = self._parts.cluster
        if event.commit and cluster is not None:
            await self._abort_if_lost(cluster, name)
        result = await self._ask_with_id(name, event)
        if not event.raises_epoch:
            # The next transaction has the same epoch: should its records survive the completion of this one, the markers
            # that are written again would end it.
            await self._flush_answer(name, result)
        return result

    async def add(
        self,
        name: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        client_version: int = 0,
        topic_ids: TopicIds | None = None,
    ) -> int:
        """Add partitions to a transaction; an error code. producer: id and epoch. topic_ids: of their topics; None: as this
        broker shows them. Raises KafkaError."""
        ids = self._topic_ids_of(partitions) if topic_ids is None else topic_ids
        unclean_epochs = self._losses.unclean_epochs_of(partitions, ids)
        error: int = await self.ask(name, AddPartitions(None, *producer, partitions, client_version, ids, unclean_epochs))
        return error

    async def _abort_if_lost(self, cluster: BrokerSender, name: str) -> None:
        """Abort the transaction that is to be committed if records of it may be lost. Raises KafkaError if that isn't known."""

        def ongoing() -> Facts | None:
            machine = self.find(name)
            return None if machine is None or not is_ongoing(machine.facts) else machine.facts

        if not await self._losses.wait_for_leaders(cluster, ongoing):
            entry = self.entries.get(name)
            if entry is not None:
                self._abort_lost(entry)

    def _abort_lost(self, entry: Entry[Transaction]) -> bool:
        """Abort a transaction if records of it may be lost; whether it has to be tried again. What is committed stays so, with
        words."""
        facts = entry.machine.facts
        lost = [] if facts is None else self._losses.find(facts)
        if facts is None or not lost:
            return False
        if facts.state is TransactionState.ONGOING and not entry.machine.changing:
            _log.warning(
                "transactional_id=%s producer_id=%d epoch=%d: an unclean election may have taken records of its transaction in "
                "%s: it is aborted, and its producer fenced", entry.name, facts.producer_id, facts.producer_epoch, lost[:5],
            )  # fmt: skip
            self._feed(entry, RecordsLost())
        elif facts.state is TransactionState.PREPARE_COMMIT:
            _log.error(
                "transactional_id=%s producer_id=%d epoch=%d: its transaction was committed, and an unclean election may have "
                "taken records of it in %s since", entry.name, facts.producer_id, facts.producer_epoch, lost[:5],
            )  # fmt: skip
        facts = entry.machine.facts
        return entry.machine.changing and is_ongoing(facts)

    def led_uncleanly(self, partitions: Collection[TopicPartition]) -> None:
        """Unclean elections of these are shown: abort the transactions that may have lost records there."""
        if partitions:
            self.spawn(self._abort_all_lost(frozenset(partitions)))

    async def _abort_all_lost(self, partitions: frozenset[TopicPartition]) -> None:
        entries = list(self.entries.values())
        while entries:
            again = []
            async for entry in Turns(self._order).each(entries):
                facts = entry.machine.facts
                if self.entries.get(entry.name) is not entry or facts is None or partitions.isdisjoint(facts.partitions):
                    continue
                if self._abort_lost(entry):
                    again.append(entry)
            entries = again
            if entries:
                await asyncio.sleep(RETRY_MS / 1000)

    async def _flush_answer(self, name: str, result: ProducerResult) -> None:
        """With `penstock.transaction.flush`: what an answer says is on the disk before it is given. Raises KafkaError."""
        entry = self.entries.get(name)
        if not self._covers(name) or result.error != ErrorCode.NONE or entry is None:
            return
        if not await self._flush([(self.topic, entry.partition)]):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the state of {name} can't be flushed now")

    def _covers(self, name: str) -> bool:
        """Whether what a transactional id's transactions write is flushed. In a cluster a power cut takes one of the copies."""
        return self.is_alone and self._flushes.covers(name)

    def _check_recovered(self) -> None:
        if self.is_cut:  # Until all logs are open nobody can tell what is left of a transaction.
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a power cut came between: all logs must be open first")

    async def _flush_written(self, name: str) -> None:
        """Flush what the ongoing transaction has written. Raises KafkaError."""
        flushed: frozenset[TopicPartition] = frozenset()
        while (machine := self.find(name)) is not None and machine.facts is not None:
            left = frozenset(one for one in machine.facts.partitions - flushed if not self._is_deleted(one))
            if machine.facts.state is not TransactionState.ONGOING or not left:
                return
            if not await self._flush(left):
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the records of {name} can't be flushed now")
            flushed |= left

    async def _flush(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether what these logs have now is on the disk."""
        try:
            await self._flusher.flush(partitions)
        except (KafkaError, OSError) as error:
            _log.warning("flush failed: %s partitions=%s", error, sorted(partitions))
            return False
        return True

    async def _ask_with_id(self, name: str, event: Init | End) -> ProducerResult:
        await self.ensure_topic()
        while event.fresh_producer_id < 0:
            machine = self.find(name) or self._new(name)
            if not needs_producer_id(machine, event):
                break
            event.fresh_producer_id = await self.producer_ids.next()
        result: ProducerResult = await self.ask(name, event)
        return result

    async def _highest_producer_id(self) -> int:
        """The largest producer id that a log or a transactional id knows, -1 without one. Raises KafkaError."""
        loop = asyncio.get_running_loop()
        highest: int = await loop.run_in_executor(None, self._parts.log_manager.highest_producer_id, BELIEVED)
        for transaction in self.live():
            facts = transaction.facts
            assert facts is not None
            ids = (facts.producer_id, facts.previous_producer_id, facts.next_producer_id)
            highest = max(highest, *(one for one in ids if one < BELIEVED), -1)
        return highest

    def _topic_ids_of(self, partitions: Iterable[TopicPartition]) -> TopicIds:
        """Of which topics these are, as this broker shows them. On one node nothing is known by ids: a deleted topic leaves the
        transactions before another one has its name."""
        if self._parts.cluster is None:
            return frozenset()
        topics = {name: self._parts.topics.get(name) for name, _ in partitions}
        return frozenset((name, topic.topic_id) for name, topic in topics.items() if topic is not None)

    def verify(self, name: str, producer_id: int, producer_epoch: int, partition: TopicPartition, topic_id: bytes = b"") -> int:
        """Whether a partition is in the ongoing transaction of that producer: an error code. topic_id: of its log."""
        try:
            machine = self.look_up(name)
        except KafkaError as error:
            return error.code
        return (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
            if machine is None
            else verify(machine, producer_id, producer_epoch, partition, topic_id)
        )

    def _act(self, entry: Entry[Transaction], action: object) -> object | None:
        assert isinstance(action, WriteMarkers)
        if self._parts.cluster is not None:
            self.spawn(self._deliver(self._parts.cluster, entry, action))
            return None
        if self._covers(entry.name) or len(action.partitions) > MARKERS_AT_ONCE:
            self.spawn(self._write_many(entry, action))
            return None
        partitions = sorted(action.partitions)
        return self._markers_written(self._write(entry, action, partitions))

    async def _deliver(self, cluster: BrokerSender, entry: Entry[Transaction], action: WriteMarkers) -> None:
        """In a cluster."""
        marker = self._marker(entry, action)
        late = asyncio.get_running_loop().call_later(LATE_S, self._feed, entry, MarkersLate())
        try:
            failpoint(BEFORE_MARKERS)
            delivered = await self._delivery.deliver(
                cluster, marker, action.partitions, lambda: self.entries.get(entry.name) is entry, action.topic_ids
            )
        except Exception:  # noqa: BLE001 - without its markers the transaction would hang: they are sent again
            _log.exception("the markers of %s can't be sent", entry.name)
            delivered = False
        finally:
            late.cancel()
        self._feed(entry, self._markers_written(delivered))  # Which has no effect on an entry that was forgotten.

    def _marker(self, entry: Entry[Transaction], action: WriteMarkers) -> Marker:
        epoch = self.epoch_of(entry.partition)
        return Marker(action.producer_id, action.producer_epoch, action.commit, epoch, action.version)

    async def _write_many(self, entry: Entry[Transaction], action: WriteMarkers) -> None:
        """In turns with the loop's other work; with `penstock.transaction.flush` a commit's decision is on the disk before
        its markers are written, and they are before the transaction is complete."""
        partitions, flushes = sorted(action.partitions), self._covers(entry.name)
        decided = all_written = not (flushes and action.commit) or await self._flush([(self.topic, entry.partition)])
        if decided:
            for at in range(0, len(partitions), MARKERS_AT_ONCE):
                all_written &= self._write(entry, action, partitions[at : at + MARKERS_AT_ONCE])
                await asyncio.sleep(0)
        if flushes and all_written:
            all_written = await self._flush([one for one in partitions if not self._is_deleted(one)])
        self._feed(entry, self._markers_written(all_written, decided))

    def _markers_written(self, all_written: bool, decided: bool = True) -> MarkersWritten:
        failpoint(AFTER_MARKERS)
        return MarkersWritten(all_written, decided)

    def _write(self, entry: Entry[Transaction], action: WriteMarkers, partitions: Sequence[TopicPartition]) -> bool:
        marker = self._marker(entry, action)
        all_written = True
        for partition in partitions:
            if self._is_deleted(partition):
                continue
            error = self.markers.write(partition, marker)
            is_open = error in FENCED and self.markers.has_open(partition, marker)
            all_written = is_done(MarkerAnswer(error, is_open)) and all_written
        return all_written

    def _folder_of(self, partition: TopicPartition) -> str:
        """The id of the log folder that a partition lies in; "" if there is no such partition."""
        state = partition_in(self._parts.topics.get(partition[0]), partition[1])
        return "" if state is None else state.directory

    def _is_deleted(self, partition: TopicPartition) -> bool:
        """Such a partition needs no marker; one whose log only isn't open yet does."""
        return partition_in(self._parts.topics.get(partition[0]), partition[1]) is None

    def _new_loading(self) -> TransactionLoading:
        return TransactionLoading()

    def _publish(self, loading: Loading[Transaction]) -> None:
        assert isinstance(loading, TransactionLoading)
        for name, entry in loading.entries.items():
            lead = self._leads.get(entry.partition)
            if lead is not None and powercut.is_outdated(loading.epochs[name], lead.unclean_epoch):
                self._outdated[name] = entry.partition

    def _load_batch(self, loading: Loading[Transaction], raw: RawBatch) -> None:
        assert isinstance(loading, TransactionLoading)
        if raw.is_control:
            return
        decode = statelog.decode_transaction_record
        for name, record, _, _ in statelog.read_records(raw, decode, self.topic, loading.partition, self._skip_corrupt):
            assert isinstance(record, TransactionRecord)
            entry = self._entry_of_record(loading, name)
            if entry is not None:
                transaction_machine.load(entry.machine, record)
                loading.epochs[name] = raw.leader_epoch

    def _loaded(self, entry: Entry[Transaction]) -> None:
        if entry.name in self._outdated:
            self._feed(entry, PowerCut())
        if not (entry.machine.changing or entry.machine.markers_in_flight):
            events: deque[object] = deque()
            self._carry_out(entry, transaction_machine.loaded(entry.machine, self.now()), events)
            while events:
                self._feed(entry, events.popleft())
        self._timers.arm(entry)
        if self._parts.cluster is not None:
            self._abort_lost(entry)

    async def _before_serving(self, partition: int, lead: Lead[Transaction]) -> None:
        """In a cluster: once the ids are fenced whose states may be older than what their producers have written."""
        outdated = [entry for name, entry in lead.entries.items() if name in self._outdated]
        if not outdated:
            return
        _log.warning(
            "topic=%s partition=%d: an unclean election in epoch %d may have taken states of transactions: %d transactional "
            "producers are fenced", self.topic, partition, lead.unclean_epoch, len(outdated),
        )  # fmt: skip
        while self._leads.get(partition) is lead and outdated:
            outdated = [entry for entry in outdated if not is_fenced(entry.machine)]
            for entry in outdated:
                self._feed(entry, PowerCut())
            if outdated:
                await asyncio.sleep(FENCED_LOOK_S)
        if self._leads.get(partition) is lead:
            self._forget(partition)

    def _forget(self, partition: int) -> None:
        self._outdated = {name: its for name, its in self._outdated.items() if its != partition}

    async def after_power_cut(self) -> None:
        """Once all logs are open: if a power cut came before this start, fence all producers, and end what they left open.

        See `powercut.py`.
        """
        if not self.is_cut:
            return
        logs = self._parts.log_manager
        found = await asyncio.get_running_loop().run_in_executor(None, powercut.find_open, logs, logs.partitions())
        states = powercut.by_producer_id(one.facts for one in self.live() if one.facts is not None)
        flushed = {
            producer_id
            for one in self.live()
            if one.facts is not None and self.was_flushed.covers(one.id)
            for producer_id in (one.facts.producer_id, one.facts.previous_producer_id)
        }
        fates = {one: powercut.fate(one, states, one.producer_id in flushed) for one in found}
        # Before the fences, which take away what the states say of the last end: a kill may come in between.
        for one, its_fate in fates.items():
            self._end_left_open(one, its_fate)
        fenced = ongoing = 0
        for entry in list(self.entries.values()):
            facts = entry.machine.facts
            if facts is not None:
                fenced += 1
                ongoing += facts.state is TransactionState.ONGOING
                self._feed(entry, PowerCut())
            if fenced % FENCED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self.is_cut = False
        _log.warning(
            "a power cut came before this start, or may have: fenced %d transactional producers, aborted %d ongoing "
            "transactions; %d others were open in logs",
            fenced, ongoing, sum(its_fate is not Fate.LISTED for its_fate in fates.values()),
        )  # fmt: skip

    def _end_left_open(self, one: OpenTransaction, its_fate: Fate) -> None:
        topic, index = one.partition
        what = f"topic={topic} partition={index} producer_id={one.producer_id} epoch={one.producer_epoch}"
        if its_fate is Fate.LISTED or not self.markers.is_open(one.partition, one.producer_id):
            return
        if its_fate is Fate.UNKNOWN or self._has_unreadable():
            _log.error(
                "a transaction is open and its outcome is lost: %s; consumers of committed records wait there until "
                "`kafka-transactions.sh abort` ends it", what,
            )  # fmt: skip
            return
        commit = its_fate is Fate.COMMIT
        marker = Marker(one.producer_id, one.producer_epoch, commit, max(0, one.coordinator_epoch))
        error = self.markers.write(one.partition, marker)
        said = "committed, as its state says" if commit else "aborted"
        if error == ErrorCode.NONE:
            _log.warning("a transaction that was open was %s: %s", said, what)

    async def stop(self) -> None:
        """As every coordinator; what is being flushed is waited for."""
        await super().stop()
        await self._flusher.stop()

    def live(self) -> Iterator[Transaction]:
        """Every transactional id that has a state."""
        return (entry.machine for entry in self.entries.values() if entry.machine.facts is not None)
