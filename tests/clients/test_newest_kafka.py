"""What the newest Apache Kafka offers, held against ours: APIs, features, configs, and answers that came with 4.4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerGroupHeartbeatRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from support.harness import BrokerProcess, WireConnection, topic_name
from support.kafka_jars import ApacheKafka
from support.patience import until
from support.transaction_wire import end, topic_ids

pytestmark = pytest.mark.kafka

PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,  # until the transaction's markers are written
}
TOPIC, GROUP = 2, 32
NIL = bytes(16)
# tests/compat/FINDINGS.md names these below "Not there".
MISSING_APIS = {
    **dict.fromkeys(range(38, 42), "delegation tokens"),
    64: "UnregisterBroker",
    **dict.fromkeys(range(76, 80), "share groups"),
    **dict.fromkeys((80, 81), "voters of the quorum"),
    **dict.fromkeys((*range(83, 88), *range(90, 93)), "share groups"),
    **dict.fromkeys((88, 89, 93), "streams groups"),
    94: "UnregisterController",
}
# The second one keeps message sets as they were sent: Kafka had it up to 3.9.
OWN_CONFIGS = ("penstock.", "message.format.version")
MISSING_FEATURES = {"kraft.version", "share.version", "streams.version", "eligible.leader.replicas.version"}
MISSING_GROUP_CONFIGS = ("share.", "streams.", "errors.deadletterqueue.")


@pytest.fixture
def kafka(apache_kafka: ApacheKafka) -> Iterator[WireConnection]:
    """A connection to Apache Kafka."""
    with WireConnection(apache_kafka.bootstrap) as wire:
        yield wire


@pytest.fixture
def ours(shared_broker: BrokerProcess) -> Iterator[WireConnection]:
    """A connection to our broker."""
    with WireConnection(shared_broker.bootstrap) as wire:
        yield wire


def api_versions(wire: WireConnection, cluster: str | None = None, node: int = -1) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1", cluster_id=cluster, node_id=node)
    answer: ApiVersionsResponse = wire.ask(request, 5)
    return answer


def create(wire: WireConnection) -> str:
    """A new topic of one partition."""
    name = topic_name("newest")
    wanted = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (made,) = wire.ask(CreateTopicsRequest(topics=[wanted]), 7).topics
    assert made.error_code == 0
    return name


def settled(ask: Callable[[], list[Any]]) -> list[Any]:
    """The first answer whose error, its first word, doesn't pass by itself."""
    answers: list[list[Any]] = []

    def is_settled() -> bool:
        answers[:] = [ask()]
        return answers[0][0] not in PASSING

    until(is_settled, "an answer that stays", lambda: str(answers))
    return answers[0]


def transactional(wire: WireConnection, name: str) -> tuple[int, int]:
    """A producer's id and epoch."""
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)

    def ask() -> list[int]:
        answer = wire.ask(request, 5)
        return [answer.error_code, answer.producer_id, answer.producer_epoch]

    error, producer_id, epoch = settled(ask)
    assert error == 0
    return producer_id, epoch


def join(wire: WireConnection, group: str, topic: str) -> int:
    """Join a group of KIP-848 as member `m`: its epoch."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )

    def ask() -> list[int]:
        answer = wire.ask(request, 1)
        return [answer.error_code, answer.member_epoch]

    error, epoch = settled(ask)
    assert error == 0
    return int(epoch)


def find_coordinators(wire: WireConnection, group: str, transactional_id: str) -> None:
    """Let Kafka make the topics of its coordinators."""
    for kind, key in enumerate((group, transactional_id)):
        assert settled(partial(coordinator, wire, kind, key)) == [0]


def coordinator(wire: WireConnection, kind: int, key: str) -> list[int]:
    """FindCoordinator: its error."""
    (found,) = wire.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4).coordinators
    return [found.error_code]


def commit(
    wire: WireConnection,
    transactional_id: str,
    group: str,
    owner: tuple[int, int],
    version: int,
    topic: str,
    **given: Any,
) -> int:
    """TxnOffsetCommit of offset 3, the topic named as the version wants it: its error."""
    kind = TxnOffsetCommitRequest
    known: dict[str, Any] = {"topic_id": topic_ids(wire, topic)[topic]} if version >= 6 else {"name": topic}
    named = given.pop("named", known)
    part = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="m")
    topics = [kind.TxnOffsetCommitRequestTopic(**named, partitions=[part])]
    asked = kind(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=owner[0],
        producer_epoch=owner[1],
        topics=topics,
        **given,
    )

    def ask() -> list[int]:
        (answered,) = wire.ask(asked, version).topics
        assert (answered.name, answered.topic_id) == (named.get("name", ""), named.get("topic_id", NIL))
        return [answered.partitions[0].error_code]

    (error,) = settled(ask)
    return int(error)


def committed(wire: WireConnection, group: str, topic: str) -> list[int]:
    """The error and the committed offset of partition 0."""
    kind = OffsetFetchRequest
    wanted = kind.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = kind(groups=[kind.OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=True)
    (found,) = wire.ask(request, 9).groups[0].topics[0].partitions
    return [found.error_code, found.committed_offset]


def delete(wire: WireConnection, group: str) -> list[Any]:
    """DeleteGroups of one group: error, name and words."""
    (result,) = wire.ask(DeleteGroupsRequest(groups_names=[group]), 3).results
    return [result.error_code, result.group_id, result.error_message]


def test_every_api_of_kafka_is_served_in_its_newest_version_or_named(kafka: WireConnection, ours: WireConnection) -> None:
    theirs = {api.api_key: api for api in api_versions(kafka).api_keys}
    served = {api.api_key: api for api in api_versions(ours).api_keys}
    assert set(theirs) - set(served) == set(MISSING_APIS)
    assert set(served) <= set(theirs)
    for key, api in served.items():
        assert api.min_version <= theirs[key].min_version and api.max_version == theirs[key].max_version, key


def test_features_have_the_newest_level_of_kafkas(kafka: WireConnection, ours: WireConnection) -> None:
    theirs, served = api_versions(kafka), api_versions(ours)

    def levels(answer: ApiVersionsResponse) -> dict[str, tuple[int, int]]:
        finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        return {one.name: (one.max_version, finalized.get(one.name, 0)) for one in answer.supported_features}

    assert set(levels(theirs)) - set(levels(served)) == MISSING_FEATURES
    assert levels(served) == {name: level for name, level in levels(theirs).items() if name not in MISSING_FEATURES}


def test_configs_of_topics_and_groups_have_kafkas_names_types_and_defaults(kafka: WireConnection, ours: WireConnection) -> None:
    kind = DescribeConfigsRequest

    def described(wire: WireConnection, resource_type: int, name: str) -> dict[str, tuple[int, str | None]]:
        resource = kind.DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
        (result,) = wire.ask(kind(resources=[resource], include_synonyms=True), 4).results
        assert result.error_code == 0
        defaults = {one.name: one.synonyms[-1].value if one.synonyms else one.value for one in result.configs}
        return {one.name: (one.config_type, defaults[one.name]) for one in result.configs}

    theirs, served = (described(wire, TOPIC, create(wire)) for wire in (kafka, ours))
    assert {name: text for name, text in served.items() if not name.startswith(OWN_CONFIGS)} == theirs
    theirs, served = (described(wire, GROUP, topic_name("group")) for wire in (kafka, ours))
    assert served == {name: text for name, text in theirs.items() if not name.startswith(MISSING_GROUP_CONFIGS)}


def test_a_client_that_means_another_broker_is_told_to_bootstrap_again(kafka: WireConnection, ours: WireConnection) -> None:
    for wire in (kafka, ours):
        cluster = wire.ask(MetadataRequest(topics=[]), 12)
        node = cluster.controller_id
        asked = [
            (None, -1),
            (cluster.cluster_id, node),
            (cluster.cluster_id, node + 1),
            ("another", node),
            (cluster.cluster_id, -1),
            (None, node),
        ]
        answers = [api_versions(wire, *one) for one in asked]
        again, bad = ErrorCode.REBOOTSTRAP_REQUIRED, ErrorCode.INVALID_REQUEST
        assert [answer.error_code for answer in answers] == [0, 0, again, again, bad, bad]
        assert [bool(answer.api_keys) for answer in answers] == [True, True, False, False, False, False]


def test_a_transaction_commits_offsets_of_topics_by_id(kafka: WireConnection, ours: WireConnection) -> None:
    for wire in (kafka, ours):
        topic, group, name = create(wire), topic_name("group"), topic_name("transaction")
        find_coordinators(wire, group, name)
        who = transactional(wire, name)
        for unknown in (b"\1" * 16, NIL):
            refused = commit(wire, name, group, who, 6, topic, named={"topic_id": unknown})
            assert refused == ErrorCode.UNKNOWN_TOPIC_ID
        given = {"generation_id_or_member_epoch": 4, "member_id": "m"}
        assert commit(wire, name, topic_name("no"), who, 5, topic, **given) == ErrorCode.ILLEGAL_GENERATION
        assert commit(wire, name, topic_name("no"), who, 6, topic, **given) == ErrorCode.GROUP_ID_NOT_FOUND
        assert commit(wire, name, group, who, 6, topic) == 0
        assert end(wire, name, who, True, 5) == 0
        assert settled(partial(committed, wire, group, topic)) == [0, 3]


def test_a_member_of_the_consumer_protocol_commits_in_a_transaction_at_its_epoch(
    kafka: WireConnection, ours: WireConnection
) -> None:
    for wire in (kafka, ours):
        topic, group, name = create(wire), topic_name("group"), topic_name("transaction")
        find_coordinators(wire, group, name)
        who, epoch = transactional(wire, name), join(wire, group, topic)
        asked = [(5, epoch + 1, "m"), (6, epoch + 1, "m"), (6, epoch, "other"), (6, epoch, "m")]
        errors = [
            commit(wire, name, group, who, version, topic, member_id=member, generation_id_or_member_epoch=at)
            for version, at, member in asked
        ]
        stale = ErrorCode.STALE_MEMBER_EPOCH
        assert errors == [ErrorCode.ILLEGAL_GENERATION, stale, ErrorCode.UNKNOWN_MEMBER_ID, 0]
        assert end(wire, name, who, False, 5) == 0


def test_deleting_groups_has_room_for_words(kafka: WireConnection, ours: WireConnection) -> None:
    for wire in (kafka, ours):
        group = topic_name("none")
        find_coordinators(wire, group, group)
        assert settled(partial(delete, wire, group)) == [ErrorCode.GROUP_ID_NOT_FOUND, group, None]
