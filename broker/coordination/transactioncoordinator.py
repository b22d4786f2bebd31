"""The transaction coordinator: producer ids, transactional ids, and the markers of their transactions.

Markers of a transaction are appended to the data partitions as the shell appends records; after one in
`__consumer_offsets` the groups of that partition are told, so that the offsets of the transaction become
visible or vanish with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from penstock import log
from penstock.broker.configs.features import TRANSACTION_VERSION
from penstock.broker.context import Context
from penstock.broker.coordination import statelog
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.machines import Now, TopicPartition
from penstock.broker.coordination.producerids import BELIEVED, ProducerIds
from penstock.broker.coordination.shell import Coordinator, Entry
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
    Transaction,
    TransactionConfig,
    TransactionRecord,
    is_disposable,
)
from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.record.rawbatch import RawBatch, marker

BEFORE_MARKER = declare("coordinator.before_marker", "before each transaction marker is appended")
AFTER_MARKERS = declare("coordinator.after_markers", "all markers are appended, completion isn't stored")

# Markers that are written before the loop may do something else; a transaction of more partitions takes turns.
MARKERS_AT_ONCE = 64

# What a partition answers to a marker whose producer, or coordinator, is a newer one there.
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)

_log = log.get("broker.coordinator")


class TransactionCoordinator(Coordinator[Transaction]):
    """Producer ids and transactions: `context.transactions`."""

    topic = TRANSACTION_STATE

    def __init__(self, context: Context, group_coordinator: GroupCoordinator) -> None:
        super().__init__(context)
        self._groups = group_coordinator
        config = context.config
        self._config = TransactionConfig(config["transactional.id.expiration.ms"], config["transaction.max.timeout.ms"])
        self.producer_ids = ProducerIds(context.store, context.node_id, self._highest_producer_id)

    def _new(self, name: str) -> Transaction:
        return Transaction(name, self._config)

    def _step(self, machine: Transaction, event: object, now: Now) -> tuple[Transaction, Sequence[object]]:
        self._config.version = self._context.features.level(TRANSACTION_VERSION)
        return transaction_machine.step(machine, event, now)

    def _disposable(self, machine: Transaction) -> bool:
        return is_disposable(machine)

    def _resign(self, machine: Transaction) -> Sequence[object]:
        return transaction_machine.resign(machine)

    def _encode(self, name: str, record: object) -> statelog.KeyValue:
        return statelog.encode_transaction_record(name, record)

    async def init(self, name: str, event: Init) -> ProducerResult:
        """InitProducerId of a transactional id. Raises KafkaError."""
        return await self._ask_with_id(name, event)

    async def end(self, name: str, event: End) -> ProducerResult:
        """EndTxn. Raises KafkaError."""
        return await self._ask_with_id(name, event)

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
        highest: int = await loop.run_in_executor(None, self._context.partitions.highest_producer_id, BELIEVED)
        for transaction in self.live():
            facts = transaction.facts
            assert facts is not None
            ids = (facts.producer_id, facts.previous_producer_id, facts.next_producer_id)
            highest = max(highest, *(one for one in ids if one < BELIEVED), -1)
        return highest

    def add_now(self, name: str, event: AddPartitions) -> int:
        """Feed AddPartitions without waiting: an error code. Nothing can come in between it and the caller's append."""
        entry = self.entries.get(name)
        if entry is None:
            return self._unknown(name)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        event.token = answer
        self._feed(entry, event)
        return answer.result() if answer.done() else ErrorCode.CONCURRENT_TRANSACTIONS

    def verify(self, name: str, producer_id: int, producer_epoch: int, partition: TopicPartition) -> int:
        """Whether a partition is in the ongoing transaction of that producer: an error code."""
        machine = self.find(name)
        if machine is None:
            return self._unknown(name)
        return verify(machine, producer_id, producer_epoch, partition)

    def _unknown(self, name: str) -> int:
        """An id without a machine: nobody's, or of a partition that could not be read."""
        try:
            self.check_served(name)
        except KafkaError as error:
            return error.code
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING

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

    def _markers_written(self, all_written: bool) -> MarkersWritten:
        failpoint(AFTER_MARKERS)
        return MarkersWritten(all_written)

    def _write(self, entry: Entry[Transaction], action: WriteMarkers, partitions: Sequence[TopicPartition]) -> bool:
        epoch = self._context.topics.partition(self.topic, entry.partition).leader_epoch
        all_written = True
        for partition in partitions:
            if self._is_deleted(partition):
                continue
            error = self.write_marker(
                partition, action.producer_id, action.producer_epoch, action.commit, epoch, action.version
            )
            # A producer that was fenced there has none of this transaction open; where it has one, it isn't decided.
            written = error == ErrorCode.NONE or (error in FENCED and not self._has_open(partition, action.producer_id))
            all_written = all_written and written
        return all_written

    def _has_open(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether a producer has an open transaction in that partition, or nobody can know."""
        try:
            producers = self._context.partitions.producers(*partition)
        except KafkaError:
            return True
        return any(one.producer_id == producer_id and one.txn_first_offset >= 0 for one in producers)

    def _is_deleted(self, partition: TopicPartition) -> bool:
        """Such a partition needs no marker; one whose log only isn't open yet does."""
        topic = self._context.topics.get(partition[0])
        return topic is None or not 0 <= partition[1] < len(topic.partitions)

    def write_marker(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        version: int = 0,
    ) -> int:
        """Append a marker to a partition and tell the groups if it is one of theirs: an error code.

        From version 2 on (KIP-890) a marker whose epoch is that of an open transaction's records is refused: it is an
        older transaction's, come late.
        """
        failpoint(BEFORE_MARKER)
        topic, index = partition
        batch = marker(commit, producer_id, producer_epoch, coordinator_epoch, self._context.now_ms())
        partitions = self._context.partitions
        try:
            (partitions.append_marker if version >= 2 else partitions.append)(topic, index, batch)
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
        decode = statelog.decode_transaction_record
        for name, record, _, _ in statelog.read_records(raw, decode, self.topic, partition, self._skip_damaged):
            assert isinstance(record, TransactionRecord)
            entry = self._entry_of_record(name, partition)
            if entry is not None:
                transaction_machine.load(entry.machine, record)

    def _loaded(self, entry: Entry[Transaction]) -> None:
        events: deque[object] = deque()
        self._carry_out(entry, transaction_machine.loaded(entry.machine, self.now()), events)
        while events:
            self._feed(entry, events.popleft())
        self._timers.arm(entry)

    def live(self) -> Iterator[Transaction]:
        """Every transactional id that has a state."""
        return (entry.machine for entry in self.entries.values() if entry.machine.facts is not None)
