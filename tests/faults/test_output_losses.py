"""An output that lost what dedupe had written, and kept its positions: the stage stops, and reads the input again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.broker import Cluster
from support import moving_cluster
from support.cut_logs import PowerCut, lose_end, stored
from support.dedupe_world import World
from support.harness import BrokerProcess
from support.stages import write_properties

LOST = "the output lost records of its offsets "


@contextlib.contextmanager
def world(folder: Path, node: BrokerProcess) -> Iterator[World]:
    with World(folder / "w", node) as made:
        yield made


def lose_second_half(w: World, node: BrokerProcess) -> tuple[int, int]:
    """Write twice, and lose what came second; how many records of the output are left, and where they end."""
    w.fill(2)
    w.run_once()
    batches = list(stored(node.data, w.output))
    kept, left = len(batches), len(w.records())
    end = max(batch.next_offset for batch in batches if not batch.is_control)
    w.fill(2)
    w.run_once()
    lose_end(node, w.output, kept)
    w.properties["bootstrap.servers"] = node.bootstrap
    write_properties(w.config, w.properties)
    return left, end


def test_output_that_was_lost_is_written_again(tmp_path: Path, make_broker: Callable[..., BrokerProcess]) -> None:
    """The store has the ids of what was lost: with it, reading again would drop them as repeats."""
    node = make_broker()
    with world(tmp_path, node) as w:
        left, end = lose_second_half(w, node)
        done = w.ask("status", "--json")
        assert done.returncode == 1
        (row,) = json.loads(done.stdout)
        assert row["state"] == "lost" and "the output lost records" in row["why"], row
        w.stage.start()
        w.stage.wait_for("is STOPPED")
        assert f"{LOST}{end} to " in w.stage.text()
        assert f"`penstock dedupe position {w.topic}:0 --at OFFSET --because TEXT`" in w.stage.text()
        w.answer("position", f"{w.topic}:0", "--at", "earliest", "--because", "a power cut")
        w.stage.wait_for(" after loss 1, ")  # the store is of before it
        assert w.stage.stop() == 1
        noted = w.position()[1]
        assert noted["untold"] == 0 and noted["gaps"] == noted["reached"]
        w.answer("rebuild", f"{w.topic}:0")
        w.run_once()
        found, wanted = [int(record.value or b"") for record in w.records()], w.expected()
        assert found == wanted
        noted = w.position()[1]
        sent = len(w.sent[0])
        assert (noted["gaps"], noted["written"], noted["again"]) == (0, len(wanted), sent - (len(wanted) - left))
        assert noted["read"] == noted["written"] + noted["dropped"]


def test_to_go_on_without_what_was_lost_is_told_by_nobody(tmp_path: Path, make_broker: Callable[..., BrokerProcess]) -> None:
    node = make_broker()
    with world(tmp_path, node) as w:
        left, _ = lose_second_half(w, node)
        offset = w.position()[0]
        w.answer("position", f"{w.topic}:0", "--at", str(offset), "--because", "it is of no use any more")
        noted = w.position()[1]
        assert (noted["untold"], noted["written"], noted["losses"]) == (1, left, 1)
        w.answer("rebuild", f"{w.topic}:0")
        w.fill(1)
        w.run_once()


def test_a_power_cut_of_all_replicas_stops_the_stage(tmp_path: Path) -> None:
    """It runs meanwhile, and would write on behind what was lost."""
    properties = {**moving_cluster.PROPERTIES, "default.replication.factor": 3}
    data = tmp_path / "data"
    with Cluster(properties=properties, data=data) as cluster, World(tmp_path / "w", cluster) as w:
        w.fill(2)
        w.stage.start()
        w.await_done()
        power = PowerCut(cluster, data, w.output)
        w.fill(2)
        w.await_done()
        power.strike()
        w.fill(1)
        w.stage.wait_for("is STOPPED")
        assert LOST in w.stage.text()
        w.answer("position", f"{w.topic}:0", "--at", "earliest", "--because", "a power cut")
        w.stage.stop()
        w.answer("rebuild", f"{w.topic}:0")
        w.run_once()
        assert [int(record.value or b"") for record in w.records()] == w.expected()


@pytest.mark.parametrize("before", [-1, 50], ids=["all", "within a batch"])
def test_what_retention_removed_of_the_output_is_no_loss(tmp_path: Path, broker: BrokerProcess, before: int) -> None:
    with world(tmp_path, broker) as w:
        w.fill(1)
        w.run_once()
        w.expire_output(before=before)
        w.fill(1)
        w.run_once()
        w.check_counters()
