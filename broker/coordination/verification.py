"""Whether a producer may begin its transaction in some partitions: the transaction's coordinator is asked (KIP-890).

It may be on another broker. So something may come between the question and the append: the transaction's marker, or another
leader of the partition. Whoever asks takes a guard of the log first, and appends only if that still counts
(`LogManager.guard`, `DataPlane.unverified`).
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from penstock import log
from penstock.broker.coordination.hangingtransactions import HangingTransactions
from penstock.broker.coordination.parts import Parts
from penstock.broker.coordination.statelog import java_hash_partition
from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.topic import TRANSACTION_STATE
from penstock.broker.transactionmessages import TopicIds, Verification
from penstock.errors import ErrorCode, KafkaError

_log = log.get(__name__)


class Verifier:
    """Asks coordinators: `context.coordinators.verifier`."""

    def __init__(self, parts: Parts, transactions: TransactionCoordinator, hanging: HangingTransactions) -> None:
        self._parts = parts
        self._transactions = transactions
        self._hanging = hanging

    async def ask(self, question: Verification) -> list[int]:
        """The error code of each partition. On one node it never waits."""
        cluster = self._parts.cluster
        if cluster is None:
            return await self.answer(question)
        producer = question.producer_id, question.producer_epoch
        if any(self._hanging.holds(partition, *producer) for partition in question.partitions):
            return [ErrorCode.CONCURRENT_TRANSACTIONS] * len(question.partitions)
        question = replace(question, topic_ids=self._topic_ids(question))
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

    def _topic_ids(self, question: Verification) -> TopicIds:
        """Of which topics the logs here are. The coordinator may still show earlier topics of their names."""
        found = set()
        for name, index in question.partitions:
            with contextlib.suppress(KafkaError):  # It isn't open: the append will be refused.
                found.add((name, self._parts.log_manager.topic_id(name, index)))
        return frozenset(found)

    async def answer(self, question: Verification) -> list[int]:
        """As the coordinator: the error code of each partition."""
        # A produce may name a transactional id that nobody has: no coordinator's topic is made for it.
        name, producer_id, epoch = question.transactional_id, question.producer_id, question.producer_epoch
        if not question.adds or self._transactions.find(name) is None:
            ids = dict(question.topic_ids)
            asked = ((partition, ids.get(partition[0], b"")) for partition in question.partitions)
            return [self._transactions.verify(name, producer_id, epoch, *one) for one in asked]
        try:
            error = await self._transactions.add(name, (producer_id, epoch), question.partitions, 2, question.topic_ids)
        except KafkaError as refused:
            error = refused.code
        return [error] * len(question.partitions)
