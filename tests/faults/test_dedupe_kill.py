"""Killed at every failpoint, with our broker or with Apache Kafka, the dedupe stage loses nothing and writes nothing twice."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock.dedupe.worker  # noqa: F401  (declares its failpoints)
from penstock import failpoints
from penstock.pipeline.clients.partitioner import partition_for
from support.dedupe_rot import corrupt
from support.dedupe_world import World
from support.failpoint_cells import cells
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka

DECLARED = list(failpoints.declared("dedupe."))
MOVED = "dedupe.moved"  # in one partition nothing moves
IN_ONE_PARTITION = [name for name in DECLARED if name != MOVED]
WHILE_MOVING = [MOVED, "dedupe.published", "dedupe.offsets_sent", "dedupe.committed"]
ROLES = ("ours", "both")  # input and output are on one cluster
IN_EACH_RUN = {
    *((name, "ours") for name in IN_ONE_PARTITION),
    *((name, "both") for name in ("dedupe.published", "dedupe.offsets_sent", "dedupe.committed")),
}
SMALL: dict[str, Any] = {
    "penstock_dedupe_memory_max_ids": 1000,
    "penstock_dedupe_batch_bytes": 4000,
    "penstock_dedupe_without_id": "quarantine",
}


def test_there_are_failpoints() -> None:
    assert len(DECLARED) >= 11


@pytest.fixture
def cluster(
    shared_broker: BrokerProcess, kafka_as: Callable[[str], dict[str, ApacheKafka]], role: str
) -> BrokerProcess | ApacheKafka:
    return shared_broker if role == "ours" else kafka_as("target")["target"]


@pytest.mark.parametrize(("failpoint", "role"), cells(IN_ONE_PARTITION, IN_EACH_RUN, ROLES))
def test_killed_at_a_failpoint(tmp_path: Path, cluster: BrokerProcess | ApacheKafka, failpoint: str, role: str) -> None:
    """Fed, killed and started again at each passage; what is left of the work is done by a last start."""
    once = failpoint in ("dedupe.fenced", "dedupe.repaired")
    with World(tmp_path, cluster, **SMALL) as w:
        w.fill(batches=3)
        w.stage.start()
        w.await_done()
        w.stage.kill()  # so that there is something to repair
        for passage in (1,) if once else (1, 2):
            w.fill(batches=12, count=200)
            w.send(0, [w.batch(0, ["", None, "an id"], 3)])
            if role == "ours":  # Kafka takes no batch that it can't open
                w.send(0, [corrupt(w, count=3)])
            w.fill(batches=2)
            w.stage.start(f"{failpoint}=kill@{passage}")
            assert w.stage.wait() == -signal.SIGKILL, w.stage.text()
        w.stage.start()
        w.await_done()
        assert w.stage.stop() == 0, w.stage.text()
        w.check()


@pytest.mark.parametrize(("failpoint", "role"), cells(WHILE_MOVING, {(name, "ours") for name in WHILE_MOVING}, ROLES))
def test_killed_while_records_move(tmp_path: Path, cluster: BrokerProcess | ApacheKafka, failpoint: str, role: str) -> None:
    words = [f"id-{number}" for number in range(400)]
    home = {word: partition_for(word.encode(), 3) for word in words}
    with World(tmp_path, cluster, partitions=3, **SMALL | {"penstock_dedupe_misplaced": "move"}) as w:
        for passage in (1, 2, 5):
            w.mix(words)
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
        w.finish()


def test_broker_killed_in_the_middle(tmp_path: Path, broker: BrokerProcess) -> None:
    with World(tmp_path / "w", broker, **SMALL) as w:
        w.fill(batches=10)
        w.stage.start()
        for _ in range(2):
            w.fill(batches=20, count=300)
            broker.kill()
            broker.start()
            w.fill(batches=3)
        w.finish()


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
        w.finish()
