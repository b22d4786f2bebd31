"""Seeded runs of our own consumers in a group: cooperative and eager ones that die, stand still, leave, brokers that hang.

A failure names its seed; `PENSTOCK_SIM_SEED=<seed>` plays that one alone, `PENSTOCK_SIM_RUNS=<n>` plays more. How sets of
partitions are ordered depends on PYTHONHASHSEED.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from sim.consumer_world import Violation
from sim.reader_world import play

from penstock.pipeline.clients import assignors, stickiness
from penstock.pipeline.clients.stickiness import Assignment, Member
from penstock.pipeline.clients.subscription import Subscription

RUNS = int(os.environ.get("PENSTOCK_SIM_RUNS", "40"))
MUTANT_RUNS = 40


def _seeds() -> list[int]:
    one = os.environ.get("PENSTOCK_SIM_SEED")
    return [int(one)] if one else list(range(1, RUNS + 1))


def test_every_record_is_read_and_no_partition_has_two_readers() -> None:
    seen: Counter[str] = Counter()
    for seed in _seeds():
        seen.update(play(seed).counts)
    print(dict(seen))
    if len(_seeds()) >= 40:
        must_happen = ["came", "left", "died", "stood still", "hung", "crash", "lost", "read again", "append failed"]
        must_happen += ["revoked while others stay", "all revoked", "request lost", "answer lost"]
        assert not [what for what in must_happen if not seen[what]], "the runs saw too little to mean anything"


def _find(what: str) -> None:
    """Play seeds until one violates a rule."""
    with pytest.raises(Violation, match=what):
        for seed in range(1, MUTANT_RUNS + 1):
            play(seed)


def test_a_partition_that_is_given_out_before_it_was_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(assigned: Assignment, members: list[Member]) -> Assignment:
        return assigned

    monkeypatch.setattr(assignors, "withhold", hasty)
    assert stickiness.withhold is not hasty
    _find("still has it|goes back|was committed before")


def test_a_share_that_is_taken_after_the_membership_was_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscription, "is_lost", False)
    _find("knows that it has lost its membership")
