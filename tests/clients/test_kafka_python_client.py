"""kafka-python works unchanged: producer, group consumer, admin."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from support.harness import BrokerProcess

PATIENCE_MS = 60_000


def test_produce_and_consume_in_a_group(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic, group = new_topic("kafka-python"), new_topic("group")
    producer = KafkaProducer(bootstrap_servers=shared_broker.bootstrap, acks="all", compression_type="gzip")
    futures = [producer.send(topic, b"v%d" % n, key=b"k") for n in range(100)]
    producer.flush()
    assert [future.get(60).offset for future in futures] == list(range(100))
    producer.close()

    def consumer(limit_ms: int) -> KafkaConsumer:
        return KafkaConsumer(
            topic,
            bootstrap_servers=shared_broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=limit_ms,
        )

    first = consumer(PATIENCE_MS)
    values = [message.value for message in itertools.islice(first, 100)]
    assert values == [b"v%d" % n for n in range(100)]
    first.commit()
    assert first.committed(TopicPartition(topic, 0)) == 100
    first.close()
    second = consumer(1500)
    assert list(second) == []
    assert second.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 100}
    second.close()
