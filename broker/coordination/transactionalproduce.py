"""Produce requests that begin a transaction in a partition: the coordinator is asked before anything is appended (KIP-890).

The network threads hand them over whole. What the coordinator allows is appended, unless a marker came between: a produce
that comes late, after the end of its transaction, never begins one that nothing would end (`verification.py`). With
transactions v2 (Produce from version 12 on) the partition is added to the transaction here; before, it has to
be in it already. An append of a large request holds up the loop; it is only the first one of a transaction in a partition.

What a client hears is what Apache Kafka says: INVALID_PRODUCER_EPOCH when it was fenced; TRANSACTION_ABORTABLE when the
partition is not in the transaction, before version 11 INVALID_TXN_STATE; CONCURRENT_TRANSACTIONS while the transaction
before is just ending, before version 12 NOT_ENOUGH_REPLICAS, which any client tries again.
"""

from __future__ import annotations

from penstock.broker.coordination.verification import Verifier
from penstock.broker.transactionmessages import Verification
from penstock.errors import ErrorCode
from penstock.pyx.net.border import Question, Request, UnverifiedBatch

ABORTABLE_SINCE = 11
ADDS_SINCE = 12

_RETRIABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


async def refused(verifier: Verifier, request: Request, question: Question) -> dict[int, int]:
    """Ask about each partition in which a produce begins a transaction; the error codes of those that may not, by place.

    On one node it never waits.
    """
    version = request.api_version
    by_producer: dict[tuple[int, int], list[UnverifiedBatch]] = {}
    for one in question.batches:
        by_producer.setdefault((one.producer_id, one.producer_epoch), []).append(one)
    found: dict[int, int] = {}
    for (producer_id, epoch), ones in by_producer.items():
        partitions = tuple(one.partition for one in ones)
        adds = version >= ADDS_SINCE
        errors = await verifier.ask(Verification(question.transactional_id, producer_id, epoch, partitions, adds))
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
