"""Fixtures for tests of programs that use Kafka; pytest finds them once Penstock is installed.

    def test_orders(penstock_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": penstock_broker.bootstrap})
        penstock_broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER", nth=2)

Each test has a broker of its own, in the test's process, with an empty temporary folder on a free port. Another fixture of
the name `penstock_broker_properties` changes its properties; `penstock_broker_factory` makes any number of brokers.
`penstock_cluster` is a cluster of three, whose brokers a test kills, pauses and cuts off (`penstock.broker.Cluster`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.broker import Broker, Cluster

# What a test wants otherwise than a service: no wait for more members before a group's first assignment, and records
# with old timestamps that stay.
DEFAULTS: Mapping[str, object] = {"group.initial.rebalance.delay.ms": 0, "log.retention.ms": -1}


@pytest.fixture
def penstock_broker_properties() -> Mapping[str, object]:
    """Properties of the brokers, by Kafka's names; define it again to change them."""
    return {}


@pytest.fixture
def penstock_broker_factory(
    penstock_broker_properties: Mapping[str, object],
) -> Iterator[Callable[..., Broker]]:
    """Makes started brokers, which end with the test: `factory(**{"num.partitions": 3})`."""
    from penstock.broker import Broker

    with ExitStack() as brokers:

        def make(**properties: object) -> Broker:
            given = {**DEFAULTS, **penstock_broker_properties, **properties}
            return brokers.enter_context(Broker(properties=given))

        yield make


@pytest.fixture
def penstock_broker(penstock_broker_factory: Callable[..., Broker]) -> Broker:
    """A started broker for this test alone."""
    return penstock_broker_factory()


@pytest.fixture
def penstock_cluster(penstock_broker_properties: Mapping[str, object]) -> Iterator[Cluster]:
    """A started cluster of three brokers for this test alone."""
    from penstock.broker import Cluster

    with Cluster(properties={**DEFAULTS, **penstock_broker_properties}) as cluster:
        yield cluster
