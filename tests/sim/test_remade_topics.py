"""A topic that is deleted and made again under its name: each rule that keeps the two apart is broken, and seeded runs find it.

The runs are those of `test_cluster_sim.py`, in which a third of the seeds has such topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sim import cluster_world
from sim.cluster_laws import Violation
from sim.cluster_world import Broker, ClusterWorld

from penstock.broker.cluster import controller, leader
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import AlterPartitionAnswer, PartitionRole

Patch = pytest.MonkeyPatch
SEEDS = 150


def _play(seed: int) -> None:
    ClusterWorld(seed, partitions=1 + seed % 2, min_isr=1 + seed % 3 % 2, remakes=True).run()


def believe_any_state(patch: Patch) -> None:
    """The state of a former topic counts as that of the later one."""
    for module in (controller, cluster_world):
        patch.setattr(module, "owned", lambda state, topic_id, min_isr: state)


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


def confirm_any_write(patch: Patch) -> None:
    """A write that was planned for a former topic counts as the later one's."""
    patch.setattr(controller, "_is_planned_for", lambda machine, partition: partition in machine.partitions)


def keep_log_of_name(patch: Patch) -> None:
    """A broker goes on with the log that has the name."""

    def open_(world: ClusterWorld, broker: Broker, role: PartitionRole) -> int:
        log = broker.logs[role.partition]
        log.is_made = True
        world.laws.former.setdefault((role.partition, log.topic_id), world.laws.truths[role.partition])
        return 0

    patch.setattr(ClusterWorld, "_open", open_)


def expect_logs(patch: Patch) -> None:
    """Only the first version of a state's node is one at which a log need not be there."""
    patch.setattr(LeaderAndIsr, "is_new", property(lambda state: state.partition_epoch == 0))


def set_any_log_aside(patch: Patch) -> None:
    """A late role is taken, whatever the store says."""
    patch.setattr(ClusterWorld, "_is_stored", lambda world, broker, topic_id: True)


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "any state": believe_any_state,
    "any answer": believe_any_answer,
    "any proposal": take_any_proposal,
    "any write": confirm_any_write,
    "any log": keep_log_of_name,
    "any version": expect_logs,
    "any role": set_any_log_aside,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_topics_of_one_name_are_told_apart(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(Violation):
        for seed in range(1, SEEDS + 1):
            _play(seed)
