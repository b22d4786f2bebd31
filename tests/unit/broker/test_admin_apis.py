"""What admin clients ask besides topics: configs, quotas, credentials, ACLs, reassignments, elections, the quorum."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.wire import messages as wire
from penstock.pyx.wire.message import Message
from support.asking import create, names, produce, refused
from support.harness import BrokerProcess, WireConnection

Make = Callable[..., BrokerProcess]
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def ask(broker: BrokerProcess, request: Message, version: int) -> Any:
    with WireConnection(broker.bootstrap) as connection:
        return connection.ask(request, version)


def alter(broker: BrokerProcess, kind: int, name: str, *ops: tuple[str, int, str | None], only_look: bool = False) -> int:
    """Alter one resource incrementally; answers the error code."""
    Request = wire.IncrementalAlterConfigsRequest
    configs = [Request.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in ops]
    resource = Request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = ask(broker, Request(resources=[resource], validate_only=only_look), 1)
    code: int = answer.responses[0].error_code
    return code


def described(broker: BrokerProcess, kind: int, name: str, version: int = 4) -> dict[str, tuple[str | None, int]]:
    Request = wire.DescribeConfigsRequest
    resource = Request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = Request(resources=[resource], include_synonyms=version > 0, include_documentation=version > 2)
    (result,) = ask(broker, request, version).results
    assert result.error_code == 0, result
    assert version < 3 or all(entry.documentation for entry in result.configs)
    return {entry.name: (entry.value, entry.config_source) for entry in result.configs}


def test_layers_of_broker_configs(make_broker: Make) -> None:
    broker = make_broker(**{"log.segment.bytes": 2_000_000})
    create(broker, "t")
    assert described(broker, TOPIC, "t")["segment.bytes"] == ("2000000", 4)
    assert alter(broker, BROKER, "", ("log.segment.bytes", SET, "3000000")) == 0
    assert described(broker, TOPIC, "t")["segment.bytes"] == ("3000000", 3)
    assert alter(broker, BROKER, "1", ("log.segment.bytes", SET, "4000000"), ("its.own", SET, "secret")) == 0
    broker.restart()
    assert described(broker, TOPIC, "t")["segment.bytes"] == ("4000000", 2)
    assert described(broker, BROKER, "") == {"log.segment.bytes": ("3000000", 3)}
    assert described(broker, BROKER, "1")["its.own"] == (None, 2)
    assert alter(broker, BROKER, "1", ("log.segment.bytes", DELETE, None)) == 0
    assert alter(broker, BROKER, "", ("log.segment.bytes", DELETE, None)) == 0
    assert described(broker, TOPIC, "t")["segment.bytes"] == ("2000000", 4)
    assert alter(broker, TOPIC, "t", ("segment.bytes", SET, "5000000")) == 0
    assert described(broker, TOPIC, "t", version=0)["segment.bytes"][0] == "5000000"


def test_what_can_not_be_altered(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    name = new_topic("configs")
    create(shared_broker, name)
    for kind, resource, op, code in (
        (BROKER, "1", ("broker.id", SET, "2"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("message.max.bytes", SET, "-1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "7", ("message.max.bytes", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ("message.max.bytes", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "9" * 5000, ("message.max.bytes", SET, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, name, ("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, name, ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, name, ("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, name, ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, name, ("remote.storage.enable", SET, "true"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "a b", ("retention.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, name, ("cleanup.policy", APPEND, "compact"), 0),
        (TOPIC, name, ("cleanup.policy", SUBTRACT, "delete"), 0),
        (METRICS, "m", ("interval.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "1"), ErrorCode.INVALID_CONFIG),
        (GROUP, "", ("consumer.session.timeout.ms", SET, "50000"), ErrorCode.INVALID_REQUEST),
        (LOGGER, "1", ("no.such", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (LOGGER, "1", ("root", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (LOGGER, "1", ("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        (LOGGER, "1", ("root", APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        (99, "x", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST),
    ):
        assert alter(shared_broker, kind, resource, op, only_look=True) == code, (kind, resource, op)
    assert described(shared_broker, TOPIC, name)["cleanup.policy"] == ("delete", 5)


def test_alterations_at_one_time_all_count(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    name = new_topic("together")
    create(shared_broker, name)
    wanted = {
        "retention.ms": "1001",
        "segment.ms": "1002",
        "flush.ms": "1003",
        "segment.jitter.ms": "7",
        "retention.bytes": "9",
    }
    with ThreadPoolExecutor(len(wanted)) as pool:
        for value in range(20):
            ops = [(key, SET, str(value + int(text))) for key, text in wanted.items()]
            assert set(pool.map(lambda op: alter(shared_broker, TOPIC, name, op), ops)) == {0}
            told = described(shared_broker, TOPIC, name)
            assert {key: told[key][0] for key in wanted} == {key: text for key, _, text in ops}


def test_groups_and_loggers_have_configs(broker: BrokerProcess) -> None:
    assert alter(broker, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")) == 0
    assert alter(broker, LOGGER, "1", ("penstock.broker.topics.changes", SET, "WARN")) == 0
    assert described(broker, LOGGER, "1")["penstock.broker.topics.changes"] == ("WARN", 6)
    modules = {"penstock.broker.logs.logdirs", "penstock.broker.upkeep.disks", "penstock.broker.upkeep.periodic"}
    assert modules <= set(described(broker, LOGGER, "1"))
    assert described(broker, METRICS, "any") == {}
    create(broker, "unheard")
    assert "topic=unheard" not in broker.log_text()
    listed = ask(broker, wire.ListConfigResourcesRequest(), 1).config_resources
    assert {(one.resource_type, one.resource_name) for one in listed} == {
        (TOPIC, "unheard"), (BROKER, "1"), (LOGGER, "1"), (GROUP, "g"),
    }  # fmt: skip
    assert ask(broker, wire.ListConfigResourcesRequest(resource_types=[1]), 1).error_code == ErrorCode.UNSUPPORTED_VERSION
    broker.restart()
    assert described(broker, GROUP, "g")["consumer.session.timeout.ms"] == ("50000", 8)
    assert described(broker, LOGGER, "1")["penstock.broker.topics.changes"] == ("INFO", 6)


def test_quotas_and_credentials_are_kept_and_told_of(broker: BrokerProcess) -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", b"salt", 4096)
    Quotas, Scram = wire.AlterClientQuotasRequest, wire.AlterUserScramCredentialsRequest
    entity = [
        Quotas.EntityData(entity_type="user", entity_name="alice"),
        Quotas.EntityData(entity_type="client-id", entity_name=None),
    ]
    entry = Quotas.EntryData(entity=entity, ops=[Quotas.OpData(key="producer_byte_rate", value=5.0)])
    assert ask(broker, Quotas(entries=[entry]), 1).entries[0].error_code == 0
    upsertion = Scram.ScramCredentialUpsertion(name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=salted)
    deletion = Scram.ScramCredentialDeletion(name="bob", mechanism=1)
    results = ask(broker, Scram(upsertions=[upsertion], deletions=[deletion]), 0).results
    assert {one.user: one.error_code for one in results} == {"alice": 0, "bob": ErrorCode.RESOURCE_NOT_FOUND}
    assert "not enforced yet" not in broker.log_text()
    broker.restart()
    assert "not enforced yet: 1 client quotas, 1 SCRAM credentials" in broker.log_text()
    (quota,) = ask(broker, wire.DescribeClientQuotasRequest(), 1).entries
    assert [(value.key, value.value) for value in quota.values] == [("producer_byte_rate", 5.0)]
    (user,) = ask(broker, wire.DescribeUserScramCredentialsRequest(users=None), 0).results
    assert (user.user, [(one.mechanism, one.iterations) for one in user.credential_infos]) == ("alice", [(1, 4096)])
    assert broker.stop() == 0
    with sqlite3.connect(broker.data / "metadata.db") as database:
        kept = b"".join(bytes(row[0]) for row in database.execute("SELECT data FROM node"))
    assert b"stored_key=" in kept and b"pencil" not in kept and salted.hex().encode() not in kept


def test_acls_with_unknown_elements_close_the_connection(shared_broker: BrokerProcess) -> None:
    creation = wire.CreateAclsRequest.AclCreation(resource_name="t", principal="User:a", host="*")
    with pytest.raises((EOFError, ConnectionError)):
        ask(shared_broker, wire.CreateAclsRequest(creations=[creation]), 3)
    assert ask(shared_broker, wire.DeleteAclsRequest(filters=[]), 1).filter_results == []


@pytest.mark.parametrize("version", range(4))
def test_acls_are_refused_without_an_authorizer(shared_broker: BrokerProcess, version: int) -> None:
    rule = {"operation": 3, "permission_type": 3}
    creation = wire.CreateAclsRequest.AclCreation(
        resource_type=TOPIC, resource_name="t", resource_pattern_type=3, principal="User:a", host="*", **rule
    )
    some = {"resource_type_filter": 1, "pattern_type_filter": 3, "operation": 1, "permission_type": 1}
    Filter = wire.DeleteAclsRequest.DeleteAclsFilter
    wanted = Filter(resource_name_filter=None, principal_filter=None, host_filter=None, **some)
    refused = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    created = ask(shared_broker, wire.CreateAclsRequest(creations=[creation] * 2), version).results
    assert [(one.error_code, one.error_message) for one in created] == [refused] * 2
    deleted = ask(shared_broker, wire.DeleteAclsRequest(filters=[wanted] * 2), version).filter_results
    assert [(one.error_code, one.error_message, one.matching_acls) for one in deleted] == [(*refused, [])] * 2
    Describe = wire.DescribeAclsRequest
    asked = Describe(resource_name_filter=None, principal_filter=None, host_filter=None, **some)
    described = ask(shared_broker, asked, version)
    assert (described.error_code, described.error_message, described.resources) == (*refused, [])


def test_assignments_and_elections_on_one_node(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    name = new_topic("move")
    create(shared_broker, name)
    Request = wire.AlterPartitionReassignmentsRequest
    wanted: list[list[int] | None] = [[1], [2], [], [1, 1], None]
    partitions = [Request.ReassignablePartition(partition_index=0, replicas=replicas) for replicas in wanted]
    partitions.append(Request.ReassignablePartition(partition_index=9, replicas=[1]))
    topics = [Request.ReassignableTopic(name=name, partitions=partitions)]
    answers = ask(shared_broker, Request(topics=topics), 1).responses[0].partitions
    bad = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [one.error_code for one in answers] == [0, bad, bad, bad, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, unknown]
    assert ask(shared_broker, wire.ListPartitionReassignmentsRequest(topics=None), 0).topics == []
    asked = [wire.ElectLeadersRequest.TopicPartitions(topic=name, partitions=[0, 9])]
    for version in (0, 1, 2):
        result = ask(shared_broker, wire.ElectLeadersRequest(topic_partitions=asked), version)
        codes = [one.error_code for one in result.replica_election_results[0].partition_result]
        assert codes == [ErrorCode.ELECTION_NOT_NEEDED, unknown]
    assert ask(shared_broker, wire.ElectLeadersRequest(election_type=7, topic_partitions=asked), 2).error_code != 0


def test_the_quorum_and_sasl_on_one_plain_node(shared_broker: BrokerProcess) -> None:
    Quorum = wire.DescribeQuorumRequest
    topics = [
        Quorum.TopicData(topic_name=name, partitions=[Quorum.PartitionData(partition_index=0)])
        for name in ("__cluster_metadata", "other")
    ]
    first = ask(shared_broker, Quorum(topics=topics), 0).topics[0].partitions[0]
    create(shared_broker, "one-more")
    metadata, other = (topic.partitions[0] for topic in ask(shared_broker, Quorum(topics=topics), 2).topics)
    assert (metadata.leader_id, [one.replica_id for one in metadata.current_voters]) == (1, [1])
    assert metadata.high_watermark > first.high_watermark and metadata.leader_epoch >= 1
    assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(shared_broker, wire.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert ask(shared_broker, wire.SaslAuthenticateRequest(), 2).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_offsets_before_a_time_as_kafka_0_8_asked(make_broker: Make) -> None:
    broker = make_broker()
    create(broker, "t", internal_segment_bytes=1000)
    assert produce(broker, "t", 30) == 0
    Request = wire.ListOffsetsRequest

    def offsets(timestamp: int, most: int) -> list[int]:
        partition = Request.ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=most)
        topic = Request.ListOffsetsTopic(name="t", partitions=[partition])
        answer = ask(broker, Request(replica_id=-1, topics=[topic]), 0).topics[0].partitions[0]
        assert answer.error_code == 0
        found: list[int] = answer.old_style_offsets
        return found

    every = offsets(-1, 100)
    assert every[0] == 30 and every[-1] == 0 and len(every) > 3 and every == sorted(every, reverse=True)
    assert offsets(-1, 1) == [30] and offsets(-2, 100) == [0] and offsets(-1, 0) == []
    assert offsets(1 << 60, 2) == every[:2] and offsets(1, 10) == []


def test_operations_are_told_when_asked_for(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    name = new_topic("operations")
    create(shared_broker, name)
    topics = [wire.MetadataRequest.MetadataRequestTopic(name=name)]
    request = wire.MetadataRequest(
        topics=topics, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    answer = ask(shared_broker, request, 9)
    # The bits that Apache Kafka 4.4.0 answers without an authorizer.
    assert (answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations) == (0xDF8, 0x1FA0)
    cluster = ask(shared_broker, wire.DescribeClusterRequest(include_cluster_authorized_operations=True), 2)
    assert cluster.cluster_authorized_operations == 0x1FA0
    assert ask(shared_broker, wire.DescribeClusterRequest(), 2).cluster_authorized_operations == -(1 << 31)


def test_topics_by_id_need_a_version_that_knows_ids(shared_broker: BrokerProcess) -> None:
    by_id = [wire.MetadataRequest.MetadataRequestTopic(name=None, topic_id=b"\x07" * 16)]
    for version, code in ((10, ErrorCode.INVALID_REQUEST), (12, ErrorCode.UNKNOWN_TOPIC_ID)):
        assert ask(shared_broker, wire.MetadataRequest(topics=by_id), version).topics[0].error_code == code


def test_an_id_counts_whatever_name_stands_beside_it(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    # Java's client sends the empty name; Kafka looks at the id first.
    name = new_topic("by-id")
    create(shared_broker, name)
    named = [wire.MetadataRequest.MetadataRequestTopic(name=name)]
    known = bytes(ask(shared_broker, wire.MetadataRequest(topics=named), 12).topics[0].topic_id)
    for beside in (None, "", "other"):
        asked = [wire.MetadataRequest.MetadataRequestTopic(name=beside, topic_id=known)]
        (found,) = ask(shared_broker, wire.MetadataRequest(topics=asked), 12).topics
        assert (found.error_code, found.name) == (0, name)


def test_records_of_a_compacted_topic_are_not_deleted(make_broker: Make) -> None:
    broker = make_broker(**{"log.cleanup.policy": "compact"})
    create(broker, "t")
    Request = wire.DeleteRecordsRequest
    partition = Request.DeleteRecordsPartition(partition_index=0, offset=-1)
    request = Request(topics=[Request.DeleteRecordsTopic(name="t", partitions=[partition])], timeout_ms=60_000)
    for policy, code in (
        (None, ErrorCode.POLICY_VIOLATION),
        ("compact,delete", 0),
        ("compact", ErrorCode.POLICY_VIOLATION),
    ):
        if policy is not None:
            assert alter(broker, TOPIC, "t", ("cleanup.policy", SET, policy)) == 0
        assert ask(broker, request, 2).topics[0].partitions[0].error_code == code


def test_deletion_can_be_forbidden(make_broker: Make) -> None:
    broker = make_broker(**{"delete.topic.enable": False})
    create(broker, "kept")
    request = wire.DeleteTopicsRequest(topic_names=["kept"], timeout_ms=60_000)
    for version, code in (
        (0, ErrorCode.INVALID_REQUEST),
        (3, ErrorCode.TOPIC_DELETION_DISABLED),
        (5, ErrorCode.TOPIC_DELETION_DISABLED),
    ):
        assert ask(broker, request, version).responses[0].error_code == code
    assert names(broker) == {"kept"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("zookeeper.set.acl=true", "are known"),
        ("default.replication.factor=2", "one node has one copy"),
        ("offsets.topic.replication.factor=2", "one node has one copy"),
        ("transaction.state.log.replication.factor=3", "one node has one copy"),
        ("process.roles=broker,controller", "its own controller"),
        ("controller.quorum.voters=1@a:1", "its own controller"),
        ("num.io.threads=8", "set `num.network.threads`"),
        ("ssl.keystore.location=/x", "TLS is not served yet"),
        ("log.retention.hour=1", "did you mean `log.retention.hours`"),
    ],
)
def test_properties_with_no_place_here_say_what_to_do(tmp_path: Path, line: str, says: str) -> None:
    config = tmp_path / "server.properties"
    config.write_text(line + "\n")
    done = refused("--data", str(tmp_path / "data"), "--config", str(config))
    assert done.returncode != 0 and says in done.stderr and done.stderr.count("\n") <= 3
    assert not (tmp_path / "data").exists()
