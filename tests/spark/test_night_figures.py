"""What a night leaves for node_exporter, and what `etl --follow` shows, by real loads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.metrics import FAMILIES as PROCESS_FAMILIES
from penstock.pipeline.etl.figures import FAMILIES, UNNAMED
from support.etl_world import WarmJvm, World
from support.harness import BrokerProcess
from support.scraping import Scrape, get, scrape_at, served

pytestmark = [pytest.mark.spark]


def end_of(day: str) -> float:
    return datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() + 86_400


def wait_for(text: str, said: Path, process: subprocess.Popen[bytes]) -> None:
    while text not in said.read_text():
        assert process.poll() is None, said.read_text()
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_a_night_leaves_its_figures_however_it_ends(shared_broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "penstock-etl.prom"
    world = World(shared_broker.bootstrap, tmp_path, properties={"penstock.etl.textfile": str(file)})

    def figures() -> Scrape:
        return Scrape(file.read_text())

    world.events("2013-01-01", 5)
    world.send("2013-01-01", [b"no event"])
    world.events("2013-01-02", 2)
    world.arrive()
    jvm = WarmJvm(world.config, tmp_path / "log")
    began = time.time()
    done = world.etl("--night", "2013-01-01", jvm=jvm)
    assert done.returncode == 0, done.stderr
    found = figures()
    loaded = json.loads(done.stdout)
    assert (loaded["rows"], loaded["rejects"]) == (7, 1)  # what has arrived, of the day after, too
    wanted = {"rows": 7, "rejects": 1, "exit_code": 0, "loaded_rows_total": 7, "loaded_rejects_total": 1}
    assert {name: found.value(f"penstock_night_{name}", table=UNNAMED) for name in wanted} == wanted
    at = found.value("penstock_night_last_loaded_timestamp_seconds")
    assert began <= at <= time.time() and 0 < found.value("penstock_night_duration_seconds") < at - began
    assert found.value("penstock_night_last_loaded_day_timestamp_seconds") == end_of("2013-01-01")
    assert found.value("penstock_night_due_timestamp_seconds") == end_of("2013-01-02")

    # One that is incomplete, one that is refused, one that is there already.
    for arguments, code in ((("2013-01-02", "--incomplete", "fail"), 3), (("2012-12-31",), 1), (("2013-01-01",), 0)):
        assert world.etl("--night", *arguments, jvm=jvm).returncode == code
        found = figures()
        assert found.value("penstock_night_exit_code") == code
        assert found.value("penstock_night_waiting", reason="arrival") == int(code == 3)
        assert found.value("penstock_night_last_loaded_timestamp_seconds") == at
        assert found.value("penstock_night_loaded_rows_total") == 7

    # What is killed leaves the file of before; what is asked to end says so.
    before = file.read_bytes()
    world.events("2013-01-03", 2)
    world.arrive()
    killed = world.etl("--night", "2013-01-02", failpoints="etl.after_plan=kill@1", jvm=jvm)
    assert killed.returncode == -signal.SIGKILL
    assert file.read_bytes() == before
    command = [sys.executable, "-m", "penstock", "etl", "--config", str(world.config), "--night", "2013-01-03"]
    said = tmp_path / "said"
    assert world.etl("--night", "2013-01-02", jvm=jvm).returncode == 0
    with said.open("w") as out, subprocess.Popen([*command, "--wait-seconds", "600"], stdout=out, stderr=out) as waiting:
        wait_for("2013-01-03 waits", said, waiting)
        waiting.terminate()
        assert waiting.wait() == -signal.SIGTERM
    assert figures().value("penstock_night_exit_code") == 128 + signal.SIGTERM
    assert figures().value("penstock_night_last_loaded_day_timestamp_seconds") == end_of("2013-01-02")


@pytest.mark.whole_day
@pytest.mark.timeout(600)
def test_following_shows_what_it_waits_for_and_what_it_has_loaded(shared_broker: BrokerProcess, tmp_path: Path) -> None:
    today = datetime.now(UTC).date().isoformat()
    yesterday = datetime.fromtimestamp(end_of(today) - 86_400 - 1, UTC).date().isoformat()
    properties = {
        "penstock.etl.http.listen": "127.0.0.1:0",
        "penstock.etl.retry.backoff.ms": "300",
        "penstock.log.format": "json",
    }
    world = World(shared_broker.bootstrap, tmp_path, properties=properties)
    world.write_config(penstock_etl_clock="wall", penstock_etl_wait_seconds="600")
    world.events(yesterday, 4)
    world.arrive(less=1)
    world.commit("penstock-mirror.mirror.one", [0, 0])
    said = tmp_path / "said"
    command = [sys.executable, "-m", "penstock", "etl", "--config", str(world.config), "--follow", "--night", yesterday]
    with said.open("w") as out, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=out) as following:
        try:
            wait_for("figures are at", said, following)
            url = served(said.read_text())
            wait_for("waits, at most", said, following)
            found = scrape_at(url)
            assert found.value("penstock_night_waiting", table=UNNAMED, reason="arrival") == 1
            assert found.value("penstock_night_due_timestamp_seconds") == end_of(yesterday)
            assert found.rows("penstock_night_rows") == []
            assert get(f"{url}/health/ready") == (200, b'{"unasked": [], "failed": {}}\n')
            world.arrive()
            wait_for("waits until", said, following)
            found = scrape_at(url, open_metrics=True)
            assert found.value("penstock_night_waiting", reason="day") == 1
            wanted = {"rows": 4, "rejects": 0, "exit_code": 0, "loaded_rows_total": 4}
            assert {name: found.value(f"penstock_night_{name}", table=UNNAMED) for name in wanted} == wanted
            assert found.value("penstock_night_last_loaded_day_timestamp_seconds") == end_of(yesterday)
            assert found.value("penstock_night_due_timestamp_seconds") == end_of(today)
            assert found.kinds == {family.name: family.kind for family in (*PROCESS_FAMILIES, *FAMILIES)}
            assert get(f"{url}/health/live") == (200, b"{}\n")
            lines = [json.loads(line) for line in said.read_text().splitlines()]
            assert {line["process"] for line in lines} == {"etl"} and all(line["level"] == "INFO" for line in lines)
        finally:
            os.kill(following.pid, signal.SIGTERM)
            following.wait()
