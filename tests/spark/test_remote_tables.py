"""Tables at hdfs:// and s3a://: kill -9 at each failpoint of the load, two machines at one night. `make remote-tables`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.etl_world import IN_A_NIGHT, IN_A_RELOAD, WarmJvm, World
from support.harness import BrokerProcess
from support.remote_stores import S3, Hdfs
from support.spark_cluster import PROPERTIES, SparkCluster
from support.stages import StageProcess
from support.table_look import look

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(os.environ.get("PENSTOCK_REMOTE_TABLES") != "1", reason="`make remote-tables` builds the S3 server"),
    pytest.mark.timeout(1800),
]

NIGHTS = ["2013-01-01", "2013-01-02"]
LIMIT_S = 400.0
LISTING = """\
import sys
from pathlib import Path
from penstock.pipeline import job
from penstock.pipeline.etl import s3logstore, session

jvm = session.gateway(job.SCHEMA.load(sys.argv[1]), Path(sys.argv[2]))
settings = jvm.org.apache.hadoop.conf.Configuration()
settings.set(s3logstore.FAST_LISTING, "true")
store = jvm.penstock.S3LogStore(settings)
field = store.getClass().getSuperclass().getDeclaredField("enableFastListFrom")
field.setAccessible(True)
print(field.getBoolean(store), settings.get(s3logstore.FAST_LISTING))
"""


@pytest.fixture(params=[Hdfs, S3], ids=["hdfs", "s3a"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hdfs | S3]:
    made = request.param(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def world(
    make_broker: Callable[..., BrokerProcess], store: Hdfs | S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    broker = make_broker(**{"log.retention.ms": -1})
    world = World(broker.bootstrap, tmp_path, place=store.place, properties=store.properties)
    world.write_config(penstock_etl_clock="wall")
    return world


def test_a_kill_anywhere_changes_nothing(world: World, tmp_path: Path) -> None:
    world.events(NIGHTS[0], 30)
    world.send(NIGHTS[0], [b"bad", None])
    world.arrive()
    jvm = WarmJvm(world.config, tmp_path / "log")
    try:
        for number, name in enumerate(IN_A_NIGHT):
            killed = world.etl("--night", NIGHTS[0], failpoints=f"{name}=kill", jvm=jvm)
            assert killed.returncode == -signal.SIGKILL, f"{name}: {killed.stdout}{killed.stderr}"
            # More comes between the kills; from the plan on it belongs to the next night.
            world.events(NIGHTS[1], 1, start=number)
            world.arrive()
        done = world.etl("--nights", f"{NIGHTS[0]}..{NIGHTS[1]}", jvm=jvm)
        assert done.returncode == 0, done.stderr
        killed = world.etl("--night", NIGHTS[0], "--reload", failpoints=f"{IN_A_RELOAD[-1]}=kill", jvm=jvm)
        assert killed.returncode == -signal.SIGKILL, f"{killed.stdout}{killed.stderr}"
        assert world.etl("--night", NIGHTS[0], jvm=jvm).returncode == 0
        found = look(world.config, jvm.environment)
    finally:
        jvm.close()
    expected = [f"{NIGHTS[0]}/{n}" for n in range(30)] + [f"{NIGHTS[1]}/{n}" for n in range(len(IN_A_NIGHT))]
    assert found["ids"] == sorted(expected)
    assert found["reasons"] == ["no value", "not one JSON object: bad at byte 0 is no JSON value"]
    assert [night for night, *_ in found["nights"]] == NIGHTS
    assert found["ready"] == [rows for _, _, rows, _ in found["nights"]]
    assert found["audited"] == len(expected)
    assert found["beside"]["_READY"] == [f"night={night}" for night in NIGHTS]
    assert not list(tmp_path.glob("*:*")) and not list(Path.cwd().glob("*:*"))


def test_of_two_machines_that_load_one_night_one_commits(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a lock of its own. What the first one has read, and is about to commit, the other one has committed."""
    world.events(NIGHTS[0], 20)
    world.send(NIGHTS[0], [b"bad"])
    world.arrive()
    first = StageProcess("etl", world.config, "first", ["--night", NIGHTS[0]])
    try:
        first.pause_at("etl.before_commit", LIMIT_S)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        done = world.etl("--night", NIGHTS[0])
        assert done.returncode == 0, done.stderr
        first.signal(signal.SIGCONT)
        assert first.wait(LIMIT_S) == 1
        assert "another process" in first.text() and "Traceback" not in first.text(), first.text()
    finally:
        first.kill()
    found = look(world.config)
    assert found["ids"] == sorted(f"{NIGHTS[0]}/{n}" for n in range(20))
    assert (found["reasons"], len(found["nights"]), found["ready"]) == (
        ["not one JSON object: bad at byte 0 is no JSON value"],
        1,
        [20],
    )


def test_executors_of_a_cluster_write_there(world: World, tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path)
    try:
        world.properties |= PROPERTIES | {"spark.master": cluster.master}
        world.write_config(penstock_etl_clock="wall")
        world.events(NIGHTS[0], 100)
        world.send(NIGHTS[0], [b"bad"])
        world.arrive()
        done = world.etl("--night", NIGHTS[0])
        assert done.returncode == 0, done.stderr
        found = look(world.config)
    finally:
        cluster.stop()
    assert found["ids"] == sorted(f"{NIGHTS[0]}/{n}" for n in range(100))
    assert (found["audited"], found["ready"], found["reasons"]) == (
        100,
        [100],
        ["not one JSON object: bad at byte 0 is no JSON value"],
    )


def test_commits_on_s3_are_listed_whole_whatever_the_settings_say(tmp_path: Path) -> None:
    config = tmp_path / "pipeline.properties"
    config.write_text("penstock.etl.table=s3a://bucket/table\nspark.hadoop.delta.enableFastS3AListFrom=true\n")
    command = [sys.executable, "-c", LISTING, str(config), str(tmp_path / "spark")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "true"]
