"""Java's console producer and consumer work unchanged, the newest and those of 3.9."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.harness import BrokerProcess
from support.kafka_jars import KAFKA_VERSION, java

PRODUCER = {KAFKA_VERSION: "org.apache.kafka.tools.ConsoleProducer", "3.9.1": "kafka.tools.ConsoleProducer"}
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.mark.kafka
@pytest.mark.parametrize("version", PRODUCER)
def test_console_producer_and_consumer(shared_broker: BrokerProcess, new_topic: Callable[[str], str], version: str) -> None:
    topic = new_topic("java")
    lines = [f"line {n}" for n in range(20)]
    where = ["--bootstrap-server", shared_broker.bootstrap, "--topic", topic]
    codec = ["--compression-codec", "zstd"]  # --producer-property acks: idempotent with acks=all by default
    java(PRODUCER[version], *where, *codec, version=version, stdin="\n".join(lines) + "\n")
    group = [
        "--group",
        new_topic("group"),
        "--from-beginning",
        "--max-messages",
        "20",
        "--timeout-ms",
        "60000",
    ]
    assert java(CONSUMER, *where, *group, version=version).splitlines() == lines
