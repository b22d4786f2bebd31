"""Java's newest clients while brokers of a cluster are killed, and while leads move: what they were told is what is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Cluster
from penstock.broker.api import metadata
from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE, Topic
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.java_clients import JavaClients
from support.moving_cluster import PROPERTIES
from support.patience import until
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


def test_java_follows_a_move_without_a_look_at_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals of produces and fetches name the next leader (KIP-951). Metadata shows the leader of before the move: clients
    that believed it alone would ask that one for ever."""
    with Cluster(properties=PROPERTIES) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        topic = NewTopic("t", 1, replica_assignment=[[1, 2, 3]])
        admin.create_topics([topic])["t"].result(WAIT_S)
        until(lambda: brokers.isr("t", 0) == EVERY, "all to be in sync")
        brokers.kill(1, expire=True)
        until(lambda: brokers.leader("t", 0) in {2, 3}, "another leader")
        brokers.start(1)
        until(lambda: brokers.isr("t", 0) == EVERY, "all to be in sync again")
        java = JavaClients(brokers.bootstrap, "t", 1, "idempotent", "classic", folder=tmp_path)
        try:
            java.wait_for(20, "idempotent", "classic")
            show_as_leader(monkeypatch, "t", brokers.leader("t", 0))
            admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)]).result(WAIT_S)
            until(lambda: brokers.leader("t", 0) == 1, "the preferred leader")
            java.wait_for(200, "idempotent", "classic")
            monkeypatch.undo()
            java.end()
        finally:
            java.close()


def show_as_leader(patch: pytest.MonkeyPatch, name: str, former: int) -> None:
    """Have Metadata show that broker as the leader of a topic's first partition, in the epoch of before its successor."""
    real = metadata.describe

    def describe(topic: Topic) -> Any:
        entry = real(topic)
        if topic.name == name and entry.partitions[0].leader_id != former:
            entry.partitions[0].leader_id = former
            entry.partitions[0].leader_epoch -= 1
        return entry

    patch.setattr(metadata, "describe", describe)
