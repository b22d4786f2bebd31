"""InitProducerId: who the producer of a transactional id is, and how one that was replaced is fenced."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.coordination.machines import Now, Reply
from penstock.broker.coordination.transactions.events import AfterChange, End, Init, Out, ProducerResult
from penstock.broker.coordination.transactions.state import (
    COMPLETED,
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    Facts,
    Transaction,
    TransactionState,
    is_exhausted,
)
from penstock.broker.coordination.transactions.writing import change
from penstock.errors import ErrorCode


def on_init(transaction: Transaction, event: Init, now: Now, out: Out) -> None:
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
        fence(transaction, facts, now, out, event.token, ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS))
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
    return event.expected_producer_id == facts.previous_producer_id and is_exhausted(event.expected_epoch)


def _init_next(transaction: Transaction, event: Init, facts: Facts, now: Now, out: Out) -> None:
    asks_on = event.expected_producer_id != NO_PRODUCER_ID
    epoch = facts.producer_epoch
    if is_exhausted(epoch) and (not asks_on or event.expected_epoch == epoch):
        facts = replace(
            facts,
            producer_id=event.fresh_producer_id,
            previous_producer_id=facts.producer_id,
            producer_epoch=0,
            last_producer_epoch=epoch if asks_on else NO_PRODUCER_EPOCH,
            last_end=None,
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
        topic_ids=frozenset(),
        unclean_epochs=frozenset(),
        next_producer_id=NO_PRODUCER_ID,
        started_ms=-1,
        updated_ms=now.wall_ms,
    )
    result = ProducerResult(ErrorCode.NONE, facts.producer_id, facts.producer_epoch)
    change(transaction, AfterChange(facts, event.token, result), out)


def fence(
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
    # The last epoch of an id is for this abort alone: no producer may go on with it.
    raises = transaction.config.version >= 2 and not is_exhausted(facts.producer_epoch)
    aborted = replace(
        facts,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=min(facts.producer_epoch + 1, EPOCH_MAX),
        last_producer_epoch=facts.producer_epoch if raises else NO_PRODUCER_EPOCH,
        next_producer_id=NO_PRODUCER_ID,
        client_version=2 if raises else 0,
        updated_ms=now.wall_ms,
    )
    change(transaction, AfterChange(aborted, token, result), out)


def used_up(facts: Facts, now: Now) -> Facts:
    """The facts of a producer that has no transaction open, under the last epoch of its id, which nobody was given."""
    return replace(
        facts,
        producer_epoch=EPOCH_MAX,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        client_version=0,
        updated_ms=now.wall_ms,
    )


def check_producer(transaction: Transaction, producer_id: int, producer_epoch: int) -> int:
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


def needs_producer_id(transaction: Transaction, event: object) -> bool:
    """Whether the event would use a fresh producer id (a new transactional id, or one whose epochs are used up)."""
    facts = transaction.facts
    if isinstance(event, Init):
        if facts is None:
            return True
        at_rest = facts.state is TransactionState.EMPTY or facts.state in COMPLETED
        return at_rest and not transaction.changing and is_exhausted(facts.producer_epoch)
    if isinstance(event, End) and event.raises_epoch:
        return facts is not None and is_exhausted(facts.producer_epoch)
    return False
