"""A topic is deleted and another one made under its name, then kill -9: nothing of the first is applied to the second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.harness import BrokerProcess
from support.patience import until

WAIT_S = 30.0
KILLS = 8
Make = Callable[..., BrokerProcess]


def create(bootstrap: str, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, config=configs)])[topic].result(WAIT_S)


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(WAIT_S)


def write(bootstrap: str, topic: str, values: list[str], key: str | None = None, *, each: bool = False) -> None:
    """Produce values; each: in a batch of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, key=key, on_delivery=lambda error, _: failures.append(error) if error else None)
        if each:
            producer.flush(WAIT_S)
    assert producer.flush(WAIT_S) == 0 and failures == []


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partition = TopicPartition(topic, 0, offset)
    assert admin.delete_records([partition])[partition].result(WAIT_S).low_watermark == offset


def read(bootstrap: str, topic: str) -> list[str]:
    """All that a consumer sees from the beginning."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    first, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S)
    consumer.assign([TopicPartition(topic, 0, first)])
    found = [message.value().decode() for message in consumer.consume(end - first, WAIT_S)] if end > first else []
    consumer.close()
    return found


def offsets(bootstrap: str, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    found: tuple[int, int] = consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S)
    consumer.close()
    return found


@pytest.mark.parametrize("restart", ["none", "clean", "killed"])
def test_records_of_a_topic_made_again_are_not_below_the_first_ones_log_start(make_broker: Make, restart: str) -> None:
    broker = make_broker()
    for turn in range(KILLS if restart == "none" else 1):
        create(broker.bootstrap, "w")
        write(broker.bootstrap, "w", [f"old {turn} {i}" for i in range(50)])
        delete_before(broker.bootstrap, "w", 45)
        delete(broker.bootstrap, "w")
        if restart == "clean":
            broker.restart()
        elif restart == "killed":
            broker.kill()
            broker.start()
        create(broker.bootstrap, "w")
        values = [f"new {turn} {i}" for i in range(20)]
        write(broker.bootstrap, "w", values)
        broker.kill()
        broker.start()
        assert offsets(broker.bootstrap, "w") == (0, 20), broker.log_text()
        assert read(broker.bootstrap, "w") == values
        delete(broker.bootstrap, "w")


def test_offsets_committed_to_a_topic_are_not_those_of_a_later_one(make_broker: Make) -> None:
    """The broker dies when the topic's logs are gone, and its groups don't know yet."""
    broker = make_broker()
    create(broker.bootstrap, "w")
    write(broker.bootstrap, "w", [f"old {i}" for i in range(50)])
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition("w", 0, 45)], asynchronous=False)
    consumer.close()
    broker.stop()
    broker.environment["PENSTOCK_FAILPOINTS"] = "topics.emptied=kill"
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["w"])
    until(lambda: not broker.running, "the kill", broker.log_text)
    del admin
    broker.close()
    del broker.environment["PENSTOCK_FAILPOINTS"]
    broker.start()
    create(broker.bootstrap, "w")
    write(broker.bootstrap, "w", [f"new {i}" for i in range(50)])
    consumer = Consumer(settings)
    (committed,) = consumer.committed([TopicPartition("w", 0)], WAIT_S)
    consumer.close()
    assert committed.offset == OFFSET_INVALID


def test_a_disk_that_comes_back_says_nothing_of_a_topic_made_meanwhile(make_broker: Make, tmp_path: Path) -> None:
    """The topic is deleted while its log folder is away; the next of its name gets its place in that folder."""
    second, away = tmp_path / "second", tmp_path / "away"
    broker = make_broker(**{"log.dirs": str(second)})
    create(broker.bootstrap, "other")
    create(broker.bootstrap, "w")
    assert (second / "w-0").is_dir()
    write(broker.bootstrap, "w", [f"old {i}" for i in range(50)])
    delete_before(broker.bootstrap, "w", 45)
    broker.stop()
    second.rename(away)
    second.write_text("not a folder")
    broker.start()
    delete(broker.bootstrap, "w")
    broker.kill()
    second.unlink()
    away.rename(second)
    broker.start()
    create(broker.bootstrap, "w")
    values = [f"new {i}" for i in range(20)]
    write(broker.bootstrap, "w", values)
    assert (second / "w-0").is_dir() and list(second.glob("w-0.*-stray"))
    broker.kill()
    broker.start()
    assert offsets(broker.bootstrap, "w") == (0, 20), broker.log_text()
    assert read(broker.bootstrap, "w") == values


def test_deleted_records_stay_deleted_when_a_kill_comes_between_the_files(make_broker: Make) -> None:
    broker = make_broker()
    create(broker.bootstrap, "w")
    write(broker.bootstrap, "w", [f"old {i}" for i in range(50)])
    broker.stop()
    broker.environment["PENSTOCK_FAILPOINTS"] = "checkpoints.written=kill"
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_records([TopicPartition("w", 0, 45)])
    until(lambda: not broker.running, "the kill", broker.log_text)
    del admin
    broker.close()
    del broker.environment["PENSTOCK_FAILPOINTS"]
    broker.start()
    assert offsets(broker.bootstrap, "w") == (45, 50)
    assert "WARNING" not in broker.log_text()
