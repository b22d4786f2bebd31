"""Seeded runs of groups and transactions through crashes, losses and zombies.

A failure names its seed; `PENSTOCK_SIM_SEED=<seed>` plays that one alone, `PENSTOCK_SIM_RUNS=<n>` plays more.
"""

from __future__ import annotations

import os
from collections import Counter

from sim.coordinator_world import Violation, World

RUNS = int(os.environ.get("PENSTOCK_SIM_RUNS", "8"))


def _seeds() -> list[int]:
    one = os.environ.get("PENSTOCK_SIM_SEED")
    return [int(one)] if one else list(range(1, RUNS + 1))


def test_nothing_is_lost_or_half_done_through_crashes() -> None:
    seen: Counter[str] = Counter()
    for seed in _seeds():
        print("seed", seed)
        seen.update(World(seed).run().counts)
    print(dict(seen))
    if len(_seeds()) > 1:
        must_happen = (
            "crash",
            "assignment",
            "commit",
            "committed",
            "aborted",
            "offsets in a transaction",
            "member died",
            "producer died",
            "zombie refused",
            "committed v2",
            "aborted v2",
            "committed v0",
            "refused TRANSACTION_ABORTABLE v0",
            "begun in a partition",
            "refused by its guard",
        )
        assert not [what for what in must_happen if not seen[what]], "the runs saw too little to mean anything"


def test_without_its_guard_a_produce_gets_into_another_transaction() -> None:
    """Something comes between the question to the coordinator and the append."""
    found = 0
    for seed in range(1, 2 * RUNS + 1):
        try:
            World(seed, guarded=False).run()
        except Violation as violation:
            print("seed", seed, violation)
            found += 1
    assert found, "the runs saw too little to mean anything"


def test_a_seed_plays_the_same_run_again() -> None:
    first, second = World(7, duration_ms=30_000).run(), World(7, duration_ms=30_000).run()
    assert first.counts == second.counts
    assert [log.written for log in first.logs.values()] == [log.written for log in second.logs.values()]
