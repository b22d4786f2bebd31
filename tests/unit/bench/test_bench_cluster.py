"""Cases of three brokers run at a tiny scale and give numbers that make sense; nothing is judged by time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench import clusters
from penstock.bench.case import Case, Measured, Sample
from penstock.bench.cases.cluster import CASES, CatchUp, Failover
from penstock.bench.clusters import until
from penstock.bench.programs import Programs
from penstock.bench.run import Run, carry_out
from penstock.bench.sides import PENSTOCK
from penstock.bench.stockclients import StockClient
from penstock.bench.targets import TARGETS, Verdict
from penstock.bench.world import RECYCLING, World
from support.cluster_world import PROPERTIES
from support.zookeeper import ZooKeeper

SCALE = 0.001
MAY_BE_ZERO = ("stolen", "cpu", "failed")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Sessions end early, so that a kill takes a test little time."""
    world = World(tmp_path_factory.mktemp("bench"), SCALE, 0.02, Programs(Path("build/bench/programs")))
    with pytest.MonkeyPatch.context() as patch:
        quick = {name: str(value) for name, value in PROPERTIES.items()}
        patch.setitem(RECYCLING, PENSTOCK, {**RECYCLING[PENSTOCK], **quick})
        patch.setattr(clusters, "ZooKeeper", ZooKeeper)
        yield world
    world.close()


def measure(world: World, case: Case) -> Measured:
    case.warm = False
    run = Run([case], (PENSTOCK,), 1, world.scale, world.minutes, what="cluster")
    carry_out(run, world, lambda line: None, lambda: None)
    return run.measured[case.name]


def check(sample: Sample) -> None:
    for metric, value in sample.items():
        assert math.isfinite(value), metric
        assert value > 0 or any(word in metric for word in MAY_BE_ZERO), metric


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_gives_sane_numbers(world: World, case: Case) -> None:
    measured = measure(world, case)
    if isinstance(case, CatchUp) and measured.failed:
        assert "the follower had most of it before" in measured.failed[PENSTOCK]
        return
    assert measured.failed == {}
    (sample,) = measured.samples[PENSTOCK]
    check(sample)
    if isinstance(case, Failover):
        assert sample["failed_operations"] == 0
        assert sample["to_ack_median_s"] <= sample["to_ack_max_s"]


def test_a_case_that_fails_halfway_leaves_a_whole_cluster_to_the_next_one(world: World) -> None:
    class Broken(CatchUp):
        def run(self, world: World, side: str) -> Sample:
            world.cluster(side).nodes[2].kill()
            raise RuntimeError("halfway")

    assert measure(world, Broken("broken")).failed == {PENSTOCK: "RuntimeError: halfway"}
    cluster = world.cluster(PENSTOCK)
    assert {broker.node_id for broker in cluster.metadata(of=2).brokers} == {1, 2, 3}
    assert cluster.controller in cluster.nodes


LATER = time.monotonic() + 1_000_000
"""What a script's times count from: all of it is after the beginning of a block, which waits for a first acknowledgement,
however long the tests before this one take."""


class Scripted(StockClient):
    """Acknowledges what a test says, at the times that it says."""

    def __init__(self, *script: tuple[float, float], error: Exception | None = None) -> None:
        super().__init__()
        self._script = [(LATER + began, LATER + acknowledged) for began, acknowledged in script]
        self._error = error

    def _work(self) -> None:
        self.acknowledged += self._script
        if self._error is not None:
            raise self._error


def test_an_acknowledgement_of_what_began_before_the_kill_is_none() -> None:
    with Scripted((1.0, 2.0), (4.5, 5.5), (5.5, 7.0), (6.0, 7.5)) as client:
        assert client.until_acknowledged(LATER + 5.0) == LATER + 7.0


def test_a_client_that_breaks_says_why() -> None:
    with Scripted((1.0, 2.0), error=ValueError("broken")) as client, pytest.raises(ValueError, match="broken"):
        client.until_acknowledged(LATER + 5.0)


def test_the_longest_gap_is_between_the_acknowledgements_around_a_stop() -> None:
    with Scripted(*((at, at) for at in (1.0, 3.0, 3.5, 5.0, 5.25, 9.0))) as client:
        assert client.until_acknowledged(LATER + 9.0) == LATER + 9.0
        # Neither the gap before these times nor the one after them counts.
        assert client.longest_gap_s(LATER + 3.1, LATER + 5.1) == 1.5
        assert client.longest_gap_s(LATER + 5.5, LATER + 8.0) == 3.75


def test_waiting_says_what_is_the_matter() -> None:
    def refused() -> bool:
        raise ConnectionRefusedError("nobody listens")

    with pytest.raises(TimeoutError, match="the cluster is away: nobody listens"):
        until(refused, "the cluster is away", limit_s=0.05)


def test_no_failure_at_all_is_a_bound_that_can_be_met_and_missed() -> None:
    bound = next(bound for target in TARGETS["cluster"] for bound in target.bounds if bound.metric == "failed_operations")
    for failures, verdict in ((0.0, Verdict.MET), (1.0, Verdict.MISSED)):
        cases = {bound.case: Measured(bound.case, "", {PENSTOCK: [{bound.metric: failures}]})}
        assert bound.verdict(cases) is verdict
        assert bound.used(cases) is None  # No picture shows how much of nothing was used.
