"""A broker inside the test's process, used by other people's clients, and the faults that a test can ask of it."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from penstock.broker import Broker
from penstock.broker.faults import FaultError
from penstock.config import ConfigError


def produce(bootstrap: str, topic: str, values: list[bytes], **config: object) -> list[int]:
    """Offsets in the order of the values; raises the first failure."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **config})
    offsets: list[int] = []
    failures: list[object] = []

    def delivered(error: object, message: Any) -> None:
        if error:
            failures.append(error)
        else:
            offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.flush(30)
    if failures:
        raise KafkaException(failures[0])
    return offsets


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    until = time.monotonic() + 120
    while len(values) < count and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def test_confluent_kafka(penstock_broker: Broker) -> None:
    sent = [b"%d" % number for number in range(20)]
    assert produce(penstock_broker.bootstrap, "confluent", sent) == list(range(20))
    assert consume(penstock_broker.bootstrap, "confluent", 20) == sent


def test_kafka_python(penstock_broker: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=penstock_broker.bootstrap, compression_type="gzip")
    for number in range(20):
        producer.send("python", b"%d" % number).get(30)
    producer.close()
    consumer = KafkaConsumer(
        "python", bootstrap_servers=penstock_broker.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert [next(consumer).value for _ in range(20)] == [b"%d" % number for number in range(20)]
    consumer.close()


def test_aiokafka(penstock_broker: Broker) -> None:
    async def run() -> list[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=penstock_broker.bootstrap, enable_idempotence=True)
        await producer.start()
        for number in range(20):
            await producer.send_and_wait("aio", b"%d" % number)
        await producer.stop()
        consumer = AIOKafkaConsumer("aio", bootstrap_servers=penstock_broker.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(20)]
        finally:
            await consumer.stop()

    assert asyncio.run(run()) == [b"%d" % number for number in range(20)]


def test_several_at_once_share_nothing(penstock_broker_factory: Callable[..., Broker]) -> None:
    first, second = penstock_broker_factory(), penstock_broker_factory(**{"num.partitions": 2})
    assert produce(first.bootstrap, "same", [b"first"]) == [0]
    assert produce(second.bootstrap, "same", [b"second"]) == [0]
    assert consume(first.bootstrap, "same", 1) == [b"first"]
    assert consume(second.bootstrap, "same", 1) == [b"second"]
    topics = [AdminClient({"bootstrap.servers": b.bootstrap}).list_topics("same", 10).topics for b in (first, second)]
    assert [len(found["same"].partitions) for found in topics] == [1, 2]


def test_data_address_and_faults_survive_a_restart(penstock_broker: Broker) -> None:
    produce(penstock_broker.bootstrap, "kept", [b"a"])
    before = penstock_broker.bootstrap
    fault = penstock_broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER")
    penstock_broker.restart()
    assert penstock_broker.bootstrap == before
    assert produce(before, "kept", [b"b"]) == [1]
    assert fault.hits == 1
    assert consume(before, "kept", 2) == [b"a", b"b"]


def test_a_stopped_broker_is_not_there(penstock_broker: Broker) -> None:
    penstock_broker.stop()
    assert not penstock_broker.running
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": penstock_broker.bootstrap}).list_topics(timeout=1)
    penstock_broker.start()
    assert produce(penstock_broker.bootstrap, "back", [b"a"]) == [0]


def test_the_second_produce_is_refused_once(penstock_broker: Broker) -> None:
    produce(penstock_broker.bootstrap, "refused", [b"first"])
    fault = penstock_broker.faults.error("Produce", "MESSAGE_TOO_LARGE", nth=2)
    assert produce(penstock_broker.bootstrap, "refused", [b"a"]) == [1]
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        produce(penstock_broker.bootstrap, "refused", [b"b"])
    assert produce(penstock_broker.bootstrap, "refused", [b"c"]) == [2]
    assert (fault.hits, fault.done) == (1, True)


def test_a_lost_answer_is_no_lost_or_repeated_record(penstock_broker: Broker) -> None:
    fault = penstock_broker.faults.lose_answer("Produce", nth=3, times=2)
    sent = [b"%d" % number for number in range(6)]
    produce(penstock_broker.bootstrap, "lost", sent, **{"enable.idempotence": True})
    assert fault.hits == 2
    assert consume(penstock_broker.bootstrap, "lost", 6) == sent


def test_a_dropped_request_was_never_carried_out(penstock_broker: Broker) -> None:
    produce(penstock_broker.bootstrap, "dropped", [b"first"])
    fault = penstock_broker.faults.drop("Produce")
    with pytest.raises(KafkaException):
        produce(penstock_broker.bootstrap, "dropped", [b"a"], retries=0, acks=1, **{"message.timeout.ms": 6000})
    assert fault.hits == 1
    assert produce(penstock_broker.bootstrap, "dropped", [b"b"]) == [1]


def test_a_delayed_request_is_overtaken_by_later_ones_of_others(penstock_broker: Broker) -> None:
    produce(penstock_broker.bootstrap, "delayed", [b"first"])
    fault = penstock_broker.faults.delay("Produce", 5)
    late: list[int] = []
    slow = Producer({"bootstrap.servers": penstock_broker.bootstrap, "linger.ms": 0})
    slow.produce("delayed", b"slow", partition=0, on_delivery=lambda error, message: late.append(message.offset()))
    until = time.monotonic() + 120
    while not fault.hits and time.monotonic() < until:
        slow.poll(0.01)
    assert produce(penstock_broker.bootstrap, "delayed", [b"quick"]) == [1]
    assert slow.flush(30) == 0
    assert late == [2]


def test_fetch_and_control_requests_meet_faults_too(penstock_broker: Broker) -> None:
    produce(penstock_broker.bootstrap, "fetched", [b"a"])
    faults = [
        penstock_broker.faults.error("Fetch", "NOT_LEADER_OR_FOLLOWER", times=2),
        penstock_broker.faults.drop("JoinGroup"),
        penstock_broker.faults.lose_answer("OffsetCommit"),
        penstock_broker.faults.error("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        penstock_broker.faults.delay("Metadata", 0.1),
    ]
    assert consume(penstock_broker.bootstrap, "fetched", 1) == [b"a"]
    assert [fault.hits for fault in faults] == [2, 1, 1, 1, 1]


def test_what_can_not_be_planted_or_configured_is_said(penstock_broker: Broker) -> None:
    with pytest.raises(FaultError, match="no API `Prodcue`"):
        penstock_broker.faults.drop("Prodcue")
    with pytest.raises(FaultError, match="no error `BROKEN`"):
        penstock_broker.faults.error("Produce", "BROKEN")
    with pytest.raises(FaultError, match="start at 1"):
        penstock_broker.faults.drop("Produce", nth=0)
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker(properties={"num.partition": 3})


def test_a_program_that_ends_without_closing_it_loses_nothing(tmp_path: Path) -> None:
    program = f"""
from confluent_kafka import Producer
from penstock.broker import Broker
broker, other = Broker({str(tmp_path / "data")!r}).start(), Broker().start()
producer = Producer({{"bootstrap.servers": broker.bootstrap}})
producer.produce("kept", b"value", partition=0)
assert producer.flush(30) == 0
print(other.data)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).exists()
    with Broker(tmp_path / "data") as broker:
        assert consume(broker.bootstrap, "kept", 1) == [b"value"]
