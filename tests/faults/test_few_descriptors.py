"""A broker with too few file descriptors: it says so, serves every partition and connection in turn, and loses nothing."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker.uuids import new_uuid, uuid_text
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    CreatePartitionsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    OffsetCommitRequest,
)
from support import dataplane
from support.asking import create
from support.harness import BrokerProcess, WireConnection, topic_name
from support.patience import until

PARTITIONS = 200
ROUNDS = 4
FEW = 128
COMPACTED = 60
KEYS = 400
SMALL_SEGMENTS: dict[str, object] = {
    "log.retention.check.interval.ms": 700,
    "log.cleaner.backoff.ms": 200,
    "log.segment.delete.delay.ms": 200,
    "log.index.interval.bytes": 500,
    "log.flush.interval.ms": 300,
}


class LimitedBroker(BrokerProcess):
    """A broker whose process may have only so many descriptors."""

    descriptors = FEW

    def command(self) -> list[str]:
        """The command line of the next start."""
        return ["prlimit", f"--nofile={self.descriptors}:{self.descriptors}", "--", *super().command()]


@contextmanager
def limited(tmp_path: Path, descriptors: int = FEW, properties: dict[str, object] | None = None) -> Iterator[LimitedBroker]:
    broker = LimitedBroker(tmp_path / "data", properties)
    broker.descriptors = descriptors
    broker.start()
    try:
        yield broker
        assert "offline" not in broker.log_text()
        assert broker.stop() == 0
    finally:
        broker.close()


def said(broker: BrokerProcess, what: str) -> list[str]:
    return re.findall(f"^.*{what}.*$", broker.log_text(), re.MULTILINE)


def fill(broker: BrokerProcess, topic: str, name: str) -> set[bytes]:
    """A record for each partition, through a stock producer; all of them are acknowledged."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    failed: list[object] = []
    sent = {f"{name} {partition}".encode() for partition in range(PARTITIONS)}
    for partition in range(PARTITIONS):
        value = f"{name} {partition}".encode()
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(60) == 0, broker.log_text()
    assert failed == []
    return sent


def read_all(broker: BrokerProcess, topic: str, wanted: set[bytes]) -> None:
    """A stock consumer gets what was acknowledged, each record once."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    got: list[bytes] = []

    def more() -> bool:
        got.extend(bytes(one.value() or b"") for one in consumer.consume(1000, 0.1) if one.error() is None)
        return len(got) >= len(wanted)

    until(more, "all records", lambda: f"{len(got)} of {len(wanted)}\n{broker.log_text()}")
    assert sorted(got) == sorted(wanted)
    consumer.close()


def test_more_partitions_than_descriptors_are_served(tmp_path: Path) -> None:
    with limited(tmp_path) as broker:
        topic = topic_name("many")
        assert create(broker, topic, partitions=PARTITIONS).topics[0].error_code == 0
        sent: set[bytes] = set()
        for number in range(ROUNDS):
            sent |= fill(broker, topic, f"round {number}")
            read_all(broker, topic, sent)
        assert len(said(broker, "open files: 128 allowed")) == 1
        until(lambda: bool(said(broker, "files of logs were closed")), "the broker to say it")
        assert len(said(broker, "files of logs were closed")) == 1  # Once a minute.
        assert "could not be opened" not in broker.log_text()
        broker.restart()
        assert said(broker, r"file descriptors for \d+ logs and \d+ partitions")
        read_all(broker, topic, sent)
        sent |= fill(broker, topic, "after the start")
        read_all(broker, topic, sent)


def test_a_passing_lack_of_descriptors_costs_nothing(tmp_path: Path) -> None:
    with limited(tmp_path, 512) as broker:
        topic, other = topic_name("before"), topic_name("while")
        assert create(broker, topic, other, partitions=PARTITIONS).topics[0].error_code == 0
        sent = fill(broker, topic, "before")
        request = dataplane.produce(other, dataplane.batch([b"x"]), 9)
        with WireConnection(broker.bootstrap) as wire:
            wire.ask(MetadataRequest(topics=[]), 12)  # It is accepted.
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (16, 512))  # All of them are in use.
            assert dataplane.produced(wire.ask(request, 9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR  # Tried again.
            until(lambda: bool(said(broker, "files could not be opened.*while.*log")), "it to be said", broker.log_text)
            with socket.create_connection(("127.0.0.1", broker.port)):
                until(lambda: bool(said(broker, "connections had to wait .* too few file descriptors")), "it to be said")
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (512, 512))
            assert dataplane.produced(wire.ask(request, 9)).error_code == 0
        sent |= fill(broker, topic, "after")
        read_all(broker, topic, sent)


def test_a_commit_that_finds_no_descriptor_is_tried_again(tmp_path: Path) -> None:
    """Each request to a group whose record can't be appended hears what its client tries again, as from Kafka."""
    with limited(tmp_path, 512) as broker:
        topic, group = topic_name("read"), "readers"
        assert create(broker, topic).topics[0].error_code == 0
        place = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        places = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[place])]
        commit = OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=-1, member_id="", retention_time_ms=-1, topics=places
        )
        join = ConsumerGroupHeartbeatRequest(
            group_id="joined", member_id=uuid_text(new_uuid()), member_epoch=0, rebalance_timeout_ms=60_000,
            subscribed_topic_names=[topic], topic_partitions=[],
        )  # fmt: skip
        begin = InitProducerIdRequest(transactional_id="writers", transaction_timeout_ms=60_000)

        def asked(wire: WireConnection) -> list[int]:
            answers = wire.ask(commit, 8), wire.ask(join, 1), wire.ask(begin, 4)
            return [answers[0].topics[0].partitions[0].error_code, answers[1].error_code, answers[2].error_code]

        with WireConnection(broker.bootstrap) as wire:
            for kind, key in ((0, group), (1, "writers")):  # The coordinators' topics are made.
                find = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
                assert wire.ask(find, 4).coordinators[0].error_code == 0
            assert wire.ask(InitProducerIdRequest(transactional_id=None), 4).error_code == 0
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (16, 512))  # All of them are in use.
            assert asked(wire) == [ErrorCode.NOT_COORDINATOR] * 3, broker.log_text()
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (512, 512))
            assert asked(wire) == [0, 0, 0]


def test_connections_leave_descriptors_to_the_logs(tmp_path: Path) -> None:
    with limited(tmp_path) as broker:
        topic = topic_name("crowded")
        assert create(broker, topic, partitions=PARTITIONS).topics[0].error_code == 0
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        producer.produce(topic, b"first", partition=0)
        assert producer.flush(60) == 0
        crowd = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(200)]
        until(lambda: bool(said(broker, "too few file descriptors")), "the broker to say it", broker.log_text)
        for partition in range(PARTITIONS):
            producer.produce(topic, b"%d" % partition, partition=partition)
        assert producer.flush(60) == 0, broker.log_text()
        for one in crowd:
            one.close()
        fill(broker, topic, "later")


def test_more_partitions_than_descriptors_are_enough_for_are_refused(tmp_path: Path) -> None:
    with limited(tmp_path) as broker:
        topic, too_large = topic_name("small"), topic_name("large")
        answer = create(broker, too_large, partitions=600).topics[0]
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert "128 open files" in (answer.error_message or "")
        assert "ulimit -n" in (answer.error_message or "")
        assert create(broker, topic, partitions=10).topics[0].error_code == 0
        grown = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=600, assignments=None)
        with WireConnection(broker.bootstrap) as wire:
            result = wire.ask(CreatePartitionsRequest(topics=[grown], timeout_ms=60_000), 3).results[0]
        assert (result.error_code, "128 open files" in result.error_message) == (ErrorCode.POLICY_VIOLATION, True)


def test_a_limit_that_no_broker_can_work_with_is_refused_at_start(tmp_path: Path) -> None:
    broker = LimitedBroker(tmp_path / "data")
    broker.descriptors = 64
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "may have 64 open files" in done.stderr
    assert "ulimit -n" in done.stderr


def test_compaction_among_idle_connections_fails_no_folder(tmp_path: Path) -> None:
    """Connections take all that they may have, and each compaction needs a descriptor for each of its files."""
    with limited(tmp_path, 260, SMALL_SEGMENTS) as broker:
        topic = topic_name("compacted")
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "internal.segment.bytes": "30000"}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for created in admin.create_topics([NewTopic(topic, COMPACTED, config=configs)]).values():
            created.result()
        failed: list[object] = []
        newest: dict[bytes, bytes] = {}
        crowd: list[socket.socket] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "batch.size": 8000})
        for number in range(100_000):
            key = b"%d" % (number % KEYS)
            newest[key] = b"%d " % number + b"x" * 150
            producer.produce(
                topic,
                newest[key],
                key,
                number % KEYS % COMPACTED,
                lambda error, _: failed.append(error) if error else None,
            )
            if number % 500 == 0:
                assert producer.flush(60) == 0, broker.log_text()
            while number % 500 == 0 and len(crowd) < 200:
                crowd.append(socket.socket())
                crowd[-1].setblocking(False)
                crowd[-1].connect_ex(("127.0.0.1", broker.port))
            if number % 10_000 == 9_999:
                while crowd:
                    crowd.pop().close()
        assert producer.flush(60) == 0, broker.log_text()
        assert failed == [], broker.log_text()
        while crowd:
            crowd.pop().close()
        assert "is not compacted any more" not in broker.log_text()
        until(lambda: "compacted" in broker.log_text(), "a compaction", broker.log_text)
        assert newest_values(broker, topic, newest) == newest


def newest_values(broker: BrokerProcess, topic: str, wanted: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The last value of each key that a stock consumer finds from the start of the log on."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(COMPACTED)])
    found: dict[bytes, bytes] = {}

    def more() -> bool:
        for one in consumer.consume(5000, 0.2):
            if one.error() is None:
                found[bytes(one.key() or b"")] = bytes(one.value() or b"")
        return found == wanted

    until(more, "the newest value of each key", lambda: f"{len(found)} of {len(wanted)} keys\n{broker.log_text()}")
    consumer.close()
    return found
