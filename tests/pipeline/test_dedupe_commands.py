"""`penstock dedupe status`, `position`, `snapshot`, `restore`, `rebuild`: beside a stage that runs, or between two runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import root
from support.dedupe_world import World
from support.harness import BrokerProcess
from support.patience import until
from support.stages import write_properties

COMMANDS = ["status", "accept", "position", "snapshot", "restore", "rebuild"]


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a command that refuses."""
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_a_command_does(command: str) -> None:
    result = CliRunner().invoke(root, ["dedupe", command, "--help"], prog_name="penstock")
    assert result.exit_code == 0
    assert f"Usage: penstock dedupe {command}" in result.output
    assert f"Example: penstock dedupe {command}" in result.output and "--json" in result.output


def test_the_stage_needs_its_file() -> None:
    result = CliRunner().invoke(root, ["dedupe"], prog_name="penstock")
    assert result.exit_code == 2 and "'--config'" in result.output
    assert all(f"  {name} " in CliRunner().invoke(root, ["dedupe", "--help"]).output for name in COMMANDS)


@pytest.mark.parametrize(
    "words", [["3"], ["t"], ["t:"], [":3"], ["t:x"], ["-p", "3"], ["--topic", "t", "t:3"], ["--partition=3"]]
)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "status"])
def test_a_partition_is_named_in_one_way(command: str, words: list[str], tmp_path: Path) -> None:
    config = write_properties(
        tmp_path / "a.properties",
        {"bootstrap.servers": "127.0.0.1:1", "topics": "t", "penstock.dedupe.data": tmp_path / "ids"},
    )
    result = CliRunner().invoke(root, ["dedupe", command, *words, "--config", str(config)])
    assert result.exit_code == 2 and "TOPIC:P, for example flights:3" in result.output
    result = CliRunner().invoke(root, ["dedupe", "status", "--topic", "t", "--config", str(config)])
    assert result.exit_code == 2 and "instead of -p and --topic give TOPIC, for example flights" in result.output


@pytest.mark.parametrize("word", ["start", "end", "-1", "5.0", "@5", "yesterday"])
def test_a_place_in_a_log_is_named_in_one_way(word: str, tmp_path: Path) -> None:
    config = write_properties(
        tmp_path / "a.properties",
        {
            "bootstrap.servers": "127.0.0.1:1",
            "source.EWR.bootstrap.servers": "127.0.0.1:1",
            "topics": "t",
            "penstock.dedupe.data": tmp_path / "ids",
        },
    )
    for words in (["dedupe", "position", "t:3"], ["mirror", "begin", "EWR", "t:3"]):
        result = CliRunner().invoke(root, [*words, "--at", word, "--because", "a test", "--config", str(config)])
        assert result.exit_code == 2 and f"`{word}` is none of earliest, latest, an offset, an ISO time" in result.output


def test_status(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2) as w:
        w.stage.start()
        w.fill()
        w.send(0, [w.batch(0, [None, ""], 0)])
        w.await_done()
        assert w.stage.stop() == 0
        w.send(1, [w.batch(1, ["a", "b", "c"], 0)])
        first, second = w.answer("status")
        counters = w.position()[1]
        assert {name: first[name] for name in ("read", "written", "dropped", "without_id", "quarantined")} == {
            name: counters[name] for name in ("read", "written", "dropped", "without_id", "quarantined")
        }
        assert (first["offset"], first["end"], first["lag"]) == (502, 502, 0)
        assert (second["offset"], second["end"], second["lag"]) == (500, 503, 3)
        assert first["ids"] == first["written"] - 2
        assert first["size_bytes"] > 0 and first["oldest_ms"] > 0 and not first["running"]
        assert (first["unknown"], first["accepted"]) == ("", "")
        w.stage.start()
        w.await_done()
        running = w.answer("status")[1]
        assert (running["running"], running["lag"]) == (True, 0)
        assert running["only_in_memory"] >= 3
        text = w.ask("status").stdout
        head, *rows = text.splitlines()
        assert "without id" in head and "running" in head and "only in memory" in head and len(rows) == 2
        assert all(" yes " in row for row in rows)
        assert w.stage.stop() == 0
        shutil.rmtree(w.database)  # as on another machine
        elsewhere = w.answer("status")[0]
        assert (elsewhere["read"], elsewhere["ids"], elsewhere["running"]) == (502, None, None)


def test_status_before_the_stage_began(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        assert "is not there" in refusal(w.ask("status"))


def test_status_says_why_partitions_stand_still_when_the_input_grew(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        w.admin(lambda admin: admin.create_partitions({w.topic: 2}))
        w.stage.wait_for("is STOPPED")
        until(lambda: w.ask("status").returncode == 1, "the position to say it")
        first, second = json.loads(w.ask("status", "--json").stdout)
        differ = f"`{w.topic}` has 2 partitions and `{w.output}` 1"
        grown = f"`{w.topic}` had 1 partitions when the stage began and has 2 now"
        assert (first["state"], first["offset"]) == ("stopped", w.position()[0]) and first["why"].startswith(grown)
        assert f"without `{w.moved}`" in first["why"]
        assert (second["state"], second["why"], second["output_end"]) == ("no position", differ, 0)
        assert differ in refusal(w.ask("position", f"{w.topic}:1", "--at", "0", "--because", "a test"))
        assert w.stage.stop() == 1


def test_a_snapshot_of_a_running_stage_is_restored(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path / "w", shared_broker, penstock_dedupe_memory_max_ids=1000) as w:
        w.stage.start()
        w.fill(batches=40, count=200)
        kept = tmp_path / "snapshots" / "first"
        w.await_file(all_ids=False)
        done = w.answer("snapshot", f"{w.topic}:0", "--to", str(kept))  # in the middle of it
        assert done["complete_to"] > 0 and not list(kept.parent.glob("*.partial"))
        w.await_done()
        assert "is there already" in refusal(w.ask("snapshot", f"{w.topic}:0", "--to", str(kept)))
        assert "is in use" in refusal(w.ask("restore", f"{w.topic}:0", "--from", str(kept)))
        w.stage.kill()
        w.expire_output(before=done["complete_to"])
        shutil.rmtree(w.database)
        assert w.answer("restore", f"{w.topic}:0", "--from", str(kept)) == {
            "partition": 0,
            "complete_to": done["complete_to"],
        }
        w.send(0, [w.batch(0, [word for word, _ in w.sent[0]], 4)])
        w.run_once()
        w.check_counters()


def test_a_snapshot_says_what_only_memory_has(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path / "w", shared_broker) as w:
        w.stage.start()
        w.fill()
        w.await_done()
        said = w.ask("snapshot", f"{w.topic}:0", "--to", str(tmp_path / "early")).stdout
        behind = w.answer("status")[0]["only_in_memory"]
        assert behind > 0 and f"up to 0; those of the {behind} behind are only in memory" in said
        assert w.stage.stop() == 0
        done = w.answer("snapshot", f"{w.topic}:0", "--to", str(tmp_path / "late"))
        assert done["complete_to"] > 0 and done["only_in_memory"] == 0
        alone = ["--set", "bootstrap.servers=127.0.0.1:1"]
        assert w.answer("snapshot", f"{w.topic}:0", "--to", str(tmp_path / "alone"), *alone)["only_in_memory"] is None


def test_a_restored_store_sets_the_present_one_aside(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path / "w", shared_broker) as w:
        w.fill()
        w.run_once()
        w.answer("snapshot", f"{w.topic}:0", "--to", str(tmp_path / "kept"))
        w.fill()
        w.run_once()
        w.answer("restore", f"{w.topic}:0", "--from", str(tmp_path / "kept"))
        aside = w.database / "set-aside.1"
        assert list((aside / "ids").glob("*.sst")) and (aside / "belongs-to").exists()
        w.answer("restore", f"{w.topic}:0", "--from", str(aside))  # it is as good as a snapshot
        assert not w.answer("status")[0]["only_in_memory"]
        w.fill(repeats=0.9)
        w.run_once()
        w.check()


def test_what_is_no_snapshot_of_this_partition(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path / "w", shared_broker, partitions=2) as w:
        w.fill()
        w.run_once()
        w.answer("snapshot", f"{w.topic}:1", "--to", str(tmp_path / "kept"))
        before = sorted(path.name for path in (w.database / "ids").glob("*.sst"))
        said = refusal(w.ask("restore", f"{w.topic}:0", "--from", str(tmp_path / "kept")))
        assert "not those of" in said and "give the snapshot of this partition (`TOPIC:P`)" in said
        assert "is no snapshot" in refusal(w.ask("restore", f"{w.topic}:0", "--from", str(tmp_path / "w")))
        for path in (tmp_path / "kept" / "ids").glob("*.sst"):
            path.unlink()
        assert "kept" in refusal(w.ask("restore", f"{w.topic}:1", "--from", str(tmp_path / "kept")))
        assert "has no database" in refusal(w.ask("snapshot", f"{w.topic}:7", "--to", str(tmp_path / "another")))
        assert sorted(path.name for path in (w.database / "ids").glob("*.sst")) == before
        w.fill(repeats=0.9)
        w.run_once()
        w.check()


def test_a_store_is_rebuilt_from_the_output(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        assert "is in use by another process: stop the stage first" in refusal(w.ask("rebuild", f"{w.topic}:0"))
        assert w.stage.stop() == 0
        for path in (w.database / "ids").glob("*.sst"):
            path.write_bytes(b"damaged")
        done = w.answer("rebuild", f"{w.topic}:0")
        assert (done["start"], done["end"], done["unknown"]) == (0, w.end(w.output), "")
        assert Path(done["set_aside"]).is_dir() and not (w.database / "ids").exists()
        w.fill(repeats=0.9)
        w.run_once()
        w.check()
        w.expire_output(before=10)
        assert w.answer("rebuild", f"{w.topic}:0")["unknown"] == "0..9"
        w.stage.start()
        w.stage.wait_for("ids of output offsets 0..9 are unknown")


def test_a_position_that_has_expired_is_set(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2) as w:
        w.fill()
        w.run_once()
        counters = w.position()[1]
        w.admin(lambda admin: admin.delete_groups([f"penstock-dedupe.{w.topic}"]))
        w.fill(repeats=0.9)
        w.stage.start()
        w.stage.wait_for(f"`penstock dedupe position {w.topic}:0 --at OFFSET --because TEXT`")
        assert w.stage.stop() == 1
        for partition in ("0", "1"):
            done = w.answer("position", f"{w.topic}:{partition}", "--at", "500", "--because", "expired")
            assert done == {"partition": int(partition), "before": None, "offset": 500}
        noted = w.position()[1]
        for name in ("read", "written", "dropped"):
            assert noted[name] == counters[name]
        w.run_once()
        w.check()
        decided = [record for record in w.quarantined(1) if record.value == b"position none -> 500"]
        assert dict(decided[0].headers)["reason"] == b"expired"


def test_a_position_that_is_moved_back_brings_nothing_twice(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        written = len(w.records())
        w.answer("position", f"{w.topic}:0", "--at", "100", "--because", "a test")
        w.send(0, [w.batch(0, ["new"], 0)])
        w.stage.wait_for("reads from offset 100")
        w.await_done()
        assert w.stage.stop() == 0
        assert len(w.records()) == written + 1


def test_positions_that_cannot_be(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill(batches=1)
        w.run_once()
        before = w.position()
        outside = w.ask("position", f"{w.topic}:0", "--at", "101", "--because", "a test")
        assert f"offset 101 is outside the log of {w.topic}-0 (0 to 100)" in refusal(outside)
        assert "has no partition 1" in refusal(w.ask("position", f"{w.topic}:1", "--at", "0", "--because", "a test"))
        assert w.ask("position", f"{w.topic}:0", "--at", "0").returncode == 2
        assert w.position() == before


def test_a_position_is_set_to_a_place_of_the_log(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        for age_ms in (7_200_000, 0):
            w.send(0, [w.batch(0, w.some_ids(0, 10), 0, age_ms=age_ms)])
        w.run_once()
        at = f"{w.topic}:0", "--because", "a test"
        places = {"earliest": 0, "-1h": 10, "-1d": 0, "latest": 20, "2970-01-01T00:00:00Z": 20, "1970-01-02": 0, "7": 7}
        assert {word: w.answer("position", *at, "--at", word)["offset"] for word in places} == places
        assert w.position()[0] == 7
