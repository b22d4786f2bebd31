"""A transactional id: its producer id, epoch and the state of its transaction, as a pure state machine.

    Empty, Complete* ── partitions added ──► Ongoing
    Ongoing ── EndTxn(commit) ─────────────► PrepareCommit ── all markers written ──► CompleteCommit
    Ongoing ── EndTxn(abort), its timeout,
               or a newer producer ────────► PrepareAbort ─── all markers written ──► CompleteAbort
    Complete* ── InitProducerId ───────────► Empty
    Empty, Complete* ── unused for transactional.id.expiration.ms ──► Dead (the shell forgets it)

`step(transaction, event, now) -> (transaction, actions)`; the rules of feeding are in `machines.py`. Each
change of state is a record (TransactionLogValue): first it is appended, then it holds, then it is answered;
while that goes on other requests hear CONCURRENT_TRANSACTIONS. The Prepare record decides: from then on the
markers are written, after a crash again, until all partitions have them. EndTxn is answered after the first
try of the markers, a little later than Apache Kafka does, so that an ordinary client's next transaction
needn't wait.

A producer is fenced by raising the epoch: InitProducerId raises it, and so does the abort of a transaction
that is too old or whose producer was replaced (KIP-98, KIP-360 for producers that go on after an error).

Transactions version 2 (KIP-890) is the choice of a client, one transaction at a time: its EndTxn (from v5 on)
raises the epoch, so that nothing that was sent for one transaction can act on another. The epoch also tells a
repeated EndTxn from the next one. When the epochs of a producer id are used up the answer of EndTxn names the
next id; the markers are written under the old one. Two-phase commit (KIP-939) is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from penstock.broker.machines import NEVER, Append, Appended, InFlight, Now, Reply, Tick, TopicPartition
from penstock.errors import ErrorCode

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
    in_flight: InFlight = field(default_factory=InFlight)
    wake_at_ms: int = NEVER


# --- events -------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Init:
    """InitProducerId. `fresh_producer_id` is given when `needs_producer_id` said so. Answered by
    ProducerResult.

    expected_*: the producer's present id and epoch if it goes on after an error (KIP-360), -1 otherwise.
    """

    token: object
    timeout_ms: int
    expected_producer_id: int = NO_PRODUCER_ID
    expected_epoch: int = NO_PRODUCER_EPOCH
    fresh_producer_id: int = NO_PRODUCER_ID


@dataclass(slots=True)
class ProducerResult:
    """An error code, and the producer's id and epoch from now on."""

    error: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(slots=True)
class AddPartitions:
    """AddPartitionsToTxn and AddOffsetsToTxn; with client_version 2 a Produce or TxnOffsetCommit that adds by itself
    (KIP-890). Answered by an error code.
    """

    token: object
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    client_version: int = 0


@dataclass(slots=True)
class End:
    """EndTxn; `raises_epoch` from v5 on (KIP-890). Answered by ProducerResult."""

    token: object
    producer_id: int
    producer_epoch: int
    commit: bool
    raises_epoch: bool = False
    fresh_producer_id: int = NO_PRODUCER_ID


@dataclass(slots=True)
class MarkersWritten:
    """The shell has tried to write the markers that a WriteMarkers asked for."""

    all_written: bool


@dataclass(slots=True)
class TopicDeleted:
    """A topic is gone: its partitions need no marker."""

    topic: str


@dataclass(slots=True)
class Expire:
    """Look whether the transactional id has been unused for too long."""


@dataclass(slots=True)
class WriteMarkers:
    """Action: append a commit or abort marker to each partition, then feed MarkersWritten.

    A partition that no longer exists counts as written. Writing a marker twice does no harm.
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    version: int = 0  # 2: the epoch is above that of the transaction's records (KIP-890).


# --- what an append was for ---------------------------------------------------------------------------------
@dataclass(slots=True)
class _Change:
    """Facts that hold once they are stored, and who is answered what then."""

    facts: Facts
    token: object | None = None
    result: object = None


@dataclass(slots=True)
class _Forget:
    """The tombstone of an expired transactional id."""


Action = Reply | Append | WriteMarkers
Out = list[Action]


def step(transaction: Transaction, event: object, now: Now) -> tuple[Transaction, Out]:
    """Feed one event. The transaction is changed in place and handed back with the actions, in order."""
    out: Out = []
    _HANDLERS[type(event)](transaction, event, now, out)
    if transaction.wake_at_ms <= now.mono_ms:
        _run_timers(transaction, now, out)
    return transaction, out


def is_disposable(transaction: Transaction) -> bool:
    """Whether the shell may forget it: dead, or new and never stored."""
    if transaction.in_flight.waiting:
        return False
    return transaction.facts is None or transaction.facts.state is TransactionState.DEAD


def needs_producer_id(transaction: Transaction, event: object) -> bool:
    """Whether the event would use a fresh producer id (a new transactional id, or one whose epochs are used
    up).
    """
    facts = transaction.facts
    if isinstance(event, Init):
        if facts is None:
            return True
        at_rest = facts.state is TransactionState.EMPTY or facts.state in COMPLETED
        return at_rest and not transaction.changing and _is_exhausted(facts.producer_epoch)
    if isinstance(event, End) and event.raises_epoch:
        return facts is not None and _is_exhausted(facts.producer_epoch)
    return False


def verify(transaction: Transaction, producer_id: int, producer_epoch: int, partition: TopicPartition) -> int:
    """Whether the partition is in this producer's ongoing transaction (KIP-890): an error code.

    TRANSACTION_ABORTABLE if it is not; those who can't understand that hear INVALID_TXN_STATE.
    """
    error = _check_producer(transaction, producer_id, producer_epoch)
    if error:
        return error
    facts = transaction.facts
    assert facts is not None
    if facts.state is not TransactionState.ONGOING or partition not in facts.partitions:
        return ErrorCode.TRANSACTION_ABORTABLE
    return ErrorCode.NONE


def _is_exhausted(epoch: int) -> bool:
    return epoch >= EPOCH_EXHAUSTED


def _check_producer(transaction: Transaction, producer_id: int, producer_epoch: int) -> int:
    facts = transaction.facts
    if facts is None or facts.state is TransactionState.DEAD:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # Before the id: a producer may have heard its next id from an EndTxn that isn't complete yet.
    if transaction.changing or facts.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if facts.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if facts.producer_epoch != producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _change(transaction: Transaction, change: _Change, out: Out) -> None:
    """Store new facts; they hold when that is done."""
    transaction.changing = True
    out.append(Append(transaction.in_flight.add(change), [TransactionRecord(change.facts)]))


# --- InitProducerId -----------------------------------------------------------------------------------------
def _on_init(transaction: Transaction, event: Init, now: Now, out: Out) -> None:
    facts = transaction.facts
    if not 0 < event.timeout_ms <= transaction.config.timeout_max_ms:
        out.append(Reply(event.token, ProducerResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)))
        return
    if transaction.changing or (facts is not None and facts.state in PREPARED):
        out.append(Reply(event.token, ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)))
        return
    if facts is None:
        _init_as(transaction, event, _new_facts(event), now, out)
        return
    # A transaction is ended for a newcomer or for its own producer; one that was replaced must not end it (Apache
    # Kafka lets it).
    replaced = event.expected_epoch not in (NO_PRODUCER_EPOCH, facts.producer_epoch)
    ongoing = facts.state is TransactionState.ONGOING
    if not _is_expected(facts, event) or (ongoing and replaced):
        out.append(Reply(event.token, ProducerResult(ErrorCode.PRODUCER_FENCED)))
    elif ongoing:
        # The epoch that fences is never given to anybody; the client asks again and gets the one after it.
        _fence(transaction, facts, now, out, event.token, ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS))
    else:
        _init_next(transaction, event, facts, now, out)


def _new_facts(event: Init) -> Facts:
    return Facts(
        producer_id=event.fresh_producer_id,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=0,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=event.timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        updated_ms=-1,
        started_ms=-1,
        client_version=0,
    )


def _is_expected(facts: Facts, event: Init) -> bool:
    """A producer that names its id and epoch must be the present one, or the present one asking again."""
    if event.expected_producer_id == NO_PRODUCER_ID or event.expected_producer_id == facts.producer_id:
        return True
    return event.expected_producer_id == facts.previous_producer_id and _is_exhausted(event.expected_epoch)


def _init_next(transaction: Transaction, event: Init, facts: Facts, now: Now, out: Out) -> None:
    asks_on = event.expected_producer_id != NO_PRODUCER_ID
    epoch = facts.producer_epoch
    if _is_exhausted(epoch) and (not asks_on or event.expected_epoch == epoch):
        facts = replace(
            facts,
            producer_id=event.fresh_producer_id,
            previous_producer_id=facts.producer_id,
            producer_epoch=0,
            last_producer_epoch=epoch if asks_on else NO_PRODUCER_EPOCH,
        )
    elif not asks_on or event.expected_epoch == epoch:
        last = epoch if asks_on else NO_PRODUCER_EPOCH
        facts = replace(facts, producer_epoch=epoch + 1, last_producer_epoch=last)
    elif event.expected_epoch != facts.last_producer_epoch:
        out.append(Reply(event.token, ProducerResult(ErrorCode.PRODUCER_FENCED)))
        return
    # Else it asks again for a bump that it got, and hears the same epoch.
    _init_as(transaction, event, facts, now, out)


def _init_as(transaction: Transaction, event: Init, facts: Facts, now: Now, out: Out) -> None:
    facts = replace(
        facts,
        timeout_ms=event.timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        next_producer_id=NO_PRODUCER_ID,
        started_ms=-1,
        updated_ms=now.wall_ms,
    )
    result = ProducerResult(ErrorCode.NONE, facts.producer_id, facts.producer_epoch)
    _change(transaction, _Change(facts, event.token, result), out)


def _fence(
    transaction: Transaction,
    facts: Facts,
    now: Now,
    out: Out,
    token: object | None = None,
    result: object = None,
) -> None:
    """Abort the ongoing transaction under a raised epoch, so that its producer has no more effect.

    With version 2 the producer may find out and go on with that epoch (by EndTxn v5 or InitProducerId), as it does
    after an EndTxn of its own: a newcomer's InitProducerId raises it once more.
    """
    # The last epoch of an id is for this abort alone: nobody may go on with it.
    raises = transaction.config.version >= 2 and not _is_exhausted(facts.producer_epoch)
    aborted = replace(
        facts,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=min(facts.producer_epoch + 1, EPOCH_MAX),
        last_producer_epoch=facts.producer_epoch if raises else NO_PRODUCER_EPOCH,
        next_producer_id=NO_PRODUCER_ID,
        client_version=2 if raises else 0,
        updated_ms=now.wall_ms,
    )
    _change(transaction, _Change(aborted, token, result), out)


# --- AddPartitionsToTxn, EndTxn -----------------------------------------------------------------------------
def _on_add_partitions(transaction: Transaction, event: AddPartitions, now: Now, out: Out) -> None:
    error = _check_producer(transaction, event.producer_id, event.producer_epoch)
    if error:
        out.append(Reply(event.token, error))
        return
    facts = transaction.facts
    assert facts is not None
    ongoing = facts.state is TransactionState.ONGOING
    if ongoing and facts.partitions.issuperset(event.partitions):
        out.append(Reply(event.token, ErrorCode.NONE))
        return
    added = replace(
        facts,
        state=TransactionState.ONGOING,
        partitions=facts.partitions.union(event.partitions) if ongoing else frozenset(event.partitions),
        started_ms=facts.started_ms if ongoing else now.wall_ms,
        updated_ms=now.wall_ms,
        client_version=event.client_version,
    )
    _change(transaction, _Change(added, event.token, ErrorCode.NONE), out)


def _on_end(transaction: Transaction, event: End, now: Now, out: Out) -> None:
    facts = transaction.facts
    if facts is None or facts.state is TransactionState.DEAD:
        out.append(Reply(event.token, ProducerResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)))
        return
    check = _end_raising_epoch if event.raises_epoch else _end_keeping_epoch
    verdict = check(transaction, facts, event)
    if verdict is not None:
        out.append(Reply(event.token, verdict))
        return
    prepared = replace(
        facts,
        state=TransactionState.PREPARE_COMMIT if event.commit else TransactionState.PREPARE_ABORT,
        client_version=2 if event.raises_epoch else 0,
        started_ms=facts.started_ms if facts.state is TransactionState.ONGOING else now.wall_ms,
        updated_ms=now.wall_ms,
    )
    result = ProducerResult(ErrorCode.NONE, facts.producer_id, facts.producer_epoch)
    if event.raises_epoch:
        prepared = replace(
            prepared,
            producer_epoch=facts.producer_epoch + 1,
            last_producer_epoch=facts.producer_epoch,
            previous_producer_id=facts.producer_id,
            next_producer_id=event.fresh_producer_id
            if _is_exhausted(facts.producer_epoch)
            else NO_PRODUCER_ID,
        )
        result = _raised(prepared)
    _change(transaction, _Change(prepared, event.token, result), out)


def _raised(facts: Facts) -> ProducerResult:
    """What the producer goes on with after an EndTxn that raised its epoch."""
    if facts.next_producer_id != NO_PRODUCER_ID:
        return ProducerResult(ErrorCode.NONE, facts.next_producer_id, 0)
    return ProducerResult(ErrorCode.NONE, facts.producer_id, facts.producer_epoch)


def _end_keeping_epoch(transaction: Transaction, facts: Facts, event: End) -> ProducerResult | None:
    """EndTxn to v4: the answer if there is nothing to do; None if the transaction is to be ended."""
    if facts.producer_id != event.producer_id:
        return ProducerResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if facts.producer_epoch != event.producer_epoch:
        return ProducerResult(ErrorCode.PRODUCER_FENCED)
    if transaction.changing:
        return ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    if facts.state is TransactionState.ONGOING:
        return None
    same = (TransactionState.COMPLETE_COMMIT, TransactionState.PREPARE_COMMIT)
    if not event.commit:
        same = (TransactionState.COMPLETE_ABORT, TransactionState.PREPARE_ABORT)
    if facts.state not in same:
        return ProducerResult(ErrorCode.INVALID_TXN_STATE)
    if facts.state in COMPLETED:  # Asked again after a lost answer.
        return ProducerResult(ErrorCode.NONE, facts.producer_id, facts.producer_epoch)
    return ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)


def _end_raising_epoch(transaction: Transaction, facts: Facts, event: End) -> ProducerResult | None:
    """EndTxn from v5: the epoch tells a repeated request from the next one; an abort of nothing is
    allowed.
    """
    # Only an end of version 2 was answered with a new epoch; after another one the older epoch is a zombie's.
    raised = facts.client_version >= 2
    same_id = facts.producer_id == event.producer_id
    overflowed = (
        raised
        and facts.previous_producer_id == event.producer_id
        and event.producer_epoch == EPOCH_EXHAUSTED
        and facts.producer_epoch == 0
    )
    bumped = raised and same_id and facts.producer_epoch == event.producer_epoch + 1
    again = bumped or overflowed
    if transaction.changing:
        return ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    if not again and not same_id:
        return ProducerResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    current = facts.producer_epoch == event.producer_epoch
    if facts.state in PREPARED:
        valid = bumped
    elif facts.state in COMPLETED:
        valid = again or current
    else:
        valid = current
    if not valid:
        return ProducerResult(ErrorCode.PRODUCER_FENCED)
    if facts.state is TransactionState.ONGOING:
        return None
    committed = facts.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    if facts.state in PREPARED or again:
        if facts.state is TransactionState.EMPTY or committed != event.commit:
            return ProducerResult(ErrorCode.INVALID_TXN_STATE)
        if facts.state in PREPARED:
            return ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        return ProducerResult(ErrorCode.NONE, facts.producer_id, facts.producer_epoch)
    return ProducerResult(ErrorCode.INVALID_TXN_STATE) if event.commit else None


# --- markers and completion ---------------------------------------------------------------------------------
def _write_markers(transaction: Transaction, facts: Facts, out: Out) -> None:
    transaction.markers_in_flight = True
    commit = facts.state is TransactionState.PREPARE_COMMIT
    markers = WriteMarkers(facts.producer_id, facts.producer_epoch, commit, facts.partitions, facts.client_version)
    out.append(markers)


def _on_markers_written(transaction: Transaction, event: MarkersWritten, now: Now, out: Out) -> None:
    transaction.markers_in_flight = False
    facts = transaction.facts
    assert facts is not None
    if event.all_written:
        _complete(transaction, facts, now, out)
    else:
        # The decision is stored, so the client may know it; the markers follow when the disk allows.
        _answer_end(transaction, out)
        _retry_later(transaction, now)


def _complete(transaction: Transaction, facts: Facts, now: Now, out: Out) -> None:
    rotated = facts.next_producer_id != NO_PRODUCER_ID
    committed = facts.state is TransactionState.PREPARE_COMMIT
    completed = replace(
        facts,
        state=TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
        producer_id=facts.next_producer_id if rotated else facts.producer_id,
        previous_producer_id=facts.producer_id if rotated else facts.previous_producer_id,
        producer_epoch=0 if rotated else facts.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        updated_ms=now.wall_ms,
    )
    _change(transaction, _Change(completed), out)


def _answer_end(transaction: Transaction, out: Out) -> None:
    if transaction.end_token is not None:
        out.append(Reply(transaction.end_token, transaction.end_result))
        transaction.end_token = None


def _retry_later(transaction: Transaction, now: Now) -> None:
    transaction.retry_at_ms = now.mono_ms + RETRY_MS
    _set_wake(transaction)


# --- appends that have ended --------------------------------------------------------------------------------
def _on_appended(transaction: Transaction, event: Appended, now: Now, out: Out) -> None:
    after = transaction.in_flight.waiting.pop(event.id)
    transaction.changing = False
    if isinstance(after, _Forget):
        if not event.error:
            assert transaction.facts is not None
            transaction.facts = replace(transaction.facts, state=TransactionState.DEAD)
    elif isinstance(after, _Change):
        if event.error:
            _change_failed(transaction, after, event.error, now, out)
        else:
            _change_stored(transaction, after, now, out)
    _set_wake(transaction)


def _change_stored(transaction: Transaction, after: _Change, now: Now, out: Out) -> None:
    before, facts = transaction.facts, after.facts
    transaction.facts = facts
    began = before is None or before.state is not TransactionState.ONGOING
    if facts.state is TransactionState.ONGOING and began:
        transaction.started_mono_ms = now.mono_ms
    if facts.state in PREPARED:
        transaction.end_token, transaction.end_result = after.token, after.result
        _write_markers(transaction, facts, out)
        return
    if facts.state in COMPLETED:
        _answer_end(transaction, out)
    if after.token is not None:
        out.append(Reply(after.token, after.result))


def _change_failed(transaction: Transaction, after: _Change, error: int, now: Now, out: Out) -> None:
    """Nothing has changed. A client asks again; a completion is tried again by us."""
    if after.token is not None:
        code = _append_error(error)
        result = code if isinstance(after.result, int) else ProducerResult(code)
        out.append(Reply(after.token, result))
    if after.facts.state in COMPLETED:
        _answer_end(transaction, out)
        _retry_later(transaction, now)
    elif after.facts.state is TransactionState.PREPARE_ABORT:
        _retry_later(transaction, now)  # Harmless for a client's abort; a timeout's is tried again.


def _append_error(error: int) -> int:
    if error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error


# --- time ---------------------------------------------------------------------------------------------------
def _on_tick(transaction: Transaction, event: Tick, now: Now, out: Out) -> None:
    """Timers run after each event anyway."""


def _run_timers(transaction: Transaction, now: Now, out: Out) -> None:
    facts = transaction.facts
    if facts is not None and not transaction.changing and not transaction.markers_in_flight:
        if facts.state in PREPARED:
            if transaction.retry_at_ms <= now.mono_ms:
                transaction.retry_at_ms = NEVER
                _write_markers(transaction, facts, out)
        elif facts.state is TransactionState.ONGOING:
            timed_out = transaction.started_mono_ms + facts.timeout_ms <= now.mono_ms
            if timed_out and not now.mono_ms < transaction.retry_at_ms < NEVER:
                transaction.retry_at_ms = NEVER
                _fence(transaction, facts, now, out)
    _set_wake(transaction)


def _set_wake(transaction: Transaction) -> None:
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


def _on_topic_deleted(transaction: Transaction, event: TopicDeleted, now: Now, out: Out) -> None:
    """In memory only: a partition that does not exist counts as marked anyway."""
    facts = transaction.facts
    if facts is not None and any(topic == event.topic for topic, _ in facts.partitions):
        left = frozenset(partition for partition in facts.partitions if partition[0] != event.topic)
        transaction.facts = replace(facts, partitions=left)


def _on_expire(transaction: Transaction, event: Expire, now: Now, out: Out) -> None:
    facts = transaction.facts
    if facts is None or transaction.changing:
        return
    idle = facts.state is TransactionState.EMPTY or facts.state in COMPLETED
    if idle and now.wall_ms - facts.updated_ms >= transaction.config.expiration_ms:
        transaction.changing = True
        out.append(Append(transaction.in_flight.add(_Forget()), [TransactionRecord(None)]))


_HANDLERS: dict[type, Callable[[Transaction, Any, Now, Out], None]] = {
    AddPartitions: _on_add_partitions,
    End: _on_end,
    Appended: _on_appended,
    MarkersWritten: _on_markers_written,
    Init: _on_init,
    TopicDeleted: _on_topic_deleted,
    Expire: _on_expire,
    Tick: _on_tick,
}


# --- loading ------------------------------------------------------------------------------------------------
def load(transaction: Transaction, record: TransactionRecord) -> None:
    """Apply one record of the log, in the log's order."""
    facts = record.value
    if facts is not None and facts.client_version >= 2 and facts.state in (*PREPARED, *COMPLETED):
        # The record doesn't have it, but such an end has raised the epoch by one, or begun another producer id.
        raised = facts.producer_epoch > 0
        facts = replace(facts, last_producer_epoch=facts.producer_epoch - 1 if raised else EPOCH_EXHAUSTED)
    transaction.facts = facts


def loaded(transaction: Transaction, now: Now) -> Out:
    """The log is read to its end: markers of a decided transaction are written again, timeouts go on."""
    out: Out = []
    facts = transaction.facts
    if facts is None:
        return out
    if facts.state is TransactionState.ONGOING:
        transaction.started_mono_ms = now.mono_ms - max(0, now.wall_ms - facts.started_ms)
    if facts.state in PREPARED:
        _write_markers(transaction, facts, out)
    _set_wake(transaction)
    return out


def resign(transaction: Transaction) -> Out:
    """The log of transactions is gone: whoever waits has to look for a coordinator again."""
    transaction.end_result = ProducerResult(ErrorCode.NOT_COORDINATOR)
    out: Out = []
    _answer_end(transaction, out)
    return out
