"""A topic's first leaders: nothing that was answered is lost because nobody knew that somebody had led, and no partition of
which nothing was lost waits for an operator. Each history is told twice, as in `test_cluster_mutants.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sim.calm_world import LAST, CalmWorld, P
from sim.cluster_laws import Violation
from sim.test_cluster_mutants import Mutant, Patch

from penstock.broker.cluster import controller, planning
from penstock.broker.cluster.controller import Controller
from penstock.broker.cluster.leaderandisr import NO_LEADER, LeaderAndIsr
from penstock.broker.store.base import Check, paths

# The only broker is dead when the topic is made, and another controller is elected before it is back.


def only_broker_is_dead() -> None:
    world = CalmWorld(brokers=2, min_isr=1, head=LAST)
    world.die(0)
    world.hold("roles", 1)  # The controller's own broker takes no role, and ends.
    world.make_again()
    world.advance(controller.MAKING_MS)
    world.kill(1)
    world.drop("roles", 1)
    world.back(0)
    world.expire(1)
    world.settle()
    assert world.brokers[0].controller is not None
    world.advance(controller.MAKING_MS)
    world.back(1)
    for _ in range(3):
        world.advance(controller.MAKING_MS)
    assert not world._ask_operator()
    world.check_whole()


def name_whoever_lives(patch: Patch) -> None:
    """The first state names all live brokers, whether their logs are there or not."""

    def create(image: planning.PartitionImage, registrations: Any) -> LeaderAndIsr:
        live = tuple(broker for broker in image.replicas if broker in registrations)
        return replace(image.state, leader=live[0], leader_epoch=0, isr=live) if live else image.state

    patch.setattr(planning, "_create", create)


# Somebody has led, and answered. Whoever may lead next must have what was answered.


def first_leaders_are_gone() -> None:
    """In the first epoch 2 left the ISR; then a record was answered, and who has it is away. 2 becomes the controller again."""
    world = CalmWorld(head=2)
    world.make_again()
    world.advance(controller.MAKING_MS)
    world.check_leader(0)
    assert (world.state.leader_epoch, world.state.isr) == (0, (0, 1, 2))
    world.hold("fetched", 2)  # A fetch waits at the leader already.
    world.keep_out(2)
    record = world.produce(0)
    assert world.answered[record] == 0
    world.die(1)
    world.die(0)
    world.die(2)
    world.back(2)
    for _ in range(3):
        world.advance(controller.MAKING_MS)
    assert world.state.leader == NO_LEADER
    world.held.clear()
    world.back(0)
    world.check_leader(0)


def begin_at_second_epoch(patch: Patch) -> None:
    """A state of the first leader epoch counts as none: the store says too late that somebody has led."""
    real = planning.image_of

    def image_of(topic_id: bytes, replicas: Any, stored: LeaderAndIsr | None, min_isr: int) -> planning.PartitionImage:
        if stored is None or stored.leader_epoch > 0:
            return real(topic_id, replicas, stored, min_isr)
        image = real(topic_id, replicas, None, min_isr)
        image.state, image.least_epoch = image.state.written(stored.partition_epoch), stored.leader_epoch
        return image

    patch.setattr(planning, "image_of", image_of)


# A deleted topic's state is written late, when a topic of its name has one.


def write_of_former_topic_is_late() -> None:
    """A wish is carried out by a write whose answer is lost, and which comes when the topic was made again."""
    world = CalmWorld(head=2)
    late: list[tuple[Any, list[Any]]] = []
    real = world._multi

    def multi(session: Any, operations: list[Any]) -> str | None:
        if not late and any(one.path == controller.state_path(P) for one in operations):
            late.append((session, operations))
            return paths.moved(0)  # It isn't written now.
        return real(session, operations)

    world._multi = multi  # type: ignore[method-assign]
    version = world.state.partition_epoch
    world.wish(leader=1)
    world.make_again()
    world.advance(controller.MAKING_MS)
    while world.state.partition_epoch < version:
        world.wish(leader=1 - world.state.leader)
    assert world.state.partition_epoch == version
    record = world.produce(world.state.leader)
    assert world.answered[record] == 0
    real(*late[0])
    world.die(2)
    world.back(2)
    world.advance(controller.MAKING_MS)
    world.check_whole()


def write_to_any_topic(patch: Patch) -> None:
    """Writes of states don't check the count of deletions."""
    real = controller._operations

    def operations(machine: Controller, partitions: Any) -> Any:
        return [one for one in real(machine, partitions) if not (isinstance(one, Check) and one.path == paths.DELETED)]

    patch.setattr(controller, "_operations", operations)


MUTANTS = {
    "a dead broker leads first": Mutant(name_whoever_lives, only_broker_is_dead, "I12:"),
    "the first epoch is nobody's": Mutant(begin_at_second_epoch, first_leaders_are_gone, "I3: .* and lacks"),
    "a write comes to any topic": Mutant(write_to_any_topic, write_of_former_topic_is_late, "a former topic"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_topics_first_leaders_lose_nothing(name: str) -> None:
    MUTANTS[name].history()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_about_first_leaders_is_seen(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name].breaks(monkeypatch)
    with pytest.raises(Violation, match=MUTANTS[name].law):
        MUTANTS[name].history()
