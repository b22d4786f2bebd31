"""A broker whose disk hangs keeps its session: it leaves the cluster by itself, so that another one leads."""

from __future__ import annotations

from collections import Counter

import pytest
from sim.cluster_laws import Violation
from sim.cluster_world import HANG_MS, LOOK_MS, SETTLE_MS, ClusterWorld

from penstock.broker.cluster import hungdisks
from penstock.broker.cluster.hungdisks import HungDisks, on_look

HUNG_MS = 60_000
DETECTED_MS = HANG_MS + 2 * LOOK_MS
PATIENCE_MS = 3_000  # what an election may take, in a world without faults but delays


def lead_time(seed: int) -> int:
    """How long the leader keeps the lead whose disk begins to hang, and what it has answered is kept."""
    world = ClusterWorld(seed, duration_ms=HUNG_MS + 20_000)
    world.faults, world._disturb = False, lambda: None  # type: ignore[method-assign]
    world.play(8_000)
    (partition,) = world.partitions
    leader, began_ms = world.laws.truths[partition].state.leader, world.now_ms
    world.hang(leader, HUNG_MS)
    while world.laws.truths[partition].state.leader == leader and world.now_ms < began_ms + HUNG_MS:
        world.play(world.now_ms + 50)
    led_ms = world.now_ms - began_ms
    answered = world.counts["answered 0"]
    world.play(world.now_ms + 10_000)
    assert world.counts["answered 0"] > answered
    world.play(began_ms + HUNG_MS + SETTLE_MS + 10_000)
    world.check_whole()
    return led_ms


@pytest.mark.parametrize("seed", range(1, 9))
def test_another_broker_leads_soon(seed: int) -> None:
    assert lead_time(seed) <= DETECTED_MS + PATIENCE_MS


def test_a_broker_that_never_leaves_leads_until_its_disk_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hungdisks, "on_look", lambda hung, write_ms, may_leave, now_ms: None)
    assert lead_time(1) >= HUNG_MS


def test_random_runs_with_hung_disks() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 41):
        world = ClusterWorld(seed, partitions=2)
        try:
            seen.update(world.run().counts)
        except Violation as violation:
            pytest.fail("\n".join([*world.tell_story(), f"seed {seed}: {violation}"]))
    assert seen["left for a hung disk"] >= 10, seen


def look(hung: HungDisks, *writes_ms: int, now_ms: int, may_leave: bool = True) -> bool:
    for write_ms in writes_ms:
        on_look(hung, write_ms, may_leave, now_ms)
    return hung.is_out


def test_a_broker_leaves_at_the_second_look_and_comes_back_after_a_while_without_slow_writes() -> None:
    hung = HungDisks(6_000, 10_000)
    assert not look(hung, 5_999, 6_000, 0, 9_000, now_ms=1_000)
    assert look(hung, 9_250, now_ms=2_000)
    assert look(hung, 0, now_ms=2_250)
    assert look(hung, 1_000, now_ms=11_000)  # Slow again.
    assert look(hung, 999, now_ms=20_999)
    assert not look(hung, 0, now_ms=21_000)


def test_a_broker_stays_that_nobody_can_replace() -> None:
    hung = HungDisks(6_000, 10_000)
    assert not look(hung, 7_000, 8_000, now_ms=1, may_leave=False)
    assert look(hung, 8_250, now_ms=2)
