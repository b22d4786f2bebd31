"""A transactional id's state, and what of it is stored (TransactionLogValue)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from penstock.broker.coordination.machines import NEVER, InFlight, Now, TopicPartition
from penstock.broker.transactionmessages import TopicIds, UncleanEpochs

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
EPOCH_MAX = (1 << 15) - 1
# A producer never gets the last epoch: it is kept for the abort that fences it.
EPOCH_EXHAUSTED = EPOCH_MAX - 1
RETRY_MS = 500  # Markers or a Complete record that could not be written are tried again after this time.


class TransactionState(IntEnum):
    """The numbers are those of TransactionLogValue."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7  # Never stored; here for ListTransactions' filter.

    @property
    def shown(self) -> str:
        """Kafka's name of it: `PrepareCommit`."""
        return self.name.title().replace("_", "")


PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
COMPLETED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@dataclass(slots=True, frozen=True)
class Facts:
    """What a record of the log says about a transactional id. Timestamps are wall clock, ms."""

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    last_producer_epoch: int  # The epoch before the last bump that a producer asked for (KIP-360); else -1.
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int
    client_version: int  # 2: the last request that changed the transaction was of KIP-890's kind.
    last_end: tuple[int, bool] | None = None
    """Of transactions v2, the last complete transaction of this producer id: the epoch of its records, and whether it was
    committed. Each has an epoch of its own."""
    topic_ids: TopicIds = frozenset()  # In a cluster: of the topics that the partitions were added under.
    unclean_epochs: UncleanEpochs = frozenset()  # In a cluster: of the partitions, as they were when they were added.


@dataclass(slots=True, frozen=True)
class TransactionRecord:
    """A record of the log: the facts, or a tombstone when value is None."""

    value: Facts | None


@dataclass(slots=True)
class TransactionConfig:
    """What holds for all transactional ids of a coordinator; its owner may change it between two steps."""

    expiration_ms: int = 7 * 24 * 3_600_000
    timeout_max_ms: int = 900_000
    version: int = 2  # The finalized `transaction.version`: how a transaction is aborted that no client ends.


@dataclass(slots=True)
class Transaction:
    """The whole state of one transactional id. Only `step` and `load` change it."""

    id: str
    config: TransactionConfig
    facts: Facts | None = None  # None: new, nothing is stored yet.
    changing: bool = False  # A record is being appended.
    started_mono_ms: int = 0  # When the ongoing transaction began, on the monotonic clock.
    markers_in_flight: bool = False
    retry_at_ms: int = NEVER
    end_token: object | None = None  # The EndTxn that is answered after the markers.
    end_result: object = None
    is_used_up: bool = False  # After a power cut: nobody goes on with the producer id once what is decided is complete.
    in_flight: InFlight = field(default_factory=InFlight)
    wake_at_ms: int = NEVER


def is_exhausted(epoch: int) -> bool:
    return epoch >= EPOCH_EXHAUSTED


def is_fenced(transaction: Transaction) -> bool:
    """Whether nobody can go on with the present producer id: the next InitProducerId gives another one."""
    facts = transaction.facts
    gone = facts is None or facts.state is TransactionState.DEAD
    return gone or transaction.is_used_up or (facts is not None and facts.producer_epoch == EPOCH_MAX)


def retry_later(transaction: Transaction, now: Now) -> None:
    transaction.retry_at_ms = now.mono_ms + RETRY_MS
    set_wake(transaction)


def set_wake(transaction: Transaction) -> None:
    """When something is due: nothing while an append or markers are out (their end is an event)."""
    facts = transaction.facts
    transaction.wake_at_ms = NEVER
    if facts is None or transaction.changing or transaction.markers_in_flight:
        return
    if facts.state is TransactionState.ONGOING:
        due = transaction.started_mono_ms + facts.timeout_ms
        if transaction.retry_at_ms < NEVER:
            due = max(due, transaction.retry_at_ms)
        transaction.wake_at_ms = due
    elif facts.state in PREPARED:
        transaction.wake_at_ms = transaction.retry_at_ms
    else:
        transaction.retry_at_ms = NEVER


def is_disposable(transaction: Transaction) -> bool:
    """Whether the shell may forget it: dead, or new and never stored."""
    if transaction.in_flight.waiting:
        return False
    return transaction.facts is None or transaction.facts.state is TransactionState.DEAD
