"""flush.messages: answers wait for the disk, network threads don't."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.harness import BrokerProcess

RECORDS = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path_factory.mktemp("flush") / "data", {"num.network.threads": 1}).start()
    admin = AdminClient({"bootstrap.servers": made.bootstrap})
    topics = [NewTopic("synced", 2, config={"flush.messages": "1"}), NewTopic("plain", 2)]
    for created in admin.create_topics(topics).values():
        created.result()
    yield made
    made.stop()


def test_order_and_acknowledgement_hold_with_and_without(broker: BrokerProcess) -> None:
    """Idempotent producers with requests in flight to both kinds of topic over one connection each, and a transaction."""
    offsets: dict[tuple[str, int], list[int]] = {}
    failed: list[KafkaError] = []
    lock = threading.Lock()

    def delivered(error: KafkaError | None, message: Message) -> None:
        with lock:
            if error is not None:
                failed.append(error)
            else:
                place = (message.topic() or "", message.partition() or 0)
                offsets.setdefault(place, []).append(message.offset() or 0)

    producers = [
        Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "batch.num.messages": 3, "linger.ms": 1})
        for _ in range(2)
    ]
    for i in range(RECORDS):
        for number, producer in enumerate(producers):
            producer.produce("synced" if i % 3 else "plain", b"%d" % i, partition=number, on_delivery=delivered)
            producer.poll(0)
    for producer in producers:
        assert producer.flush(60) == 0
    assert not failed
    for partition in range(2):
        assert offsets["synced", partition] == list(range(RECORDS - RECORDS // 3))
        assert offsets["plain", partition] == list(range(RECORDS // 3))
    sender = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "synced"})
    sender.init_transactions()
    for _ in range(3):
        sender.begin_transaction()
        for partition in range(2):
            sender.produce("synced", b"t", partition=partition)
        sender.commit_transaction()
