"""Kafka's own clients of 0.8.2 (the Scala producer and consumer) and 0.9 (the first Java consumer), as they were."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.etl import maven
from support.harness import BrokerProcess, output

pytestmark = pytest.mark.kafka

JAVA = ["java", "-Xmx128M", "-XX:TieredStopAtLevel=1"]
VALUES = [f"value {n} value value" for n in range(30)]
CODECS = ["none", "gzip", "snappy", "lz4"]
NewTopic = Callable[[str], str]


@functools.cache
def classpath(version: str) -> str:
    return ":".join(str(path) for path in maven.fetch([maven.Jar(f"org.apache.kafka:kafka_2.11:{version}", True)]))


def run(version: str, program: str, *arguments: str, stdin: str = "") -> str:
    command = [*JAVA, "-cp", classpath(version), f"kafka.tools.{program}", *arguments]
    return output(command, stdin=stdin, timeout_s=120)


def write(version: str, broker: BrokerProcess, topic: str, codec: str) -> None:
    lines = "".join(f"{value}\n" for value in VALUES)
    to = ["--broker-list", broker.bootstrap, "--topic", topic, "--compression-codec", codec]
    run(version, "ConsoleProducer", *to, stdin=lines)


def read(version: str, broker: BrokerProcess, topic: str) -> list[str]:
    if version.startswith("0.8"):
        of = ["--broker-list", broker.bootstrap, "--topic", topic, "--partition", "0", "--offset", "-2"]
        out = run(version, "SimpleConsumerShell", *of, "--no-wait-at-logend")
    else:
        of = ["--new-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--from-beginning"]
        out = run(version, "ConsoleConsumer", *of, "--max-messages", str(len(VALUES)))
    return [line for line in out.splitlines() if line.startswith("value ")]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1"])
def test_what_they_write_they_read(shared_broker: BrokerProcess, new_topic: NewTopic, version: str, codec: str) -> None:
    topic = new_topic("old-java")
    write(version, shared_broker, topic, codec)
    assert read(version, shared_broker, topic) == VALUES


@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1"])
def test_they_read_what_new_clients_write(shared_broker: BrokerProcess, new_topic: NewTopic, version: str) -> None:
    topic = new_topic("new-for-java")
    for number, codec in enumerate(CODECS):
        with Producer(shared_broker.bootstrap, compression_type=codec, linger_ms=50) as producer:
            for value in VALUES[number::4]:
                producer.send(topic, b"k", value.encode(), headers=[("h", b"v")])
            producer.flush()
    assert sorted(read(version, shared_broker, topic)) == sorted(VALUES)
