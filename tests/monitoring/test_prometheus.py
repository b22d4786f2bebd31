"""A real Prometheus over a pipeline that runs: what it is shown, and each alert, which fires and ends.

One pipeline for all tests of this file, in their order. A minute of a rule lasts half a second (support/prometheus.py).
"""

from __future__ import annotations

import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from support.patience import until
from support.prometheus import ABSENT, MONITORING, Prometheus, expressions, is_there, panel_queries
from support.watched_world import BOUNDS, STORMY, TOPIC, World

DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
STRIMZI = Path(__file__).with_name("strimzi_names.txt")

pytestmark = [
    pytest.mark.skipif(not is_there(), reason=ABSENT),
    pytest.mark.spark,
    pytest.mark.whole_day,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("watched"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def prometheus(world: World) -> Iterator[Prometheus]:
    with Prometheus(world.folder / "prometheus", *BOUNDS) as made:
        made.watch(*world.targets)
        yield made


class Load:
    """Records in a thread, until it is ended."""

    def __init__(self, world: World, **shape: Any) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(world, shape))

    def _run(self, world: World, shape: dict[str, Any]) -> None:
        while not self._ended.wait(0.3):
            world.send(**{"count": 20, **shape})

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()


def test_a_host_without_figures_of_nights(world: World, prometheus: Prometheus) -> None:
    found = prometheus.await_firing("PenstockNightFiguresMissing", instance="aggregate-1")
    assert "aggregate-1 has shown no figures of nights" in found["summary"]


def test_nights_that_are_late_full_of_rejects_and_failed(world: World, prometheus: Prometheus) -> None:
    world.send(50, bad=20, again=10)
    world.mirror.start()
    world.dedupe.start()
    until(lambda: "loaded" in world.night(2, code=None), "the first night")
    found = prometheus.await_firing("PenstockRejects", table="penstock.etl")
    assert re.match(r"\d\d(\.\d+)?% of the records of the last night of penstock.etl are rejects", found["summary"]), found
    prometheus.await_firing("PenstockNightLate", table="penstock.etl")
    prometheus.await_clear("PenstockNightFiguresMissing")
    # What is at the source now isn't copied: the night that follows has to wait for it.
    assert world.mirror.stop() == 0
    world.send(100)
    world.night(1, code=3)
    found = prometheus.await_firing("PenstockNightFailed", table="penstock.etl")
    assert found["summary"] == "The last run of nights of table penstock.etl ended with exit code 3."
    world.mirror.start()
    until(lambda: "loaded" in world.night(1, code=None), "the second night")
    prometheus.await_clear("PenstockNightFailed", "PenstockNightLate", "PenstockRejects")


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


# Names of kafka_exporter's and the JMX exporter's, which dashboards ask for.
TOLERATED = {
    'kafka_consumergroup_lag_sum non-histogram and non-summary metrics should not have "_sum" suffix',
    'kafka_server_socket_server_metrics_connection_count non-histogram and non-summary metrics should not have "_count" suffix',
    "kafka_server_socket_server_metrics_connection_count label names should be written in 'snake_case' not 'camelCase'",
}


def test_promtool_complains_of_nothing_but_kafkas_names(world: World) -> None:
    check = ["promtool", "check", "metrics"]
    for part, address in world.addresses.items():
        done = subprocess.run(check, input=page(address), capture_output=True, text=True, check=False)
        assert set((done.stdout + done.stderr).splitlines()) <= TOLERATED, part


def asked_by_strimzi() -> dict[str, set[str]]:
    """Names, and the labels of each."""
    found: dict[str, set[str]] = {}
    for line in STRIMZI.read_text().splitlines():
        if line[0] not in "#[":
            name, *labels = line.split()
            found.setdefault(name, set()).update(labels)
    return found


def test_under_load_all_is_there_that_strimzis_dashboards_ask_for(world: World, prometheus: Prometheus) -> None:
    world.commit("reader", 0)

    def lacking() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, asked in asked_by_strimzi().items():
            labels = {key for series, _ in prometheus.query(f'{name}{{part="broker"}}') for key in series}
            if asked - labels or not labels:
                found[name] = asked - labels
        return found

    with Load(world):
        until(lambda: lacking() == {}, "all names and labels", lambda: str(lacking()))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_each_query_of_a_dashboard_has_data(world: World, prometheus: Prometheus, dashboard: Path) -> None:
    queries = list(panel_queries(dashboard))
    world.commit("reader", 0)
    with Load(world):
        until(lambda: prometheus.lacking(queries) == [], "data", lambda: "\n".join(map(str, prometheus.lacking(queries))))
    for name, label in re.findall(r"label_values\((\w+)\{.*?\}, (\w+)\)", "\n".join(expressions(dashboard))):
        assert any(label in labels for labels, _ in prometheus.query(name)), name


def test_the_metrics_that_rules_name_are_there_and_no_rule_fails(prometheus: Prometheus) -> None:
    rules = [
        rule for path in (MONITORING / "rules").glob("*.yml") for rule in yaml.safe_load(path.read_text())["groups"][0]["rules"]
    ]
    names = {name for rule in rules for name in re.findall(r"\b(?:penstock|kafka)_\w+|\bup\b", rule["expr"])}
    assert len(names) > 15
    assert {name for name in names if not prometheus.query(name)} <= {"penstock_metrics_dropped_series"}
    assert [
        rule["lastError"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"] if rule.get("lastError")
    ] == []


def end(world: World, topic: str) -> int:
    place = TopicPartition(topic, 0)
    # A client of its own: an older one knows the leader's epoch from before the broker was killed.
    admin = AdminClient({"bootstrap.servers": world.brokers["ewr"].bootstrap})
    return int(admin.list_offsets({place: OffsetSpec.latest()})[place].result(30).offset)


def test_when_all_is_well_nothing_fires(world: World, prometheus: Prometheus) -> None:
    world.commit("reader", end(world, TOPIC))
    until(lambda: prometheus.firing() == {}, "silence", lambda: str(prometheus.firing()))


def test_a_mirror_that_is_killed(world: World, prometheus: Prometheus) -> None:
    world.mirror.kill()
    found = prometheus.await_firing("PenstockStageDown", part="mirror")
    assert found["hint"] == "systemctl status penstock-mirror; journalctl -u penstock-mirror -n 50"
    world.mirror.start()
    prometheus.await_clear("PenstockStageDown")


def test_a_source_that_is_killed(world: World, prometheus: Prometheus) -> None:
    world.brokers["ewr"].kill()
    found = prometheus.await_firing("PenstockBrokerDown", instance="ewr-1")
    assert found["summary"] == "Broker ewr-1 in ewr does not answer Prometheus."
    prometheus.await_firing("PenstockLaneUnreachable", stage="mirror")
    world.brokers["ewr"].start()
    prometheus.await_clear("PenstockBrokerDown", "PenstockLaneUnreachable")


def test_a_stage_that_waits_for_its_cluster(world: World, prometheus: Prometheus) -> None:
    world.mirror.kill()
    world.brokers["hub"].kill()
    world.mirror.start(await_started=False)
    found = prometheus.await_firing("PenstockStageNotReady", stage="mirror")
    assert found["hint"] == "penstock mirror status --config /etc/penstock/pipeline.properties"
    world.brokers["hub"].start()
    prometheus.await_clear("PenstockStageNotReady", "PenstockBrokerDown")


def test_two_controllers_of_one_datacenter(world: World, prometheus: Prometheus) -> None:
    prometheus.watch(*((part, "ewr", instance, address) for part, _, instance, address in world.targets))
    found = prometheus.await_firing("PenstockNoActiveController", datacenter="ewr")
    assert found["summary"] == "Datacenter ewr has 2 active controllers; one is right."
    prometheus.watch(*world.targets)
    prometheus.await_clear("PenstockNoActiveController")


def test_records_without_an_id(world: World, prometheus: Prometheus) -> None:
    with Load(world, keyed=False):
        found = prometheus.await_firing("PenstockDedupeWithoutIds", topic=TOPIC)
    assert found["hint"] == "penstock dedupe status 'flights' --config /etc/penstock/pipeline.properties"
    prometheus.await_clear("PenstockDedupeWithoutIds")


def test_a_group_that_falls_back(world: World, prometheus: Prometheus) -> None:
    world.commit("slow", 0)
    found = prometheus.await_firing("PenstockGroupLagGrows", consumergroup="slow")
    assert found["hint"] == "penstock groups describe 'slow' -b 'ewr-1':9092"
    for group in ("slow", "reader"):
        world.commit(group, end(world, TOPIC))
    prometheus.await_clear("PenstockGroupLagGrows")


def test_an_open_transaction_that_holds_records_back(world: World, prometheus: Prometheus) -> None:
    producer = Producer({"bootstrap.servers": world.brokers["ewr"].bootstrap, "transactional.id": "open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(STORMY, b"held back", key=b"id")
    producer.flush()
    prometheus.await_firing("PenstockLaneLagGrows", stage="mirror", source="EWR", topic=STORMY)
    producer.commit_transaction(30)
    prometheus.await_clear("PenstockLaneLagGrows")


def test_a_lane_that_stops(world: World, prometheus: Prometheus) -> None:
    """Records are gone at the source before they were copied."""
    assert world.mirror.stop() == 0
    world.send(20, topic=STORMY)
    place = TopicPartition(STORMY, 0, end(world, STORMY) - 5)
    world.admin.delete_records([place])[place].result(30)
    world.mirror.start()
    found = prometheus.await_firing("PenstockLaneStopped", stage="mirror")
    assert found["summary"] == "1 lanes of mirror mirror have stopped: a person has to decide."
    world.penstock("mirror", "begin", "EWR", f"{STORMY}:0", "--at", "earliest", "--because", "a test")
    prometheus.await_clear("PenstockLaneStopped")


def test_a_topic_that_a_source_lacks(world: World, prometheus: Prometheus) -> None:
    assert world.mirror.stop() == 0
    world.configure(topics=f"{TOPIC},{STORMY},later")
    world.mirror.start()
    prometheus.await_firing("PenstockLaneStalled", stage="mirror")
    world.create("later")
    prometheus.await_clear("PenstockLaneStalled")


def test_a_store_that_drops_ids_too_early(world: World, prometheus: Prometheus) -> None:
    assert world.dedupe.stop() == 0
    world.configure(**{"penstock.dedupe.size.max.bytes": 1 << 20})
    world.dedupe.start()
    with Load(world, count=3000):
        found = prometheus.await_firing("PenstockDedupeWindowShort", topic=TOPIC)
    assert found["hint"] == "penstock dedupe status --config /etc/penstock/pipeline.properties"
    assert world.dedupe.stop() == 0
    world.configure(**{"penstock.dedupe.size.max.bytes": 1 << 30})
    world.dedupe.start()
    prometheus.await_clear("PenstockDedupeWindowShort")
