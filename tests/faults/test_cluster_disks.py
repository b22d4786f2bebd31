"""A log folder of a broker in a cluster fails: others lead what it led there, and it goes on with its other folders."""

from __future__ import annotations

import errno
import json
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.process import BrokerProcess
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import AlterReplicaLogDirsRequest
from support import faultio
from support.asking import metadata
from support.cluster_clients import check_answered, write
from support.cluster_world import ClusterProcesses, cluster
from support.harness import WireConnection
from support.patience import until
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka


def shows_offline(world: ClusterProcesses, number: int, topic: str, replicas: list[int]) -> bool:
    """Whether a broker's Metadata has these replicas of a topic's first partition as offline."""
    (found,) = metadata(world.brokers[number], topic).topics
    return [one.offline_replicas for one in found.partitions] == [replicas]


def with_folder(world: ClusterProcesses, folder: Path, environment: dict[str, str] | None = None) -> BrokerProcess:
    """The first broker, started again with one log folder more."""
    broker = world.brokers[1]
    assert broker.stop() == 0
    broker.properties["log.dirs"] = folder
    broker.environment = environment or {}
    broker.start()
    world.until_known({1, 2})
    return broker


def move(broker: BrokerProcess, topic: str, folder: Path) -> int:
    """Ask for a topic's first partition to be moved into a log folder; the error code."""
    own = AlterReplicaLogDirsRequest
    topics = [own.AlterReplicaLogDirTopic(name=topic, partitions=[0])]
    with WireConnection(broker.bootstrap) as wire:
        answer = wire.ask(own(dirs=[own.AlterReplicaLogDir(path=str(folder), topics=topics)]), 2)
    return int(answer.results[0].partitions[0].error_code)


def test_a_replica_stays_in_its_folder(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, 2) as world:
        broker = with_folder(world, tmp_path / "other")
        world.create("t", 1, 2)
        world.until_led("t", by={1, 2}, isr={1, 2})
        writers, before = [write(world, "t")], world.state("t")
        folders = (broker.data, tmp_path / "other")
        (home,) = (folder for folder in folders if (folder / "t-0").is_dir())
        (away,) = set(folders) - {home}
        assert move(broker, "t", away) == ErrorCode.INVALID_REQUEST
        writers.append(write(world, "t"))
        assert (home / "t-0").is_dir() and not list(away.glob("t-0*")) and world.state("t") == before
        check_answered(world, "t", *writers)


def test_a_folder_that_fails_takes_only_its_replicas_along(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    shim, control, other = faultio.build(tmp_path), tmp_path / "control", tmp_path / "other"
    with cluster(zookeeper, tmp_path, 2) as world:
        broker = with_folder(world, other, {"LD_PRELOAD": str(shim), "FAULT_CTL": str(control)})
        world.create("here", 1, 2)
        until((broker.data / "here-0").is_dir, "the first topic", world.log_text)
        world.create("there", 1, 2)
        until(lambda: (broker.data / "here-0").is_dir() and (other / "there-0").is_dir(), "a topic in each", world.log_text)
        for topic in ("here", "there"):
            world.until_led(topic, by={1, 2}, isr={1, 2})
        writers = {topic: [write(world, topic)] for topic in ("here", "there")}
        control.write_text(f"write {errno.EIO} {other}/there\n")
        writers["there"].append(write(world, "there"))
        world.until_led("there", by={2}, isr={2})
        for number in world.brokers:
            until(partial(shows_offline, world, number, "there", [1]), "the lost replica to be shown", world.log_text)
            assert shows_offline(world, number, "here", [])
        assert broker.running
        control.write_text("")
        world.until_led("here", by={1, 2}, isr={1, 2})
        writers["here"].append(write(world, "here"))
        (failed,) = json.loads(world.node("/penstock/log_dirs/1"))["failed"]
        assert failed in (other / "meta.properties").read_text()
        broker.kill()
        broker.start()
        until(lambda: "is registered" in broker.log_text().rpartition("open files")[2], "the next run", world.log_text)
        for topic in ("here", "there"):
            world.until_led(topic, by={1, 2}, isr={1, 2})
            check_answered(world, topic, *writers[topic])
        for number in world.brokers:
            until(partial(shows_offline, world, number, "there", []), "no replica to be lost", world.log_text)
        until(lambda: "failed" not in json.loads(world.node("/penstock/log_dirs/1")), "the note taken back", world.log_text)
