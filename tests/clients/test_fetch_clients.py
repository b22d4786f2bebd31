"""Fetch as clients use it: sessions of Java's consumer over many partitions, and librdkafka in its oldest ways."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Broker
from support.harness import BrokerProcess
from support.kafka_jars import KAFKA_VERSION, jvm, kafka_classpath
from support.kcat import kcat

PARTITIONS = 60
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.mark.kafka
@pytest.mark.parametrize("version", [KAFKA_VERSION, "3.9.1"])
def test_javas_consumer_has_a_session_of_many_partitions(version: str) -> None:
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("wide", PARTITIONS, 1)])["wide"].result(30)
        where = ["--bootstrap-server", broker.bootstrap, "--topic", "wide", "--from-beginning"]
        ends = ["--max-messages", str(PARTITIONS * 5), "--timeout-ms", "90000"]
        consumer = subprocess.Popen(
            ["java", *jvm(version), "-cp", kafka_classpath(version), CONSUMER, *where, *ends],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
            for n in range(5):
                for partition in range(PARTITIONS):
                    producer.produce("wide", b"%d.%d" % (partition, n), partition=partition)
                assert producer.flush(30) == 0
            said, wrong = consumer.communicate(timeout=150)
        finally:
            consumer.kill()
            consumer.wait()
        assert consumer.returncode == 0, wrong
        got = said.split()
        assert sorted(got) == sorted(f"{p}.{n}" for p in range(PARTITIONS) for n in range(5))
        for partition in range(PARTITIONS):
            # Each once, and in the order of its partition.
            assert [one for one in got if one.startswith(f"{partition}.")] == [f"{partition}.{n}" for n in range(5)]
        counters = broker.counters()
        assert counters["fetch_errors"] == 0
        # A consumer that leaves closes its session; it was there if requests for all partitions were small.
        assert counters["fetch_sessions_made"] >= 1
        assert counters["fetch_partitions_asked"] < counters["requests_fetch"] * PARTITIONS / 2 + 2 * PARTITIONS


@pytest.mark.parametrize("version", ["0.8.2", "0.9.0", "0.10.0", "0.11.0"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_old_librdkafka_reads_what_a_new_one_wrote_and_the_other_way(
    shared_broker: BrokerProcess, new_topic: Callable[[str], str], version: str, codec: str
) -> None:
    topic = new_topic("old")
    lines = [f"{who}{n}" for who in ("new", "old") for n in range(20)]
    written = ["-P", "-t", topic, "-p", "0", "-X", f"compression.codec={codec}"]
    kcat(shared_broker, *written, stdin="\n".join(lines[:20]) + "\n")
    kcat(shared_broker, *written, version=version, stdin="\n".join(lines[20:]) + "\n")
    read = ["-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q"]
    assert kcat(shared_broker, *read, version=version).splitlines() == lines
    assert kcat(shared_broker, *read).splitlines() == lines
