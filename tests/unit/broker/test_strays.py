"""Partitions of topics that were deleted while their disk was away, and come back with it."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Broker

WAIT_S = 120.0


def create(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(WAIT_S)


def write(broker: Broker, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0


def read(broker: Broker, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, WAIT_S)
    consumer.close()
    return [message.value().decode() for message in found]


def lose_and_delete(tmp_path: Path) -> Broker:
    """A broker whose second disk is away, so that it could delete a topic there only from the store."""
    first, second = tmp_path / "first", tmp_path / "second"
    broker = Broker(first, properties={"log.dirs": str(second)}).start()
    create(broker, "other")
    create(broker, "t")
    assert (second / "t-0").is_dir()
    write(broker, "t", ["old" * 100] * 50)
    broker.stop()
    second.rename(tmp_path / "away")
    second.write_text("not a folder")
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["t"])["t"].result(WAIT_S)
    return broker


def bring_back(tmp_path: Path) -> None:
    (tmp_path / "second").unlink()
    (tmp_path / "away").rename(tmp_path / "second")


def test_a_topic_recreated_meanwhile_keeps_its_records(tmp_path: Path) -> None:
    broker = lose_and_delete(tmp_path)
    create(broker, "t")
    write(broker, "t", ["new"])
    broker.stop()
    bring_back(tmp_path)
    with broker:
        assert read(broker, "t", 1) == ["new"]
        write(broker, "t", ["newer"])
        assert read(broker, "t", 2) == ["new", "newer"]
    assert list((tmp_path / "second").glob("t-0*")), "the old records stay where they are"


def test_what_came_back_is_not_in_the_way_of_a_new_topic(tmp_path: Path) -> None:
    broker = lose_and_delete(tmp_path)
    broker.stop()
    bring_back(tmp_path)
    with broker:
        create(broker, "t")
        write(broker, "t", ["new"])
        assert read(broker, "t", 1) == ["new"]
