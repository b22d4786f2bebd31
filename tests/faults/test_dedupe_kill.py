"""Killed at every failpoint, the dedupe stage loses nothing and writes nothing twice."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import penstock.dedupe.worker  # noqa: F401  (declares its failpoints)
from penstock import failpoints
from penstock.pipeline.partitioner import partition_for
from support.dedupe_rot import corrupt
from support.dedupe_world import World
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka

DECLARED = list(failpoints.declared("dedupe."))
MOVED = "dedupe.moved"  # in one partition nothing moves
SMALL: dict[str, Any] = {
    "penstock_dedupe_memory_max_ids": 1000,
    "penstock_dedupe_batch_bytes": 4000,
    "penstock_dedupe_without_id": "quarantine",
}


def test_there_are_failpoints() -> None:
    assert len(DECLARED) >= 11


def kill_at(w: World, failpoint: str, passages: tuple[int, ...]) -> None:
    """Feed, kill and start again at each passage; what is left of the work is done by a last start."""
    w.fill(batches=3)
    w.stage.start()
    w.await_done()
    w.stage.kill()  # so that there is something to repair
    for passage in passages:
        w.fill(batches=12, count=200)
        w.send(0, [w.batch(0, ["", None, "an id"], 3), corrupt(w, count=3)])
        w.fill(batches=2)
        w.stage.start(f"{failpoint}=kill@{passage}")
        assert w.stage.wait() == -signal.SIGKILL, w.stage.text()
    w.stage.start()
    w.await_done()
    assert w.stage.stop() == 0, w.stage.text()
    w.check()


@pytest.mark.parametrize("failpoint", [name for name in DECLARED if name != MOVED])
def test_killed_at_a_failpoint(tmp_path: Path, shared_broker: BrokerProcess, failpoint: str) -> None:
    once = failpoint in ("dedupe.fenced", "dedupe.repaired")
    with World(tmp_path, shared_broker, **SMALL) as w:
        kill_at(w, failpoint, (1,) if once else (1, 2))


@pytest.mark.parametrize("failpoint", [MOVED, "dedupe.published", "dedupe.offsets_sent", "dedupe.committed"])
def test_killed_while_records_move(tmp_path: Path, shared_broker: BrokerProcess, failpoint: str) -> None:
    words = [f"id-{number}" for number in range(400)]
    home = {word: partition_for(word.encode(), 3) for word in words}
    with World(tmp_path, shared_broker, partitions=3, **SMALL | {"penstock_dedupe_misplaced": "move"}) as w:
        for passage in (1, 2, 5):
            for codec in (0, 3, 4):
                for partition in range(3):
                    w.send(partition, [w.batch(partition, w.random.sample(words, 150), codec)])
            w.stage.start(f"{failpoint}=kill@{passage}", await_started=False)
            assert w.stage.wait() == -signal.SIGKILL, w.stage.text()
        w.stage.start()
        w.await_done()
        assert w.stage.stop() == 0, w.stage.text()
        w.check_moved(home)


def test_killed_again_and_again_with_two_partitions(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with World(tmp_path, shared_broker, partitions=2, **SMALL) as w:
        for passage, failpoint in enumerate(DECLARED):
            w.fill(batches=4, count=300)
            w.stage.start(f"{failpoint}=kill@{1 + passage % 3}", await_started=False)
            w.fill(batches=4, count=300)
            w.send(1, [w.batch(1, [None, ""], 3)])
            if failpoint == "dedupe.set_aside":
                w.send(1, [corrupt(w, 1)])
            try:
                w.await_done()
            except AssertionError:
                assert not w.stage.running
            w.stage.kill()
        w.stage.start()
        w.await_done()
        assert w.stage.stop() == 0
        w.check()


def test_broker_killed_in_the_middle(tmp_path: Path, broker: BrokerProcess) -> None:
    with World(tmp_path / "w", broker, **SMALL) as w:
        w.fill(batches=10)
        w.stage.start()
        for _ in range(2):
            w.fill(batches=20, count=300)
            broker.kill()
            broker.start()
            w.fill(batches=3)
        w.await_done()
        assert w.stage.stop() == 0
        w.check()


def test_an_aborted_output_never_enters_the_database(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """What was sent, not committed, when the worker was killed must go out again, also when the database is rebuilt."""
    with World(tmp_path, shared_broker) as w:
        w.fill(batches=3, repeats=0)
        w.stage.start("dedupe.published=kill@1")
        assert w.stage.wait() == -signal.SIGKILL
        w.stage.start("dedupe.published=kill@1")
        assert w.stage.wait() == -signal.SIGKILL
        shutil.rmtree(w.database)
        w.stage.start()
        w.await_done()
        assert w.stage.stop() == 0
        w.check()


@pytest.mark.kafka
@pytest.mark.parametrize("failpoint", ["dedupe.published", "dedupe.offsets_sent", "dedupe.committed"])
def test_killed_at_a_failpoint_with_apache_kafka(tmp_path: Path, apache_kafka: ApacheKafka, failpoint: str) -> None:
    with World(tmp_path, apache_kafka, **SMALL) as w:
        w.fill(batches=5)
        w.stage.start(f"{failpoint}=kill@1")
        assert w.stage.wait() == -signal.SIGKILL, w.stage.text()
        w.fill(batches=5, count=500)
        w.stage.start()
        w.await_done()
        assert w.stage.stop() == 0, w.stage.text()
        w.check()
