"""What a broker answers about the cluster as a whole: each one the same, and none the truth of one node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker import Cluster
from penstock.broker.cluster.messages import LeaderAndIsrAnswer, UpdateMetadata
from penstock.broker.replication import pictures
from penstock.broker.replication import topics as replicated
from penstock.broker.replication.replicas import Replicas
from penstock.broker.replication.topics import ClusterTopics, Prepared
from penstock.broker.topics import changes
from penstock.errors import ErrorCode
from penstock.pyx.wire import messages, requests
from support.dataplane import batch
from support.harness import WireConnection
from support.patience import until

METADATA = "__cluster_metadata"
UPGRADE, SAFE_DOWNGRADE = 1, 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(data=tmp_path_factory.mktemp("cluster")) as made:
        yield made


def create(cluster: Cluster, broker: int, name: str, replicas: list[int]) -> int:
    """Ask a broker for a new topic of one partition; an error code."""
    own = messages.CreateTopicsRequest
    there = own.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
    topic = own.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[there])
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        answer = connection.ask(own(topics=[topic], timeout_ms=60_000), 5)
    code: int = answer.topics[0].error_code
    return code


def delete(cluster: Cluster, broker: int, name: str) -> int:
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        answer = connection.ask(messages.DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000), 5)
    code: int = answer.responses[0].error_code
    return code


def delete_by_id(cluster: Cluster, broker: int, topic_id: bytes) -> int:
    state = messages.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        answer = connection.ask(messages.DeleteTopicsRequest(topics=[state], timeout_ms=60_000), 6)
    code: int = answer.responses[0].error_code
    return code


def grow(cluster: Cluster, broker: int, name: str, count: int) -> int:
    own = messages.CreatePartitionsRequest
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        request = own(topics=[own.CreatePartitionsTopic(name=name, count=count, assignments=None)], timeout_ms=60_000)
        answer = connection.ask(request, 2)
    code: int = answer.results[0].error_code
    return code


def look(cluster: Cluster, broker: int, name: str, *, may_create: bool) -> int:
    """What a broker's Metadata says of a topic; an error code."""
    own = messages.MetadataRequest
    request = own(topics=[own.MetadataRequestTopic(name=name)], allow_auto_topic_creation=may_create)
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        code: int = connection.ask(request, 8).topics[0].error_code
    return code


def reassign(cluster: Cluster, broker: int, name: str, replicas: list[int] | None) -> int:
    own = messages.AlterPartitionReassignmentsRequest
    wanted = own.ReassignableTopic(name=name, partitions=[own.ReassignablePartition(partition_index=0, replicas=replicas)])
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        answer = connection.ask(own(topics=[wanted]), 0)
    assert answer.error_code == ErrorCode.NONE
    code: int = answer.responses[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_move_that_is_not_made_is_refused(cluster: Cluster, broker: int) -> None:
    name = f"moved-{broker}"
    assert create(cluster, 1, name, [1, 2]) == ErrorCode.NONE
    assert reassign(cluster, broker, name, [1, 2]) == ErrorCode.NONE
    for wanted in ([2, 1], [3], [1, 2, 3], [1]):
        assert reassign(cluster, broker, name, wanted) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, broker, name, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_every_broker_says_that_the_controller_leads_the_quorum(cluster: Cluster) -> None:
    own = messages.DescribeQuorumRequest
    request = own(topics=[own.TopicData(topic_name=METADATA, partitions=[own.PartitionData(partition_index=0)])])
    epochs = set()
    for broker in cluster.brokers.values():
        with WireConnection(broker.bootstrap) as connection:
            answer = connection.ask(request, 2)
        (partition,) = answer.topics[0].partitions
        assert partition.leader_id == cluster.controller
        assert [voter.replica_id for voter in partition.current_voters] == [cluster.controller]
        (node,) = answer.nodes
        assert node.node_id == cluster.controller
        assert f"127.0.0.1:{node.listeners[0].port}" == cluster.brokers[cluster.controller].bootstrap
        epochs.add(partition.leader_epoch)
    (epoch,) = epochs
    assert epoch > 0


def features(cluster: Cluster, broker: int) -> tuple[int, dict[str, int]]:
    """The epoch of the features that a broker has, and its levels."""
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        answer = connection.ask(messages.ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)
    levels = {one.name: one.max_version_level for one in answer.finalized_features}
    return answer.finalized_features_epoch, levels


def update(cluster: Cluster, broker: int, feature: str, level: int, kind: int) -> None:
    own = messages.UpdateFeaturesRequest
    change = own.FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        answer = connection.ask(own(feature_updates=[change], timeout_ms=10_000), 1)
    assert answer.error_code == ErrorCode.NONE, answer.error_message


def test_a_feature_that_one_broker_changes_is_changed_on_all(cluster: Cluster) -> None:
    epoch, levels = features(cluster, 3)
    update(cluster, 1, "transaction.version", 1, SAFE_DOWNGRADE)
    lower = {**levels, "transaction.version": 1}
    until(lambda: all(features(cluster, broker) == (epoch + 1, lower) for broker in (1, 2, 3)), "all brokers to know")
    # Another one changes another, and takes nothing back.
    update(cluster, 2, "group.version", 0, SAFE_DOWNGRADE)
    del lower["group.version"]
    until(lambda: all(features(cluster, broker) == (epoch + 2, lower) for broker in (1, 2, 3)), "all brokers to know")
    update(cluster, 3, "group.version", 1, UPGRADE)
    update(cluster, 1, "transaction.version", 2, UPGRADE)
    until(lambda: all(features(cluster, broker) == (epoch + 4, levels) for broker in (1, 2, 3)), "all brokers to know")


def test_what_one_broker_has_answered_the_others_know(cluster: Cluster) -> None:
    """A client may ask another broker next: that one doesn't answer from what it knew before."""
    for turn in range(30):
        first, second, third = ((turn + at) % 3 + 1 for at in range(3))
        name = f"asked-{turn % 2}"
        assert create(cluster, first, name, [1, 2, 3]) == ErrorCode.NONE
        assert grow(cluster, second, name, 2) == ErrorCode.NONE
        assert create(cluster, third, name, [1]) == ErrorCode.TOPIC_ALREADY_EXISTS
        assert delete(cluster, third, name) == ErrorCode.NONE
        assert create(cluster, second, name, [3, 2]) == ErrorCode.NONE
        assert delete(cluster, first, name) == ErrorCode.NONE
        assert delete(cluster, second, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_who_is_named_as_leader_leads(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to take the role: all others hear of it then."""
    monkeypatch.setattr(pictures, "HOLD_S", 60.0)
    for turn in range(30):
        name = f"led-{turn}"
        asked, leader = turn % 3 + 1, (turn + 1) % 3 + 1
        assert create(cluster, asked, name, [leader, asked]) == ErrorCode.NONE
        with WireConnection(cluster.brokers[asked].bootstrap) as connection:
            answer = connection.ask(requests.metadata_request(name), requests.METADATA_VERSION)
        assert answer.topics[0].partitions[0].leader_id == leader
        with WireConnection(cluster.brokers[leader].bootstrap) as connection:
            requests.produce(connection, name, {0: batch([b"x"])})


def partitions(cluster: Cluster, broker: int, name: str) -> int:
    """How many partitions of a topic a broker shows, led; -1: none, as it doesn't know the topic."""
    with WireConnection(cluster.brokers[broker].bootstrap) as connection:
        (topic,) = connection.ask(requests.metadata_request(name), requests.METADATA_VERSION).topics
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return -1
    assert topic.error_code == ErrorCode.NONE
    return sum(one.leader_id >= 0 for one in topic.partitions)


def test_a_change_is_answered_once_all_brokers_show_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one of them is slow to take the controller's picture."""
    prepare = ClusterTopics.prepare

    async def prepare_slowly(topics: ClusterTopics, picture: UpdateMetadata) -> Prepared:
        if topics._node_id == slow:
            await asyncio.sleep(0.5)
        return await prepare(topics, picture)

    monkeypatch.setattr(ClusterTopics, "prepare", prepare_slowly)
    for slow in cluster.brokers:
        others = [broker for broker in cluster.brokers if broker != slow]
        for asked in others:
            name = f"told-{slow}-{asked}"
            assert create(cluster, asked, name, [asked]) == ErrorCode.NONE
            assert partitions(cluster, slow, name) == 1
            assert grow(cluster, asked, name, 3) == ErrorCode.NONE
            assert partitions(cluster, slow, name) == 3
            assert delete(cluster, asked, name) == ErrorCode.NONE
            assert partitions(cluster, slow, name) == -1


def test_a_new_topic_takes_records_once_it_is_answered(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its leader is slow to take the role."""
    take = Replicas.take

    async def take_slowly(replicas: Replicas, *given: Any) -> LeaderAndIsrAnswer:
        await asyncio.sleep(3 * pictures.HOLD_S)
        return await take(replicas, *given)

    monkeypatch.setattr(Replicas, "take", take_slowly)
    for leader in cluster.brokers:
        for asked in cluster.brokers:
            name = f"taken-{leader}-{asked}"
            assert create(cluster, asked, name, [leader]) == ErrorCode.NONE
            with WireConnection(cluster.brokers[leader].bootstrap) as connection:
                requests.produce(connection, name, {0: batch([b"x"])})


def test_a_broker_that_stands_still_holds_up_no_creation_for_ever(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "TOLD_S", 0.1)
    paused = next(broker for broker in cluster.brokers if broker != cluster.controller)
    asked, leader = (broker for broker in cluster.brokers if broker != paused)
    cluster.pause(paused)
    try:
        assert create(cluster, asked, "without", [leader]) == ErrorCode.NONE
    finally:
        cluster.resume(paused)
    cluster.until_live(set(cluster.brokers))
    until(lambda: partitions(cluster, paused, "without") == 1, "it hears of the topic")


def test_a_deleted_topic_is_made_again_by_no_broker_that_is_asked_for_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "DELETED_RECENTLY_S", 1e9)
    for broker in (1, 2, 3):
        assert create(cluster, 1, "gone", [1, 2, 3]) == ErrorCode.NONE
        until(lambda broker=broker: look(cluster, broker, "gone", may_create=False) == ErrorCode.NONE, "it is seen")  # type: ignore[misc]
        assert delete(cluster, 1, "gone") == ErrorCode.NONE
        until(lambda broker=broker: look(cluster, broker, "gone", may_create=False) != ErrorCode.NONE, "it is gone")  # type: ignore[misc]
        for _ in range(2):  # The first answer would make it, the second one would show it.
            assert look(cluster, broker, "gone", may_create=True) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_id_that_a_broker_does_not_know_is_for_the_controller_to_judge(cluster: Cluster) -> None:
    nobodys = bytes(range(16))
    for broker in cluster.brokers:
        expected = ErrorCode.UNKNOWN_TOPIC_ID if broker == cluster.controller else ErrorCode.NOT_CONTROLLER
        assert delete_by_id(cluster, broker, nobodys) == expected


def test_a_topic_that_was_made_a_moment_ago_is_deleted_by_its_id(cluster: Cluster) -> None:
    for turn in range(30):
        asked, other = turn % 3 + 1, (turn + 1) % 3 + 1
        assert create(cluster, asked, f"by-id-{turn}", [asked]) == ErrorCode.NONE
        shown = messages.MetadataRequest(topics=[messages.MetadataRequest.MetadataRequestTopic(name=f"by-id-{turn}")])
        with WireConnection(cluster.brokers[asked].bootstrap) as connection:
            topic_id = connection.ask(shown, 12).topics[0].topic_id
        error = delete_by_id(cluster, other, topic_id)
        if error == ErrorCode.NOT_CONTROLLER:
            error = delete_by_id(cluster, cluster.controller, topic_id)
        assert error == ErrorCode.NONE
