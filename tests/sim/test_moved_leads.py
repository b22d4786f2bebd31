"""A leader that is cut off from the controller alone: another one is elected, by somebody's wish, and it can't be told."""

from __future__ import annotations

import pytest
from sim.calm_world import CalmWorld, P

from penstock.broker.cluster import controller
from penstock.broker.cluster.replica import Role
from penstock.broker.store.base import Delete, paths


def cut_off(world: CalmWorld, one: int, other: int) -> None:
    """No message comes from one broker to the other, both ways."""
    world.cuts |= {(one, other), (other, one)}


def move_from_a_leader_that_hears_nothing() -> CalmWorld:
    """Broker 2 is the controller, broker 0 leads, and broker 1 is wanted as the leader."""
    world = CalmWorld(head=2)
    assert world.produce(0)
    cut_off(world, 0, 2)
    world.wish(leader=1)
    assert world.state.leader == 1
    return world


def test_a_leader_that_cannot_be_told_finds_its_successor_in_the_store() -> None:
    world = move_from_a_leader_that_hears_nothing()
    assert world.brokers[0].roles.replicas[P].role is Role.FOLLOWER and not world.produce(0)
    record = world.produce(1)  # All are in sync still, so it is committed at once.
    assert world.answered[record] == 0 and world.state.isr == (0, 1, 2) and world.log(0) == world.log(1) == world.log(2)
    world.cuts.clear()
    world.advance(controller.ANSWER_MS)
    world.check_whole()


def test_without_the_look_such_a_leader_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "find_moves", lambda machine, partitions: [])
    world = move_from_a_leader_that_hears_nothing()
    assert world.brokers[0].roles.replicas[P].role is Role.LEADER and world.produce(0, acks_wanted=1)


def test_a_broker_whose_node_was_removed_holds_up_no_election() -> None:
    world = CalmWorld(head=2)
    setup = world.store.open(lambda path: None, 0)
    assert world.store.multi(setup, [Delete(paths.moved(0))]) is None
    world.wish(leader=1)
    assert world.state.leader == 1
    world.check_whole()
