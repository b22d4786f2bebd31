"""A folder that Apache Kafka has left cleanly opens as it is: topics, records, transactions, committed offsets.

One that an older Kafka has formatted and a newer one has upgraded does, too, with groups of each kind that the newer one has.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker.tools.logcommand import command
from support.harness import BrokerProcess
from support.kafka_fixtures import load_coordinators
from support.kafka_jars import KAFKA_VERSION, ApacheKafka, java, jvm, kafka_classpath

pytestmark = pytest.mark.kafka

GROUP = "left-behind"
MEMBERS = "of-members"
FEATURES = {"metadata.version": 33, "group.version": 1, "transaction.version": 2, "share.version": 2}


def fill(bootstrap: str) -> None:
    """Two topics, plain and transactional records, a group that has read three of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic("plain", 3), NewTopic("exact.ly-1", 1)]).values():
        made.result()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for i in range(30):
        producer.produce("plain", key=b"%d" % i, value=b"v%d" % i, partition=i % 3)
    assert producer.flush(60) == 0
    sender = Producer({"bootstrap.servers": bootstrap, "transactional.id": "sender"})
    sender.init_transactions()
    for commit in (True, False, True):
        sender.begin_transaction()
        sender.produce("exact.ly-1", b"kept" if commit else b"dropped")
        sender.flush()
        sender.commit_transaction() if commit else sender.abort_transaction()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"})
    reader.commit(offsets=[TopicPartition("plain", index, 3 + index) for index in range(3)], asynchronous=False)
    reader.close()


def read(bootstrap: str, topic: str, partitions: int) -> list[bytes | None]:
    """All committed values, by partition and offset."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[tuple[int, int, bytes | None]] = []
    ended = 0
    while ended < partitions:
        message = reader.poll(60)
        assert message is not None, "nothing came for 60 s"
        if message.error():
            ended += 1
        else:
            found.append((message.partition() or 0, message.offset() or 0, message.value()))
    reader.close()
    return [value for _, _, value in sorted(found)]


def upgrade(kafka: ApacheKafka) -> None:
    """Let the newest Kafka take over a running node, with the newest level of its features."""
    kafka.stop()
    kafka.classpath, kafka.jvm = kafka_classpath(), jvm()
    kafka.start()
    levels = [word for name, level in FEATURES.items() for word in ("--feature", f"{name}={level}")]
    java("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", kafka.bootstrap, "upgrade", *levels)


def fill_newest(bootstrap: str) -> None:
    """A group of KIP-848 that has committed, a share group, and a transaction of KIP-890."""
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": MEMBERS, "group.protocol": "consumer"})
    member.subscribe(["plain"])
    while not member.assignment():
        member.poll(1)
    member.commit(offsets=[TopicPartition("plain", 0, 7)], asynchronous=False)
    member.close()
    share = ["--bootstrap-server", bootstrap, "--topic", "plain", "--group", "shared", "--timeout-ms", "1000"]
    java("org.apache.kafka.tools.consumer.ConsoleShareConsumer", *share)
    sender = Producer({"bootstrap.servers": bootstrap, "transactional.id": "newer"})
    sender.init_transactions()
    sender.begin_transaction()
    sender.produce("exact.ly-1", b"newer")
    sender.commit_transaction()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("versions", [(KAFKA_VERSION,), ("3.9.1",), ("3.9.1", KAFKA_VERSION)], ids="-".join)
def test_a_clean_kafka_folder_opens(tmp_path: Path, versions: tuple[str, ...]) -> None:
    kafka = ApacheKafka(tmp_path / "kafka", versions[0])
    kept = [b"kept", b"kept"]
    try:
        load_coordinators(kafka.bootstrap)
        fill(kafka.bootstrap)
        if len(versions) > 1:
            upgrade(kafka)
            load_coordinators(kafka.bootstrap)
            fill_newest(kafka.bootstrap)
            kept.append(b"newer")
        before = {topic: read(kafka.bootstrap, topic, count) for topic, count in (("plain", 3), ("exact.ly-1", 1))}
        identity = (tmp_path / "kafka" / "data" / "plain-0" / "partition.metadata").read_text().split()
    finally:
        kafka.stop()
    assert len(before["plain"]) == 30 and before["exact.ly-1"] == kept
    data = tmp_path / "kafka" / "data"
    metadata_log = sorted(path.name for path in (data / "__cluster_metadata-0").iterdir())
    verified = CliRunner().invoke(command, ["verify", str(data)])
    assert verified.exit_code == 0, verified.output
    broker = BrokerProcess(data, {"offsets.topic.num.partitions": 4}).start()
    try:
        for topic, values in before.items():
            assert read(broker.bootstrap, topic, 3 if topic == "plain" else 1) == values
        group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
        committed = group.committed([TopicPartition("plain", index) for index in range(3)], timeout=60)
        assert [place.offset for place in committed] == [3, 4, 5]
        group.close()
        if len(versions) > 1:
            members = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": MEMBERS})
            assert members.committed([TopicPartition("plain", 0)], timeout=60)[0].offset == 7
            members.close()
        # The transactional id goes on where it was, and what it writes is told apart from the past.
        sender = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "sender"})
        sender.init_transactions()
        sender.begin_transaction()
        sender.produce("exact.ly-1", b"ours")
        sender.commit_transaction()
        assert read(broker.bootstrap, "exact.ly-1", 1) == [*kept, b"ours"]
        assert ".log.cut-" not in broker.log_text()
    finally:
        broker.stop()
    assert sorted(path.name for path in (data / "__cluster_metadata-0").iterdir()) == metadata_log
    assert (data / "plain-0" / "partition.metadata").read_text().split() == identity
    # What we write into it is not in Kafka's way, and stays.
    assert "penstock.metadata.store=metadata.db" in (data / "meta.properties").read_text().splitlines()
    kafka.start()
    try:
        assert read(kafka.bootstrap, "plain", 3) == before["plain"]
    finally:
        kafka.stop()
    assert "penstock.metadata.store=metadata.db" in (data / "meta.properties").read_text().splitlines()
