"""What a produce that begins a transaction hears, by its version and the coordinator's verdict."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.broker.coordination import transactionalproduce
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.coordination.transactions.events import AddPartitions
from penstock.errors import ErrorCode as E
from penstock.pyx.net.border import Request, UnverifiedBatch


class Coordinator:
    """Says the same to everybody but for what it is told, and remembers who asked what."""

    def __init__(self, error: int, allowed: set[TopicPartition] = frozenset()) -> None:  # type: ignore[assignment]
        self.error = error
        self.allowed = allowed
        self.asked: list[tuple[str, int, int, tuple[TopicPartition, ...]]] = []

    def add_now(self, name: str, event: AddPartitions) -> int:
        assert event.client_version == 2
        self.asked.append((name, event.producer_id, event.producer_epoch, tuple(event.partitions)))
        return self.error

    def verify(self, name: str, producer_id: int, epoch: int, partition: TopicPartition) -> int:
        self.asked.append((name, producer_id, epoch, (partition,)))
        return E.NONE if partition in self.allowed else self.error


def refused(coordinator: Coordinator, version: int, *asked: UnverifiedBatch) -> dict[int, int]:
    request = Request(1, 0, version, 1, b"", "peer", "PLAINTEXT", True)
    return transactionalproduce.refused(cast(TransactionCoordinator, coordinator), request, "x", asked)


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
    assert refused(Coordinator(error), version, UnverifiedBatch(4, ("t", 0), 1, 0)) == {4: told}


def test_partitions_are_added_together_but_verified_one_by_one() -> None:
    asked = [UnverifiedBatch(0, ("t", 0), 1, 0), UnverifiedBatch(2, ("t", 1), 1, 0), UnverifiedBatch(3, ("t", 2), 8, 0)]
    adds = Coordinator(E.NONE)
    assert refused(adds, 12, *asked) == {}
    assert adds.asked == [("x", 1, 0, (("t", 0), ("t", 1))), ("x", 8, 0, (("t", 2),))]
    verifies = Coordinator(E.TRANSACTION_ABORTABLE, {("t", 1)})
    assert refused(verifies, 11, *asked) == {0: E.TRANSACTION_ABORTABLE, 3: E.TRANSACTION_ABORTABLE}
    assert refused(Coordinator(E.PRODUCER_FENCED), 12) == {}, "nobody to ask about"
