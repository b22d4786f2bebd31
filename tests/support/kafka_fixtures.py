"""Fixtures of Apache Kafka: `apache_kafka` and `second_kafka`, nodes for the session of each test process, and `kafka_as`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.kafka_jars import ApacheKafka


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A running node: `.bootstrap` is its address. Don't stop it; a test that stops one makes its own."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    yield kafka
    kafka.stop()


@pytest.fixture(scope="session")
def second_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Another one, for what is between two clusters."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("second"))
    yield kafka
    kafka.stop()


@pytest.fixture
def kafka_as(request: pytest.FixtureRequest) -> Callable[[str], dict[str, ApacheKafka]]:
    """A function that gives nodes by what they are: for `source`, `target` or `both`; none for `ours`."""

    def nodes(role: str) -> dict[str, ApacheKafka]:
        if role == "both":  # one cluster can't have a topic twice
            return {"source": request.getfixturevalue("apache_kafka"), "target": request.getfixturevalue("second_kafka")}
        return {} if role == "ours" else {role: request.getfixturevalue("apache_kafka")}

    return nodes
