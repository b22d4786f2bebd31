"""confluent-kafka (librdkafka) works unchanged: idempotent and transactional producer, groups, admin."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from support.harness import BrokerProcess

Names = Callable[[str], str]
PATIENCE_S = 60.0


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def create(broker: BrokerProcess, name: str, partitions: int = 1, **configs: str) -> str:
    client = admin(broker)  # It must outlive its futures.
    (future,) = client.create_topics([NewTopic(name, partitions, 1, config=configs)]).values()
    future.result()
    return name


def consumer(broker: BrokerProcess, group: str = "unused", **properties: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **properties,
        }
    )


def take(client: Consumer, count: int) -> list[Message]:
    """Poll until that many records came."""
    taken: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records came"
        message = client.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            taken.append(message)
    return taken


def test_idempotent_producer_and_every_codec(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic = create(shared_broker, new_topic("codecs"), 2)
    sent = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {
                "bootstrap.servers": shared_broker.bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 20,
            }
        )
        for n in range(200):
            value = f"{codec}-{n}-{'x' * 50}"
            sent.append(value)
            producer.produce(
                topic,
                value,
                key=f"k{n}",
                partition=n % 2,
                headers=[("codec", codec.encode()), ("none", None)],
            )
        assert producer.flush(PATIENCE_S) == 0
    client = consumer(shared_broker)
    client.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in (0, 1)])
    messages = take(client, len(sent))
    assert sorted(message.value().decode() for message in messages) == sorted(sent)
    for partition in (0, 1):
        mine = [message for message in messages if message.partition() == partition]
        assert [message.offset() for message in mine] == list(range(len(mine)))
    assert messages[0].headers() == [("codec", b"none"), ("none", None)]
    client.close()


def test_transactions(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("txn"), 2), new_topic("group")
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap, "transactional.id": new_topic("id")})
    producer.init_transactions(PATIENCE_S)
    member = consumer(shared_broker, group)  # Never subscribes: its metadata names the group, nothing else.
    for n, end in enumerate(("commit", "abort", "commit")):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, f"{end}-{n}", partition=partition)
        producer.flush(PATIENCE_S)
        if end == "commit":
            positions = [TopicPartition(topic, 0, n + 1)]
            producer.send_offsets_to_transaction(positions, member.consumer_group_metadata(), PATIENCE_S)
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    assert member.committed([TopicPartition(topic, 0)], PATIENCE_S)[0].offset == 3
    member.close()
    reader = consumer(shared_broker, **{"isolation.level": "read_committed"})
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in (0, 1)])
    committed = [message.value().decode() for message in take(reader, 4)]
    assert sorted(committed) == ["commit-0", "commit-0", "commit-2", "commit-2"]
    reader.close()
    everything = consumer(shared_broker, **{"isolation.level": "read_uncommitted"})
    everything.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [m.value() for m in take(everything, 3)] == [b"commit-0", b"abort-1", b"commit-2"]
    everything.close()


def test_a_newer_producer_fences_the_older(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, identity = create(shared_broker, new_topic("fence")), new_topic("id")

    def start() -> Producer:
        made = Producer({"bootstrap.servers": shared_broker.bootstrap, "transactional.id": identity})
        made.init_transactions(PATIENCE_S)
        return made

    older = start()
    older.begin_transaction()
    older.produce(topic, b"old")
    older.flush(PATIENCE_S)
    newer = start()
    newer.begin_transaction()
    newer.produce(topic, b"new")
    newer.commit_transaction(PATIENCE_S)
    with pytest.raises(KafkaException) as caught:
        older.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    reader = consumer(shared_broker, **{"isolation.level": "read_committed"})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.value() for message in take(reader, 1)] == [b"new"]
    reader.close()


def test_a_group_shares_partitions_and_goes_on_where_it_committed(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("shared"), 4), new_topic("group")
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    for n in range(400):
        producer.produce(topic, str(n), partition=n % 4)
    producer.flush(PATIENCE_S)
    first, second = consumer(shared_broker, group), consumer(shared_broker, group)
    for member in (first, second):
        member.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    while not (len(first.assignment()) == len(second.assignment()) == 2):
        assert time.monotonic() < deadline, "the group did not settle"
        for member in (first, second):
            member.poll(0.1)  # What is read here is not committed, so it is read again below.
    second.close()
    first.close()
    third = consumer(shared_broker, group)
    third.subscribe([topic])
    assert {int(m.value()) for m in take(third, 400)} == set(range(400))
    third.commit(asynchronous=False)
    third.close()
    producer.produce(topic, b"later", partition=0)
    producer.flush(PATIENCE_S)
    fourth = consumer(shared_broker, group)
    fourth.subscribe([topic])
    assert [message.value() for message in take(fourth, 1)] == [b"later"]
    fourth.close()


def test_admin(shared_broker: BrokerProcess, new_topic: Names) -> None:
    client = admin(shared_broker)
    topic = create(shared_broker, new_topic("admin"), 1, **{"retention.ms": "1234567"})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (described,) = client.describe_configs([resource]).values()
    assert described.result()["retention.ms"].value == "1234567"
    change = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    (altered,) = client.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])]
    ).values()
    altered.result()
    (described,) = client.describe_configs([resource]).values()
    assert described.result()["max.message.bytes"].value == "1000"

    failed: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: failed.append(error))
    producer.produce(topic, b"small", on_delivery=lambda error, _: failed.append(error))
    producer.flush(PATIENCE_S)
    assert any(error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in failed)

    (grown,) = client.create_partitions([NewPartitions(topic, 3)]).values()
    grown.result()
    assert len(client.list_topics(topic, PATIENCE_S).topics[topic].partitions) == 3
    (found,) = client.list_offsets({TopicPartition(topic, 2): OffsetSpec.latest()}).values()
    assert found.result().offset == 0
    (deleted,) = client.delete_topics([topic]).values()
    deleted.result()
    assert topic not in client.list_topics(timeout=PATIENCE_S).topics


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("bad name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("too-many-copies", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("wrong-config", 1, 1, config={"retention.msec": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("wrong-value", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
    ],
    ids=["name", "long name", "replication", "config", "config value"],
)
def test_wrong_topics_are_refused(shared_broker: BrokerProcess, topic: NewTopic, code: int) -> None:
    client = admin(shared_broker)
    (future,) = client.create_topics([topic]).values()
    with pytest.raises(KafkaException) as caught:
        future.result()
    assert caught.value.args[0].code() == code


def test_offsets_for_times(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic = create(shared_broker, new_topic("times"))
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    base_ms = int(time.time() * 1000) - 10_000
    for n in range(10):
        producer.produce(topic, str(n), timestamp=base_ms + n * 100)
        producer.flush(PATIENCE_S)
    client = consumer(shared_broker)
    for wanted_ms, offset in ((base_ms - 1, 0), (base_ms + 450, 5), (base_ms + 900, 9), (base_ms + 901, -1)):
        (found,) = client.offsets_for_times([TopicPartition(topic, 0, wanted_ms)], PATIENCE_S)
        assert found.offset == (offset if offset >= 0 else -1)
    assert client.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 10)
    client.close()
