"""A member that a group lets go, or that goes: what it commits then, and that nothing of it stays in the group."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker import Broker
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.producer import Producer
from support import asking
from support.patience import until

GROUP = "group"
COMMON: dict[str, Any] = {
    "group.id": GROUP,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
}
CLASSIC: dict[str, Any] = {**COMMON, "heartbeat.interval.ms": 100, "session.timeout.ms": 6000}
NEWER: dict[str, Any] = {**COMMON, "group.protocol": "consumer"}
IMPATIENT = {"max.poll.interval.ms": 1000}


@pytest.fixture
def penstock_broker_properties() -> dict[str, object]:
    return {
        "group.consumer.min.heartbeat.interval.ms": 200,
        "group.consumer.heartbeat.interval.ms": 200,
        "group.consumer.assignment.interval.ms": 0,
    }


@pytest.fixture(params=["classic", "consumer"])
def given(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A member's properties, in either protocol."""
    return CLASSIC if request.param == "classic" else NEWER


def settle(counts: list[int], *consumers: Consumer) -> None:
    """Poll until they have so many partitions, in this order."""

    def settled() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        return [len(consumer.assignment()) for consumer in consumers] == counts

    until(settled, f"shares {counts}", lambda: str([consumer.assignment() for consumer in consumers]))


def test_a_transaction_of_a_member_that_was_thrown_out_commits_no_offsets(
    penstock_broker: Broker, given: dict[str, Any]
) -> None:
    asking.create(penstock_broker, "t")
    tp = ("t", 0)
    with Producer(penstock_broker.bootstrap) as producer:
        producer.send_many("t", None, [b"v"] * 10)
    with (
        Consumer(penstock_broker.bootstrap, **given, **IMPATIENT) as slow,
        Consumer(penstock_broker.bootstrap, **given) as quick,
        Producer(penstock_broker.bootstrap, transactional_id="slow") as of_slow,
        Producer(penstock_broker.bootstrap, transactional_id="quick") as of_quick,
    ):
        slow.subscribe(["t"])
        until(lambda: len(slow.poll(0.1)) == 10, "ten records")
        of_slow.begin()
        of_slow.send("out", value=b"slow")
        quick.subscribe(["t"])
        settle([1], quick)
        of_quick.begin()
        of_quick.send("out", value=b"quick")
        of_quick.send_offsets({tp: 4}, GROUP, **quick.membership())
        of_quick.commit()
        with pytest.raises(KafkaError, match=f"the consumer left group `{GROUP}`") as refused:
            of_slow.send_offsets(slow.positions(), GROUP, **slow.membership())
        assert refused.value.code == ErrorCode.UNKNOWN_MEMBER_ID
        of_slow.abort()
        assert quick.committed([tp]) == {tp: (4, "")}
        quick.unsubscribe()
        with pytest.raises(KafkaError, match=f"the consumer left group `{GROUP}`"):
            quick.membership()
        quick.assign([tp])
        assert quick.membership() == {}


def test_a_consumer_that_never_subscribed_has_no_membership(penstock_broker: Broker) -> None:
    with Consumer(penstock_broker.bootstrap, **CLASSIC) as consumer:
        assert consumer.membership() == {}
