"""The end of a transaction: EndTxn in both protocols, and its completion once the markers are written."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.coordination.machines import Now, Reply
from penstock.broker.coordination.transactions.events import AfterChange, End, MarkersLate, MarkersWritten, Out, ProducerResult
from penstock.broker.coordination.transactions.producers import used_up
from penstock.broker.coordination.transactions.state import (
    COMPLETED,
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    NO_PRODUCER_ID,
    PREPARED,
    Facts,
    Transaction,
    TransactionState,
    is_exhausted,
    retry_later,
)
from penstock.broker.coordination.transactions.writing import answer_end, change
from penstock.errors import ErrorCode


def on_end(transaction: Transaction, event: End, now: Now, out: Out) -> None:
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
            next_producer_id=event.fresh_producer_id if is_exhausted(facts.producer_epoch) else NO_PRODUCER_ID,
        )
        result = _raised(prepared)
    change(transaction, AfterChange(prepared, event.token, result), out)


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
    """EndTxn from v5: the epoch tells a repeated request from the next one; an abort of nothing is allowed."""
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


def on_markers_written(transaction: Transaction, event: MarkersWritten, now: Now, out: Out) -> None:
    transaction.markers_in_flight = False
    facts = transaction.facts
    assert facts is not None
    if facts.state not in PREPARED:
        return  # Its markers went out twice.
    if event.all_written:
        _complete(transaction, facts, now, out)
    else:
        # The decision is stored, so the client may know it; the markers follow when the disk allows.
        if event.decided:
            answer_end(transaction, out)
        if transaction.is_used_up and facts.state is TransactionState.PREPARE_ABORT and facts.producer_epoch < EPOCH_MAX:
            # They may have been refused as an older producer's.
            change(transaction, AfterChange(replace(facts, producer_epoch=EPOCH_MAX, client_version=0)), out)
        else:
            retry_later(transaction, now)


def on_markers_late(transaction: Transaction, event: MarkersLate, now: Now, out: Out) -> None:
    if transaction.markers_in_flight:
        answer_end(transaction, out)


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
        last_end=(facts.producer_epoch - 1, committed) if facts.client_version >= 2 and not rotated else None,
        partitions=frozenset(),
        topic_ids=frozenset(),
        unclean_epochs=frozenset(),
        updated_ms=now.wall_ms,
    )
    if transaction.is_used_up:
        completed = used_up(completed, now)
    change(transaction, AfterChange(completed), out)
