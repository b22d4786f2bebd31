"""A broker of a cluster whose disk is full: brokers that are in sync lead in its place, and it is in sync again afterwards."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.process import PROGRAM
from support.cluster_clients import Writer, check
from support.cluster_world import ClusterProcesses, cluster
from support.harness import output
from support.history import check as judge
from support.load import Load
from support.patience import until
from support.small_disk import SmallDisk, memory_disk
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka


@pytest.fixture
def small(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[tuple[ClusterProcesses, dict[int, SmallDisk]]]:
    """Three brokers, each with a small disk of its own."""
    with contextlib.ExitStack() as stack:
        disks = {number: stack.enter_context(memory_disk(tmp_path / f"broker-{number}", "64m")) for number in (1, 2, 3)}
        yield stack.enter_context(cluster(zookeeper, tmp_path, penstock_disk_settle_ms=1000)), disks


def test_others_lead_what_a_broker_led_whose_disk_is_full(small: tuple[ClusterProcesses, dict[int, SmallDisk]]) -> None:
    world, disks = small
    world.create("t", min_insync_replicas="2")
    leader = world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    others = {1, 2, 3} - {leader}
    load = Load(world.bootstrap, "t", 1, 7, rest_s=0.01, stay_s=10.0)
    load.start(Load.idempotent, Load.transactional, Load.member, Load.watcher)
    try:
        load.wait_for(acknowledged=100, commits=1, ends=1)
        disks[leader].fill()
        world.until_led("t", by=others, isr=others)
        load.wait_for(acknowledged=100, commits=1, ends=1)
        check_words(world, leader)
        disks[leader].drain()
        world.until_led("t", by=others, isr={1, 2, 3})
        load.wait_for(acknowledged=100, commits=1, ends=1)
    finally:
        history = load.finish(has_loss=False)
    assert not judge(history)
    until(lambda: "has had room for 1 s" in world.brokers[leader].log_text(), "the report to be taken back", world.log_text)


def check_words(world: ClusterProcesses, full: int) -> None:
    """The broker itself, the controller and `penstock cluster` say that its disk is full."""
    assert "is full: brokers that are in sync lead" in world.brokers[full].log_text()
    said = json.loads(output([*PROGRAM, "cluster", "--json", "--bootstrap", world.bootstrap]))
    assert [row["broker"] for row in said["brokers"] if row["offline"]] == [full]
    controller = world.brokers[said["controller"]]
    assert f"log folders of broker {full} are full" in controller.log_text()


def test_the_only_replica_leads_on_a_full_disk(small: tuple[ClusterProcesses, dict[int, SmallDisk]]) -> None:
    world, disks = small
    world.create("one", 1, 1)
    world.create("t")
    holder = world.until_led("one", by={1, 2, 3})
    disks[holder].fill()
    writer = Writer(world, "one").start()
    until(lambda: "is full: brokers that are in sync lead" in world.brokers[holder].log_text(), "a full disk", world.log_text)
    world.until_led("t", by={1, 2, 3} - {holder})
    world.until_led("one", by={holder})
    disks[holder].drain()
    writer.wait_for(200, world)
    writer.end()
    check(world, "one", writer)
