"""Seeded runs of transactions across partitions and coordinators that move, and topics that are made again under their name.

A failure names its seed; `PENSTOCK_SIM_SEED=<seed>` plays that one alone, `PENSTOCK_SIM_RUNS=<n>` plays more.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from sim import virtualtime
from sim.moving_world import Violation
from sim.transaction_world import World

from penstock.broker.coordination.losses import Losses

RUNS = int(os.environ.get("PENSTOCK_SIM_RUNS", "6"))


def _seeds() -> list[int]:
    one = os.environ.get("PENSTOCK_SIM_SEED")
    return [int(one)] if one else list(range(1, RUNS + 1))


def play(seed: int, folder: Path, lossy: float = 1.0, *, power_cuts: bool = False, forgets: bool = False) -> World:
    home = folder / str(seed)
    home.mkdir()
    world = World(seed, home, lossy=lossy, power_cuts=power_cuts, forgets=forgets)
    try:
        virtualtime.play(world.run())
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation
    return world


def test_a_transaction_is_committed_everywhere_or_nowhere(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in _seeds():
        seen.update(play(seed, tmp_path).counts)
    print(dict(seen))
    if len(_seeds()) > 5:
        must_happen = (
            "committed v0", "committed v2", "aborted v0", "aborted v2", "producer died", "election", "deleted", "hung", "cut",
            "produced late", "appended late", "refused by its guard", "late markers", "restart",
        )  # fmt: skip
        assert not [what for what in must_happen if not seen[what]], "the runs saw too little to mean anything"


def test_a_committed_transaction_is_whole_after_power_cuts(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    seeds = _seeds()[: RUNS // 2 or 1]
    for seed in seeds:
        seen.update(play(seed, tmp_path, power_cuts=True).counts)
    print(dict(seen))
    assert seen["power cut"] and seen["committed v0"] and seen["committed v2"]


def test_no_transaction_hangs_that_its_coordinator_has_forgotten(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in _seeds()[: RUNS // 2 or 1]:
        seen.update(play(seed, tmp_path, forgets=True).counts)
    print(dict(seen))
    assert seen["power cut"] and seen["committed v0"] and seen["committed v2"]


def _decide_without_a_look(patch: pytest.MonkeyPatch) -> None:
    async def wait_for_leaders(self: Losses, *given: object) -> bool:
        return True

    patch.setattr(Losses, "wait_for_leaders", wait_for_leaders)
    patch.setattr(Losses, "find", lambda self, facts: [])


def test_a_commit_of_records_that_are_lost_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _decide_without_a_look(monkeypatch)
    with pytest.raises(Violation, match="is committed, and lacks what"):
        for seed in range(1, 40):
            play(seed, tmp_path, power_cuts=True)
