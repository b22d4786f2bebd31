"""Clients that speak as those of Kafka 0.8 to 0.10 did: message sets in both directions, every codec they had.

kcat is told which broker it talks to (`broker.version.fallback`), kafka-python likewise (`api_version`). What one
writes each other one reads, whatever its age: what is stored is converted for those who can't read it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.producer import Producer
from penstock.pyx.record.rawbatch import split
from penstock.pyx.wire import requests
from support import crafted
from support.harness import BrokerProcess, WireConnection
from support.kcat import kcat

CODECS = ["none", "gzip", "snappy", "lz4"]
COUNT = 20
RECORDS = [(b"k%d" % n, b"value %d " % n * 10) for n in range(COUNT)]
NewTopic = Callable[[str], str]


def kcat_write(broker: BrokerProcess, version: str, topic: str, codec: str) -> None:
    lines = "".join(f"{key.decode()}:{value.decode()}\n" for key, value in RECORDS)
    kcat(broker, "-P", "-t", topic, "-K:", "-z", codec, version=version, stdin=lines)


def kcat_read(broker: BrokerProcess, version: str, topic: str, start: int | str = "beginning") -> list[tuple[int, str]]:
    given = ["-C", "-t", topic, "-p", "0", "-e", "-q", "-o", str(start), "-f", "%o %k %s\n"]
    pairs = [line.split(" ", 1) for line in kcat(broker, *given, version=version).splitlines()]
    return [(int(offset), rest) for offset, rest in pairs]


def expected(start: int = 0) -> list[tuple[int, str]]:
    return [(n, f"{key.decode()} {value.decode()}") for n, (key, value) in enumerate(RECORDS) if n >= start]


def read_with_ours(broker: BrokerProcess, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    with Consumer(broker.bootstrap, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, 0)])
        found: list[tuple[int, bytes | None, bytes | None]] = []
        while len(found) < COUNT:
            found += [(record.offset, record.key, record.value) for record in consumer.poll(10)]
    return found


def write_with_ours(broker: BrokerProcess, topic: str, codec: str) -> None:
    with Producer(broker.bootstrap, compression_type=codec, linger_ms=50) as producer:
        for key, value in RECORDS:
            producer.send(topic, key, value, headers=[("h", b"v")])
        producer.flush()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", ["0.8.2", "0.9.0.1", "0.10.0.0"])
def test_kcat(shared_broker: BrokerProcess, new_topic: NewTopic, version: str, codec: str) -> None:
    topic = new_topic("old-kcat")
    kcat_write(shared_broker, version, topic, codec)
    assert kcat_read(shared_broker, version, topic) == expected()
    assert kcat_read(shared_broker, "0.8.2", topic, start=7) == expected(7)
    assert kcat_read(shared_broker, "0.10.2.0", topic) == expected()


@pytest.mark.parametrize("codec", CODECS)
def test_new_batches_for_old_consumers(shared_broker: BrokerProcess, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic("new-to-old")
    write_with_ours(shared_broker, topic, codec)
    for version in ("0.8.2", "0.10.0.0"):
        assert kcat_read(shared_broker, version, topic) == expected()
        assert kcat_read(shared_broker, version, topic, start=13) == expected(13)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", [(0, 8, 2), (0, 9), (0, 10)])
def test_kafka_python(shared_broker: BrokerProcess, new_topic: NewTopic, version: tuple[int, ...], codec: str) -> None:
    topic, group = new_topic("old-python"), new_topic("old-group")
    producer = KafkaProducer(
        bootstrap_servers=shared_broker.bootstrap,
        api_version=version,
        compression_type=None if codec == "none" else codec,
        linger_ms=50,
    )
    sent = [producer.send(topic, key=key, value=value) for key, value in RECORDS]
    producer.flush()
    assert [future.get(10).offset for future in sent] == list(range(COUNT))
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=shared_broker.bootstrap,
        api_version=version,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    found = [next(consumer) for _ in range(COUNT)]
    assert [(one.offset, one.key, one.value) for one in found] == [(n, *pair) for n, pair in enumerate(RECORDS)]
    consumer.commit()
    assert consumer.committed(TopicPartition(topic, 0)) == COUNT
    consumer.close()
    assert read_with_ours(shared_broker, topic) == [(n, *pair) for n, pair in enumerate(RECORDS)]


def test_zstd_is_refused_to_old_consumers(shared_broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic("zstd")
    write_with_ours(shared_broker, topic, "zstd")
    consumer = KafkaConsumer(bootstrap_servers=shared_broker.bootstrap, api_version=(0, 8, 2))
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), 0)
    with pytest.raises(Exception, match=r"76|[Cc]ompression"):
        consumer.poll(10_000)
    consumer.close()


@pytest.mark.parametrize("compression_type", ["producer", "zstd"])
@pytest.mark.parametrize("side", ["shared_broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)])
def test_zstd_is_sent_to_fetch_4(request: pytest.FixtureRequest, new_topic: NewTopic, side: str, compression_type: str) -> None:
    """As Apache Kafka does, whatever the topic's `compression.type` says: clients of Fetch 4 to 9 may know the codec."""
    bootstrap, topic = request.getfixturevalue(side).bootstrap, new_topic("zstd")
    requests.create_topic(bootstrap, topic, 1, {"compression.type": compression_type})
    data = crafted.batch(crafted.packed(crafted.ZSTD, crafted.plain(2)), 2, codec=crafted.ZSTD)
    with WireConnection(bootstrap) as connection:
        requests.produce(connection, topic, {0: data})
        for version in (4, 9, 10):
            answer = connection.ask(requests.fetch_request(topic, 0, 0, 1 << 20), version)
            one = answer.responses[0].partitions[0]
            assert (one.error_code, one.high_watermark) == (0, 2)
            assert [raw.codec for raw in split(bytes(one.records or b""))] == [crafted.ZSTD]
