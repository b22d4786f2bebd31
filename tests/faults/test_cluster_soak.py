"""Some minutes of `make cluster-soak`: what happens to a cluster under load leaves a history in which no rule is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import cluster_soak
from support.cluster_soak import depose, expel, kill_all, kill_keeper, kill_one_while_another_is_paused, restart_in_turn

pytestmark = pytest.mark.kafka

EVENTS = (kill_one_while_another_is_paused, depose, kill_keeper, expel, restart_in_turn, kill_all)


def test_no_rule_is_broken_whatever_happens_to_a_cluster(tmp_path: Path) -> None:
    with cluster_soak.keepers(tmp_path / "zookeeper") as servers:
        soak, history, anomalies = cluster_soak.play(tmp_path, servers, 11, events=EVENTS)
    assert soak.events.total() == len(EVENTS)
    assert len(history.sends) > 1_000
    assert not anomalies, anomalies
