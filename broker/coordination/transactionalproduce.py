"""Produce requests that begin a transaction in a partition: the coordinator is asked before anything is appended (KIP-890).

The network threads hand them over whole. What the coordinator allows is appended in the same step of the loop, so that no
marker can come between: a produce that comes late, after the end of its transaction, never begins one that nothing would
end. With transactions v2 (Produce from version 12 on) the partition is added to the transaction here; before, it has to
be in it already. An append of a large request holds up the loop; it is only the first one of a transaction in a partition.

What a client hears is what Apache Kafka says: INVALID_PRODUCER_EPOCH when it was fenced; TRANSACTION_ABORTABLE when the
partition is not in the transaction, before version 11 INVALID_TXN_STATE; CONCURRENT_TRANSACTIONS while the transaction
before is just ending, before version 12 NOT_ENOUGH_REPLICAS, which any client tries again.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.coordination.transactions.events import AddPartitions
from penstock.errors import ErrorCode
from penstock.pyx.net.border import Request, UnverifiedBatch

ABORTABLE_SINCE = 11
ADDS_SINCE = 12

_RETRIABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def refused(
    transactions: TransactionCoordinator, request: Request, transactional_id: str, asked: Iterable[UnverifiedBatch]
) -> dict[int, int]:
    """Ask about each partition in which a produce begins a transaction; the error codes of those that may not, by place.

    Never waits.
    """
    version = request.api_version
    by_producer: dict[tuple[int, int], list[UnverifiedBatch]] = {}
    for one in asked:
        by_producer.setdefault((one.producer_id, one.producer_epoch), []).append(one)
    found: dict[int, int] = {}
    for (producer_id, epoch), ones in by_producer.items():
        partitions = [one.partition for one in ones]
        if version >= ADDS_SINCE:
            added = AddPartitions(None, producer_id, epoch, partitions, client_version=2)
            errors = [transactions.add_now(transactional_id, added)] * len(partitions)
        else:
            errors = [transactions.verify(transactional_id, producer_id, epoch, partition) for partition in partitions]
        found |= {one.place: _code_for(error, version) for one, error in zip(ones, errors, strict=True) if error}
    return found


def _code_for(error: int, version: int) -> int:
    """The coordinator's error as clients of a version of Produce understand it."""
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if error in _RETRIABLE or (error == ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_SINCE):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error
