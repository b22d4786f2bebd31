"""Members that keep their partitions while the group rebalances, on their own, on the way there from `range`, and beside
librdkafka's; what members are told of partitions that go, and of a static member's successor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

from penstock.errors import ErrorCode, KafkaError
from support import asking
from support.harness import BrokerProcess
from support.our_members import CLASSIC, Member, fill, settle
from support.patience import until

Names = Callable[[str], str]
COOPERATIVE: dict[str, Any] = {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}


def by(strategy: str) -> dict[str, Any]:
    """Properties of a member with these assignors."""
    return {**CLASSIC, "partition.assignment.strategy": strategy}


def test_what_stays_is_read_while_others_are_waited_for(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("stays"), new_topic("group")
    asking.create(shared_broker, topic, partitions=6)
    with ExitStack() as stack:
        stays, slow, comes = (Member(shared_broker, topic, group, COOPERATIVE) for _ in range(3))
        for member in (stays, slow, comes):
            stack.callback(member.leave)
        settle([stays], [6])
        settle([stays, slow], [3, 3])
        before = list(stays.partitions)
        stays.told.clear()
        fill(shared_broker, topic, 6, range(5))

        def read_on() -> bool:
            stays.poll()
            comes.poll()
            return len(stays.records) >= 15

        until(read_on, "the records of partitions that stay")
        assert comes.partitions == [] and stays.partitions == before, "`slow` doesn't poll, so the group can't have rebalanced"
        settle([stays, slow, comes], [2, 2, 2])
        assert set(stays.partitions) <= set(before)
        revoked = [tp for what, tps in stays.told if what == "-" for tp in tps]
        assert [number for _, number in revoked] == sorted(set(before) - set(stays.partitions))
        assert [tps for what, tps in stays.told if what == "+" and tps] == []

        def all_read() -> bool:
            settle([stays, slow, comes], [2, 2, 2])
            return sum(len(member.records) for member in (stays, slow, comes)) >= 30

        until(all_read, "all records")
        read = [(record.partition, record.offset) for member in (stays, slow, comes) for record in member.records]
        assert sorted(read) == [(partition, offset) for partition in range(6) for offset in range(5)], "each once"


def test_a_group_changes_over_from_range_one_by_one(shared_broker: BrokerProcess, new_topic: Names) -> None:
    """Each member restarts twice, with both assignors and then without `range`; each record is read once."""
    topic, group = new_topic("change"), new_topic("group")
    asking.create(shared_broker, topic, partitions=4)
    read: list[tuple[int, int]] = []
    members = [Member(shared_broker, topic, group, by("range")) for _ in range(2)]
    sent = 0
    try:
        settle(members, [2, 2])
        for strategy in ("range,cooperative-sticky", "cooperative-sticky"):
            for i in range(2):
                fill(shared_broker, topic, 4, range(sent, sent + 5))
                sent += 5
                members[i].leave()
                read += [(record.partition, record.offset) for record in members[i].records]
                members[i] = Member(shared_broker, topic, group, by(strategy))
                settle(members, [2, 2])

        def all_read() -> bool:
            settle(members, [2, 2])
            return len(read) + sum(len(member.records) for member in members) >= 4 * sent

        until(all_read, "all records")
        read += [(record.partition, record.offset) for member in members for record in member.records]
        assert sorted(read) == [(partition, offset) for partition in range(4) for offset in range(sent)]
        members.append(Member(shared_broker, topic, group, COOPERATIVE))
        for member in members:
            member.told.clear()
        settle(members, [1, 1, 2])
        assert all(len(tps) < 2 for member in members for what, tps in member.told if what == "-"), "they are cooperative now"
    finally:
        for member in members:
            member.leave()


@pytest.mark.parametrize("leads", ["ours", "librdkafka's"])
def test_our_member_and_librdkafkas_share(leads: str, shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("mixed"), new_topic("group")
    asking.create(shared_broker, topic, partitions=4)
    config = {
        "bootstrap.servers": shared_broker.bootstrap,
        "group.id": group,
        "partition.assignment.strategy": "cooperative-sticky",
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 6000,
    }
    theirs = confluent_kafka.Consumer(config)
    ours: Member | None = None
    try:
        if leads == "librdkafka's":
            theirs.subscribe([topic])
            until(lambda: theirs.poll(0.05) is None and len(theirs.assignment()) == 4, "librdkafka's partitions")
        ours = Member(shared_broker, topic, group, COOPERATIVE)
        if leads == "ours":
            settle([ours], [4])
            theirs.subscribe([topic])

        def shared() -> bool:
            assert ours is not None
            ours.poll()
            theirs.poll(0.05)
            held = sorted([*ours.partitions, *(tp.partition for tp in theirs.assignment())])
            return held == [0, 1, 2, 3] and len(ours.partitions) == 2

        until(shared, "two partitions for each")
    finally:
        theirs.close()
        if ours is not None:
            ours.leave()


@pytest.mark.parametrize("strategy", ["range", "sticky", "cooperative-sticky"])
def test_a_member_that_was_dropped_is_told_that_its_partitions_are_lost(
    strategy: str, shared_broker: BrokerProcess, new_topic: Names
) -> None:
    topic, group = new_topic("lost"), new_topic("group")
    asking.create(shared_broker, topic, partitions=2)
    sleeps = Member(shared_broker, topic, group, by(strategy), **{"max.poll.interval.ms": 1500})
    waits = Member(shared_broker, topic, group, by(strategy))
    try:
        settle([sleeps], [2])
        settle([waits], [2])  # `sleeps` doesn't poll meanwhile
        sleeps.told.clear()
        settle([sleeps, waits], [1, 1])
        assert sleeps.told[0] == ("lost", [(topic, 0), (topic, 1)])
        assert "-" not in [what for what, _ in sleeps.told]
    finally:
        sleeps.leave()
        waits.leave()


def test_sticky_members_keep_what_they_had(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("sticky"), new_topic("group")
    asking.create(shared_broker, topic, partitions=6)
    members = [Member(shared_broker, topic, group, by("sticky")) for _ in range(3)]
    try:
        settle(members, [2, 2, 2])
        had = [set(member.partitions) for member in members[:2]]
        members.pop().leave()
        settle(members, [3, 3])
        assert all(before <= set(member.partitions) for before, member in zip(had, members, strict=True))
    finally:
        for member in members:
            member.leave()


def test_a_static_member_hears_in_words_who_replaced_it(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("static"), new_topic("group")
    asking.create(shared_broker, topic, partitions=1)
    static = {"group.instance.id": "one"}
    first = Member(shared_broker, topic, group, COOPERATIVE, **static)
    settle([first], [1])
    second = Member(shared_broker, topic, group, COOPERATIVE, **static)
    try:
        settle([second], [1])
        caught: list[KafkaError] = []

        def fenced() -> bool:
            try:
                first.poll()
            except KafkaError as error:
                caught.append(error)
            return bool(caught)

        until(fenced, "the first member's end")
        assert caught[0].code == ErrorCode.FENCED_INSTANCE_ID
        assert f"another process has joined group `{group}` as static member `one`" in str(caught[0])
    finally:
        second.leave()
        first.consumer.close()
