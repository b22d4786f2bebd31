"""Consumer groups of KIP-848: librdkafka and Java as members, Kafka's tools, kill -9, changing the protocol."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribeGroupsRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    UpdateFeaturesRequest,
)
from support import members
from support.harness import BrokerProcess, WireConnection
from support.kafka_jars import java
from support.members import create

Names = Callable[[str], str]
Heartbeat = ConsumerGroupHeartbeatRequest
PATIENCE_S = 90.0
GROUP_RESOURCE, SET = 32, 0
QUICK = {"group.consumer.min.heartbeat.interval.ms": 500, "group.consumer.heartbeat.interval.ms": 500}


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that has its members heartbeat often, so that tests needn't wait long."""
    properties = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 4,
        "group.consumer.assignment.interval.ms": 0,
        **QUICK,
    }
    made = BrokerProcess(tmp_path_factory.mktemp("quick") / "broker", properties).start()
    yield made
    made.close()


@cache
def _admin(bootstrap: str) -> AdminClient:
    # After a kill librdkafka else begins again with its bootstrap servers and forgets the brokers that it knew, and a request
    # that waits for a group's coordinator then may wait for a broker that is forgotten.
    return AdminClient({"bootstrap.servers": bootstrap, "metadata.recovery.strategy": "none"})


def admin(broker: BrokerProcess) -> AdminClient:
    """A client that lives as long as its answers."""
    return _admin(broker.bootstrap)


def member(broker: BrokerProcess, topic: str, group: str, **properties: object) -> AbstractContextManager[Consumer]:
    """A consumer of the new protocol (or of the one that is named) that has subscribed."""
    own: dict[str, object] = {"group.protocol": "consumer", "topic.metadata.refresh.interval.ms": 1000}
    return members.member(broker, topic, group, **own | properties)


def settle(members: list[Consumer], partitions: int) -> list[set[tuple[str, int]]]:
    """Poll all until the partitions are shared out, each to one, and everybody has some."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for client in members:
            client.poll(0.05)
        shares = [{(part.topic, part.partition) for part in client.assignment()} for client in members]
        if len(set().union(*shares)) == sum(map(len, shares)) == partitions and all(shares):
            return shares
        assert time.monotonic() < deadline, shares


def test_members_share_take_over_and_follow_the_topic(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(quick_broker, new_topic("shared"), 4), new_topic("group")
    with member(quick_broker, topic, group) as first:
        settle([first], 4)
        with member(quick_broker, topic, group) as second:
            assert [len(share) for share in settle([first, second], 4)] == [2, 2]
            (grown,) = admin(quick_broker).create_partitions([NewPartitions(topic, 6)]).values()
            grown.result()
            assert [len(share) for share in settle([first, second], 6)] == [3, 3]
            found = admin(quick_broker).describe_consumer_groups([group])[group].result()
            assert (found.state.name, found.type.name, len(found.members)) == ("STABLE", "CONSUMER", 2)
        assert len(settle([first], 6)[0]) == 6, "the second has left"


def test_what_is_read_and_committed_is_read_once(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(quick_broker, new_topic("read"), 3), new_topic("group")
    producer = Producer({"bootstrap.servers": quick_broker.bootstrap})
    for number in range(300):
        producer.produce(topic, str(number), partition=number % 3)
    producer.flush()
    seen: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < 300:  # A member reads fifty and goes, then the next comes.
        with member(quick_broker, topic, group) as client:
            for _ in range(50):
                message = client.poll(5)
                while message is None:
                    assert time.monotonic() < deadline
                    message = client.poll(5)
                seen.append(int(message.value()))
                client.commit(message, asynchronous=False)
    assert sorted(seen) == list(range(300))


def test_a_pattern_follows_topics_that_are_made_later(quick_broker: BrokerProcess, new_topic: Names) -> None:
    name, group = new_topic("pattern"), new_topic("group")
    create(quick_broker, f"{name}-a", 1)
    create(quick_broker, f"x{name}-a", 1)
    with member(quick_broker, f"^{name}-[a-c]$", group) as client:
        assert settle([client], 1) == [{(f"{name}-a", 0)}]
        create(quick_broker, f"{name}-b", 2)
        create(quick_broker, f"{name}-d", 2)
        assert settle([client], 3) == [{(f"{name}-a", 0), (f"{name}-b", 0), (f"{name}-b", 1)}]


def test_members_and_offsets_survive_kill_9(make_broker: Callable[..., BrokerProcess], new_topic: Names) -> None:
    broker = make_broker(**QUICK, **{"group.consumer.assignment.interval.ms": 0})
    topic, group = create(broker, new_topic("killed"), 4), new_topic("group")
    with member(broker, topic, group) as first, member(broker, topic, group) as second:
        settle([first, second], 4)
        mine = first.assignment()[0].partition
        first.commit(offsets=[TopicPartition(topic, mine, 42, "note")], asynchronous=False)
        before = admin(broker).describe_consumer_groups([group])[group].result()
        broker.kill()
        broker.start()
        assert [len(share) for share in settle([first, second], 4)] == [2, 2]
        after = admin(broker).describe_consumer_groups([group])[group].result()
        assert {one.member_id for one in after.members} == {one.member_id for one in before.members}
        assert first.committed([TopicPartition(topic, mine)])[0].offset == 42


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_group_moves_to_the_new_protocol_and_back(quick_broker: BrokerProcess, new_topic: Names, strategy: str) -> None:
    topic, group = create(quick_broker, new_topic("moving"), 4), new_topic("group")
    classic = {
        "group.protocol": "classic",
        "partition.assignment.strategy": strategy,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 300,
    }

    def kind() -> str:
        found = admin(quick_broker).list_consumer_groups().result().valid
        name: str = next(one.type.name for one in found if one.group_id == group)
        return name

    with member(quick_broker, topic, group, **classic) as old:
        settle([old], 4)
        old.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
        assert kind() == "CLASSIC"
        with member(quick_broker, topic, group) as new:
            assert [len(share) for share in settle([old, new], 4)] == [2, 2]
            assert kind() == "CONSUMER"
            assert new.committed([TopicPartition(topic, 0)])[0].offset == 7
        settle([old], 4)
        assert kind() == "CLASSIC"
    with member(quick_broker, topic, group) as new:
        settle([new], 4)
        assert kind() == "CONSUMER"
        assert new.committed([TopicPartition(topic, 0)])[0].offset == 7


def test_a_transaction_commits_a_members_offsets_at_its_epoch(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(quick_broker, new_topic("txn"), 1), new_topic("group")
    producer = Producer({"bootstrap.servers": quick_broker.bootstrap, "transactional.id": new_topic("id")})
    producer.init_transactions(30)
    with member(quick_broker, topic, group, **{"isolation.level": "read_committed"}) as client:
        settle([client], 1)
        for offset, commits in ((3, True), (9, False), (5, True)):
            producer.begin_transaction()
            producer.produce(topic, "x")
            where = [TopicPartition(topic, 0, offset)]
            producer.send_offsets_to_transaction(where, client.consumer_group_metadata(), 30)
            if commits:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
            expected = offset if commits else 3
            assert client.committed([TopicPartition(topic, 0)], timeout=30)[0].offset == expected
        metadata = client.consumer_group_metadata()
    producer.begin_transaction()
    with pytest.raises(KafkaException) as raised:  # The member is gone.
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 8)], metadata, 30)
    assert raised.value.args[0].code() == ErrorCode.UNKNOWN_MEMBER_ID
    producer.abort_transaction(30)


@pytest.mark.kafka
def test_javas_consumer_and_group_tool(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(quick_broker, new_topic("java"), 2), new_topic("group")
    producer = Producer({"bootstrap.servers": quick_broker.bootstrap})
    for number in range(20):
        producer.produce(topic, str(number), partition=number % 2)
    producer.flush()

    def tool(name: str, *arguments: str) -> str:
        where = ["--bootstrap-server", quick_broker.bootstrap, "--group", group]
        printed = java(f"org.apache.kafka.tools.{name}", *where, *arguments)
        assert "Error" not in printed, printed
        return printed

    new_protocol = ["--command-property", "group.protocol=consumer"]
    read = tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "20", *new_protocol)
    assert sorted(map(int, read.split())) == list(range(20))
    with member(quick_broker, topic, group) as client:
        settle([client], 2)
        shown = tool("consumer.group.ConsumerGroupCommand", "--describe", "--members", "--verbose")
        assert f"{topic}:0,1" in shown and "TARGET-EPOCH" in shown
        assert "uniform" in tool("consumer.group.ConsumerGroupCommand", "--describe", "--state", "--verbose")
    assert "Deletion of requested consumer groups" in tool("consumer.group.ConsumerGroupCommand", "--delete")


# --- on the wire ------------------------------------------------------------------------------------------------------


def topic_id(broker: BrokerProcess, topic: str) -> bytes:
    (described,) = admin(broker).describe_topics(TopicCollection([topic])).values()
    return base64.urlsafe_b64decode(f"{described.result().topic_id}==")


def joining(group: str, topic: str, **changes: object) -> ConsumerGroupHeartbeatRequest:
    given: dict[str, object] = {
        "group_id": group,
        "member_id": "me",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
    return Heartbeat(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": [Heartbeat.TopicPartitions(partitions=[1])]}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ["x" * 30_000 + str(n) for n in range(20)]}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "(a)\\1"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 7}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_heartbeats_that_are_refused(
    quick_broker: BrokerProcess, new_topic: Names, changes: dict[str, object], error: int
) -> None:
    group = new_topic("refused")
    with WireConnection(quick_broker.bootstrap) as wire:
        answer = wire.ask(joining(group, "t", **changes), 1)
        assert answer.error_code == error and answer.error_message
        listed = wire.ask(ListGroupsRequest(), 5).groups
        assert group not in [one.group_id for one in listed]


def test_members_of_both_versions_their_offsets_and_descriptions(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(quick_broker, new_topic("wire"), 2), new_topic("group")
    by_id = topic_id(quick_broker, topic)
    with WireConnection(quick_broker.bootstrap) as wire:
        joined = wire.ask(joining(group, topic, member_id=""), 0)  # Version 0: the broker makes the id.
        assert joined.error_code == 0 and joined.member_id and joined.heartbeat_interval_ms == 500
        (part,) = joined.assignment.topic_partitions
        assert (bytes(part.topic_id), part.partitions) == (by_id, [0, 1])
        me, epoch = joined.member_id, joined.member_epoch
        assert wire.ask(Heartbeat(group_id=group, member_id=me, member_epoch=epoch), 1).assignment is None

        asked = OffsetCommitRequest.OffsetCommitRequestTopic(
            topic_id=by_id,
            partitions=[OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)],
        )
        commit = OffsetCommitRequest(group_id=group, member_id=me, generation_id_or_member_epoch=epoch, topics=[asked])
        assert wire.ask(commit, 10).topics[0].partitions[0].error_code == 0
        commit.generation_id_or_member_epoch = epoch + 1
        assert wire.ask(commit, 10).topics[0].partitions[0].error_code == ErrorCode.STALE_MEMBER_EPOCH
        asked.name = topic
        assert wire.ask(commit, 8).topics[0].partitions[0].error_code == ErrorCode.UNSUPPORTED_VERSION

        fetch = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, member_id=me, member_epoch=epoch)
        fetch.topics = None
        (fetched,) = wire.ask(OffsetFetchRequest(groups=[fetch]), 10).groups
        assert fetched.error_code == 0 and fetched.topics[0].partitions[0].committed_offset == 5
        fetch.member_epoch = epoch - 1
        (fetched,) = wire.ask(OffsetFetchRequest(groups=[fetch]), 10).groups
        assert (fetched.error_code, fetched.topics) == (ErrorCode.STALE_MEMBER_EPOCH, [])

        for version in (0, 1):
            found, unknown = wire.ask(ConsumerGroupDescribeRequest(group_ids=[group, "nobody"]), version).groups
            assert (found.group_state, found.assignor_name, found.group_epoch) == ("Stable", "uniform", epoch)
            (one,) = found.members
            assert (one.member_id, one.client_id, one.subscribed_topic_names) == (me, "test", [topic])
            for assignment in (one.assignment, one.target_assignment):
                assert [(part.topic_name, part.partitions) for part in assignment.topic_partitions] == [(topic, [0, 1])]
            assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        (as_classic,) = wire.ask(DescribeGroupsRequest(groups=[group]), 6).groups
        assert (as_classic.error_code, as_classic.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        kinds = {one.group_id: one.group_type for one in wire.ask(ListGroupsRequest(types_filter=["Consumer"]), 5).groups}
        assert kinds[group] == "consumer" and set(kinds.values()) == {"consumer"}
        left = wire.ask(Heartbeat(group_id=group, member_id=me, member_epoch=-1), 1)
        assert (left.error_code, left.member_epoch) == (0, -1)


def test_a_groups_own_settings_hold(quick_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(quick_broker, new_topic("settings"), 1), new_topic("group")
    change = IncrementalAlterConfigsRequest.AlterableConfig(
        name="consumer.heartbeat.interval.ms", config_operation=SET, value="700"
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=[change]
    )
    with WireConnection(quick_broker.bootstrap) as wire:
        (answer,) = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        assert answer.error_code == 0, answer.error_message
        assert wire.ask(joining(group, topic), 1).heartbeat_interval_ms == 700
        change.value = "99999999"
        (answer,) = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        assert answer.error_code == ErrorCode.INVALID_CONFIG


def test_an_operator_can_turn_the_protocol_off(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker()
    off = UpdateFeaturesRequest.FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=2)
    with WireConnection(broker.bootstrap) as wire:
        assert wire.ask(joining("g", "t"), 1).error_code == 0
        assert wire.ask(UpdateFeaturesRequest(feature_updates=[off]), 2).error_code == 0
        assert wire.ask(joining("g", "t"), 1).error_code == ErrorCode.UNSUPPORTED_VERSION
        (described,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert described.error_code == ErrorCode.UNSUPPORTED_VERSION
