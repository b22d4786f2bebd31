"""A target that lost what a mirror had copied, and kept the mirror's positions: the mirror stops and says what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.broker import Cluster
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.wire.connection import WireConnection
from penstock.pyx.wire.messages import DescribeProducersRequest, WriteTxnMarkersRequest
from support import moving_cluster
from support.cut_logs import PowerCut, lose_end, stored
from support.harness import BrokerProcess
from support.mirror_world import World, brokers

SOURCES = ("EWR", "JFK")


@pytest.fixture
def one(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> Iterator[World]:
    """One partition of one source."""
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], partitions=1) as made:
        yield made


class Pair(NamedTuple):
    """A mirror of one partition between two brokers of a test's own, so that the target's log may be cut."""

    w: World
    target: BrokerProcess

    def kept(self) -> int:
        """How many batches the target's log has."""
        return len(list(stored(self.target.data, self.w.topic)))

    def lose_end(self, kept: int) -> None:
        """The target keeps the first batches alone."""
        lose_end(self.target, self.w.topic, kept)
        self.w.configure(bootstrap_servers=self.target.bootstrap)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with (
        brokers(tmp_path, "EWR", "target") as made,
        World(tmp_path / "w", {"EWR": made["EWR"]}, made["target"], partitions=1) as w,
    ):
        yield Pair(w, made["target"])


def stopped(w: World) -> str:
    """What the mirror says of the partition that stopped."""
    w.mirror.wait_for(f"{w.topic}-0 is STOPPED")
    (said,) = (line for line in w.mirror.text().splitlines() if "is STOPPED" in line)
    return said


def noted(w: World, source: str = "EWR") -> dict[str, object]:
    found = w.positions(source)[0]
    assert found is not None
    fields: dict[str, object] = json.loads(found[1])
    return fields


def change(w: World, **fields: object) -> None:
    """Commit the position with other fields beside its offset."""
    found = w.positions("EWR")[0]
    assert found is not None
    text = json.dumps(json.loads(found[1]) | fields)
    w.admin(w.target, lambda admin: admin.commit(w.group("EWR"), {(w.topic, 0): (found[0], text)}))


@pytest.mark.parametrize("running", [False, True])
def test_a_power_cut_of_all_replicas_stops_the_mirror(
    tmp_path: Path, clusters: dict[str, BrokerProcess], running: bool
) -> None:
    """It would go on behind 100 records that are gone; one that runs would even write after the cut."""
    properties = {**moving_cluster.PROPERTIES, "default.replication.factor": 3}
    data = tmp_path / "data"
    with (
        Cluster(properties=properties, data=data) as target,
        World(tmp_path / "w", {"EWR": clusters["EWR"]}, target, partitions=1) as w,
    ):
        w.fill(10)
        w.mirror.start()
        w.await_copied()
        power = PowerCut(target, data, w.topic)
        w.fill(10)
        w.await_copied()
        if not running:
            assert w.mirror.stop() == 0
        power.strike()
        w.fill(1)
        if not running:
            row = w.status(code=1)["EWR", 0]
            assert row["state"] == "lost" and "ends at offset " in row["why"], row
            w.mirror.start()
        said = stopped(w)
        assert "ends at offset " in said and "100 records of the source's offsets 100 to 199 are missing" in said
        for at in (100, 200):
            assert f"`penstock mirror begin EWR {w.topic}:0 --at {at} --because TEXT`" in said
        assert w.status(code=1)["EWR", 0]["state"] == "stopped"
        w.operate("retry", "EWR", "--because", "it may be back")  # nothing is, so that it stops again
        w.begin("EWR", f"{w.topic}:0", at=100)
        w.finish()
        row = w.status()["EWR", 0]
        assert (row["records"], row["gaps"], row["again_records"], row["other_logs"]) == (210, 0, 0, 0)


def test_a_node_that_gives_no_offset_twice_has_lost_records_all_the_same(pair: Pair) -> None:
    """Its log ends as before; the batches are gone. An operator goes on without them, and changes their mind."""
    w = pair.w
    w.fill(2)
    w.run_once()
    kept = pair.kept()
    w.fill(3)
    w.run_once()
    pair.lose_end(kept)
    w.mirror.start()
    said = stopped(w)
    assert "has no committed batch of producer id " in said
    assert "30 records of the source's offsets 20 to 49 are missing" in said
    w.begin("EWR", f"{w.topic}:0", at=40)
    w.await_copied()
    lost = noted(w)
    assert (lost["lost_ranges"], lost["gap_ranges"], lost["records"]) == ("20..39", "20..39", 30)
    w.begin("EWR", f"{w.topic}:0", at=20)
    w.await_copied()
    mended = noted(w)
    assert "lost_ranges" not in mended
    assert (mended["gaps"], mended["records"], mended["again_records"]) == (0, 60, 10)
    assert w.mirror.stop() == 0


def test_another_lane_wrote_where_a_copy_was(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """A log that was cut may have grown again beyond the position; the batch there is another lane's."""
    sources = {name: clusters[name] for name in SOURCES}
    with World(tmp_path / "w", sources, clusters["target"], partitions=1) as w:
        w.fill(2)
        w.run_once()
        w.fill(2, sources=["JFK"])
        w.run_once()
        change(w, target_end=noted(w, "JFK")["target_end"])
        w.mirror.start()
        said = stopped(w)
        assert f"has no committed batch of producer id {noted(w)['producer_id']} that ends there" in said
        assert w.mirror.stop() == 1


def test_of_what_the_target_lost_nothing_can_be_told(one: World) -> None:
    """No batch of the producer is there: an operator says where to go on, and the audit can't tell what is missing."""
    one.fill(2)
    one.run_once()
    change(one, producer_id=1)
    one.mirror.start()
    assert "Which of the source's offsets below 20 they had can't be told" in stopped(one)
    one.begin("EWR", f"{one.topic}:0", at=20)
    one.fill(1)
    one.finish()
    assert one.status()["EWR", 0]["other_logs"] == 1


def test_records_that_come_twice_are_not_guessed_at(pair: Pair) -> None:
    """The last batch that is there has the records of two that were copied."""
    w = pair.w
    w.fill(1)
    w.run_once()
    kept = pair.kept()
    w.resend("EWR")
    w.fill(1)
    w.run_once()
    pair.lose_end(kept)
    w.mirror.start()
    assert "can't be told" in stopped(w)
    assert w.mirror.stop() == 1


def test_a_marker_that_was_lost_is_no_commit(pair: Pair) -> None:
    """The batches are there, in a transaction that nothing ends any more but an operator, who can only abort it."""
    w, target = pair
    w.fill(2)
    w.run_once()
    w.fill(2)
    w.run_once()
    *_, last, marker = stored(target.data, w.topic)
    assert marker.is_control
    pair.lose_end(pair.kept() - 1)
    w.mirror.start()
    said = stopped(w)
    assert f"lost the marker of a transaction of producer id {last.producer_id}" in said
    assert f"then `penstock mirror retry EWR {w.topic}:0 --because TEXT`" in said
    assert "lost the marker" in w.operate("begin", "EWR", f"{w.topic}:0", "--at", 20, "--because", "too soon", code=1)
    abort(target, w.topic, last)
    w.operate("retry", "EWR", "--because", "it is aborted")
    w.mirror.wait_for("20 records of the source's offsets 20 to 39 are missing")
    w.begin("EWR", f"{w.topic}:0", at=20)
    w.await_copied()
    assert w.mirror.stop() == 0
    w.check_ids()


def abort(broker: BrokerProcess, topic: str, batch: RawBatch) -> None:
    """End the transaction of a batch, as `kafka-transactions.sh abort` does."""
    place = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
    with WireConnection(broker.bootstrap) as wire:
        (described,) = wire.ask(DescribeProducersRequest(topics=[place]), 0).topics
        (producer,) = described.partitions[0].active_producers
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            transaction_result=False,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
            coordinator_epoch=producer.coordinator_epoch,
        )
        (answer,) = wire.ask(WriteTxnMarkersRequest(markers=[marker]), 1).markers
    assert answer.topics[0].partitions[0].error_code == 0, answer


@pytest.mark.parametrize("before", [-1, 15], ids=["all", "within the last batch"])
def test_what_retention_removed_of_the_target_is_no_loss(one: World, before: int) -> None:
    one.fill(2)
    one.run_once()
    one.admin(one.target, lambda admin: admin.delete_records({(one.topic, 0): before}))
    one.fill(1)
    one.run_once()
    assert one.status()["EWR", 0]["state"] == "copying"


def test_what_compaction_removed_of_the_target_is_no_loss(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    configs = {"cleanup.policy": "compact"}
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], partitions=1, target_configs=configs) as w:
        w.fill(2)
        w.run_once()
        change(w, producer_id=1)
        w.fill(1)
        w.mirror.start()
        w.finish()


def test_a_position_of_an_earlier_version_is_believed(one: World) -> None:
    one.fill(2)
    one.run_once()
    change(one, target_end=-1, producer_id=-1)
    one.fill(1)
    one.run_once()
    assert noted(one)["target_end"] != -1
