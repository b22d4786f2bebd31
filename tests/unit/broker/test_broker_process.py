"""The broker as a process: its one line, its refusals, what it keeps over a stop, a kill and a crash in between."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.logs.folder import CLEAN_SHUTDOWN
from penstock.broker.uuids import uuid_text
from penstock.errors import ErrorCode
from penstock.pyx.log.checkpoint import read_checkpoint
from penstock.pyx.wire.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from support.asking import create, end_offset, metadata, names, produce, refused, start_offset
from support.harness import BrokerProcess, WireConnection
from support.metadata_store import put_node
from support.patience import until

Make = Callable[..., BrokerProcess]
TOPIC, BROKER = 2, 4


def nodes(data: Path) -> dict[str, str]:
    """The whole store of a stopped broker."""
    with sqlite3.connect(data / "metadata.db") as database:
        return {path: bytes(value).decode() for path, value in database.execute("SELECT path, data FROM node")}


def test_a_folder_or_a_port_in_use_is_refused_in_one_sentence(broker: BrokerProcess, tmp_path: Path) -> None:
    twin = refused("--data", str(broker.data))
    assert twin.returncode == 1 and twin.stdout == ""
    assert twin.stderr.count("\n") == 1 and "in use by another broker" in twin.stderr
    same_port = refused("--listen", broker.bootstrap, "--data", str(tmp_path / "other"))
    assert same_port.returncode == 1 and same_port.stdout == ""
    assert same_port.stderr.count("\n") == 1 and "cannot listen on" in same_port.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--data", "x", "--set", "log.retention.hour=1"], "did you mean `log.retention.hours`"),
        (["--data", "x", "--set", "num.partitions=none"], "is not a whole number"),
        (["--data", "x", "--listen", "nowhere"], "is not of the form host:port"),
        (["--data", "x", "--config", "missing.properties"], "cannot read `missing.properties`"),
        ([], "lacks its data folder"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(arguments: list[str], says: str) -> None:
    done = refused(*arguments)
    assert done.returncode == 2
    assert says in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_and_topics_stay(broker: BrokerProcess, number: int) -> None:
    created = create(broker, "kept", partitions=3).topics[0]
    assert created.error_code == 0 and created.num_partitions == 3
    epoch = metadata(broker, "kept").topics[0].partitions[0].leader_epoch
    cluster = metadata(broker).cluster_id
    broker.signal(number)
    assert broker._reap() == 0
    assert (broker.data / CLEAN_SHUTDOWN).exists()
    kept = nodes(broker.data)
    assert json.loads(kept["/brokers/topics/kept"])["partitions"] == {"0": [1], "1": [1], "2": [1]}
    state = json.loads(kept["/brokers/topics/kept/partitions/2/state"])
    assert (state["leader"], state["isr"], state["version"]) == (1, [1], 1)
    assert kept["/controller_epoch"] == str(state["leader_epoch"]) == str(epoch)
    assert "/brokers/ids/1" not in kept and "/controller" not in kept
    broker.start()
    topic = metadata(broker, "kept").topics[0]
    assert topic.topic_id == created.topic_id and len(topic.partitions) == 3
    assert topic.partitions[0].leader_epoch > epoch
    assert metadata(broker).cluster_id == cluster


def test_configs_of_a_file_and_of_set(tmp_path: Path, make_broker: Make) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# comment\nnum.partitions=2\nbroker.id=7\n")
    told = ["--config", str(file), "--advertised", "elsewhere:19092"]
    broker = BrokerProcess(tmp_path / "b", {"num.partitions": 5}, told)
    try:
        broker.start()
        metadata(broker, "auto", create=True)
        response = metadata(broker, "auto")
        assert response.controller_id == 7 and len(response.topics[0].partitions) == 5
        assert [(one.host, one.port) for one in response.brokers] == [("elsewhere", 19092)]
    finally:
        broker.close()


def test_auto_creation_follows_client_and_config(make_broker: Make) -> None:
    open_, closed = make_broker("open"), make_broker("closed", **{"auto.create.topics.enable": False})
    assert metadata(open_, "a", create=False).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # The answer that creates it says that there was none, as Kafka's does.
    assert metadata(open_, "a", create=True).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata(open_, "a", create=True).topics[0].error_code == 0
    assert metadata(open_, "a b", create=True).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert metadata(closed, "a", create=True).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert names(open_) == {"a"} and names(closed) == set()


def test_a_deletion_that_a_crash_cut_short_is_finished(broker: BrokerProcess) -> None:
    create(broker, "gone", "kept")
    broker.kill()
    # As a crash leaves it after the mark was written and before anything was removed.
    put_node(broker.data, "/admin/delete_topics", json.dumps({"version": 1, "topics": ["gone"]}).encode())
    broker.start()
    assert names(broker) == {"kept"}
    assert not (broker.data / "gone-0").exists() and (broker.data / "kept-0").exists()
    assert create(broker, "gone").topics[0].error_code == 0
    assert broker.stop() == 0
    assert json.loads(nodes(broker.data)["/admin/delete_topics"]) == {"version": 1, "topics": []}


def test_topics_are_deleted_by_name_and_by_id(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    first, second = new_topic("by-name"), new_topic("by-id")
    topic_id = create(shared_broker, first, second).topics[1].topic_id
    asked = [
        DeleteTopicsRequest.DeleteTopicState(name=first),
        DeleteTopicsRequest.DeleteTopicState(topic_id=topic_id),
        DeleteTopicsRequest.DeleteTopicState(name="never-was"),
        DeleteTopicsRequest.DeleteTopicState(topic_id=b"\x07" * 16),
    ]
    with WireConnection(shared_broker.bootstrap) as wire:
        response = wire.ask(DeleteTopicsRequest(topics=asked, timeout_ms=60_000), 6)
    assert [(one.name, one.error_code) for one in response.responses] == [
        (first, 0),
        (second, 0),
        ("never-was", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert not {first, second} & names(shared_broker)


def test_creation_is_refused_for_what_is_wrong(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    there = new_topic("a.b")
    assert create(shared_broker, there).topics[0].error_code == 0
    twins = create(shared_broker, there, there.replace(".", "_"), "same", "same").topics
    assert [(one.name, one.error_code) for one in twins] == [
        (there, ErrorCode.TOPIC_ALREADY_EXISTS),
        (there.replace(".", "_"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("same", ErrorCode.INVALID_REQUEST),
    ]
    Assignment = CreateTopicsRequest.CreatableReplicaAssignment
    with WireConnection(shared_broker.bootstrap) as wire:
        for assignments, code in (
            ([Assignment(partition_index=0, broker_ids=[2])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([Assignment(partition_index=1, broker_ids=[1])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([Assignment(partition_index=0, broker_ids=[1])], ErrorCode.NONE),
        ):
            topic = CreateTopicsRequest.CreatableTopic(
                name=new_topic("manual"), num_partitions=-1, replication_factor=-1, assignments=assignments
            )
            only_look = CreateTopicsRequest(topics=[topic], validate_only=True)
            assert wire.ask(only_look, 5).topics[0].error_code == code
            assert topic.name not in names(shared_broker)


def test_partitions_grow_and_never_shrink(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    name = new_topic("grow")
    create(shared_broker, name)
    Wanted = CreatePartitionsRequest.CreatePartitionsTopic
    with WireConnection(shared_broker.bootstrap) as wire:
        for count, code in ((3, 0), (3, ErrorCode.INVALID_PARTITIONS), (2, ErrorCode.INVALID_PARTITIONS)):
            topics = [Wanted(name=name, count=count, assignments=None)]
            request = CreatePartitionsRequest(topics=topics, timeout_ms=60_000)
            assert wire.ask(request, 3).results[0].error_code == code
    assert len(metadata(shared_broker, name).topics[0].partitions) == 3


def test_altered_configs_hold_after_a_restart(broker: BrokerProcess) -> None:
    create(broker, "t")
    Resource, Config = AlterConfigsRequest.AlterConfigsResource, AlterConfigsRequest.AlterableConfig
    resources = [
        Resource(resource_type=TOPIC, resource_name="t", configs=[Config(name="retention.ms", value="5000")]),
        Resource(resource_type=BROKER, resource_name="1", configs=[Config(name="log.segment.bytes", value="9000000")]),
        Resource(resource_type=BROKER, resource_name="1x", configs=[]),
        Resource(resource_type=TOPIC, resource_name="none", configs=[]),
    ]
    with WireConnection(broker.bootstrap) as wire:
        answers = wire.ask(AlterConfigsRequest(resources=resources), 2).responses
    assert [answer.error_code for answer in answers] == [
        0,
        0,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    broker.kill()
    broker.start()
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name="t", configuration_keys=["retention.ms", "segment.bytes"]
    )
    with WireConnection(broker.bootstrap) as wire:
        request = DescribeConfigsRequest(resources=[asked], include_synonyms=True)
        (result,) = wire.ask(request, 4).results
    described = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
    assert described == {"retention.ms": ("5000", 1), "segment.bytes": ("9000000", 2)}


def test_offsets_and_epochs_of_an_empty_partition(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    name = new_topic("offsets")
    create(shared_broker, name)
    Partition = ListOffsetsRequest.ListOffsetsPartition

    def ask(timestamp: int, version: int = 11, epoch: int = -1, index: int = 0) -> tuple[int, int, int]:
        partition = Partition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[partition])
        with WireConnection(shared_broker.bootstrap) as wire:
            request = ListOffsetsRequest(replica_id=-1, topics=[topic])
            answer = wire.ask(request, version).topics[0].partitions[0]
        return answer.error_code, answer.offset, answer.timestamp

    assert ask(-1) == ask(-2) == ask(-4) == (0, 0, -1)
    assert ask(-3) == ask(-5) == ask(0) == (0, -1, -1)
    assert ask(-3, version=6)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert ask(-1, index=1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    epoch = metadata(shared_broker, name).topics[0].partitions[0].leader_epoch
    assert ask(-1, epoch=epoch)[0] == ErrorCode.NONE
    assert ask(-1, epoch=epoch + 1)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(-1, epoch=epoch - 1)[0] == ErrorCode.FENCED_LEADER_EPOCH
    partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=[partition])
    with WireConnection(shared_broker.bootstrap) as wire:
        answer = wire.ask(OffsetForLeaderEpochRequest(topics=[topic]), 4).topics[0].partitions[0]
    assert answer.error_code == 0


def test_cluster_log_dirs_and_pages_of_topics(make_broker: Make) -> None:
    broker = make_broker()
    create(broker, "a", "b", "c", partitions=4)
    with WireConnection(broker.bootstrap) as wire:
        cluster = wire.ask(DescribeClusterRequest(), 2)
        assert [(one.broker_id, one.port) for one in cluster.brokers] == [(1, broker.port)]
        assert wire.ask(DescribeClusterRequest(endpoint_type=2), 2).error_code != 0
        (folder,) = wire.ask(DescribeLogDirsRequest(topics=None), 5).results
        assert folder.log_dir == str(broker.data) and {topic.name for topic in folder.topics} == {"a", "b", "c"}
        pages, cursor = [], None
        while True:
            request = DescribeTopicPartitionsRequest(response_partition_limit=5, cursor=cursor)
            page = wire.ask(request, 0)
            pages.append([(topic.name, len(topic.partitions)) for topic in page.topics])
            if page.next_cursor is None:
                break
            cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index
            )
    assert pages == [[("a", 4), ("b", 1)], [("b", 3), ("c", 2)], [("c", 2)]]


def test_ids_have_one_text_everywhere(broker: BrokerProcess) -> None:
    topic_id = create(broker, "t").topics[0].topic_id
    assert broker.stop() == 0
    assert json.loads(nodes(broker.data)["/brokers/topics/t"])["topic_id"] == uuid_text(bytes(topic_id))


@pytest.mark.parametrize("step", ["topics.created", "topics.marked", "topics.emptied"])
def test_a_kill_at_each_step_leaves_a_whole_topic_or_none(make_broker: Make, step: str) -> None:
    broker = make_broker(environment={"PENSTOCK_FAILPOINTS": f"{step}=kill"})
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")], timeout_ms=60_000)
    with pytest.raises((EOFError, ConnectionError)), WireConnection(broker.bootstrap) as wire:
        create(broker, "t", partitions=2)
        wire.ask(request, 6)
    broker._reap()
    broker.environment.clear()
    broker.start()
    there = step == "topics.created"
    assert names(broker) == ({"t"} if there else set())
    assert (broker.data / "t-0").exists() == (broker.data / "t-1").exists() == there
    if not there:
        assert create(broker, "t", partitions=1).topics[0].error_code == 0
    produced = produce(broker, "t", 10)
    assert produced == 0 and end_offset(broker, "t") == 10


def test_old_segments_go_by_retention(make_broker: Make) -> None:
    broker = make_broker(**{"log.retention.check.interval.ms": 100, "log.retention.ms": 604_800_000})
    create(broker, "old", "new", internal_segment_bytes=2000)
    produce(broker, "new", 100, timestamp_ms=int(time.time() * 1000))
    produce(broker, "old", 100, timestamp_ms=1_000_000_000_000)
    until(lambda: start_offset(broker, "old") >= 90, "old segments to go", broker.log_text)
    assert (start_offset(broker, "new"), end_offset(broker, "new"), end_offset(broker, "old")) == (0, 100, 100)


def test_sealed_segments_are_flushed_without_being_asked(make_broker: Make) -> None:
    """What is flushed needn't be walked after a kill: the recovery point follows, all segments but the last behind it."""
    broker = make_broker()
    create(broker, "a", "b", internal_segment_bytes=2000)
    produce(broker, "a", 100)
    produce(broker, "b", 100)
    last = {(name, 0): max(int(path.stem) for path in (broker.data / f"{name}-0").glob("*.log")) for name in ("a", "b")}
    assert all(base > 0 for base in last.values())
    checkpoint = broker.data / "recovery-point-offset-checkpoint"
    until(lambda: last.items() <= read_checkpoint(checkpoint).items(), "recovery points", checkpoint.read_text)
    broker.kill()
    broker.start()
    assert end_offset(broker, "a") == end_offset(broker, "b") == 100


def test_an_altered_retention_holds_from_the_next_look(make_broker: Make) -> None:
    broker = make_broker(**{"log.retention.check.interval.ms": 100})
    create(broker, "t")
    produce(broker, "t", 20, timestamp_ms=1_000_000_000_000)
    own = {"retention.ms": "1000", "segment.ms": "1"}
    configs = [AlterConfigsRequest.AlterableConfig(name=name, value=value) for name, value in own.items()]
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)
    with WireConnection(broker.bootstrap) as wire:
        assert wire.ask(AlterConfigsRequest(resources=[resource]), 2).responses[0].error_code == 0
    until(lambda: start_offset(broker, "t") >= 20, "old segments to go", broker.log_text)
    assert end_offset(broker, "t") == 20


def test_a_cluster_id_that_is_not_the_stores_is_refused(broker: BrokerProcess) -> None:
    assert broker.stop() == 0
    meta = broker.data / "meta.properties"
    text = meta.read_text()
    at = text.index("cluster.id=") + len("cluster.id=")
    meta.write_text(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :])
    said = refused(*broker.command()[4:])
    assert said.returncode == 1 and said.stderr.count("\n") == 1
    assert f"put `cluster.id={text[at:].splitlines()[0]}`" in said.stderr
    meta.write_text(text)
    broker.start()
