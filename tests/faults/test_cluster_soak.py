"""Some minutes of `make cluster-soak`: what happens to a cluster under load leaves a history in which no rule is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cluster_events import (
    Event,
    cut_off,
    cut_off_from_controller,
    cut_power,
    cut_power_of_all,
    depose,
    expel,
    fill_disk,
    freeze_disk,
    kill_all,
    kill_keeper,
    kill_one_while_another_is_paused,
    restart_in_turn,
    set_clock,
)
from support.cluster_run import machines, play
from support.zookeeper import ensemble

EVENTS = (
    kill_one_while_another_is_paused, cut_off, expel, kill_keeper, cut_off_from_controller, restart_in_turn, set_clock,
    kill_all,
)  # fmt: skip
POWER_CUTS = (freeze_disk, cut_power, fill_disk, cut_power_of_all, depose)


@pytest.mark.kafka
@pytest.mark.parametrize("has_disks", [False, True], ids=["links and processes", "power"])
def test_no_rule_is_broken_whatever_happens_to_a_cluster(tmp_path: Path, has_disks: bool) -> None:
    events: tuple[Event, ...] = POWER_CUTS if has_disks else EVENTS
    with ensemble(tmp_path / "zookeeper") as servers:
        if has_disks:
            with machines(tmp_path) as disks:
                soak = play(tmp_path, servers, 11, disks, events=events)
        else:
            soak = play(tmp_path, servers, 11, {}, events=events)
    assert soak.events.total() == len(events)
    assert soak.eras == 1 + events.count(cut_power_of_all)  # which takes records of all in-sync replicas
    assert soak.outcomes["ok"] > 1_000
    assert not soak.anomalies, soak.anomalies
