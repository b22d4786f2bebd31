"""A lost disk whose output has expired: the partition stands still until an operator accepts what can't be known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from support.dedupe_rot import corrupt_for
from support.dedupe_world import World
from support.harness import BrokerProcess


def lose_ids(w: World) -> None:
    """Output of a clean stop, of which the first 100 offsets expire; then the folder is lost."""
    w.fill(repeats=0)
    w.run_once()
    w.expire_output(before=100)
    shutil.rmtree(w.database)


def test_a_lost_folder_is_no_new_stage(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2) as w:
        lose_ids(w)
        w.stage.start()
        w.stage.wait_for(
            f"{w.topic}-0 is STOPPED, the others go on: ids of output offsets 0..99 are unknown: restore a snapshot that has "
            f"them, or `penstock dedupe accept {w.topic}:0 --because TEXT`"
        )
        w.send(0, [w.batch(0, w.some_ids(0, 10), 0)])
        w.send(1, [w.batch(1, w.some_ids(1, 10), 0)])
        w.await_done([1])
        assert w.stage.stop() == 1
        w.check([1])
        offset, noted = w.position()
        assert (offset, noted["written"], noted["unknown"], noted["accepted"]) == (500, 500, "0..99", "")


def test_a_folder_older_than_the_output_begins(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill(batches=1, count=50, repeats=0)
        w.run_once()
        shutil.copytree(w.database, tmp_path / "old")
        lose_ids(w)
        shutil.move(tmp_path / "old", w.database)
        w.stage.start()
        w.stage.wait_for("ids of output offsets 50..99 are unknown")
        assert w.stage.stop() == 1


def test_unknown_ids_are_accepted(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        lose_ids(w)
        w.stage.start()
        w.stage.wait_for("is STOPPED")
        assert w.stage.stop() == 1
        w.expire_output(before=200)  # meanwhile
        assert w.answer("accept", f"{w.topic}:0", "--because", "the disk is lost") == {"partition": 0, "accepted": "0..199"}
        *_, noted = w.quarantined()
        assert (noted.value, dict(noted.headers)["reason"]) == (b"accept 0..199", b"the disk is lost")
        w.stage.start()
        w.await_done()
        # Accepted once and for all, however little the store has seen since.
        w.stage.kill()
        w.expire_output()
        w.stage.start()
        known = [word for word, _ in w.sent[0][300:]]
        w.send(0, [w.batch(0, known, 3)])
        w.await_done()
        assert w.stage.stop() == 0, w.stage.text()
        w.check_counters()
        counters = w.position()[1]
        assert (counters["unknown"], counters["accepted"], counters["decisions"]) == ("", "0..199", 1)
        again = w.ask("accept", f"{w.topic}:0")
        assert (again.returncode, again.stdout) == (1, "")
        assert again.stderr == f"penstock: {w.topic}-0 has not stopped for unknown ids: there is nothing to accept\n"


def test_a_running_worker_is_fenced_by_a_decision(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """The stopped partition's process must not write its old position over the new one."""
    with World(tmp_path, shared_broker) as w:
        lose_ids(w)
        w.stage.start()
        w.stage.wait_for("is STOPPED")
        w.answer("accept", f"{w.topic}:0")  # heard at the next look, `penstock.watch.ms`, not at the hourly refresh
        assert w.position()[1]["accepted"] == "0..99"
        w.stage.wait_for("reads from offset")  # without a restart
        assert w.position()[1]["accepted"] == "0..99"
        assert w.stage.stop() == 0, w.stage.text()


def test_a_snapshot_that_is_put_back_is_as_good(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.fill(repeats=0)
        w.run_once()
        shutil.copytree(w.database, tmp_path / "kept")
        lose_ids(w)
        w.stage.start()
        w.stage.wait_for("is STOPPED")
        assert w.stage.stop() == 1
        shutil.rmtree(w.database)
        shutil.move(tmp_path / "kept", w.database)
        w.stage.start()
        w.send(0, [w.batch(0, [word for word, _ in w.sent[0]], 3)])
        w.await_done()
        assert w.stage.stop() == 0
        w.check_counters()
        assert w.position()[1]["unknown"] == ""


def test_a_position_that_was_set_does_not_make_it_a_new_stage(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        lose_ids(w)
        w.admin(lambda admin: admin.delete_groups([f"penstock-dedupe.{w.topic}"]))
        w.answer("position", f"{w.topic}:0", "--at", "500", "--because", "lost with the disk")
        w.stage.start()
        w.stage.wait_for("ids of output offsets 0..99 are unknown")
        assert w.stage.stop() == 1


def test_a_batch_of_the_output_that_cannot_be_opened_is_accepted(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """Somebody else has written there. What lies behind it is known all the same."""
    with World(tmp_path, shared_broker) as w:
        w.fill(batches=1, count=50, repeats=0)
        w.run_once()
        first = w.end(w.output)
        w.send(0, [corrupt_for(w, w.output)], topic=w.output)
        w.stage.start()
        w.stage.wait_for(f"ids of output offsets {first}..{first + 2} are unknown, since the batch there can't be opened")
        row = json.loads(w.ask("status", "--json").stdout)[0]
        assert (row["state"], row["unknown"]) == ("stopped", f"{first}..{first + 2}")
        w.answer("accept", f"{w.topic}:0", "--because", "it is none of ours")
        w.stage.wait_for("reads from offset")  # without a restart
        w.send(0, [w.batch(0, ["behind", "it"], 0)])
        w.await_done()
        w.stage.kill()
        shutil.rmtree(w.database)
        w.send(0, [w.batch(0, [word for word, _ in w.sent[0]], 0)])
        w.stage.start()  # it is read again, with all others
        w.await_done()
        assert w.stage.stop() == 0, w.stage.text()
        w.check_counters()


def test_commands_that_have_nothing_to_decide(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        done = w.ask("accept", f"{w.topic}:7")
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)
        assert f"has no position of {w.topic}-7" in done.stderr
