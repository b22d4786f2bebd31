"""The load is killed, or paused while another one takes over, at each of its failpoints: the table is the same in the end.

With our broker, and with Apache Kafka as the source, as the aggregate cluster and as both (`failpoint_cells`).
"""

from __future__ import annotations

import importlib
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest

from penstock import failpoints
from penstock.pipeline.etl import ready, rowcounts, table
from penstock.pipeline.etl.ledger import NightCommit
from penstock.pipeline.etl.localstorage import LocalStorage
from support.etl_world import IN_A_NIGHT, IN_A_RELOAD, SCHEMA, WarmJvm, World
from support.failpoint_cells import WHOLE, roles
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka
from support.stages import StageProcess

pytestmark = pytest.mark.spark

AFTER_THE_COMMIT = ["etl.after_commit", "etl.ready_aside", "etl.after_ready", *IN_A_RELOAD]
LIMIT_S = 400.0  # a JVM starts, on a machine that does much else
NIGHTS = ["2013-01-01", "2013-01-02"]


def test_every_failpoint_of_the_load_is_tried() -> None:
    importlib.import_module("penstock.pipeline.etl.load")
    assert set(failpoints.declared("etl.")) == {*IN_A_NIGHT, *IN_A_RELOAD}


@pytest.fixture
def world(
    make_broker: Callable[..., BrokerProcess],
    kafka_as: Callable[[str], dict[str, ApacheKafka]],
    tmp_path: Path,
    role: str,
) -> World:
    kafka = kafka_as(role)
    ours = "" if role == "both" else make_broker(**{"log.retention.ms": -1}).bootstrap  # the events are of 2013
    target, source = (kafka[name].bootstrap if name in kafka else ours for name in ("target", "source"))
    return World(target, tmp_path, "" if source == target else source)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("role", roles({"ours"}))
def test_a_kill_anywhere_changes_nothing(world: World, tmp_path: Path) -> None:
    """Of two tables now one and now the other comes first, and is the one that is killed."""
    world.describe_raw()
    world.events(NIGHTS[0], 30)
    world.send(NIGHTS[0], [b"bad", None])
    world.events(NIGHTS[1], 20)
    world.arrive()
    jvm = WarmJvm(world.config, tmp_path / "log")
    for number, name in enumerate(IN_A_NIGHT):
        tables = ["--table", "raw", "--table", ""] if number % 2 else ["--table", "", "--table", "raw"]
        killed = world.etl("--night", NIGHTS[0], *tables, failpoints=f"{name}=kill", jvm=jvm)
        assert killed.returncode == -signal.SIGKILL, f"{name}: {killed.stdout}{killed.stderr}"
        # More comes between the kills; from the plan on it belongs to the next night.
        world.events(NIGHTS[1], 1, start=100 + IN_A_NIGHT.index(name))
        world.arrive()
    done = world.etl("--nights", f"{NIGHTS[0]}..{NIGHTS[1]}", "--clock", "wall", jvm=jvm)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(answer["table"], answer["did"]) for answer in answers] == [
        (table, did) for did in ("already", "loaded") for table in ("", "raw")
    ]
    check(world.table)
    check(world.raw_table)
    for name in IN_A_RELOAD:
        killed = world.etl("--night", NIGHTS[0], "--reload", "--table", "", failpoints=f"{name}=kill", jvm=jvm)
        assert killed.returncode == -signal.SIGKILL, f"{name}: {killed.stdout}{killed.stderr}"
    assert world.etl("--night", NIGHTS[0], jvm=jvm).returncode == 0
    check(world.table)
    check(world.raw_table)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("role", roles({"ours"}))
def test_a_load_that_another_one_overtook_changes_nothing(world: World, tmp_path: Path) -> None:
    """Each point has a night of its own. The lock of the table is of one machine: the other one doesn't see it."""
    world.write_config(penstock_etl_clock="wall")
    jvm = WarmJvm(world.config, tmp_path / "log")
    tried = [*IN_A_NIGHT, *IN_A_RELOAD] if WHOLE else ["etl.ready_aside"]
    for number, name in enumerate(tried, 1):
        night = f"2013-01-{number:02}"
        world.events(night, 5)
        world.send(night, [b"bad"])
        world.arrive()
        again = ["--reload"] if name in IN_A_RELOAD else []
        if again:
            assert world.etl("--night", night, jvm=jvm).returncode == 0
        older = StageProcess("etl", world.config, f"older{number}", ["--night", night, *again])
        try:
            older.pause_at(name, LIMIT_S)
            (world.storage.workspace / "lock").unlink()
            world.events(night, 1, start=5)
            world.arrive()
            done = world.etl("--night", night, jvm=jvm)
            assert done.returncode == 0, done.stderr
            is_over = name in AFTER_THE_COMMIT
            if is_over:  # what is there isn't what the older one made
                reloaded = world.etl("--night", night, "--reload", jvm=jvm)
                assert reloaded.returncode == 0, reloaded.stderr
            before = contents(world)
            older.signal(signal.SIGCONT)
            code, said = older.wait(LIMIT_S), older.text()
            assert code == (0 if is_over else 1) and "Traceback" not in said, f"{name}: {said}"
            assert contents(world) == before, name
        finally:
            older.kill()
    rows, *_ = contents(world)
    assert len({row["id"] for row in rows}) == len(rows) >= 5 * len(tried)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("role", roles({"ours"}))
def test_a_load_that_was_overtaken_leaves_the_others_rejects_alone(world: World, tmp_path: Path) -> None:
    """Both carry out one plan, and find other rejects: the second one's file wants a field that no event has."""
    world.write_config(penstock_etl_clock="wall")
    world.events(NIGHTS[0], 5)
    world.send(NIGHTS[0], [b"bad"])
    world.arrive()
    older = StageProcess("etl", world.config, "older", ["--night", NIGHTS[0]])
    try:
        older.pause_at("etl.reject_file_written", LIMIT_S)
        (world.storage.workspace / "lock").unlink()
        schema = SCHEMA.replace("note STRING", "note STRING NOT NULL")
        world.write_config(penstock_etl_clock="wall", penstock_etl_schema=schema)
        done = world.etl("--night", NIGHTS[0], jvm=WarmJvm(world.config, tmp_path / "log"))
        assert done.returncode == 0, done.stderr
        before = contents(world)
        assert len(before[1]) == before[2][0].rejects == 6
        older.signal(signal.SIGCONT)
        code, said = older.wait(LIMIT_S), older.text()
        assert code == 1 and "was overtaken by another process" in said, said
        assert contents(world) == before
    finally:
        older.kill()


BAD = "not one JSON object: bad at byte 0 is no JSON value"


def contents(world: World) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[NightCommit], list[str]]:
    """Rows, rejects, what the table says of its nights, and what their markers say."""
    tables = [deltalake.DeltaTable(path).to_pyarrow_table().to_pylist() for path in (world.table, f"{world.table}-rejects")]
    rows, rejects = (sorted(found, key=lambda row: (row["partition"], row["offset"])) for found in tables)
    commits = table.committed(world.storage)
    return rows, rejects, commits, [world.storage.read(ready.ready_marker(commit.night)).decode() for commit in commits]


def check(folder: str) -> None:
    """A table holds what was sent, each once, and says so."""
    storage = LocalStorage(Path(folder))
    expected = [f"{NIGHTS[0]}/{number}" for number in range(30)]
    expected += [f"{NIGHTS[1]}/{number}" for number in [*range(20), *range(100, 100 + len(IN_A_NIGHT))]]
    found = deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in found) == sorted(expected)
    kept = deltalake.DeltaTable(f"{folder}-rejects").to_pyarrow_table().to_pylist()
    assert Counter(reject["reason"] for reject in kept) == {BAD: 1, "no value": 1}
    commits = table.committed(storage)
    assert [commit.night for commit in commits] == NIGHTS
    assert {reject["run"] for reject in kept} == {commits[0].run}
    assert rowcounts.rows_by_night(storage, commits) == {
        (commit.night, *tp): part.rows for commit in commits for tp, part in commit.partitions.items() if part.rows
    }
    for commit in commits:
        assert json.loads(storage.read(ready.ready_marker(commit.night)))["rows"] == commit.rows
