"""Java's newest clients while brokers of a cluster are killed, and while a lead moves: what they were told is what is there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
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


def test_java_follows_a_moved_leader_by_what_refusals_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused Produce or Fetch names the next leader (KIP-951). Metadata names the former one all that time: a client that
    believed it alone would ask that broker for ever."""
    with Cluster(properties=PROPERTIES) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2, 3]])])["t"].result(WAIT_S)
        until(lambda: brokers.isr("t", 0) == EVERY, "all to be in sync")
        brokers.expire(1)
        until(lambda: brokers.leader("t", 0) in {2, 3} and brokers.isr("t", 0) == EVERY, "another leader, and all in sync")
        java = JavaClients(brokers.bootstrap, "t", 1, "idempotent", "classic", folder=tmp_path)
        try:
            java.wait_for(20, "idempotent", "classic")
            shown = show_as_leader(monkeypatch, "t", brokers.leader("t", 0))
            until(lambda: elects_preferred(brokers, "t"), "the preferred leader")
            # What was sent to the former leader is answered by then, and read.
            java.wait_for(200, "idempotent", "classic")
            until(lambda: bool(shown), "a look at the metadata, which each refusal causes")
            assert 1 not in shown
            monkeypatch.undo()
            java.end()
        finally:
            java.close()


def show_as_leader(patch: pytest.MonkeyPatch, name: str, former: int) -> list[int]:
    """Have Metadata show that broker as the leader of a topic's first partition, in the epoch of before its successor; the
    leaders that it shows from now on."""
    shown: list[int] = []

    def tell(topic: Topic, version: int, operations: bool, live: object) -> Any:
        entry = metadata.describe(topic)
        if topic.name == name:
            led = entry.partitions[0]
            if led.leader_id != former:
                led.leader_id, led.leader_epoch = former, led.leader_epoch - 1
            shown.append(led.leader_id)
        return entry

    patch.setattr(metadata, "_encoded", tell)  # It alone keeps bytes that it has told, for later.
    return shown


def elects_preferred(brokers: Cluster, name: str) -> bool:
    """Ask the controller for it; whether the preferred replica leads. The controller may be replaced at any moment: a new
    client looks for it each time."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    with contextlib.suppress(KafkaException):
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(name, 0)]).result(WAIT_S)
    return brokers.leader(name, 0) == 1
