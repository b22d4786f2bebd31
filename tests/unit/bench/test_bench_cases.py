"""Every case runs at a tiny scale on our broker and gives numbers that make sense; nothing is judged by time."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.bench import clusters, disk
from penstock.bench.apache_kafka import ApacheCluster
from penstock.bench.case import Case, Measured
from penstock.bench.cases import (
    BROKER_CASES,
    CASES,
    CLUSTER_CASES,
    PIPELINE_CASES,
    clients,
    consume,
    flush,
    linkedin,
    mirror,
    nights,
)
from penstock.bench.cases.produce import Produce
from penstock.bench.cases.steps import Steps
from penstock.bench.clusters import TRANSACTION
from penstock.bench.programs import Programs
from penstock.bench.run import Run, carry_out
from penstock.bench.sides import CONFLUENT, FLOOR, KAFKA, MIRROR_MAKER, PENSTOCK, WITHOUT
from penstock.bench.world import Skipped, World
from support.kafka_jars import classes, jvm

JAVA = (
    clients.JavaProduce,
    clients.JavaConsume,
    linkedin.SingleProducer,
    linkedin.Consumers,
    linkedin.EndToEnd,
)
# Measured with both sides at once, since their brokers take long to start.
BETWEEN_KAFKA = [case.name for case in PIPELINE_CASES if isinstance(case, mirror.Mirror) and case.brokers == KAFKA]
# At this scale they are the night without rejects that `night-rejects` has beside its own; each takes a JVM's start.
NIGHTS_ALIKE = ("night-small", "night-2m")
SCALE = 0.001
MINUTES = 0.02
QUICK_JAVA = "-XX:TieredStopAtLevel=1"  # nothing runs long enough here for the second compiler to pay
MEASURED = (PENSTOCK, WITHOUT, CONFLUENT, FLOOR)
# What may be zero at this scale: CPU seconds have a grain of 10 ms, memory may not grow, memory may even shrink.
MAY_BE_ZERO = ("stolen", "closed", "cpu", "rss_each_connection_kib", "bytes_of_memory", " ns")


def param(case: Case) -> object:
    marks = [pytest.mark.kafka] if isinstance(case, JAVA) else []
    marks += [pytest.mark.spark, pytest.mark.timeout(400)] if isinstance(case, nights.Night) else []
    return pytest.param(case, id=case.name, marks=marks)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    programs = Programs(Path("build/bench/programs"))
    world = World(tmp_path_factory.mktemp("bench"), SCALE, MINUTES, programs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
        yield world
    world.close()


@pytest.fixture
def kafkas_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of Apache Kafka map the archive of its classes."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join([QUICK_JAVA, *classes()]))


def measure(world: World, case: Case) -> Measured:
    case.warm = False
    said: list[str] = []
    run = Run([case], MEASURED, 1, world.scale, world.minutes)
    carry_out(run, world, said.append, lambda: None)
    assert any(line.startswith("[1/1]") and case.name in line for line in said)
    return run.measured[case.name]


@pytest.mark.parametrize(
    "case", [param(case) for case in (*BROKER_CASES, *PIPELINE_CASES) if case.name not in (*BETWEEN_KAFKA, *NIGHTS_ALIKE)]
)
def test_a_case_gives_sane_numbers(world: World, case: Case) -> None:
    measured = measure(world, case)
    if isinstance(case, Steps) and shutil.which("perf") is None:
        assert measured.failed == {PENSTOCK: "`perf` is not installed; Debian has it as `linux-perf`"}
        return
    if isinstance(case, consume.Cold) and case.disk_mb_per_s and not disk.DEVICES.is_dir():
        # A chroot without /sys, for one: nothing says which disk a folder is on.
        assert "is not on a disk of its own file system's" in measured.failed[PENSTOCK]
        return
    if isinstance(case, flush.MirrorFlush | flush.DedupeFlush) and (os.getuid() or measured.failed):
        # Without root, or in a container that may not mount.
        lacks = ("a disk of its own needs", "`mount` failed", "a disk whose flushes take longer needs")
        assert all(why.startswith(lacks[: 3 if case.disk.flush_ms else 2]) for why in measured.failed.values())
        return
    assert measured.failed == {}
    assert set(measured.samples) == {side for side in case.sides if side in MEASURED}
    for samples in measured.samples.values():
        (sample,) = samples
        for metric, value in sample.items():
            assert math.isfinite(value), metric
            assert metric != "stolen_percent" or 0 <= value <= 100
            whole_ms = isinstance(case, linkedin.EndToEnd) and metric.startswith("p")  # its tool rounds down
            if not whole_ms and not any(word in metric for word in MAY_BE_ZERO):
                assert value > 0, metric


def test_the_names_of_cases_are_all_different() -> None:
    names = [case.name for cases in CASES.values() for case in cases]
    assert len(set(names)) == len(names)


@pytest.mark.kafka
@pytest.mark.usefixtures("kafkas_classes")
def test_both_brokers_in_turn(world: World) -> None:
    cases = {case.name: case for case in BROKER_CASES}
    case = cases["request-16x1"]
    case.warm = False
    said: list[str] = []
    run = Run([case], (PENSTOCK, KAFKA), 2, SCALE, MINUTES)
    carry_out(run, world, said.append, lambda: None)
    assert run.measured[case.name].failed == {}
    order = [line.split()[0] for line in said if " round " in line]
    assert order == [PENSTOCK, KAFKA, PENSTOCK, KAFKA]
    assert all(len(samples) == 2 for samples in run.measured[case.name].samples.values())


@pytest.mark.kafka
@pytest.mark.parametrize("case", linkedin.CLUSTER_CASES, ids=lambda case: case.name)
def test_javas_producers_and_a_cluster_of_ours(world: World, case: Case) -> None:
    measured = measure(world, case)
    assert measured.failed == {}
    assert measured.samples[PENSTOCK][0]["records_per_s"] > 0


@pytest.mark.kafka
def test_both_clusters_in_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "ApacheCluster", partial(ApacheCluster, jvm=jvm()))
    case = next(case for case in CLUSTER_CASES if case.name == "replicated-16k")
    case.warm = False
    run = Run([case], (PENSTOCK, KAFKA), 1, SCALE, MINUTES, what="cluster")
    carry_out(run, world, lambda line: None, lambda: None)
    assert run.measured[case.name].failed == {}
    for side in (PENSTOCK, KAFKA):
        assert run.measured[case.name].samples[side][0]["mb_per_s"] > 0
        cluster = world.cluster(side)
        assert cluster.controller in cluster.nodes
        assert cluster.coordinator(TRANSACTION, "any") in cluster.nodes
    # Only ours has a process besides its brokers.
    assert world.cluster(PENSTOCK).store_cpu_s() > 0 == world.cluster(KAFKA).store_cpu_s()


@pytest.mark.kafka
@pytest.mark.usefixtures("kafkas_classes")
def test_mirror_maker_copies_beside_ours(world: World) -> None:
    case = next(case for case in PIPELINE_CASES if case.name in BETWEEN_KAFKA)
    case.warm = False
    run = Run([case], (PENSTOCK, MIRROR_MAKER), 1, SCALE, MINUTES, what="pipeline")
    carry_out(run, world, lambda line: None, lambda: None)
    measured = run.measured[case.name]
    assert measured.failed == {}
    for samples in measured.samples.values():
        assert samples[0]["mb_per_transaction"] > 0 and samples[0]["mb_per_s"] > 0


class Lacking(Produce):
    """Can't be measured here."""

    def prepare(self, world: World, side: str) -> None:
        raise Skipped("nothing is here")


def test_a_failure_is_reported_and_the_rest_goes_on(world: World) -> None:
    broken = Produce("broken", "a property that no broker knows", 100, 0.01, properties={"no_such_property": "1"})
    broken.warm = False
    later = Lacking("later", "after it", 100, 0.01)
    run = Run([broken, later], (PENSTOCK,), 1, SCALE, MINUTES)
    carry_out(run, world, lambda line: None, lambda: None)
    assert "unknown broker property `no.such.property`" in run.measured["broken"].failed[PENSTOCK]
    assert run.measured["broken"].samples == {}
    assert run.measured["later"].failed == {PENSTOCK: "nothing is here"}
