"""`penstock dedupe status`: who sees that nobody reads a partition, and that somebody does."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import confluent_kafka

from support.dedupe_world import World
from support.harness import BrokerProcess

HOUR_MS = 3_600_000


def rows(w: World, code: int) -> list[dict[str, Any]]:
    """The rows of a status with this exit code."""
    done = w.ask("status", "--json")
    assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def make_older(w: World) -> None:
    """Let all positions look as if they had been committed an hour earlier."""
    group, older = f"penstock-dedupe.{w.topic}", {}
    for tp, (offset, text) in w.admin(lambda admin: admin.all_committed(group)).items():
        fields = json.loads(text)
        older[tp] = offset, json.dumps(fields | {"committed_ms": fields["committed_ms"] - HOUR_MS})
    w.admin(lambda admin: admin.commit(group, older))


def read_long_ago(w: World) -> None:
    """All that there is was read, and the stage is killed: by its positions that was an hour ago."""
    w.stage.start()
    w.await_done()
    w.stage.kill()
    make_older(w)


def test_records_that_wait_for_a_stage_which_does_not_run(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.send(0, [w.batch(0, ["a"], 0, age_ms=2 * HOUR_MS)])
        read_long_ago(w)
        assert [row["state"] for row in rows(w, 0)] == ["reading"]  # nothing waits
        w.send(0, [w.batch(0, ["b", "c"], 0, age_ms=HOUR_MS)])
        (row,) = rows(w, 1)
        assert (row["state"], row["lag"]) == ("silent", 2)
        assert "no commit for 36" in row["why"] and "while 2 records wait: does the dedupe stage run?" in row["why"]
        shutil.rmtree(w.database)
        w.stage.pause_at("dedupe.repairing")  # it runs, and reads the output before any input
        assert [(row["state"], row["lag"]) for row in rows(w, 0)] == [("reading", 2)]
        w.stage.kill()
        read_long_ago(w)
        w.send(0, [w.batch(0, ["d"], 0)])
        (row,) = rows(w, 0)  # it was produced just now
        assert row["state"] == "reading" and "while 1 records wait; the partition is silent after 370 s" in row["why"]


def test_moved_records_that_wait_for_a_stage_which_does_not_run(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, penstock_dedupe_misplaced="move") as w:
        w.mix([f"id-{number}" for number in range(20)], count=10, codecs=[0])
        read_long_ago(w)
        assert {row["state"] for row in rows(w, 0)} == {"reading"}
        producer = confluent_kafka.Producer({"bootstrap.servers": shared_broker.bootstrap})
        producer.produce(w.moved, b"1", b"more", partition=1, timestamp=time.time_ns() // 1_000_000 - HOUR_MS)
        assert producer.flush(30) == 0
        assert [row["state"] for row in rows(w, 1)] == ["reading", "silent"]


def test_an_input_that_ends_before_the_position(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.send(0, [w.batch(0, ["a"], 0)])
        w.run_once()
        group, tp = f"penstock-dedupe.{w.topic}", (w.topic, 0)
        found = w.admin(lambda admin: admin.committed(group, [tp]))[tp]
        assert found is not None
        w.admin(lambda admin: admin.commit(group, {tp: (7, found[1])}))
        (row,) = rows(w, 1)
        assert row["state"] == "lost" and "was cut back: it ends at offset 1, but everything below 7 was read" in row["why"]


def test_a_partition_that_no_stage_has_begun_stands_still(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker) as w:
        w.admin(lambda admin: admin.create_topics({w.output: 1}))
        (row,) = rows(w, 1)
        assert (row["state"], row["offset"], row["read"], row["ids"]) == ("no position", None, 0, None)
