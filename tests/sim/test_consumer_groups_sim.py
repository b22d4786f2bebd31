"""Seeded runs of KIP-848's groups: members of both protocols, crashes, losses, topics that come, grow and go.

A failure names its seed; `PENSTOCK_SIM_SEED=<seed>` plays that one alone, `PENSTOCK_SIM_RUNS=<n>` plays more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from sim.consumer_world import Violation, World

RUNS = int(os.environ.get("PENSTOCK_SIM_RUNS", "150"))


def _seeds() -> list[int]:
    one = os.environ.get("PENSTOCK_SIM_SEED")
    return [int(one)] if one else list(range(1, RUNS + 1))


def play(seed: int, classic: bool) -> World:
    try:
        return World(seed, classic=classic).run()
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("classic", [False, True])
def test_no_partition_is_held_twice_and_all_are_held_in_the_end(classic: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in _seeds():
        seen.update(play(seed, classic).counts)
    print(dict(seen))
    if len(_seeds()) > 100:
        must_happen = (
            ["crash", "topic", "assignment", "commit", "fenced", "unreleased", "died", "left", "paused"]
            + ["request lost", "answer lost", "append failed"]
            + (["classic join", "classic died"] if classic else [])
        )
        assert not [what for what in must_happen if not seen[what]], "the runs saw too little to mean anything"


def test_a_seed_plays_the_same_run_again() -> None:
    first, second = World(7).run(), World(7).run()
    assert first.counts == second.counts and first.log == second.log
