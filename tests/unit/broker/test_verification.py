"""What a produce that begins a transaction hears, by its version and the coordinator's verdict."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.coordination import transactionalproduce
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.parts import Parts
from penstock.broker.coordination.statelog import java_hash_partition
from penstock.broker.coordination.verification import Verifier
from penstock.broker.topic import TRANSACTION_STATE
from penstock.broker.transactionmessages import Verification
from penstock.errors import ErrorCode as E
from penstock.pyx.net.border import Question, Request, UnverifiedBatch

AWAY = E.COORDINATOR_NOT_AVAILABLE
TOPIC_ID = b"#" * 16


class Asked:
    """Says the same of every partition but of those that are allowed, and remembers who asked what."""

    def __init__(self, error: int, allowed: set[TopicPartition] = frozenset()) -> None:  # type: ignore[assignment]
        self.error = error
        self.allowed = allowed
        self.questions: list[Verification] = []

    async def ask(self, question: Verification) -> list[int]:
        self.questions.append(question)
        return [E.NONE if partition in self.allowed else self.error for partition in question.partitions]


def refused(verifier: Asked, version: int, *asked: UnverifiedBatch) -> dict[int, int]:
    request = Request(1, 0, version, 1, b"", "peer", "PLAINTEXT", True)
    return asyncio.run(transactionalproduce.refused(cast(Verifier, verifier), request, Question("x", list(asked), 1)))


@pytest.mark.parametrize(
    ("error", "version", "told"),
    [
        (E.PRODUCER_FENCED, 3, E.INVALID_PRODUCER_EPOCH),
        (E.PRODUCER_FENCED, 13, E.INVALID_PRODUCER_EPOCH),
        (E.TRANSACTION_ABORTABLE, 10, E.INVALID_TXN_STATE),
        (E.TRANSACTION_ABORTABLE, 11, E.TRANSACTION_ABORTABLE),
        (E.CONCURRENT_TRANSACTIONS, 11, E.NOT_ENOUGH_REPLICAS),
        (E.CONCURRENT_TRANSACTIONS, 12, E.CONCURRENT_TRANSACTIONS),
        (E.NOT_COORDINATOR, 12, E.NOT_ENOUGH_REPLICAS),
        (E.COORDINATOR_NOT_AVAILABLE, 7, E.NOT_ENOUGH_REPLICAS),
        (E.INVALID_PRODUCER_ID_MAPPING, 12, E.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_errors_are_those_that_the_client_knows(error: E, version: int, told: E) -> None:
    assert refused(Asked(error), version, UnverifiedBatch(4, ("t", 0), 1, 0)) == {4: told}


@pytest.mark.parametrize("version", [11, 12])
def test_partitions_are_asked_about_together_and_answered_one_by_one(version: int) -> None:
    asked = [UnverifiedBatch(0, ("t", 0), 1, 0), UnverifiedBatch(2, ("t", 1), 1, 0), UnverifiedBatch(3, ("t", 2), 8, 0)]
    verifier = Asked(E.TRANSACTION_ABORTABLE, {("t", 1)})
    assert refused(verifier, version, *asked) == {0: E.TRANSACTION_ABORTABLE, 3: E.TRANSACTION_ABORTABLE}
    adds = version == 12
    assert verifier.questions == [
        Verification("x", 1, 0, (("t", 0), ("t", 1)), adds),
        Verification("x", 8, 0, (("t", 2),), adds),
    ]
    assert refused(Asked(E.PRODUCER_FENCED), version) == {}, "nobody to ask about"


class Others:
    """The other brokers of a cluster."""

    def __init__(self, answer: list[int] | None) -> None:
        self.answer = answer
        self.asked: list[tuple[int, Verification]] = []

    async def verify(self, broker: int, question: Verification) -> list[int]:
        self.asked.append((broker, question))
        if self.answer is None:
            raise ConnectionError("it is away")
        return self.answer


class Transactions:
    """A coordinator that has said yes."""

    def find(self, name: str) -> object:
        return name

    def verify(self, name: str, producer_id: int, epoch: int, partition: TopicPartition, topic_id: bytes) -> int:
        assert topic_id == TOPIC_ID  # of the log that this broker leads
        return E.NONE


@pytest.mark.parametrize(
    ("leader", "answer", "told"),
    [(1, [], E.NONE), (2, [E.PRODUCER_FENCED], E.PRODUCER_FENCED), (2, None, AWAY), (-1, [], AWAY), (None, [], AWAY)],
)
def test_a_cluster_asks_the_broker_that_leads_the_transactions_partition(
    leader: int | None, answer: list[int] | None, told: int
) -> None:
    name, count = "x", 3
    states = [SimpleNamespace(leader=leader if index == java_hash_partition(name, count) else 9) for index in range(count)]
    topics = {} if leader is None else {TRANSACTION_STATE: SimpleNamespace(partitions=states)}
    others = Others(answer)
    logs = SimpleNamespace(topic_id=lambda topic, partition: TOPIC_ID)
    holding = SimpleNamespace(holds=lambda *_: False)
    parts = SimpleNamespace(cluster=others, topics=topics, node_id=1, log_manager=logs)
    verifier = Verifier(cast(Parts, parts), cast(Any, Transactions()), cast(Any, holding))
    question = Verification(name, 7, 0, (("t", 0),), adds=False)
    assert asyncio.run(verifier.ask(question)) == [told]
    named = replace(question, topic_ids=frozenset({("t", TOPIC_ID)}))
    assert others.asked == ([(2, named)] if leader == 2 else [])
    holding.holds = lambda *given: given == (("t", 0), 7, 0)
    assert asyncio.run(verifier.ask(question)) == [E.CONCURRENT_TRANSACTIONS]
    assert len(others.asked) == (leader == 2)
