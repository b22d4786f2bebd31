"""A leader whose disk is full: another replica in sync leads, and nobody makes it the leader again before it has room."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sim.calm_world import CalmWorld, P
from sim.cluster_laws import Violation
from sim.cluster_world import SETTLE_MS, ClusterWorld

from penstock.broker.cluster import controller, fulldisks, planning
from penstock.errors import ErrorCode


def test_a_leader_on_a_full_disk_gives_way_and_catches_up_once_it_has_room() -> None:
    world = CalmWorld(head=2)
    assert world.produce(0)
    world.fill(0)
    assert world.state.leader == 1
    record = world.produce(1)
    assert world.answered.get(record) is None  # The ISR has a member that can't write it.
    world.lag(0)
    assert 0 not in world.state.isr and world.answered[record] == 0
    world.drain(0)
    world.advance(SETTLE_MS)
    assert world.state.leader == 1 and world.log(0) == world.log(1)
    world.check_whole()


def test_a_disk_that_is_full_again_and_again_moves_one_lead() -> None:
    world = CalmWorld(head=2)
    epoch = world.state.leader_epoch
    for _ in range(5):
        world.fill(0)
        world.drain(0)
        world.advance(SETTLE_MS - 1)
    assert world.state.leader == 1 and world.state.leader_epoch == epoch + 1
    world.wish(leader=0)
    assert world.state.leader == 1
    world.advance(1)
    world.wish(leader=0)
    assert world.state.leader == 0


def test_nobody_wants_a_full_disk_to_lead() -> None:
    world = CalmWorld(head=2)
    world.fill(0)
    machine = world.brokers[2].controller
    assert machine is not None
    refusal = controller.refuse_election(machine, P, unclean=False)
    assert refusal == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    world.wish(leader=0)
    assert world.state.leader == 1
    world.die(1)
    assert world.state.leader == 2


def test_the_last_seat_leads_on_a_full_disk() -> None:
    world = CalmWorld(head=0, min_isr=1)
    world.die(1)
    world.die(2)
    assert world.state.isr == (0,)
    world.fill(0)
    assert world.state.leader == 0
    world.drain(0)
    world.advance(SETTLE_MS)
    assert world.produce(0)


def test_an_eligible_leader_replica_leads_in_place_of_a_full_one_once_it_is_in_sync() -> None:
    """What the last member of the ISR has answered for acks=0 and 1 since is nowhere else."""
    world = CalmWorld(head=0)
    world.keep_out(1)
    world.keep_out(2)
    assert (world.state.isr, world.state.elr) == ((0,), (2,))
    world.fill(0)
    assert world.state.leader == 0
    world.release("fetch", 0, 2)
    world.advance(SETTLE_MS)
    assert world.state.leader == 2
    world.release("fetch", 0, 1)
    world.drain(0)
    world.advance(SETTLE_MS)
    world.check_whole()


def test_all_disks_are_full() -> None:
    world = CalmWorld(head=2)
    for broker in (0, 1, 2):
        world.fill(broker)
    assert world.state.leader == 2  # The last one that had room.
    for broker in (0, 1, 2):
        world.drain(broker)
    world.advance(SETTLE_MS)
    assert world.produce(2)
    world.check_whole()


def test_another_session_reports_a_full_disk_again() -> None:
    world = CalmWorld(head=2)
    world.fill(0)
    world.end_session(0)
    assert world.state.leader == 1
    world.advance(1)
    assert world.brokers[0].has_reported
    world.die(1)
    assert world.state.leader == 2


def test_the_next_controller_knows_of_full_disks() -> None:
    world = CalmWorld(head=2)
    world.fill(0)
    world.die(2)
    world.advance(1)
    world.wish(leader=0)
    assert world.state.leader == 1


def leads_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "_give_way", lambda image, state, live: state)


def never_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fulldisks, "on_look", lambda disks, full, now_ms: frozenset[str]())


@pytest.mark.parametrize("break_rule", [leads_for_ever, never_reports])
def test_a_leader_that_stays_on_a_full_disk_is_found_out(
    break_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    with pytest.raises(Violation, match="on a full disk"):
        for seed in range(1, 200):
            ClusterWorld(seed).run()
