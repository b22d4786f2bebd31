"""The partitions of a transaction: AddPartitionsToTxn and its like, and whether one is in it."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.coordination.machines import Now, Reply, TopicPartition
from penstock.broker.coordination.transactions.events import AddPartitions, AfterChange, Out, TopicDeleted
from penstock.broker.coordination.transactions.producers import check_producer
from penstock.broker.coordination.transactions.state import Transaction, TransactionState
from penstock.broker.coordination.transactions.writing import change
from penstock.errors import ErrorCode


def on_add_partitions(transaction: Transaction, event: AddPartitions, now: Now, out: Out) -> None:
    error = check_producer(transaction, event.producer_id, event.producer_epoch)
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
    change(transaction, AfterChange(added, event.token, ErrorCode.NONE), out)


def verify(transaction: Transaction, producer_id: int, producer_epoch: int, partition: TopicPartition) -> int:
    """Whether the partition is in this producer's ongoing transaction (KIP-890): an error code.

    TRANSACTION_ABORTABLE if it is not; those who can't understand that hear INVALID_TXN_STATE.
    """
    error = check_producer(transaction, producer_id, producer_epoch)
    if error:
        return error
    facts = transaction.facts
    assert facts is not None
    if facts.state is not TransactionState.ONGOING or partition not in facts.partitions:
        return ErrorCode.TRANSACTION_ABORTABLE
    return ErrorCode.NONE


def on_topic_deleted(transaction: Transaction, event: TopicDeleted, now: Now, out: Out) -> None:
    """In memory only: a partition that does not exist counts as marked anyway."""
    facts = transaction.facts
    if facts is not None and any(topic == event.topic for topic, _ in facts.partitions):
        left = frozenset(partition for partition in facts.partitions if partition[0] != event.topic)
        transaction.facts = replace(facts, partitions=left)
