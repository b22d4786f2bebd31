"""Fixtures that every test may use; the helpers behind them are in support/."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support import whole_day
from support.harness import BrokerProcess, topic_name
from support.kafka_fixtures import apache_kafka, kafka_as, second_kafka, zookeeper  # noqa: F401  (fixtures)
from support.mirror_world import World, brokers

pytest_plugins = ["support.leftovers"]

# No property is judged by time, neither its examples nor how long Hypothesis takes to make them; a failure prints how to get
# it again. Each run draws other examples, except where PENSTOCK_SAME_DICE asks for those of every machine: `.ci/run`.
settings.register_profile(
    "penstock",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("PENSTOCK_SAME_DICE") == "1",
)
settings.load_profile("penstock")

# Folders in the order in which their tests start, those with the longest tests first: none of these is to be the last one.
LONGEST_FIRST = ("spark", "demo", "faults", "deploy", "clients", "pipeline", "monitoring", "compat")
# The tests that start JVMs are those of two processes, however many there are: each JVM wants a processor for itself. These are
# the first one's, about half of that time; all that uses the fixtures of Apache Kafka is among them, and shares the nodes. A
# ZooKeeper that is up asks for little, so tests of clusters around one are anybody's.
FIRST_WITH_JVMS = ("spark/test_nights.py", "spark/test_etl_interrupts.py", "demo/", "unit/bench/")
KAFKAS = {"apache_kafka", "second_kafka"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests one process runs, for `--dist loadgroup`, and which come first.

    Two processes begin with the tests that start JVMs, the others run all else meanwhile. Tests of a file that share a
    fixture or use Spark stay together. Any other test goes to whichever process is free.
    """
    shared = {item.path for item in items if _shares(item)}
    java = {item.path for item in items if item.path in shared and _starts_jvms(item)}
    kafkas = {item.path for item in items if item.path in shared and _uses_kafka(item)}
    groups: dict[pytest.Item, str] = {}
    for item in items:
        if item.path in java or _starts_jvms(item):
            first = _uses_kafka(item) or item.path in kafkas or _place(item).startswith(FIRST_WITH_JVMS)
            groups[item] = "first-with-jvms" if first else "second-with-jvms"
        elif item.path in shared:
            groups[item] = str(item.path)
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    places = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ("jvms" not in groups.get(item, ""), places.get(_place(item).split("/")[0], len(places))))


def _place(item: pytest.Item) -> str:
    """The path of a test's file in `tests`."""
    return item.path.relative_to(Path(__file__).parent).as_posix()


def _shares(item: pytest.Item) -> bool:
    """Whether a test's file stays together: others in it may rely on what its fixtures have set up."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    scoped = any(one.scope == "module" for defined in fixtures for one in defined[-1:])
    return scoped or item.get_closest_marker("spark") is not None


def _uses_kafka(item: pytest.Item) -> bool:
    """Whether a test uses nodes of a fixture: by name, or by a parameter that `kafka_as` takes."""
    names = set(item.fixturenames) if isinstance(item, pytest.Function) else set()
    return bool(KAFKAS & names) or ("kafka_as" in names and item.get_closest_marker("kafka") is not None)


def _starts_jvms(item: pytest.Item) -> bool:
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
    marked = any(item.get_closest_marker(name) for name in ("kafka", "spark"))
    return _uses_kafka(item) or (marked and "zookeeper" not in fixtures)


def pytest_sessionstart() -> None:
    """Give Ctrl-C its effect back: a shell that starts a run in the background lets all that it starts ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for a midnight that would come amid a test, before the time of the test runs."""
    if item.get_closest_marker("whole_day") is not None:
        whole_day.begin()
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let Spark's JVMs share their classes."""
    if item.get_closest_marker("spark") is not None and "SPARK_SUBMIT_OPTS" not in os.environ:
        from support import spark_classes  # here, since tests without Spark need not have it

        os.environ["SPARK_SUBMIT_OPTS"] = spark_classes.options()


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

    def make(name: str = "broker", environment: dict[str, str] | None = None, **properties: object) -> BrokerProcess:
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


@pytest.fixture(scope="module")
def clusters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    """Brokers for the tests of a module: a target, and the sources that the module names (`SOURCES`), or EWR."""
    sources = getattr(request.module, "SOURCES", ("EWR",))
    with brokers(tmp_path_factory.mktemp("clusters"), *sources, "target") as made:
        yield made


@pytest.fixture
def w(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> Iterator[World]:
    """What a mirror of EWR copies: two partitions."""
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"]) as made:
        yield made


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
