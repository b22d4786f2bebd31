"""How a transactional id changes: a record is appended, then it holds, then the client that asked is answered.

After a Prepare record the markers come before the answer.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.coordination.machines import Append, Appended, Now, Reply, append_error
from penstock.broker.coordination.transactions.events import AfterChange, AfterForget, Out, ProducerResult, WriteMarkers
from penstock.broker.coordination.transactions.state import (
    COMPLETED,
    PREPARED,
    Facts,
    Transaction,
    TransactionRecord,
    TransactionState,
    retry_later,
    set_wake,
)


def change(transaction: Transaction, after: AfterChange, out: Out) -> None:
    """Store new facts; they hold when that is done."""
    transaction.changing = True
    out.append(Append(transaction.in_flight.add(after), [TransactionRecord(after.facts)]))


def forget(transaction: Transaction, out: Out) -> None:
    """Store a tombstone; the transactional id is dead when that is done."""
    transaction.changing = True
    out.append(Append(transaction.in_flight.add(AfterForget()), [TransactionRecord(None)]))


def on_appended(transaction: Transaction, event: Appended, now: Now, out: Out) -> None:
    after = transaction.in_flight.waiting.pop(event.id)
    transaction.changing = False
    if isinstance(after, AfterForget):
        if not event.error:
            assert transaction.facts is not None
            transaction.facts = replace(transaction.facts, state=TransactionState.DEAD)
    elif isinstance(after, AfterChange):
        if event.error:
            _change_failed(transaction, after, event.error, now, out)
        else:
            _change_stored(transaction, after, now, out)
    set_wake(transaction)


def _change_stored(transaction: Transaction, after: AfterChange, now: Now, out: Out) -> None:
    before, facts = transaction.facts, after.facts
    transaction.facts = facts
    began = before is None or before.state is not TransactionState.ONGOING
    if facts.state is TransactionState.ONGOING and began:
        transaction.started_mono_ms = now.mono_ms
    if facts.state in PREPARED:
        transaction.end_token, transaction.end_result = after.token, after.result
        write_markers(transaction, facts, out)
        return
    if facts.state in COMPLETED:
        transaction.is_used_up = False  # What is stored says it.
        answer_end(transaction, out)
    if after.token is not None:
        out.append(Reply(after.token, after.result))


def _change_failed(transaction: Transaction, after: AfterChange, error: int, now: Now, out: Out) -> None:
    """Nothing has changed. A client asks again; a completion is tried again by us."""
    if after.token is not None:
        code = append_error(error)
        result = code if isinstance(after.result, int) else ProducerResult(code)
        out.append(Reply(after.token, result))
    if after.facts.state in COMPLETED:
        answer_end(transaction, out)
        retry_later(transaction, now)
    elif after.facts.state is TransactionState.PREPARE_ABORT:
        retry_later(transaction, now)  # Harmless for a client's abort; a timeout's is tried again.


def write_markers(transaction: Transaction, facts: Facts, out: Out) -> None:
    """Have the markers of a decided transaction written; nothing else goes on until MarkersWritten."""
    transaction.markers_in_flight = True
    commit = facts.state is TransactionState.PREPARE_COMMIT
    out.append(
        WriteMarkers(facts.producer_id, facts.producer_epoch, commit, facts.partitions, facts.client_version, facts.topic_ids)
    )


def answer_end(transaction: Transaction, out: Out) -> None:
    """Answer the EndTxn that waits, if one does."""
    if transaction.end_token is not None:
        out.append(Reply(transaction.end_token, transaction.end_result))
        transaction.end_token = None
