"""Java's newest clients while brokers of a cluster are killed: what they were told is what is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE
from support.cluster_world import ClusterProcesses, cluster
from support.java_clients import JavaClients
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka

PARTITIONS = 3
EVERY = {1, 2, 3}
CLIENTS = ("idempotent", "transactional", "classic", "consumer")


def test_java_loses_nothing_whoever_is_killed(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """A leader, the controller, the coordinators of a transaction and of groups of both protocols, in turn, with kill -9."""
    parts: dict[str, Any] = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    with cluster(zookeeper, tmp_path, **parts) as world:
        world.create("t", PARTITIONS, min_insync_replicas="2")
        whole(world)
        java = JavaClients(world.bootstrap, "t", PARTITIONS, *CLIENTS, folder=tmp_path)
        led = partial(world.until_led, by=EVERY, isr=EVERY)
        roles: list[Callable[[], int]] = [
            lambda: led("t"),
            lambda: int(json.loads(world.node("/controller"))["brokerid"]),
            lambda: led(TRANSACTION_STATE),
            lambda: led(GROUP_OFFSETS),
        ]
        try:
            java.wait_for(20, *CLIENTS)
            for role in roles:
                killed = role()
                world.brokers[killed].kill()
                java.wait_for(20, *CLIENTS)
                world.brokers[killed].start()
                whole(world)
            java.end()
        finally:
            java.close()


def whole(world: ClusterProcesses) -> None:
    """All brokers are there, and in sync."""
    world.until_known(EVERY)
    for index in range(PARTITIONS):
        world.until_led("t", by=EVERY, isr=EVERY, partition=index)
