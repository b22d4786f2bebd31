"""What this broker asks others of transactions, over connections of their own: an answer may wait for a commit.

Verifications go to the transactions' coordinators (AddPartitionsToTxn), one request at a time to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.broker.replication.peers import Address, Peers, Prepare
from penstock.broker.replication.queues import Queues
from penstock.broker.transactionmessages import Partition, Verification
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

PARTITIONS_MAX = 10_000
"""Of one request, in all its transactions."""
LARGE = 500
"""From so many partitions on a message isn't made on the loop."""


class TransactionPeers:
    """For one broker; `stop` it once. prepare: see `Peers`."""

    def __init__(self, node_id: int, cluster_id: str, prepare: Prepare | None = None) -> None:
        self._verifying = Peers(node_id, cluster_id, prepare)
        self._verifications: Queues[Verification, Sequence[int]] = Queues(
            self._send_verifications, lambda question: len(question.partitions), PARTITIONS_MAX, "verifications"
        )

    def set_brokers(self, addresses: Mapping[int, Address]) -> None:
        """See `Peers.set_brokers`."""
        self._verifying.set_brokers(addresses)

    async def verify(self, broker: int, question: Verification) -> Sequence[int]:
        """Ask a coordinator; the error code of each partition. Raises ConnectionError."""
        return await self._verifications.ask(broker, question)

    def abandon(self) -> None:
        """Close all connections, and make no more; `stop` is still to come."""
        self._verifying.abandon()

    async def stop(self) -> None:
        """Close the connections; what waits fails."""
        await self._verifications.stop()
        await self._verifying.stop()

    async def _send_verifications(self, broker: int, questions: Sequence[Verification]) -> Sequence[Sequence[int]]:
        return await self._verifying.ask(
            broker,
            AddPartitionsToTxnRequest.API_KEY,
            lambda: write_verifications(questions),
            lambda message: read_verification_answers(message, questions),
            large=sum(len(question.partitions) for question in questions) >= LARGE,
        )


def write_verifications(questions: Sequence[Verification]) -> AddPartitionsToTxnRequest:
    """The message of some questions."""
    form = AddPartitionsToTxnRequest
    return form(
        transactions=[
            form.AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.producer_epoch,
                verify_only=not question.adds,
                topics=[
                    form.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                    for name, indexes in _by_topic(question.partitions).items()
                ],
            )
            for question in questions
        ]
    )


def read_verification_answers(message: AddPartitionsToTxnResponse, questions: Sequence[Verification]) -> list[list[int]]:
    """The error code of each partition of each question. Raises WireError for an answer to something else."""
    asked = [question.transactional_id for question in questions]
    if message.error_code:
        return [[message.error_code] * len(question.partitions) for question in questions]
    if [one.transactional_id for one in message.results_by_transaction] != asked:
        raise WireError("other transactions than those that were asked about")
    found = []
    for result, question in zip(message.results_by_transaction, questions, strict=True):
        errors = {
            (topic.name, one.partition_index): one.partition_error_code
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        if not errors.keys() >= set(question.partitions):
            raise WireError("no answer for some partitions")
        found.append([errors[partition] for partition in question.partitions])
    return found


def _by_topic(partitions: Sequence[Partition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, index in partitions:
        found.setdefault(name, []).append(index)
    return found
