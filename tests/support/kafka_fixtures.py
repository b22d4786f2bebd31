"""The fixture `apache_kafka`: one node of Apache Kafka for the session of each test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.kafka_jars import ApacheKafka


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A running node: `.bootstrap` is its address. Don't stop it; a test that stops one makes its own."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    yield kafka
    kafka.stop()
