"""Topics of one partition, as client libraries make, fill, trim, read and delete them."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.harness import BrokerProcess

WAIT_S = 30.0


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


def consume(broker: BrokerProcess, topic: str, isolation: str = "read_committed") -> tuple[list[int], KafkaError | None]:
    """The numbers that a consumer gets up to the end, or up to the first error that it is told of."""
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    while True:
        message = reader.poll(30)
        assert message is not None, "nothing came for 30 s:\n" + broker.log_text()
        error = message.error()
        if error:
            reader.close()
            return found, None if error.code() == KafkaError._PARTITION_EOF else error
        found.append(int(message.value() or b""))
