"""Consumer groups of stock clients: rebalance, static members, kill -9, Kafka's own group tool."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from support import members
from support.harness import BrokerProcess, WireConnection
from support.kafka_jars import java
from support.members import create

Names = Callable[[str], str]
PATIENCE_S = 60.0


def member(broker: BrokerProcess, topic: str, group: str, **properties: object) -> AbstractContextManager[Consumer]:
    """A consumer of the classic protocol that has subscribed."""
    return members.member(broker, topic, group, **{"session.timeout.ms": 6000, "heartbeat.interval.ms": 200} | properties)


def settle(members: list[Consumer], partitions: int) -> list[set[int]]:
    """Poll all until the partitions are shared out, each to one, and everybody has some."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for client in members:
            client.poll(0.05)
        shares = [{part.partition for part in client.assignment()} for client in members]
        whole = set().union(*shares) == set(range(partitions))
        if whole and all(shares) and sum(map(len, shares)) == partitions:
            return shares
        assert time.monotonic() < deadline, shares


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_two_consumers_share_and_take_over(shared_broker: BrokerProcess, new_topic: Names, strategy: str) -> None:
    topic, group = create(shared_broker, new_topic("shared"), 4), new_topic("group")
    how = {"partition.assignment.strategy": strategy}
    with member(shared_broker, topic, group, **how) as first:
        assert settle([first], 4) == [{0, 1, 2, 3}]
        with member(shared_broker, topic, group, **how) as second:
            assert [len(share) for share in settle([first, second], 4)] == [2, 2]
        assert settle([first], 4) == [{0, 1, 2, 3}], "the second has left"


def test_a_static_member_comes_back_to_its_partitions(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("static"), 4), new_topic("group")
    with member(shared_broker, topic, group, **{"group.instance.id": "one"}) as first:
        with member(shared_broker, topic, group, **{"group.instance.id": "two"}) as second:
            before = settle([first, second], 4)
        # A static member that closes does not leave; the first one isn't disturbed.
        with member(shared_broker, topic, group, **{"group.instance.id": "two"}) as again:
            assert settle([first, again], 4) == before
            described = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
            found = described.describe_consumer_groups([group])[group].result()
            assert sorted(one.group_instance_id for one in found.members) == ["one", "two"]
            assert found.state.name == "STABLE" and found.partition_assignor == "range"


def test_a_second_process_of_a_static_member_fences_the_first(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("fence"), 1), new_topic("group")
    first = Consumer(
        {
            "bootstrap.servers": shared_broker.bootstrap,
            "group.id": group,
            "group.instance.id": "me",
            "heartbeat.interval.ms": 100,
        }
    )
    first.subscribe([topic])
    settle([first], 1)
    with member(shared_broker, topic, group, **{"group.instance.id": "me"}) as second:
        settle([second], 1)
        deadline = time.monotonic() + PATIENCE_S
        with pytest.raises(KafkaException) as raised:
            while time.monotonic() < deadline:
                first.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        # The commit hears it, or the heartbeat before it: then librdkafka says _FENCED (-144) or _FATAL (-150).
        assert raised.value.args[0].code() in (ErrorCode.FENCED_INSTANCE_ID, -144, -150)
    first.close()


def test_offsets_and_members_survive_kill_9(broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(broker, new_topic("killed"), 2), new_topic("group")
    with member(broker, topic, group) as client:
        settle([client], 2)
        client.commit(offsets=[TopicPartition(topic, 0, 42, "note")], asynchronous=False)
        before = client.memberid()
        broker.kill()
        broker.start()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            client.poll(0.1)
            try:
                client.commit(offsets=[TopicPartition(topic, 1, 7)], asynchronous=False)
                break
            except KafkaException:
                assert time.monotonic() < deadline
        assert client.memberid() == before, "the group was loaded: its member went on as it was"
        [zero, one] = client.committed([TopicPartition(topic, n) for n in (0, 1)], PATIENCE_S)
        assert (zero.offset, zero.metadata, one.offset) == (42, "note", 7)


def test_admin_lists_describes_alters_and_deletes(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("admin"), 2), new_topic("group")
    client = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    with member(shared_broker, topic, group) as one:
        settle([one], 2)
        one.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        listed = {found.group_id: found.state.name for found in client.list_consumer_groups().result().valid}
        assert listed[group] == "STABLE"
        with pytest.raises(KafkaException) as raised:
            client.delete_consumer_groups([group])[group].result()
        assert raised.value.args[0].code() == ErrorCode.NON_EMPTY_GROUP
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    client.alter_consumer_group_offsets([wanted])[group].result()
    stored = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    assert [(part.partition, part.offset) for part in stored.topic_partitions] == [(0, 3)]
    client.delete_consumer_groups([group])[group].result()
    assert group not in {found.group_id for found in client.list_consumer_groups().result().valid}


def test_aiokafka_members_rebalance(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("aio"), 4), new_topic("group")

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap)
        await producer.start()
        for number in range(20):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 4)
        await producer.stop()
        settings = {
            "bootstrap_servers": shared_broker.bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 200,
        }
        first, second = AIOKafkaConsumer(topic, **settings), AIOKafkaConsumer(topic, **settings)
        await first.start()
        await second.start()
        got: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(set(got)) < 20 or not (first.assignment() and second.assignment()):
            assert time.monotonic() < deadline, (len(got), first.assignment(), second.assignment())
            for one in (first, second):
                for records in (await one.getmany(timeout_ms=50)).values():
                    got.extend(record.value for record in records)
        assert len(first.assignment()) == len(second.assignment()) == 2
        await first.stop()
        await second.stop()

    asyncio.run(run())


@pytest.mark.kafka
def test_kafkas_own_group_tool(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("tool"), 2), new_topic("group")

    def tool(*arguments: str) -> str:
        where = ["--bootstrap-server", shared_broker.bootstrap, "--group", group]
        printed = java("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *where, *arguments)
        assert "Error" not in printed, printed
        return printed

    with member(shared_broker, topic, group) as client:
        settle([client], 2)
        client.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        shown = tool("--describe", "--members", "--verbose")
        assert client.memberid() in shown and topic in shown
    assert "Empty" in tool("--describe", "--state")
    assert topic in tool("--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    assert "Deletion of requested consumer groups" in tool("--delete")


# --- on the wire ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_member_of_every_version(shared_broker: BrokerProcess, new_topic: Names, version: int) -> None:
    group = new_topic("wire")
    with WireConnection(shared_broker.bootstrap) as wire:
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=6000,
            rebalance_timeout_ms=6000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"said")],
        )
        joined = wire.ask(join, version)
        if version >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED and joined.member_id
            join.member_id = joined.member_id
            joined = wire.ask(join, version)
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        assert [bytes(one.metadata) for one in joined.members] == [b"said"]
        part = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"yours")
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=1,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[part],
        )
        synced = wire.ask(sync, min(version, 5))
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"yours")
        beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=joined.member_id)
        assert wire.ask(beat, min(version, 4)).error_code == 0
        beat.generation_id = 2
        assert wire.ask(beat, min(version, 4)).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", range(11))
def test_commit_and_fetch_of_every_version(shared_broker: BrokerProcess, new_topic: Names, version: int) -> None:
    topic, group = create(shared_broker, new_topic("commit"), 2), new_topic("group")
    client = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    (described,) = client.describe_topics(TopicCollection([topic])).values()
    topic_id = base64.urlsafe_b64decode(f"{described.result().topic_id}==")
    with WireConnection(shared_broker.bootstrap) as wire:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition
        parts = [
            partition(partition_index=0, committed_offset=12, committed_metadata="note"),
            partition(partition_index=9, committed_offset=1, committed_metadata=None),
        ]
        asked = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=parts)
        unknown = OffsetCommitRequest.OffsetCommitRequestTopic(name="nowhere", topic_id=b"\7" * 16, partitions=[parts[0]])
        answer = wire.ask(OffsetCommitRequest(group_id=group, topics=[asked, unknown]), version)
        errors = [[part.error_code for part in one.partitions] for one in answer.topics]
        not_there = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert errors == [[0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], [not_there]]
        if version < 8:
            topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])]
            fetched = wire.ask(OffsetFetchRequest(group_id=group, topics=topics), version)
            found = fetched.topics[0].partitions
        else:
            many = [OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0, 1])]
            groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=many)]
            fetched = wire.ask(OffsetFetchRequest(groups=groups), version)
            found = fetched.groups[0].topics[0].partitions
        shown = [(part.partition_index, part.committed_offset, part.metadata, part.error_code) for part in found]
        never = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version == 0 else ErrorCode.NONE
        assert shown == [(0, 12, "note", 0), (1, -1, "", never)]


def test_hostile_group_requests_get_answers(shared_broker: BrokerProcess, new_topic: Names) -> None:
    with WireConnection(shared_broker.bootstrap) as wire:
        assert wire.ask(JoinGroupRequest(group_id=""), 9).error_code == ErrorCode.INVALID_GROUP_ID
        assert wire.ask(HeartbeatRequest(group_id=""), 4).error_code == ErrorCode.INVALID_GROUP_ID
        ghost = HeartbeatRequest(group_id=new_topic("no"), member_id="ghost", generation_id=3)
        assert wire.ask(ghost, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        short = JoinGroupRequest(
            group_id=new_topic("no"),
            session_timeout_ms=1,
            rebalance_timeout_ms=-5,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        assert wire.ask(short, 9).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        sync = SyncGroupRequest(group_id=new_topic("no"), member_id="x", generation_id=1)
        assert wire.ask(sync, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        old = OffsetCommitRequest(group_id=new_topic("no"), generation_id_or_member_epoch=4, member_id="x")
        assert wire.ask(old, 8).topics == []
