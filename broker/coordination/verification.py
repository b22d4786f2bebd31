"""Whether a producer may begin its transaction in some partitions: the transaction's coordinator is asked (KIP-890).

It may be on another broker. So something may come between the question and the append: the transaction's marker, or another
leader of the partition. Whoever asks takes a guard of the log first, and appends only if that still counts
(`LogManager.guard`, `DataPlane.unverified`).
"""

from __future__ import annotations

from penstock import log
from penstock.broker.coordination.parts import Parts
from penstock.broker.coordination.statelog import java_hash_partition
from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.coordination.transactions.events import AddPartitions
from penstock.broker.topic import TRANSACTION_STATE
from penstock.broker.transactionmessages import Verification
from penstock.errors import ErrorCode, KafkaError

_log = log.get(__name__)


class Verifier:
    """Asks coordinators: `context.coordinators.verifier`."""

    def __init__(self, parts: Parts, transactions: TransactionCoordinator) -> None:
        self._parts = parts
        self._transactions = transactions

    async def ask(self, question: Verification) -> list[int]:
        """The error code of each partition. On one node it never waits."""
        cluster = self._parts.cluster
        if cluster is None:
            return await self.answer(question)
        topic = self._parts.topics.get(TRANSACTION_STATE)
        leader = -1
        if topic is not None:
            leader = topic.partitions[java_hash_partition(question.transactional_id, len(topic.partitions))].leader
        if leader == self._parts.node_id:
            return await self.answer(question)
        if leader < 0:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(question.partitions)
        try:
            return list(await cluster.verify(leader, question))
        except ConnectionError as error:
            _log.warning("the coordinator of transactional_id=%s can't be asked: %s", question.transactional_id, error)
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(question.partitions)

    async def answer(self, question: Verification) -> list[int]:
        """As the coordinator: the error code of each partition."""
        # A produce may name a transactional id that nobody has: no coordinator's topic is made for it.
        name, producer_id, epoch = question.transactional_id, question.producer_id, question.producer_epoch
        if not question.adds or self._transactions.find(name) is None:
            return [self._transactions.verify(name, producer_id, epoch, partition) for partition in question.partitions]
        event = AddPartitions(None, producer_id, epoch, question.partitions, client_version=2)
        try:
            error: int = await self._transactions.ask(name, event)
        except KafkaError as refused:
            error = refused.code
        return [error] * len(question.partitions)
