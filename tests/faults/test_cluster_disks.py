"""A log folder of a broker in a cluster fails: others lead what it led there, and it goes on with its other folders."""

from __future__ import annotations

import errno
import json
from functools import partial
from pathlib import Path

import pytest

from support import faultio
from support.asking import metadata
from support.cluster_clients import check_answered, write
from support.cluster_world import ClusterProcesses, cluster
from support.patience import until
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka


def shows_offline(world: ClusterProcesses, number: int, topic: str, replicas: list[int]) -> bool:
    """Whether a broker's Metadata has these replicas of a topic's first partition as offline."""
    (found,) = metadata(world.brokers[number], topic).topics
    return [one.offline_replicas for one in found.partitions] == [replicas]


def test_a_folder_that_fails_takes_only_its_replicas_along(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    shim, control, other = faultio.build(tmp_path), tmp_path / "control", tmp_path / "other"
    with cluster(zookeeper, tmp_path, 2) as world:
        broker = world.brokers[1]
        assert broker.stop() == 0
        broker.properties["log.dirs"] = other
        broker.environment = {"LD_PRELOAD": str(shim), "FAULT_CTL": str(control)}
        broker.start()
        world.until_known({1, 2})
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
