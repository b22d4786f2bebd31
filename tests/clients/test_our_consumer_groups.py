"""Our consumer in groups of KIP-848: beside its like and librdkafka's, told of what moves, dropped, replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from penstock.config import ConfigError
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.consumer import Consumer
from support import asking
from support.harness import BrokerProcess
from support.our_members import NEWER, QUICK_BROKER, Member, fill, settle
from support.patience import until

Names = Callable[[str], str]


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that has its members heartbeat often."""
    properties = {**QUICK_BROKER, "offsets.topic.num.partitions": 4}
    made = BrokerProcess(tmp_path_factory.mktemp("quick") / "broker", properties).start()
    yield made
    made.close()


def read_all(members: list[Member], counts: list[int], gone: list[Member], records: int) -> None:
    """Poll until so many records have come in all, those of members that are gone too."""

    def read() -> bool:
        settle(members, counts)
        return sum(len(member.records) for member in members + gone) >= records

    until(read, f"{records} records")


def test_members_share_keep_and_take_over(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("kip848"), new_topic("group")
    asking.create(quick_broker, topic, partitions=4)
    first = Member(quick_broker, topic, group, NEWER)
    members = [first]
    try:
        settle(members, [4])
        fill(quick_broker, topic, 4, range(5))
        read_all(members, [4], [], 20)
        first.told.clear()
        members.append(Member(quick_broker, topic, group, NEWER))
        settle(members, [2, 2])
        moved = [tp for what, tps in first.told if what == "-" for tp in tps]
        assert sorted(number for _, number in moved) == sorted(members[1].partitions)
        fill(quick_broker, topic, 4, range(5, 10))
        read_all(members, [2, 2], [], 40)
        members.pop(0).leave()
        settle(members, [4])
        fill(quick_broker, topic, 4, range(10, 12))
        read_all(members, [4], [first], 48)
        read = [(record.partition, record.offset) for member in (first, members[0]) for record in member.records]
        assert sorted(read) == [(partition, offset) for partition in range(4) for offset in range(12)], "each once"
    finally:
        for member in members:
            member.leave()


def test_our_member_and_librdkafkas_share(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("mixed"), new_topic("group")
    asking.create(quick_broker, topic, partitions=4)
    config = {"bootstrap.servers": quick_broker.bootstrap, "group.id": group, "group.protocol": "consumer"}
    theirs = confluent_kafka.Consumer({**config, "auto.offset.reset": "earliest"})
    ours = Member(quick_broker, topic, group, NEWER)
    try:
        settle([ours], [4])
        theirs.subscribe([topic])

        def shared() -> bool:
            ours.poll()
            theirs.poll(0.05)
            held = sorted([*ours.partitions, *(tp.partition for tp in theirs.assignment())])
            return held == [0, 1, 2, 3] and len(ours.partitions) == 2

        until(shared, "two partitions for each")
    finally:
        theirs.close()
        ours.leave()


def test_a_member_that_was_dropped_loses_its_partitions_and_comes_back(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("lost"), new_topic("group")
    asking.create(quick_broker, topic, partitions=2)
    sleeps = Member(quick_broker, topic, group, NEWER, **{"max.poll.interval.ms": 1500})
    waits = Member(quick_broker, topic, group, NEWER)
    try:
        settle([sleeps], [2])
        settle([waits], [2])  # `sleeps` doesn't poll meanwhile
        sleeps.told.clear()
        settle([sleeps, waits], [1, 1])
        assert sleeps.told[0] == ("lost", [(topic, 0), (topic, 1)])
    finally:
        sleeps.leave()
        waits.leave()


def test_a_static_members_name_is_taken_by_one_process(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("static"), new_topic("group")
    asking.create(quick_broker, topic, partitions=1)
    static = {"group.instance.id": "one"}
    first, second = (Member(quick_broker, topic, group, NEWER, **static) for _ in range(2))
    try:
        settle([first], [1])
        with pytest.raises(KafkaError, match=r"another process is in group .* as static member `one`") as caught:
            settle([second], [1])
        assert caught.value.code == ErrorCode.UNRELEASED_INSTANCE_ID
        first.leave()
        third = Member(quick_broker, topic, group, NEWER, **static)
        settle([third], [1])
        third.leave()
    finally:
        second.consumer.close()


def test_a_static_member_that_restarts_keeps_its_partitions(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("static"), new_topic("group")
    asking.create(quick_broker, topic, partitions=4)
    stays, goes = (Member(quick_broker, topic, group, NEWER, **{"group.instance.id": name}) for name in ("stays", "goes"))
    members = [stays, goes]
    try:
        settle(members, [2, 2])
        had = goes.partitions
        stays.told.clear()
        members.pop().leave()
        for _ in range(30):
            settle([stays], [2])
        members.append(Member(quick_broker, topic, group, NEWER, **{"group.instance.id": "goes"}))
        settle(members, [2, 2])
        assert members[1].partitions == had
        assert [tps for _, tps in stays.told if tps] == []
    finally:
        for member in members:
            member.leave()


def test_what_the_coordinator_decides_is_refused_as_a_property(quick_broker: BrokerProcess) -> None:
    with pytest.raises(ConfigError, match=r"`session\.timeout\.ms` is the coordinator's"):
        Consumer(quick_broker.bootstrap, **NEWER, group_id="g", session_timeout_ms=6000)


@pytest.mark.kafka
def test_members_share_in_a_group_of_apache_kafka(apache_kafka: Any, new_topic: Names) -> None:
    topic, group = new_topic("kip848"), new_topic("group")

    async def create() -> None:
        async with Admin(apache_kafka.bootstrap) as admin:
            await admin.create_topics({topic: 4})

    asyncio.run(create())
    fill(apache_kafka, topic, 4, range(5))
    members = [Member(apache_kafka, topic, group, NEWER)]
    try:
        settle(members, [4])
        members.append(Member(apache_kafka, topic, group, NEWER))
        settle(members, [2, 2])
        read_all(members, [2, 2], [], 20)
        read = [(record.partition, record.offset) for member in members for record in member.records]
        assert sorted(read) == [(partition, offset) for partition in range(4) for offset in range(5)], "each once"
    finally:
        for member in members:
            member.leave()
