"""kill -9 of the load at each of its failpoints, on our own broker: the run after it ends with the same table."""

from __future__ import annotations

import importlib
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest

from penstock import failpoints
from penstock.pipeline.etl import ready, table
from support.etl_world import WarmJvm, World
from support.harness import BrokerProcess

pytestmark = pytest.mark.spark

# In the order in which a night with rejects passes them; the last is passed when a reload replaces rejects.
IN_A_NIGHT = [
    "etl.before_plan",
    "etl.plan_aside",
    "etl.after_plan",
    "etl.rows_written",
    "etl.rejects_written",
    "etl.before_commit",
    "etl.after_commit",
    "etl.ready_aside",
    "etl.after_ready",
]
IN_A_RELOAD = ["etl.rejects_cleaned"]
NIGHTS = ["2013-01-01", "2013-01-02"]


def test_every_failpoint_of_the_load_is_tried() -> None:
    importlib.import_module("penstock.pipeline.etl.load")
    assert set(failpoints.declared("etl.")) == {*IN_A_NIGHT, *IN_A_RELOAD}


@pytest.mark.timeout(400)
def test_a_kill_anywhere_changes_nothing(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = make_broker(**{"log.retention.ms": -1})  # the events are of 2013
    world = World(broker.bootstrap, tmp_path)
    world.events(NIGHTS[0], 30)
    world.send(NIGHTS[0], [b"bad", None])
    world.events(NIGHTS[1], 20)
    world.arrive()
    jvm = WarmJvm(world.config, tmp_path / "log")
    for name in IN_A_NIGHT:
        killed = world.etl("--night", NIGHTS[0], failpoints=f"{name}=kill", jvm=jvm)
        assert killed.returncode == -signal.SIGKILL, f"{name}: {killed.stdout}{killed.stderr}"
        # More comes between the kills; from the plan on it belongs to the next night.
        world.events(NIGHTS[1], 1, start=100 + IN_A_NIGHT.index(name))
        world.arrive()
    done = world.etl("--nights", f"{NIGHTS[0]}..{NIGHTS[1]}", "--clock", "wall", jvm=jvm)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["did"] for line in done.stdout.splitlines()] == ["already", "loaded"]
    check(world)
    for name in IN_A_RELOAD:
        killed = world.etl("--night", NIGHTS[0], "--reload", failpoints=f"{name}=kill", jvm=jvm)
        assert killed.returncode == -signal.SIGKILL, f"{name}: {killed.stdout}{killed.stderr}"
    assert world.etl("--night", NIGHTS[0], jvm=jvm).returncode == 0
    check(world)


def check(world: World) -> None:
    """The table holds what was sent, each once, and says so."""
    expected = [f"{NIGHTS[0]}/{number}" for number in range(30)]
    expected += [f"{NIGHTS[1]}/{number}" for number in [*range(20), *range(100, 100 + len(IN_A_NIGHT))]]
    found = deltalake.DeltaTable(world.table).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in found) == sorted(expected)
    kept = deltalake.DeltaTable(f"{world.table}-rejects").to_pyarrow_table().to_pylist()
    assert Counter(reject["reason"] for reject in kept) == {"not one JSON object": 1, "no value": 1}
    commits = table.committed(world.table)
    assert [commit.night for commit in commits] == NIGHTS
    assert {reject["run"] for reject in kept} == {commits[0].run}
    rows = table.rows_by_partition(world.table)
    for tp, count in rows.items():
        assert sum(commit.partitions[tp].rows for commit in commits) == count
    for commit in commits:
        assert json.loads(ready.ready_marker(world.table, commit.night).read_text())["rows"] == commit.rows
