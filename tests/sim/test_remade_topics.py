"""A topic that is deleted and made again under its name: each rule that keeps the two apart is broken, and that is seen, by
seeded runs like those of `test_cluster_sim.py`, or along a history that is told twice, as in `test_cluster_mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sim.calm_world import CalmWorld
from sim.cluster_laws import Violation
from sim.cluster_world import ALTER_LOST_MS, ANYBODY, Broker, ClusterWorld
from sim.test_cluster_mutants import Mutant

from penstock.broker.cluster import controller, leader
from penstock.broker.cluster.messages import AlterPartitionAnswer, PartitionRole

Patch = pytest.MonkeyPatch
SEEDS = 150


def _play(seed: int) -> None:
    ClusterWorld(seed, partitions=1 + seed % 2, min_isr=1 + seed % 3 % 2, remakes=True).run()


def believe_any_answer(patch: Patch) -> None:
    """An answer about a former topic's ISR counts for the later one."""
    real = leader.on_answer

    def on_answer(lead: leader.Leader, answer: AlterPartitionAnswer, now_ms: int) -> Any:
        return real(lead, replace(answer, ask=replace(answer.ask, topic_id=lead.role.topic_id)), now_ms)

    patch.setattr(leader, "on_answer", on_answer)


def take_any_proposal(patch: Patch) -> None:
    """A proposal of a former topic's leader counts for the later one."""
    real = controller.find_refusal
    patch.setattr(
        controller, "find_refusal", lambda machine, image, ask: real(machine, image, replace(ask, topic_id=image.topic_id))
    )


def keep_log_of_name(patch: Patch) -> None:
    """A broker goes on with the log that has the name."""

    def open_(world: ClusterWorld, broker: Broker, role: PartitionRole) -> int:
        log = broker.logs[role.partition]
        log.is_made = True
        world.laws.former.setdefault((role.partition, log.topic_id), world.laws.truths[role.partition])
        return 0

    patch.setattr(ClusterWorld, "_open", open_)


def set_any_log_aside(patch: Patch) -> None:
    """A late role is taken, whatever the store says."""
    patch.setattr(ClusterWorld, "_is_stored", lambda world, broker, topic_id: True)


def answer_comes_late() -> None:
    """The controller has answered that 1 is out. The answer comes to the leader of the topic that was made meanwhile, which
    has asked for the same; its question is on its way."""
    world = CalmWorld(head=2)
    world.make_again()
    world.hold("altered", 0)
    world.keep_out(1)
    world.make_again()
    world.hold("alter", 2)
    world.hold("fetched", 1)
    world.lag(1)
    world.release("altered", 0)
    world.produce(0)
    world.held.clear()


def proposal_comes_late() -> None:
    """A leader has asked that 1 be taken in again. The topic is made again, and 1 leaves that one's ISR."""
    world = CalmWorld(head=2)
    world.make_again()
    world.keep_out(1)
    world.hold("alter", 2)
    world.release("fetch", 0, 1)
    world.advance(1)
    assert world.held["alter", 2, ANYBODY], "nothing was asked"
    late = world.held.pop(("alter", 2, ANYBODY))
    world.make_again()
    world.advance(ALTER_LOST_MS)  # The leader waits for that answer no longer.
    world.hold("fetched", 1)
    world.keep_out(1)
    world.produce(0)
    for arrive in late:
        arrive()
    world.settle()
    world.held.clear()


def role_comes_late() -> None:
    """A broker hears of a topic when it has the next one's log. Nothing has told it of the deletion."""
    world = CalmWorld(head=2)
    world.hold("store", 1)
    world.hold("roles", 1)
    world.make_again()
    world.advance(controller.ANSWER_MS)
    late = world.held["roles", 1, ANYBODY][-1]
    world.make_again()
    world.advance(controller.ANSWER_MS)
    world.advance(controller.ANSWER_MS)
    world.held["roles", 1, ANYBODY][-1]()
    late()
    world.settle()
    world.held.clear()


SEEN_BY_CHANCE: dict[str, Callable[[Patch], None]] = {"any log": keep_log_of_name}
SEEN_ALONG_A_HISTORY = {
    "any answer": Mutant(believe_any_answer, answer_comes_late, "I[34]:"),
    "any proposal": Mutant(take_any_proposal, proposal_comes_late, "I[34]:"),
    "any role": Mutant(set_any_log_aside, role_comes_late, "is set aside, and its topic is there"),
}


@pytest.mark.parametrize("name", SEEN_BY_CHANCE)
def test_topics_of_one_name_are_told_apart(name: str, monkeypatch: Patch) -> None:
    SEEN_BY_CHANCE[name](monkeypatch)
    with pytest.raises(Violation):
        for seed in range(1, SEEDS + 1):
            _play(seed)


@pytest.mark.parametrize("name", SEEN_ALONG_A_HISTORY)
def test_what_comes_late_from_a_former_topic_has_no_effect(name: str) -> None:
    SEEN_ALONG_A_HISTORY[name].history()


@pytest.mark.parametrize("name", SEEN_ALONG_A_HISTORY)
def test_late_words_of_a_former_topic_are_told_apart(name: str, monkeypatch: Patch) -> None:
    SEEN_ALONG_A_HISTORY[name].breaks(monkeypatch)
    with pytest.raises(Violation, match=SEEN_ALONG_A_HISTORY[name].law):
        SEEN_ALONG_A_HISTORY[name].history()
