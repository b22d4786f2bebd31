"""A Spark session for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.pipeline import job
from penstock.pipeline.etl import session
from support.etl_world import World
from support.kafka_jars import ApacheKafka


@pytest.fixture(scope="module")
def spark(apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One that reads from Apache Kafka."""
    folder = tmp_path_factory.mktemp("spark")
    config = job.load(World(apache_kafka.bootstrap, folder).config)
    started = session.start(config, "UTC", folder / "log")
    yield started
    started.stop()
