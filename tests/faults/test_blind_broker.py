"""A broker of a cluster that nobody has told anything yet says of no topic that there is none: clients would forget it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from support.asking import metadata
from support.cluster_world import cluster
from support.patience import until
from support.zookeeper import ZooKeeper, connected

pytestmark = pytest.mark.kafka


def test_a_broker_without_a_controller_knows_of_no_topic_whether_it_is(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, count=1) as world:
        world.create("t", 1, 1)
        world.brokers[1].kill()
        servers, _, root = world.servers.partition("/")
        with connected(servers) as other:
            stat = other.exists(f"/{root}/controller")
            while stat is not None:  # The session of the process that was killed.
                time.sleep(0.05)
                stat = other.exists(f"/{root}/controller")
            other.create(f"/{root}/controller", b'{"version":1,"brokerid":9,"timestamp":"1"}', ephemeral=True)
            world.brokers[1].start()
            told = metadata(world.brokers[1], "t", "never-made")
            assert [(one.name, one.error_code) for one in told.topics] == [
                ("t", ErrorCode.LEADER_NOT_AVAILABLE),
                ("never-made", ErrorCode.LEADER_NOT_AVAILABLE),
            ]
            assert not told.brokers
        until(lambda: world.leader("t") == 1, "the broker to be the controller", world.log_text)
        (never,) = metadata(world.brokers[1], "never-made").topics
        assert never.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
