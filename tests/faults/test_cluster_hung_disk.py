"""A broker of a cluster whose disk hangs leaves it, so that others lead, and is in sync again once the disk answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support import faultio
from support.cluster_soak import gaps
from support.cluster_world import ClusterProcesses
from support.history import check
from support.load import Load
from support.lossy_disk import LossyDisk
from support.patience import until
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka

PROPERTIES = {"penstock.disk.hang.ms": 1500, "penstock.disk.settle.ms": 1000}


class Hanging:
    """Three brokers whose writes can be made to hang."""

    def __init__(self, zookeeper: ZooKeeper, folder: Path, library: Path) -> None:
        self.world = ClusterProcesses(zookeeper, folder=folder, properties=PROPERTIES)
        self._folder = folder
        for number, broker in self.world.brokers.items():
            broker.environment = {"LD_PRELOAD": str(library), "FAULT_CTL": str(self._control(number))}

    def _control(self, number: int) -> Path:
        return self._folder / f"control-{number}"

    def hang(self, number: int) -> None:
        """Let all writes and flushes hang in a broker's folder."""
        self._control(number).write_text(f"write hang /broker-{number}/\nsync hang /broker-{number}/\n")

    def go_on(self, number: int) -> None:
        """Let them go on."""
        self._control(number).unlink(missing_ok=True)


class Frozen:
    """Three brokers with file systems of their own, which can be frozen."""

    def __init__(self, zookeeper: ZooKeeper, folder: Path, disks: Mapping[int, LossyDisk]) -> None:
        self.world = ClusterProcesses(zookeeper, folder=folder, properties=PROPERTIES)
        self._disks = disks
        for number, disk in disks.items():
            self.world.brokers[number].data = disk.path / "data"

    def hang(self, number: int) -> None:
        """Freeze a broker's file system."""
        self._disks[number].freeze()

    def go_on(self, number: int) -> None:
        """Thaw it."""
        self._disks[number].thaw()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faultio.build(tmp_path_factory.mktemp("faultio"))


@contextlib.contextmanager
def running(made: Hanging | Frozen) -> Iterator[Hanging | Frozen]:
    """A running cluster."""
    try:
        made.world.start()
        yield made
    finally:
        for number in made.world.brokers:
            made.go_on(number)
        made.world.close()


def test_others_lead_what_a_broker_led_whose_disk_hangs(zookeeper: ZooKeeper, tmp_path: Path, library: Path) -> None:
    with running(Hanging(zookeeper, tmp_path, library)) as hanging:
        check_hang(hanging)


def test_others_lead_what_a_broker_led_whose_file_system_is_frozen(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        folders = {number: tmp_path / f"machine-{number}" for number in (1, 2, 3)}
        for folder in folders.values():
            folder.mkdir()
        disks = {number: stack.enter_context(LossyDisk(folder, "ext4")) for number, folder in folders.items()}
        check_hang(stack.enter_context(running(Frozen(zookeeper, tmp_path, disks))))


def check_hang(hanging: Hanging | Frozen) -> None:
    """A leader's disk hangs under load: all clients go on while it does, and their history has no anomaly."""
    world = hanging.world
    world.create("t", 2, min_insync_replicas="2")
    leader = world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    others = {1, 2, 3} - {leader}
    load = Load(world.bootstrap, "t", 2, 7, rest_s=0.01, stay_s=10.0)
    load.start(Load.idempotent, Load.transactional, Load.member, Load.watcher)
    try:
        load.wait_for(acknowledged=100, commits=1, ends=1)
        hanging.hang(leader)
        world.until_led("t", by=others, isr=others)
        assert "hangs: a write has been out for" in world.brokers[leader].log_text()
        load.wait_for(acknowledged=100, commits=1, ends=1)
        hanging.go_on(leader)
        world.until_led("t", by=others, isr={1, 2, 3})
        load.wait_for(acknowledged=100, commits=1, ends=1)
    finally:
        hanging.go_on(leader)
        history = load.finish(has_loss=False)
    print("longest time without an acknowledgement, by partition:", gaps(history))
    assert not check(history)
    until(lambda: "comes back to its cluster" in world.brokers[leader].log_text(), "the leader to be back", world.log_text)
