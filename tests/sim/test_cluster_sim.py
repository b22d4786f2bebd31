"""Seeded runs of a simulated cluster through kills, power cuts, lost disks, pauses, cut links, lost sessions and expulsions.

A failure names its seed and prints the last 400 things that happened. `PENSTOCK_SIM_SEED=<seed>` plays that one alone,
`PENSTOCK_SIM_RUNS=<n>` plays more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from sim.cluster_laws import Violation
from sim.cluster_world import ClusterWorld

from penstock.broker.cluster import lease

RUNS = int(os.environ.get("PENSTOCK_SIM_RUNS", "240"))
LOTS = 4  # parts that can run side by side


def _world(seed: int) -> ClusterWorld:
    brokers, min_isr = 4 if seed % 4 == 0 else 3, 1 if seed % 5 == 0 else 2
    partitions = 4 if seed // 4 % 4 == 3 else 1 + seed % 2
    return ClusterWorld(seed, brokers=brokers, partitions=partitions, min_isr=min_isr, remakes=seed % 3 == 0)


def _seeds(lot: int) -> range:
    one = os.environ.get("PENSTOCK_SIM_SEED")
    return range(int(one), int(one) + 1) if one else range(1 + lot, RUNS + 1, LOTS)


@pytest.mark.parametrize("lot", range(1 if "PENSTOCK_SIM_SEED" in os.environ else LOTS))
def test_nothing_committed_is_lost(lot: int) -> None:
    seen: Counter[str] = Counter()
    for seed in _seeds(lot):
        world = _world(seed)
        try:
            seen.update(world.run().counts)
        except Violation as violation:
            pytest.fail("\n".join([*world.tell_story(), f"seed {seed}: {violation}"]))
    print(dict(seen))
    if len(_seeds(lot)) >= 50:
        must_happen = {
            "election": 150,
            "truncation": 40,
            "ISR grows": 200,
            "ISR shrinks": 200,
            "append of a zombie": 50,
            "answer of a zombie": 1,
            "election from the ELR": 8,
            "unclean election": 1,
            "controller elected": 100,
            "controller resigned": 1,
            "unknown outcome": 20,
            "power cut": 15,
            "log lost": 10,
            "put back": 5,
            "begun again": 3,
            "expired": 100,
            "found itself expelled": 20,
            "answered 0": 500,
            "topic made again": 20,
            "leftovers removed": 20,
            "lead of a full disk moved": 30,
            "left for a hung disk": 10,
            "asked together": 20,
        }
        assert not {what: seen[what] for what, least in must_happen.items() if seen[what] < least}, "the runs saw too little"


def test_a_seed_plays_the_same_run_again() -> None:
    first, second = _world(7), _world(7)
    first.run(), second.run()
    assert first.story == second.story
    assert first.counts == second.counts


@pytest.mark.parametrize("sessions", [1.0, 1.5])
def test_a_lease_that_lasts_too_long_is_found_out(sessions: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a session is too long: clocks differ."""

    def renew(held: lease.Lease, sent_ms: int) -> None:
        held.until_ms = max(held.until_ms, sent_ms + int(held.session_ms * sessions))

    monkeypatch.setattr(lease, "renew", renew)
    with pytest.raises(Violation, match="lease:"):
        for seed in range(1, 200):
            _world(seed).run()
