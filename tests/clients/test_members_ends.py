"""A member that a group lets go, or that goes: what it commits then, and that nothing of it stays in the group."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.producer import Producer
from support import asking, our_members
from support.our_members import QUICK_BROKER, settle_each
from support.patience import until

TopicPartition = tuple[str, int]
GROUP = "group"
LIMIT_S = 120.0
ALL = 1_000_000
QUICK_RETRIES: dict[str, Any] = {"group.id": GROUP, "retry.backoff.ms": 20, "retry.backoff.max.ms": 100}
CLASSIC: dict[str, Any] = {**our_members.CLASSIC, **QUICK_RETRIES}
NEWER: dict[str, Any] = {**our_members.NEWER, **QUICK_RETRIES}
IMPATIENT = {"max.poll.interval.ms": 1000}


@pytest.fixture
def penstock_broker_properties() -> dict[str, object]:
    return QUICK_BROKER


@pytest.fixture(params=["classic", "consumer"])
def given(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A member's properties, in either protocol."""
    return CLASSIC if request.param == "classic" else NEWER


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
        settle_each([1], quick)
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


def test_a_commit_that_is_tried_again_takes_no_later_one_back(penstock_broker: Broker) -> None:
    asking.create(penstock_broker, "t")
    tp = ("t", 0)
    answers: queue.Queue[KafkaError | None] = queue.Queue()
    with Consumer(penstock_broker.bootstrap, **CLASSIC) as consumer:
        consumer.assign([tp])
        refused = penstock_broker.faults.error("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=2)
        consumer.commit_async({tp: 3}, answers.put)
        consumer.commit_async({tp: 7}, answers.put)
        consumer.commit_async({tp: 10}, answers.put)
        assert [answers.get(timeout=LIMIT_S) for _ in range(3)] == [None] * 3
        assert (refused.hits, consumer.committed([tp])) == (2, {tp: (10, "")})


def test_what_was_committed_without_waiting_goes_out_before_the_consumer_leaves(
    penstock_broker: Broker, given: dict[str, Any]
) -> None:
    asking.create(penstock_broker, "t")
    answers: queue.Queue[KafkaError | None] = queue.Queue()
    with Consumer(penstock_broker.bootstrap, **given) as consumer:
        consumer.subscribe(["t"])
        settle_each([1], consumer)
        for offset in range(1, 6):
            consumer.commit_async({("t", 0): offset}, answers.put)
    assert [answers.get(timeout=LIMIT_S) for _ in range(5)] == [None] * 5


def test_a_commit_that_is_tried_again_is_that_of_the_member_that_asked_for_it(
    penstock_broker: Broker, given: dict[str, Any]
) -> None:
    asking.create(penstock_broker, "t", partitions=2)
    answers: queue.Queue[KafkaError | None] = queue.Queue()
    with Consumer(penstock_broker.bootstrap, **given) as first, Consumer(penstock_broker.bootstrap, **given) as second:
        first.subscribe(["t"])
        settle_each([2], first)
        refused = penstock_broker.faults.error("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=ALL)
        first.commit_async(dict.fromkeys(first.assignment(), 3), answers.put)
        until(lambda: refused.hits > 0, "a try that is refused")
        second.subscribe(["t"])
        settle_each([1, 1], first, second)
        penstock_broker.faults.clear()
        (tp,) = second.assignment()
        second.commit({tp: 10})
        error = answers.get(timeout=LIMIT_S)
        assert error is not None and error.code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
        assert second.committed([tp]) == {tp: (10, "")}


def test_a_new_epoch_renews_commits_of_partitions_that_stay_and_of_no_others(penstock_broker: Broker) -> None:
    asking.create(penstock_broker, "t", partitions=2)
    answers: queue.Queue[tuple[TopicPartition, KafkaError | None]] = queue.Queue()
    with Consumer(penstock_broker.bootstrap, **NEWER) as first, Consumer(penstock_broker.bootstrap, **NEWER) as second:
        first.subscribe(["t"])
        settle_each([2], first)
        refused = penstock_broker.faults.error("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=ALL)
        for tp in first.assignment():
            first.commit_async({tp: 3}, lambda error, tp=tp: answers.put((tp, error)))  # type: ignore[misc]  # mypy can't infer
        until(lambda: refused.hits > 0, "a try that is refused")
        second.subscribe(["t"])
        settle_each([1, 1], first, second)
        penstock_broker.faults.clear()
        (moved,), (kept,) = second.assignment(), first.assignment()
        second.commit({moved: 10})
        heard = dict(answers.get(timeout=LIMIT_S) for _ in range(2))
        assert heard[kept] is None
        error = heard[moved]
        assert error is not None and error.code == ErrorCode.ILLEGAL_GENERATION
        assert second.committed([moved, kept]) == {moved: (10, ""), kept: (3, "")}


def hold_joins(broker: Broker, given: dict[str, Any]) -> Any:
    """Have every join be tried again until the faults are cleared; those of the newer protocol are carried out, unanswered."""
    if "group.protocol" in given:
        return broker.faults.lose_answer("ConsumerGroupHeartbeat", times=ALL)
    return broker.faults.error("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", times=ALL)


def test_a_join_ends_with_the_subscription(penstock_broker: Broker, given: dict[str, Any]) -> None:
    asking.create(penstock_broker, "t", partitions=2)
    with Consumer(penstock_broker.bootstrap, **given) as goes, Consumer(penstock_broker.bootstrap, **given) as stays:
        goes.subscribe(["t"])
        held = hold_joins(penstock_broker, given)
        until(lambda: goes.poll(0.05) == [] and held.hits > 0, "a join under way")
        goes.unsubscribe()
        penstock_broker.faults.clear()
        stays.subscribe(["t"])
        settle_each([2, 0], stays, goes)
        for _ in range(20):
            settle_each([2, 0], stays, goes)


def test_a_member_leaves_whose_join_others_hold_up(penstock_broker: Broker) -> None:
    async def members() -> int:
        async with Admin(penstock_broker.bootstrap) as admin:
            return len((await admin.describe_group(GROUP)).members)

    asking.create(penstock_broker, "t", partitions=2)
    with Consumer(penstock_broker.bootstrap, **CLASSIC) as stays, Consumer(penstock_broker.bootstrap, **CLASSIC) as goes:
        stays.subscribe(["t"])
        settle_each([2], stays)
        goes.subscribe(["t"])
        until(lambda: goes.poll(0.05) == [] and asyncio.run(members()) == 2, "two members")
        goes.unsubscribe()
        until(lambda: stays.poll(0.05) == [] and asyncio.run(members()) == 1, "one member")
        settle_each([2], stays)


def test_a_join_for_other_topics_gives_no_share(penstock_broker: Broker, given: dict[str, Any]) -> None:
    asking.create(penstock_broker, "before", "after")
    with Consumer(penstock_broker.bootstrap, **given) as consumer:
        consumer.subscribe(["before"])
        held = hold_joins(penstock_broker, given)
        until(lambda: consumer.poll(0.05) == [] and held.hits > 0, "a join under way")
        consumer.subscribe(["after"])
        penstock_broker.faults.clear()
        until(lambda: consumer.poll(0.05) == [] and bool(consumer.assignment()), "a share")
        assert consumer.assignment() == [("after", 0)]
