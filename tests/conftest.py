"""Fixtures that every test may use; the helpers behind them are in support/."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.harness import BrokerProcess, topic_name
from support.kafka_fixtures import apache_kafka, kafka_as, second_kafka  # noqa: F401  (fixtures)

# Small and quick: tests should not wait for groups to gather or for big preallocations.
PROPERTIES: dict[str, object] = {
    "log.retention.ms": -1,  # records of long ago must not vanish in the middle of a test
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """A function that starts brokers: `make_broker(name="a", **{"num.partitions": 3})`."""
    made: list[BrokerProcess] = []

    def make(
        name: str = "broker", environment: dict[str, str] | None = None, **properties: object
    ) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / name, {**PROPERTIES, **properties}, environment=environment)
        made.append(broker)
        return broker.start()

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker of this test alone: it may be killed, stopped and started again."""
    return make_broker()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of a worker: use names from `new_topic`, never stop it."""
    shared = BrokerProcess(tmp_path_factory.mktemp("shared") / "broker", PROPERTIES).start()
    yield shared
    shared.close()


@pytest.fixture
def new_topic() -> Callable[[str], str]:
    """A function that gives topic (or group) names that no other test uses."""
    return topic_name
