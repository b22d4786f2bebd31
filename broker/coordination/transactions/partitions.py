"""The partitions of a transaction: AddPartitionsToTxn and its like, and whether one is in it."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.coordination.machines import Now, Reply, TopicPartition
from penstock.broker.coordination.transactions.events import AddPartitions, AfterChange, Out, TopicDeleted
from penstock.broker.coordination.transactions.producers import check_producer
from penstock.broker.coordination.transactions.state import Facts, Transaction, TransactionState
from penstock.broker.coordination.transactions.writing import change
from penstock.broker.transactionmessages import UncleanEpochs
from penstock.errors import ErrorCode


def on_add_partitions(transaction: Transaction, event: AddPartitions, now: Now, out: Out) -> None:
    error = check_producer(transaction, event.producer_id, event.producer_epoch)
    if error:
        out.append(Reply(event.token, error))
        return
    facts = transaction.facts
    assert facts is not None
    ongoing = facts.state is TransactionState.ONGOING
    if ongoing and facts.partitions.issuperset(event.partitions) and facts.topic_ids >= event.topic_ids:
        out.append(Reply(event.token, ErrorCode.NONE))
        return
    added = replace(
        facts,
        state=TransactionState.ONGOING,
        partitions=facts.partitions.union(event.partitions) if ongoing else frozenset(event.partitions),
        topic_ids=facts.topic_ids | event.topic_ids if ongoing else event.topic_ids,
        unclean_epochs=facts.unclean_epochs | _new(facts, event) if ongoing else event.unclean_epochs,
        started_ms=facts.started_ms if ongoing else now.wall_ms,
        updated_ms=now.wall_ms,
        client_version=event.client_version,
    )
    change(transaction, AfterChange(added, event.token, ErrorCode.NONE), out)


def _new(facts: Facts, event: AddPartitions) -> UncleanEpochs:
    """Of partitions that aren't in the transaction yet: what was written to the others came after what is noted of them."""
    return frozenset(one for one in event.unclean_epochs if one[0] not in facts.partitions)


def verify(
    transaction: Transaction, producer_id: int, producer_epoch: int, partition: TopicPartition, topic_id: bytes = b""
) -> int:
    """Whether the partition is in this producer's ongoing transaction (KIP-890): an error code. topic_id: that of the log. It
    may be another topic's than the one that the partition was added under, and its markers wouldn't reach this log.

    TRANSACTION_ABORTABLE if it is not; those who can't understand that hear INVALID_TXN_STATE.
    """
    error = check_producer(transaction, producer_id, producer_epoch)
    if error:
        return error
    facts = transaction.facts
    assert facts is not None
    if facts.state is not TransactionState.ONGOING or partition not in facts.partitions:
        return ErrorCode.TRANSACTION_ABORTABLE
    is_added = not topic_id or (partition[0], topic_id) in facts.topic_ids
    if not is_added and any(name == partition[0] for name, _ in facts.topic_ids):
        return ErrorCode.TRANSACTION_ABORTABLE
    return ErrorCode.NONE


def on_topic_deleted(transaction: Transaction, event: TopicDeleted, now: Now, out: Out) -> None:
    """In memory only: a partition that does not exist counts as marked anyway. Where ids say which topics the transaction wrote
    to, the one that was deleted may be another one, and this one is asked about when its markers are sent.
    """
    facts = transaction.facts
    if facts is None or any(name == event.topic for name, _ in facts.topic_ids):
        return
    if any(topic == event.topic for topic, _ in facts.partitions):
        left = frozenset(partition for partition in facts.partitions if partition[0] != event.topic)
        transaction.facts = replace(facts, partitions=left)
