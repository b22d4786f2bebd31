"""Fixtures that every test may use; the helpers behind them are in support/."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.harness import BrokerProcess, topic_name
from support.kafka_fixtures import apache_kafka, kafka_as, second_kafka  # noqa: F401  (fixtures)

pytest_plugins = ["support.leftovers"]

# No property is judged by time, neither its examples nor how long Hypothesis takes to make them; a failure prints how to get
# it again.
settings.register_profile("penstock", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

# Folders in the order in which their tests start, those with the longest tests first: none of these is to be the last one.
LONGEST_FIRST = ("spark", "demo", "faults", "deploy", "clients", "pipeline", "compat")
KAFKAS = {"apache_kafka", "second_kafka", "kafka_as"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests one process runs, for `--dist loadgroup`, and which come first.

    The tests of a folder that use Apache Kafka stay together: each process that runs one starts JVMs of its own. So do the
    tests of a file that share a fixture or use Spark. Any other test goes to whichever process is free.
    """
    shared = {item.path for item in items if _shares(item)}
    for item in items:
        group = str(item.path) if item.path in shared else _group(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    places = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(_folder(item), len(places)))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


def _shares(item: pytest.Item) -> bool:
    """Whether a test's file stays together: others in it may rely on what its fixtures have set up."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    scoped = any(one.scope == "module" for defined in fixtures for one in defined[-1:])
    return scoped or item.get_closest_marker("spark") is not None


def _group(item: pytest.Item) -> str | None:
    if not isinstance(item, pytest.Function):
        return None
    return f"kafka-{_folder(item)}" if KAFKAS.intersection(item.fixturenames) else None


# Small and quick: tests should not wait for groups to gather or for big preallocations.
PROPERTIES: dict[str, object] = {
    "log.retention.ms": -1,  # records of long ago must not vanish in the middle of a test
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name what was skipped where nothing may be: `make` sets PENSTOCK_NO_SKIPS where tests are run to prove something."""
    skipped = terminalreporter.stats.get("skipped", [])
    if os.environ.get("PENSTOCK_NO_SKIPS") == "1" and skipped:
        terminalreporter.section("skipped, and PENSTOCK_NO_SKIPS is set")
        for report in skipped:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr[2] if report.longrepr else ''}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with an error where something was skipped and nothing may be."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("PENSTOCK_NO_SKIPS") == "1" and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
