"""Seeded runs of coordinators that move between three brokers, at any moment between an append and its commit.

A failure names its seed; `PENSTOCK_SIM_SEED=<seed>` plays that one alone, `PENSTOCK_SIM_RUNS=<n>` plays more.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sim import virtualtime
from sim.moving_world import Violation, World

from penstock.broker.coordination.shell import Coordinator
from penstock.broker.replication.commits import Commits
from penstock.pyx.log.logmanager import Appended

RUNS = int(os.environ.get("PENSTOCK_SIM_RUNS", "60"))


def _seeds() -> list[int]:
    one = os.environ.get("PENSTOCK_SIM_SEED")
    return [int(one)] if one else list(range(1, RUNS + 1))


def play(seed: int, folder: Path) -> World:
    home = folder / str(seed)
    home.mkdir()
    try:
        return virtualtime.play(World(seed, home).run())
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation


def test_no_election_takes_back_what_was_answered_or_shown(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in _seeds():
        seen.update(play(seed, tmp_path).counts)
    print(dict(seen))
    if len(_seeds()) > 50:
        must_happen = (
            "answered", "shown", "election", "cut", "refused NOT_COORDINATOR", "refused COORDINATOR_LOAD_IN_PROGRESS",
            "look NOT_COORDINATOR", "look COORDINATOR_LOAD_IN_PROGRESS", "fetch FENCED_LEADER_EPOCH",
            "fetch UNKNOWN_LEADER_EPOCH",
        )  # fmt: skip
        assert not [what for what in must_happen if not seen[what]], "the runs saw too little to mean anything"


def test_a_seed_plays_the_same_run_again(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, second = play(7, tmp_path), play(7, tmp_path / "again")
    assert first.counts == second.counts and first.answered == second.answered and first.shown == second.shown


def _answers_at_once(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that answers what it has appended."""
    of_broker = Coordinator._write_log

    def write(self: Coordinator, *given: object) -> object:  # type: ignore[type-arg]
        done = of_broker(self, *given)  # type: ignore[arg-type]
        return done._replace(waits=False) if isinstance(done, Appended) else done

    patch.setattr(Coordinator, "_write_log", write)


def _serves_what_it_reads(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that serves once it has read its log, committed or not."""
    of_broker = Commits.wait

    async def wait(self: Commits, partition: tuple[str, int], needed: int, leader_epoch: int, timeout_ms: int = 30_000) -> int:
        loads = timeout_ms == 30_000
        return 0 if loads else await of_broker(self, partition, needed, leader_epoch, timeout_ms)

    patch.setattr(Commits, "wait", wait)


@pytest.mark.parametrize("mutate", [_answers_at_once, _serves_what_it_reads])
def test_a_coordinator_without_one_of_its_rules_is_found_out(
    mutate: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(1, 400):
            play(seed, tmp_path)
