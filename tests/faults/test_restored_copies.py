"""A log that was put back from a copy and has grown since isn't the log that was read, though offsets and epochs come again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from support.dedupe_world import World as DedupeWorld
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka
from support.mirror_world import World, brokers

OTHER_LOG = "is not the log that was read: the last batch below offset "


@pytest.fixture
def w(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> Iterator[World]:
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], partitions=1) as made:
        yield made


def put_back(data: Path, copy: Path) -> None:
    """The node's folder as it was when the copy was made."""
    shutil.rmtree(data)
    shutil.copytree(copy, data)


def copy_all(w: World) -> None:
    w.fill(2)
    w.run_once()


def change_last_batch(admin: Admin, group: str, tp: TopicPartition, committed: tuple[int, str], **change: Any) -> Any:
    """Commit a position as if another batch had been read last."""
    text = json.loads(committed[1])
    assert len(text["last_batch"]) == 3, text
    return admin.commit(group, {tp: (committed[0], json.dumps(text | change))})


def test_a_source_of_ours_is_put_back(tmp_path: Path) -> None:
    """Yesterday's copy, grown beyond the position: the 30 records that the mirror would take for copied ones stop it."""
    with brokers(tmp_path, "EWR", "target") as made, World(tmp_path / "w", {"EWR": made["EWR"]}, made["target"]) as w:
        w.fill(1)
        made["EWR"].stop()
        shutil.copytree(made["EWR"].data, tmp_path / "yesterday")
        made["EWR"].start()
        w.configure(**{"source.EWR.bootstrap.servers": made["EWR"].bootstrap})
        copy_all(w)
        made["EWR"].stop()
        put_back(made["EWR"].data, tmp_path / "yesterday")
        made["EWR"].start()
        w.configure(**{"source.EWR.bootstrap.servers": made["EWR"].bootstrap})
        w.fill(4)
        w.mirror.start()
        for partition in range(2):
            w.mirror.wait_for(f"{w.topic}-{partition} is STOPPED")
        said = [line for line in w.mirror.text().splitlines() if "STOPPED" in line]
        assert all("was cut back" in line or OTHER_LOG in line for line in said), said
        assert w.mirror.stop() == 1
        assert all(row["state"] == "stopped" for row in w.status(code=1).values())


def test_a_source_of_apache_kafka_is_put_back_while_the_mirror_runs(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """Its leader epochs come again, and go back first: one start more has raised them. The mirror never sees the node but
    through its fetches."""
    kafka = ApacheKafka(tmp_path / "kafka")
    try:
        with World(tmp_path / "w", {"EWR": kafka}, clusters["target"], partitions=1) as w:
            w.fill(1)
            kafka.stop()
            shutil.copytree(kafka.data, tmp_path / "yesterday")
            kafka.start()
            w.fill(2)
            w.mirror.start()
            w.await_copied()
            kafka.stop()
            kafka.start()
            w.fill(1)
            w.await_copied()
            kafka.stop()
            put_back(kafka.data, tmp_path / "yesterday")
            kafka.start()
            w.fill(5)
            w.mirror.wait_for(f"{w.topic}-0 is STOPPED")
            (said,) = (line for line in w.mirror.text().splitlines() if "STOPPED" in line)
            assert OTHER_LOG in said or "was cut back" in said, said
            assert w.mirror.stop() == 1
    finally:
        kafka.stop()


@pytest.mark.parametrize("change", [{0: 1}, {1: 1}, {2: 1}], ids=["offset", "crc", "timestamp"])
def test_a_mirror_finds_another_batch_than_it_read(
    w: World, clusters: dict[str, BrokerProcess], change: dict[int, int]
) -> None:
    copy_all(w)
    kept = w.positions("EWR")[0]
    assert kept is not None
    mark = json.loads(kept[1])["last_batch"]
    other = [value - change.get(place, 0) for place, value in enumerate(mark)]
    w.admin(clusters["target"], lambda admin: change_last_batch(admin, w.group("EWR"), (w.topic, 0), kept, last_batch=other))
    w.fill(2)
    w.mirror.start()
    w.mirror.wait_for(f"{w.topic}-0 is STOPPED")
    assert OTHER_LOG in w.mirror.text()
    assert w.mirror.stop() == 1
    # The operator looks, and goes on; the decision is about this log, so that the next change is noticed, too.
    w.begin("EWR", f"{w.topic}:0", at=kept[0])
    begun = w.positions("EWR")[0]
    assert begun is not None and json.loads(begun[1])["last_batch"] == mark
    w.mirror.start()
    w.finish()


def test_a_position_without_a_last_batch_notes_it_at_its_next_start(w: World, clusters: dict[str, BrokerProcess]) -> None:
    """Positions of earlier versions have none."""
    copy_all(w)
    kept = w.positions("EWR")[0]
    assert kept is not None
    mark = json.loads(kept[1])["last_batch"]
    w.admin(clusters["target"], lambda admin: change_last_batch(admin, w.group("EWR"), (w.topic, 0), kept, last_batch=[]))
    w.mirror.start()
    w.mirror.wait_for("copies from offset")
    assert w.mirror.stop() == 0
    noted = w.positions("EWR")[0]
    assert noted is not None and json.loads(noted[1])["last_batch"] == mark


def test_retention_may_remove_the_last_batch(w: World, clusters: dict[str, BrokerProcess]) -> None:
    copy_all(w)
    w.admin(clusters["EWR"], lambda admin: admin.delete_records({(w.topic, 0): -1}))
    w.fill(2)
    w.mirror.start()
    w.finish()


def test_compaction_may_remove_the_last_batch(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """A compacted log may have another batch there, or none; it stays the log that was read."""
    configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], partitions=1, source_configs=configs) as w:
        copy_all(w)
        kept = w.positions("EWR")[0]
        assert kept is not None
        mark = json.loads(kept[1])["last_batch"]
        other = [mark[0], mark[1] ^ 1, mark[2]]
        w.admin(
            clusters["target"], lambda admin: change_last_batch(admin, w.group("EWR"), (w.topic, 0), kept, last_batch=other)
        )
        w.fill(2)
        w.mirror.start()
        w.finish()
        assert "can't be compared" in w.mirror.text()


def test_dedupe_finds_another_batch_than_it_read(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with DedupeWorld(tmp_path, shared_broker) as w:
        w.fill(batches=2, count=10)
        w.run_once()
        group, tp = f"penstock-dedupe.{w.topic}", (w.topic, 0)
        kept = w.admin(lambda admin: admin.committed(group, [tp]))[tp]
        assert kept is not None
        offset, crc, at_ms = json.loads(kept[1])["last_batch"]
        w.admin(lambda admin: change_last_batch(admin, group, tp, kept, last_batch=[offset, crc ^ 1, at_ms]))
        w.fill(batches=2, count=10)
        w.stage.start()
        w.stage.wait_for("is STOPPED")
        assert OTHER_LOG in w.stage.text()
        assert w.stage.stop() == 1


def test_a_store_finds_another_output_than_it_has_the_ids_of(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    """An aggregate that was put back from a copy, and has grown since: what the copy lacks would be dropped as repeats."""
    with DedupeWorld(tmp_path, shared_broker, penstock_dedupe_memory_max_ids=1000) as w:
        w.fill(batches=10, count=300)
        w.run_once()
        offset, crc, at_ms = map(int, (w.database / "last-output").read_text().split())
        kept = tmp_path / "snapshot"
        w.answer("snapshot", f"{w.topic}:0", "--to", str(kept))
        (w.database / "last-output").write_text(f"{offset} {crc ^ 1} {at_ms}\n")
        w.fill(batches=2, count=10)
        w.stage.start()
        w.stage.wait_for("is STOPPED")
        assert "the store has the ids of another log" in w.stage.text()
        assert w.stage.stop() == 1
        # A snapshot has what its ids were compared with; a store that is set aside takes it along.
        w.answer("restore", f"{w.topic}:0", "--from", str(kept))
        w.stage.start()
        w.finish()
        assert sorted(path.name for path in (w.database / "set-aside.1").iterdir()) == ["belongs-to", "ids", "last-output"]
