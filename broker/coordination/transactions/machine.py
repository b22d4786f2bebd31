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
needn't wait; in a cluster before, if that takes long.

A producer is fenced by raising the epoch: InitProducerId raises it, and so does the abort of a transaction
that is too old or whose producer was replaced (KIP-98, KIP-360 for producers that go on after an error).

Transactions version 2 (KIP-890) is the choice of a client, one transaction at a time: its EndTxn (from v5 on)
raises the epoch, so that nothing that was sent for one transaction can act on another. The epoch also tells a
repeated EndTxn from the next one. When the epochs of a producer id are used up the answer of EndTxn names the
next id; the markers are written under the old one. Two-phase commit (KIP-939) is not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.broker.coordination.machines import NEVER, Appended, Now, Tick
from penstock.broker.coordination.transactions.ending import on_end, on_markers_late, on_markers_written
from penstock.broker.coordination.transactions.events import (
    AddPartitions,
    AfterChange,
    End,
    Expire,
    Init,
    MarkersLate,
    MarkersWritten,
    Out,
    PowerCut,
    ProducerResult,
    RecordsLost,
    TopicDeleted,
)
from penstock.broker.coordination.transactions.partitions import on_add_partitions, on_topic_deleted
from penstock.broker.coordination.transactions.producers import fence, on_init, used_up
from penstock.broker.coordination.transactions.state import (
    COMPLETED,
    EPOCH_EXHAUSTED,
    PREPARED,
    Transaction,
    TransactionRecord,
    TransactionState,
    is_fenced,
    set_wake,
)
from penstock.broker.coordination.transactions.writing import answer_end, change, forget, on_appended, write_markers
from penstock.errors import ErrorCode


def step(transaction: Transaction, event: object, now: Now) -> tuple[Transaction, Out]:
    """Feed one event. The transaction is changed in place and handed back with the actions, in order."""
    out: Out = []
    _HANDLERS[type(event)](transaction, event, now, out)
    if transaction.wake_at_ms <= now.mono_ms:
        _run_timers(transaction, now, out)
    return transaction, out


def _on_tick(transaction: Transaction, event: Tick, now: Now, out: Out) -> None:
    """Timers run after each event anyway."""


def _run_timers(transaction: Transaction, now: Now, out: Out) -> None:
    facts = transaction.facts
    if facts is not None and not transaction.changing and not transaction.markers_in_flight:
        if facts.state in PREPARED:
            if transaction.retry_at_ms <= now.mono_ms:
                transaction.retry_at_ms = NEVER
                write_markers(transaction, facts, out)
        elif facts.state is TransactionState.ONGOING:
            timed_out = transaction.started_mono_ms + facts.timeout_ms <= now.mono_ms
            if timed_out and not now.mono_ms < transaction.retry_at_ms < NEVER:
                transaction.retry_at_ms = NEVER
                fence(transaction, facts, now, out)
    set_wake(transaction)


def _on_expire(transaction: Transaction, event: Expire, now: Now, out: Out) -> None:
    facts = transaction.facts
    if facts is None or transaction.changing:
        return
    idle = facts.state is TransactionState.EMPTY or facts.state in COMPLETED
    if idle and now.wall_ms - facts.updated_ms >= transaction.config.expiration_ms:
        forget(transaction, out)


def _on_power_cut(transaction: Transaction, event: PowerCut, now: Now, out: Out) -> None:
    """Its producer believes that all of its records are there, and would commit what is left of them. Nobody knows which epochs
    were given and are lost: so the producer id is used up, and the next InitProducerId gives another one.
    """
    facts = transaction.facts
    if facts is None or transaction.changing or is_fenced(transaction):
        return
    if facts.state is TransactionState.ONGOING:
        fence(transaction, replace(facts, producer_epoch=EPOCH_EXHAUSTED), now, out)
    elif facts.state not in PREPARED:
        change(transaction, AfterChange(used_up(facts, now)), out)
    else:
        transaction.is_used_up = True  # once its markers are written


def _on_records_lost(transaction: Transaction, event: RecordsLost, now: Now, out: Out) -> None:
    """Its producer would commit what is left of its records."""
    facts = transaction.facts
    if facts is not None and facts.state is TransactionState.ONGOING and not transaction.changing:
        fence(transaction, facts, now, out)


_HANDLERS: dict[type, Callable[[Transaction, Any, Now, Out], None]] = {
    AddPartitions: on_add_partitions,
    End: on_end,
    Appended: on_appended,
    MarkersLate: on_markers_late,
    MarkersWritten: on_markers_written,
    Init: on_init,
    TopicDeleted: on_topic_deleted,
    Expire: _on_expire,
    PowerCut: _on_power_cut,
    RecordsLost: _on_records_lost,
    Tick: _on_tick,
}


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
        write_markers(transaction, facts, out)
    set_wake(transaction)
    return out


def resign(transaction: Transaction) -> Out:
    """The log of transactions is gone: the clients that wait have to find a coordinator again."""
    transaction.end_result = ProducerResult(ErrorCode.NOT_COORDINATOR)
    out: Out = []
    answer_end(transaction, out)
    return out
