"""A night on a standalone Spark cluster, into a folder that driver and executors share. `make remote-tables`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.etl_world import World
from support.harness import BrokerProcess
from support.spark_cluster import PROPERTIES, SparkCluster
from support.stages import StageProcess
from support.table_look import look

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(os.environ.get("PENSTOCK_REMOTE_TABLES") != "1", reason="`make remote-tables` runs it"),
]

NIGHT = "2013-01-01"
ROWS = 24_000  # enough for a task an executor
LIMIT_S = 400.0
# Of two tasks one is done, and the other takes longer than it did: it is started once more on the free executor.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "10ms",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path)
    yield made
    made.stop()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "slow"])
def test_executors_that_die_and_tasks_that_run_twice_change_nothing(
    make_broker: Callable[..., BrokerProcess], cluster: SparkCluster, tmp_path: Path, fault: signal.Signals
) -> None:
    properties = PROPERTIES | SPECULATION | {"spark.master": cluster.master}
    world = World(make_broker(**{"log.retention.ms": -1}).bootstrap, tmp_path, properties=properties)
    world.write_config(penstock_etl_clock="wall")
    world.events(NIGHT, ROWS)
    world.send(NIGHT, [b"bad"])
    world.arrive()
    load = StageProcess("etl", world.config, "etl", ["--night", NIGHT, "--json"]).start(await_started=False)
    deadline = time.monotonic() + LIMIT_S
    while not list((tmp_path / "table" / f"event_day={NIGHT}").glob("*.parquet")):
        assert load.running and time.monotonic() < deadline, load.text()
        time.sleep(0.01)
    victim = cluster.executors()[0]
    os.kill(victim, fault)
    code = load.wait(LIMIT_S)
    if fault == signal.SIGSTOP:
        with contextlib.suppress(ProcessLookupError):  # the cluster may have ended it with the application
            os.kill(victim, signal.SIGCONT)
    assert code == 0, load.text()
    told = json.loads(load.text().splitlines()[-1])
    assert (told["did"], told["rows"], told["rejects"]) == ("loaded", ROWS, 1)
    found = look(world.config)
    assert found["ids"] == sorted(f"{NIGHT}/{number}" for number in range(ROWS))
    assert (found["audited"], found["ready"], found["reasons"]) == (
        ROWS,
        [ROWS],
        ["not one JSON object: bad at byte 0 is no JSON value"],
    )
