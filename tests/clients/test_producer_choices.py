"""Our producer beside librdkafka's on one topic: keys go to the same partitions; transactions with hooks and interceptors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import confluent_kafka
import pytest

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.consumer import Consumer, ConsumerRecord
from penstock.pipeline.clients.interceptors import Interceptor
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.clients.producerrecord import ProducerRecord, QueuedBatch
from penstock.pipeline.clients.queuehandler import QueueHandler
from support.harness import BrokerProcess

PARTITIONS = 7
KEYS = [b"key-%d" % number for number in range(40)] + [bytes([number]) * number for number in range(1, 20)]
LIMIT_S = 60.0


@pytest.fixture
def topic(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> str:
    """A topic of some partitions."""
    name = new_topic("choices")

    async def make() -> None:
        async with Admin(shared_broker.bootstrap) as admin:
            await admin.create_topics({name: PARTITIONS})

    asyncio.run(make())
    return name


def chosen_by_librdkafka(bootstrap: str, topic: str, name: str, keys: Sequence[bytes | None]) -> list[int]:
    chosen: dict[int, int] = {}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": name})

    def deliver(number: int) -> Callable[[object, confluent_kafka.Message], None]:
        def delivered(error: object, message: confluent_kafka.Message) -> None:
            assert error is None
            partition = message.partition()
            assert partition is not None
            chosen[number] = partition

        return delivered

    for number, key in enumerate(keys):
        producer.produce(topic, b"v", key, on_delivery=deliver(number))
    assert producer.flush(LIMIT_S) == 0
    return [chosen[number] for number in range(len(keys))]


@pytest.mark.parametrize(
    ("name", "more"),
    [("murmur2", [None, b""]), ("murmur2_random", [b""]), ("consistent", [None, b""]), ("consistent_random", [])],
)
def test_keys_go_where_librdkafka_puts_them(
    shared_broker: BrokerProcess, topic: str, name: str, more: list[bytes | None]
) -> None:
    """Records without a key too, where they have one place."""
    keys = [*KEYS, *more]
    theirs = chosen_by_librdkafka(shared_broker.bootstrap, topic, name, keys)
    with Producer(shared_broker.bootstrap, partitioner=name) as producer:
        sent = [producer.send(topic, key, b"v") for key in keys]
        assert [delivery.result(LIMIT_S).partition for delivery in sent] == theirs
    with (
        Producer(shared_broker.bootstrap, partitioner_class=name) as producer,
        Consumer(shared_broker.bootstrap) as consumer,
    ):
        parts = [(topic, number) for number in range(PARTITIONS)]
        consumer.assign(parts)
        for tp in parts:
            consumer.position(tp)
        assert producer.send_many(topic, keys, [b"%d" % number for number in range(len(keys))]).result(LIMIT_S) == len(keys)
        got: dict[int, int] = {}
        while len(got) < len(keys):
            got |= {int(record.value or b""): record.partition for record in consumer.poll(LIMIT_S)}
        assert [got[number] for number in range(len(keys))] == theirs


class Watch(QueueHandler):
    """Notes the partitions of each request."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []

    def before_request(self, batches: Sequence[QueuedBatch]) -> None:
        self.requests.append(sorted(batch.partition for batch in batches))


class Stamp(Interceptor):
    """Adds a header."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=[*record.headers, ("stamp", b"x")])


def test_a_transaction_over_many_partitions_goes_in_few_requests(shared_broker: BrokerProcess, topic: str) -> None:
    watch = Watch()
    with Producer(
        shared_broker.bootstrap, transactional_id=topic, linger_ms=3_600_000, handler=watch, interceptors=[Stamp()]
    ) as producer:
        for turn in range(3):
            producer.begin()
            for number in range(PARTITIONS):
                producer.send(topic, None, b"%d" % turn, partition=number)
            producer.abort() if turn == 1 else producer.commit()
    # All of them lie ready when a transaction is committed: one request each, of which the aborted one has none.
    assert watch.requests == [[*range(PARTITIONS)]] * 2
    with Consumer(shared_broker.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(topic, number) for number in range(PARTITIONS)])
        got: list[ConsumerRecord] = []
        while len(got) < 2 * PARTITIONS:
            got += consumer.poll(LIMIT_S)
    assert sorted((one.partition, one.value, tuple(one.headers)) for one in got) == [
        (number, value, (("stamp", b"x"),)) for number in range(PARTITIONS) for value in (b"0", b"2")
    ]
