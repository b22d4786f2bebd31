"""What is acknowledged any client can read: batches that no library makes, sent raw to a broker with its defaults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition

from penstock.pyx.wire import messages, requests
from support.crafted import (
    GZIP,
    LOOSE_RECORDS,
    NAMES,
    NONE,
    SNAPPY,
    STRANGE_RECORDS,
    batch,
    corrupt,
    in_pieces,
    loose,
    packed,
    plain,
    record,
)
from support.harness import BrokerProcess, WireConnection
from support.kafka_jars import ApacheKafka

CODECS = range(5)
PIECED = range(1, 5)
NewTopic = Callable[[str], str]
Read = list[tuple[int, bytes | None, bytes | None]]
# kafka-python needs a package for zstd that isn't there.
KAFKA_PYTHON_CODECS = (0, 1, 2, 3)


def send(bootstrap: str, topic: str, data: bytes) -> tuple[int, int]:
    """Error code and base offset of the answer."""
    with WireConnection(bootstrap) as connection:
        answer = connection.ask(requests.produce_request(topic, {0: data}), requests.PRODUCE_VERSION)
    one = answer.responses[0].partition_responses[0]
    return one.error_code, one.base_offset


def log_end(bootstrap: str, topic: str) -> int:
    own = messages.ListOffsetsRequest
    asked = own.ListOffsetsTopic(name=topic, partitions=[own.ListOffsetsPartition(partition_index=0, timestamp=-1)])
    with WireConnection(bootstrap) as connection:
        answer = connection.ask(own(replica_id=-1, topics=[asked]), 3)
    return int(answer.topics[0].partitions[0].offset)


def with_librdkafka(bootstrap: str, topic: str) -> Read:
    """The whole partition, up to its end."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: Read = []
    while True:
        message = consumer.poll(30)
        assert message is not None, "librdkafka stands still"
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return found
        found.append((message.offset(), message.key(), message.value()))


def with_kafka_python(bootstrap: str, topic: str) -> Read:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    end = log_end(bootstrap, topic)
    found: Read = []
    while consumer.position(partition) < end:
        for batched in consumer.poll(30_000).values():
            found += [(one.offset, one.key, one.value) for one in batched]
    consumer.close()
    return found


def with_aiokafka(bootstrap: str, topic: str) -> Read:
    async def read() -> Read:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
            partition = AiokafkaPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            end = log_end(bootstrap, topic)
            found: Read = []
            while await consumer.position(partition) < end:
                for batched in (await consumer.getmany(timeout_ms=30_000)).values():
                    found += [(one.offset, one.key, one.value) for one in batched]
            return found

    return asyncio.run(read())


def read_by_each(bootstrap: str, topic: str, codec: int) -> Read:
    """The partition as every client reads it, which must be the same."""
    found = with_librdkafka(bootstrap, topic)
    assert with_aiokafka(bootstrap, topic) == found
    if codec in KAFKA_PYTHON_CODECS:
        assert with_kafka_python(bootstrap, topic) == found
    return found


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_poisons_are_refused_and_stop_nobody(shared_broker: BrokerProcess, new_topic: NewTopic, codec: int) -> None:
    bootstrap, topic = shared_broker.bootstrap, new_topic("poisoned")
    requests.create_topic(bootstrap, topic, 1)
    good = batch(packed(codec, plain(2)), 2, codec=codec)
    assert send(bootstrap, topic, good) == (0, 0)
    for poison in chain(corrupt(codec), loose(codec)):
        assert (poison.name, *send(bootstrap, topic, poison.data)) == (poison.name, poison.code, -1)
        assert (poison.name, log_end(bootstrap, topic)) == (poison.name, 2)
    assert send(bootstrap, topic, good) == (0, 2)
    assert read_by_each(bootstrap, topic, codec) == [(i, b"k", b"value %d" % (i % 2)) for i in range(4)]


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_unusual_records_are_taken_and_read_by_all(shared_broker: BrokerProcess, new_topic: NewTopic, codec: int) -> None:
    bootstrap, topic = shared_broker.bootstrap, new_topic("strange")
    requests.create_topic(bootstrap, topic, 1)
    count = 0
    for payload, records in STRANGE_RECORDS.values():
        assert send(bootstrap, topic, batch(packed(codec, payload), records, codec=codec)) == (0, count)
        count += records
    assert [offset for offset, _, _ in read_by_each(bootstrap, topic, codec)] == list(range(count))


@pytest.mark.parametrize("codec", PIECED, ids=NAMES[1:])
def test_payloads_in_pieces_are_stored_in_one(shared_broker: BrokerProcess, new_topic: NewTopic, codec: int) -> None:
    """Java reads several gzip members, librdkafka the first one: what Kafka takes is taken, in a form that all read."""
    bootstrap, topic = shared_broker.bootstrap, new_topic("pieces")
    requests.create_topic(bootstrap, topic, 1)
    count = 0
    for _, payload, records in in_pieces(codec):
        assert send(bootstrap, topic, batch(payload, records, codec=codec)) == (0, count)
        count += records
    found = read_by_each(bootstrap, topic, codec)
    assert found == [(i, b"k", b"v" if i % 4 == 0 else b"v" * 70_000) for i in range(count)]


def test_trusted_producers_still_cannot_move_the_end_far(shared_broker: BrokerProcess, new_topic: NewTopic) -> None:
    """Under `headers` a batch stays closed, but no more records are believed than its bytes can hold."""
    bootstrap, topic = shared_broker.bootstrap, new_topic("trusted")
    requests.create_topic(bootstrap, topic, 1, {"penstock.validate.records": "headers"})
    for codec in PIECED:
        data = batch(packed(codec, plain(3)), 2**31 - 1, codec=codec)
        assert send(bootstrap, topic, data) == (87, -1)
    corrupt_record, count = LOOSE_RECORDS["offset deltas 0, 0, 0"]
    assert send(bootstrap, topic, batch(packed(GZIP, corrupt_record), count, codec=GZIP)) == (0, 0)


@pytest.mark.parametrize("codec", PIECED, ids=NAMES[1:])
def test_batches_may_inflate_to_much(shared_broker: BrokerProcess, new_topic: NewTopic, codec: int) -> None:
    """Up to 64 MiB and sixteen times their own size. Behind that is MESSAGE_TOO_LARGE, on which Java's producer splits them:
    the only one that fills batches by their compressed size."""
    bootstrap, topic = shared_broker.bootstrap, new_topic("large")
    requests.create_topic(bootstrap, topic, 1, {"max.message.bytes": str(8 << 20)})

    def zeros(count: int) -> bytes:
        return batch(packed(codec, b"".join(record(i, value=bytes(1 << 20)) for i in range(count))), count, codec=codec)

    assert send(bootstrap, topic, zeros(63)) == (0, 0)
    # Snappy makes no less than a twentieth of anything.
    assert send(bootstrap, topic, zeros(130)) == ((0, 63) if codec == SNAPPY else (10, -1))


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_kafka_refuses_no_more(apache_kafka: ApacheKafka, new_topic: NewTopic, codec: int) -> None:
    """The same bytes sent to Kafka: its answers are those that `crafted` says, so that ours is never the laxer one."""
    bootstrap = apache_kafka.bootstrap
    topic = new_topic("judged")
    requests.create_topic(bootstrap, topic, 1)
    for poison in corrupt(codec):
        expected = poison.code if poison.kafka is None else poison.kafka
        assert (poison.name, send(bootstrap, topic, poison.data)[0]) == (poison.name, expected)
    for payload, records in STRANGE_RECORDS.values():
        assert send(bootstrap, topic, batch(packed(codec, payload), records, codec=codec))[0] == 0
    if codec == NONE:
        assert send(bootstrap, topic, batch(LOOSE_RECORDS["offset deltas 0, 0, 0"][0], 3))[0] == 0
