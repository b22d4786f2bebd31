"""Kafka's own clients of 0.8.2 (the Scala producer and consumer) and 0.9 (the first Java consumer), as they were."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.etl import maven
from support.cluster_world import cluster
from support.harness import BrokerProcess, output
from support.zookeeper import ZooKeeper, connected

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


def test_a_group_that_zookeeper_shares_out_reads_on_where_it_stopped(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """The consumer of 0.8 finds brokers, leaders and its group's members in ZooKeeper, and keeps its offsets there."""
    with cluster(zookeeper, tmp_path, 3) as world:
        world.create("t", 2)
        config = tmp_path / "consumer.properties"
        config.write_text("group.id=g\n")

        def read_on(count: int, *begin: str) -> list[str]:
            asked = ["--zookeeper", world.servers, "--topic", "t", "--consumer.config", str(config)]
            out = run("0.8.2.2", "ConsoleConsumer", *asked, "--max-messages", str(count), *begin)
            return [line for line in out.splitlines() if line.startswith("value ")]

        def fill(values: list[str]) -> None:
            with Producer(world.bootstrap, acks="all", compression_type="gzip") as producer:
                for number, value in enumerate(values):
                    producer.send("t", None, value.encode(), partition=number % 2)

        fill(VALUES)
        assert sorted(read_on(len(VALUES), "--from-beginning")) == sorted(VALUES)
        with connected(world.servers) as client:
            kept = {index: client.get(f"/consumers/g/offsets/t/{index}")[0] for index in "01"}
        assert kept == dict.fromkeys("01", b"%d" % (len(VALUES) // 2))
        later = [f"value of later {number}" for number in range(10)]
        fill(later)
        world.brokers[world.leader("t")].kill()  # Another one leads then: the consumer finds it.
        assert sorted(read_on(len(later))) == sorted(later)
