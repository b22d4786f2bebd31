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

from penstock.broker.coordination.markers import Markers

RUNS = int(os.environ.get("PENSTOCK_SIM_RUNS", "6"))


def _seeds() -> list[int]:
    one = os.environ.get("PENSTOCK_SIM_SEED")
    return [int(one)] if one else list(range(1, RUNS + 1))


def play(seed: int, folder: Path) -> World:
    home = folder / str(seed)
    home.mkdir()
    world = World(seed, home)
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
            "produced late", "refused by its guard", "late markers",
        )  # fmt: skip
        assert not [what for what in must_happen if not seen[what]], "the runs saw too little to mean anything"


def test_a_marker_that_hung_in_a_connection_would_end_another_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a broker takes what is older than a request that it has had of the same sender."""
    monkeypatch.setattr(Markers, "is_late", lambda self, sender, sender_epoch, number: False)
    with pytest.raises(Violation, match=r"committed and aborted|answered|nobody asked"):
        for seed in range(1, 40):
            play(seed, tmp_path)
