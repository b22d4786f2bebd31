"""Nights and the audit on three nodes of Apache Kafka, of which the leader, the controller and a coordinator are killed."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pytest

from support.etl_world import WarmJvm, World
from support.failpoint_cells import WHOLE
from support.moving_cluster import moving
from support.moving_kafka import MovingKafka

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.skipif(not WHOLE, reason="`make failovers` runs it"),
]
NIGHT, NEXT_DAY = "2013-01-01", "2013-01-02"
EVENTS = 20
KILLS = 4


@pytest.mark.timeout(900)
def test_nights_and_the_audit_are_exact_meanwhile(tmp_path: Path) -> None:
    with MovingKafka(tmp_path / "kafka") as kafka:
        world = World(kafka.bootstrap, tmp_path, properties={"penstock.etl.wait.seconds": "300"})
        for day in (NIGHT, NEXT_DAY):
            world.events(day, EVENTS)
            world.send(day, [b"bad"])
        world.arrive()
        jvm = WarmJvm(world.config, tmp_path / "log")
        again: list[str] = []
        with moving(kafka, f"{world.topic}.deduped", KILLS) as done:
            while not done.is_set():
                load = world.etl("--night", NIGHT, *again, jvm=jvm)
                assert load.returncode == 0, load.stdout + load.stderr
                loaded = json.loads(load.stdout)
                assert (loaded["rows"], loaded["rejects"]) == (2 * EVENTS, 2)
                audit = world.audit("--json")
                assert audit.returncode == 0, audit.stdout + audit.stderr
                again = ["--reload"]
        jvm.close()
        rows = deltalake.DeltaTable(world.table).to_pyarrow_table()["id"].to_pylist()
        assert sorted(rows) == sorted(f"{day}/{number}" for day in (NIGHT, NEXT_DAY) for number in range(EVENTS))
