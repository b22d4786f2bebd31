"""Paused at every failpoint for as long as another worker needs to take over, a dedupe worker has no effect any more.

With our broker, and with Apache Kafka (`failpoint_cells`). Nor has what its folder holds, when it is used again.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock.dedupe.worker  # noqa: F401  (declares its failpoints)
from penstock import failpoints
from penstock.pipeline.clients.partitioner import partition_for
from support.dedupe_world import World
from support.failpoint_cells import cells
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka
from support.stages import StageProcess

IN_ONE_PARTITION = [name for name in failpoints.declared("dedupe.") if name != "dedupe.moved"]
WHILE_MOVING = ["dedupe.moved", "dedupe.published", "dedupe.offsets_sent", "dedupe.committed"]
ROLES = ("ours", "both")
IN_EACH_RUN = {("dedupe.published", "ours"), ("dedupe.file_written", "ours"), ("dedupe.committed", "both")}
SMALL: dict[str, Any] = {
    "penstock_dedupe_memory_max_ids": 1000,
    "penstock_dedupe_batch_bytes": 4000,
    "penstock_dedupe_without_id": "quarantine",
    "session_timeout_ms": 300,
}
Cluster = BrokerProcess | ApacheKafka


@pytest.fixture
def cluster(shared_broker: BrokerProcess, kafka_as: Callable[[str], dict[str, ApacheKafka]], role: str) -> Cluster:
    return shared_broker if role == "ours" else kafka_as("target")["target"]


@pytest.fixture
def newer() -> Iterator[list[StageProcess]]:
    made: list[StageProcess] = []
    yield made
    for stage in made:
        stage.kill()


def replace(w: World, newer: list[StageProcess], feed: Callable[[], None]) -> None:
    """Let another worker, with a folder of its own, take over from a paused one, which then goes on."""
    stage = w.other("newer", penstock_dedupe_data=w.folder / "elsewhere")
    newer.append(stage)
    feed()
    stage.start()
    w.await_done(stage=stage)
    assert "another dedupe worker" in w.stage.wait_replaced(feed)
    w.await_done(stage=stage)
    assert stage.stop() == 0, stage.text()


def test_paused_between_two_turns(tmp_path: Path, shared_broker: BrokerProcess, newer: list[StageProcess]) -> None:
    with World(tmp_path, shared_broker, **SMALL) as w:
        w.fill()
        w.stage.start()
        w.await_done()
        w.stage.signal(signal.SIGSTOP)
        replace(w, newer, lambda: w.fill(1))
        w.check()


@pytest.mark.parametrize(("failpoint", "role"), cells(IN_ONE_PARTITION, IN_EACH_RUN, ROLES))
def test_paused_at_a_failpoint(tmp_path: Path, cluster: Cluster, newer: list[StageProcess], failpoint: str, role: str) -> None:
    with World(tmp_path, cluster, **SMALL) as w:
        w.fill(batches=3)
        w.stage.start()
        w.await_done()
        w.stage.kill()  # so that there is something to repair
        w.fill(batches=12, count=200)
        w.send(0, [w.batch(0, ["", None, "an id"], 3)])
        w.stage.pause_at(failpoint)
        replace(w, newer, lambda: w.fill(1))
        w.check()
        # What the folder of the one that was paused has must not be more than what was committed.
        w.fill(batches=3, repeats=0.9)
        w.stage.start()
        w.await_done()
        assert w.stage.stop() == 0, w.stage.text()
        w.check()


@pytest.mark.parametrize(("failpoint", "role"), cells(WHILE_MOVING, {("dedupe.moved", "ours")}, ROLES))
def test_paused_while_records_move(
    tmp_path: Path, cluster: Cluster, newer: list[StageProcess], failpoint: str, role: str
) -> None:
    words = [f"id-{number}" for number in range(400)]
    home = {word: partition_for(word.encode(), 3) for word in words}
    with World(tmp_path, cluster, partitions=3, **SMALL | {"penstock_dedupe_misplaced": "move"}) as w:
        w.mix(words[:200])
        w.stage.start()
        w.await_done()
        assert w.stage.stop() == 0, w.stage.text()
        w.mix(words)
        w.stage.pause_at(failpoint)
        replace(w, newer, lambda: w.mix(words, 20, [0]))
        w.check_moved(home)
        w.mix(words)
        w.stage.start()
        w.await_done()
        assert w.stage.stop() == 0, w.stage.text()
        w.check_moved(home)
