"""Configs that tools of Kafka 3 alter in ZooKeeper, and the nodes by which our brokers tell each other of changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.broker.process import BrokerProcess
from support.cluster_world import ClusterProcesses, cluster
from support.entity_asking import (
    BROKER,
    GROUP,
    TOPIC,
    alter_configs,
    own_configs,
    passwords,
    quotas,
    set_password,
    set_quotas,
)
from support.patience import until
from support.zookeeper import ZooKeeper, connected, tool

pytestmark = pytest.mark.kafka

TOOL = "kafka.admin.ConfigCommand"


@pytest.fixture(scope="module")
def world(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three brokers with a topic `t`, for the tests of this file."""
    with cluster(zookeeper, tmp_path_factory.mktemp("world")) as made:
        made.create("t")
        made.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
        yield made


def until_alike(world: ClusterProcesses, look: Callable[[BrokerProcess], object], expected: object) -> None:
    until(
        lambda: all(look(broker) == expected for broker in world.brokers.values()),
        f"{expected} on all brokers",
        lambda: f"{[look(broker) for broker in world.brokers.values()]}\n{world.log_text()}",
    )


def tell(world: ClusterProcesses, content: bytes) -> None:
    """Write a node that says that configs are others, as a tool does."""
    with connected(world.servers) as client:
        client.create("/config/changes/config_change_", content, sequence=True)


def write(world: ClusterProcesses, entity_path: str, content: bytes) -> None:
    """Write the node of an entity's configs, and tell nobody."""
    with connected(world.servers) as client:
        if client.exists(f"/config/{entity_path}"):
            client.set(f"/config/{entity_path}", content)
        else:
            client.create(f"/config/{entity_path}", content, makepath=True)


def put(world: ClusterProcesses, entity_path: str, **configs: str) -> None:
    """Write the node of an entity's configs, then the node that says so."""
    write(world, entity_path, json.dumps({"version": 1, "config": configs}).encode())
    tell(world, json.dumps({"version": 2, "entity_path": entity_path}).encode())


def registrations(world: ClusterProcesses) -> list[int]:
    """The broker epochs."""
    with connected(world.servers) as client:
        return [client.get(f"/brokers/ids/{number}")[1].czxid for number in world.brokers]


def test_credentials_that_kafka_s_own_tool_writes_and_removes(world: ClusterProcesses) -> None:
    user = ("--zookeeper", world.servers, "--alter", "--entity-type", "users", "--entity-name", "a b/c")
    tool(TOOL, *user, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=pencil]")
    until_alike(world, passwords, {"a b/c": [(1, 8192)]})
    set_quotas(world.brokers[2], {"user": "a b/c"}, producer_byte_rate=5.0)
    tool(TOOL, *user, "--delete-config", "SCRAM-SHA-256")
    until_alike(world, passwords, {})
    until_alike(world, quotas, {(("user", "a b/c"),): {"producer_byte_rate": 5.0}})
    set_quotas(world.brokers[3], {"user": "a b/c"}, producer_byte_rate=None)
    until_alike(world, quotas, {})


def test_what_our_brokers_write_is_what_kafka_s_own_tool_reads(world: ClusterProcesses) -> None:
    set_password(world.brokers[1], "x y", b"pencil")
    said = tool(TOOL, "--zookeeper", world.servers, "--describe", "--entity-type", "users", "--entity-name", "x y")
    assert "SCRAM-SHA-256=salt=" in said and "iterations=4096" in said
    set_quotas(world.brokers[1], {"user": "x y", "client-id": None}, consumer_byte_rate=5.0)
    set_quotas(world.brokers[2], {"ip": "::1"}, connection_creation_rate=5.0)
    alter_configs(world.brokers[2], GROUP, "g*", consumer_session_timeout_ms="50000")
    alter_configs(world.brokers[3], BROKER, "", max_connections="900")
    alter_configs(world.brokers[3], BROKER, "3", max_connections="901")
    alter_configs(world.brokers[3], TOPIC, "t", flush_ms="1000")
    with connected(world.servers) as client:
        names = sorted(client.get_children("/config/changes"))
        told = [json.loads(client.get(f"/config/changes/{name}")[0]) for name in names]
        assert client.get("/config/users/x%20y/clients/<default>")[0] == b'{"version":1,"config":{"consumer_byte_rate":"5"}}'
    users = ["users/x%20y", "users/x%20y/clients/<default>"]
    expected = [*users, "ips/%3A%3A1", "groups/g%2A", "brokers/<default>", "brokers/3", "topics/t"]
    assert told[-len(expected) :] == [{"version": 2, "entity_path": path} for path in expected]
    set_password(world.brokers[2], "x y", None)
    set_quotas(world.brokers[2], {"user": "x y", "client-id": None}, consumer_byte_rate=None)
    set_quotas(world.brokers[2], {"ip": "::1"}, connection_creation_rate=None)
    with connected(world.servers) as client:
        assert client.get_children("/config/users") == client.get_children("/config/ips") == []


def test_nodes_that_a_tool_writes_are_in_force_in_every_broker(world: ClusterProcesses) -> None:
    put(world, "groups/g", **{"consumer.session.timeout.ms": "51000"})
    until_alike(world, lambda one: own_configs(one, GROUP, "g"), {"consumer.session.timeout.ms": "51000"})
    put(world, "clients/c", producer_byte_rate="7")
    until_alike(world, lambda one: quotas(one).get((("client-id", "c"),)), {"producer_byte_rate": 7.0})
    put(world, "brokers/<default>", **{"log.segment.bytes": "20000000"})
    until_alike(world, lambda one: own_configs(one, BROKER, ""), {"log.segment.bytes": "20000000"})
    put(world, "brokers/2", **{"max.connections": "77", "zookeeper.connect": "elsewhere"})
    until(lambda: own_configs(world.brokers[2], BROKER, "2") == {"max.connections": "77"}, "broker 2's", world.log_text)
    assert own_configs(world.brokers[1], BROKER, "1") == {}
    put(world, "topics/t", **{"flush.ms": "2000"})
    until_alike(world, lambda one: own_configs(one, TOPIC, "t"), {"flush.ms": "2000"})


def test_an_address_that_a_tool_has_not_encoded_can_be_altered(world: ClusterProcesses) -> None:
    with connected(world.servers) as client:
        client.create("/config/ips/::2", b'{"version":1,"config":{"connection_creation_rate":"9"}}', makepath=True)
    tell(world, b'{"version":2,"entity_path":"ips/::2"}')
    parts = (("ip", "::2"),)
    until_alike(world, lambda one: quotas(one).get(parts), {"connection_creation_rate": 9.0})
    world.brokers[3].restart()
    assert quotas(world.brokers[3])[parts] == {"connection_creation_rate": 9.0}
    set_quotas(world.brokers[3], {"ip": "::2"}, connection_creation_rate=None)
    until_alike(world, lambda one: quotas(one).get(parts), None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"version":2,"entity_path":"planets/mars"}', "altered the configs of `planets/mars`, which no broker"),
        (b'{"version":2,"entity_path":"users/a/b"}', "altered the configs of `users/a/b`, which no broker"),
        (b'{"version":2,"entity_path":"' + b"x" * 1000 + b'"}', f"altered the configs of `{'x' * 200}`, which no broker"),
        (b'{"version":2,"entity_path":"topics/"}', "no entity has the path 'topics/'"),
        (b'{"version":2,"entity_path":"topics/.."}', "no entity has the path 'topics/..'"),
        (b'{"version":2,"entity_path":"groups//g"}', "no entity has the path 'groups//g'"),
        (b'{"version":2,"entity_path":"groups/a\\n\\ud800"}', "no entity has the path 'groups/a\\n\\ud800'"),
        (b'{"version":2}', "`entity_path` should be a text"),
        (b'{"version":3,"entity_path":"topics/t"}', "`version` should be a whole number from 1 to 2"),
        (b"\xff", "it should be JSON"),
        (b"", "it should be JSON"),
    ],
)
def test_a_change_that_no_broker_understands_is_one_sentence(world: ClusterProcesses, content: bytes, says: str) -> None:
    before = {number: broker.log_text().count(says) for number, broker in world.brokers.items()}
    epochs = registrations(world)
    tell(world, content)
    for number, broker in world.brokers.items():
        once_more = before[number] + 1
        until(lambda broker=broker, count=once_more: broker.log_text().count(says) == count, says, world.log_text)  # type: ignore[misc]
    assert registrations(world) == epochs, "no session was given up for it"
    # The next change is taken over: version 1, as Kafka 0.9 writes it.
    with connected(world.servers) as client:
        client.set("/config/topics/t", b'{"version":1,"config":{"flush.ms":"3000"}}')
    tell(world, b'{"version":1,"entity_type":"topics","entity_name":"t"}')
    until_alike(world, lambda one: own_configs(one, TOPIC, "t"), {"flush.ms": "3000"})
    with connected(world.servers) as client:
        client.set("/config/topics/t", b'{"version":1,"config":{}}')
    tell(world, b'{"version":2,"entity_path":"topics/t"}')
    until_alike(world, lambda one: own_configs(one, TOPIC, "t"), {})


def test_configs_that_can_not_be_leave_what_was_in_force(world: ClusterProcesses) -> None:
    put(world, "groups/odd", **{"consumer.session.timeout.ms": "52000"})
    until_alike(world, lambda one: own_configs(one, GROUP, "odd"), {"consumer.session.timeout.ms": "52000"})
    partly = b'{"version":1,"config":{"speed":"1","consumer.session.timeout.ms":"52000"}}'
    for path, content, says in (
        ("groups/odd", partly, "Unknown group config name: speed"),
        ("groups/odd", b"{", "an entity keeps the configs that it had"),
        ("brokers/<default>", b"[]", "the configs that were altered for all brokers stay as they were"),
    ):  # fmt: skip
        write(world, path, content)
        tell(world, json.dumps({"version": 2, "entity_path": path}).encode())
        for broker in world.brokers.values():
            until(lambda broker=broker, says=says: says in broker.log_text(), says, world.log_text)  # type: ignore[misc]
        until_alike(world, lambda one: own_configs(one, GROUP, "odd"), {"consumer.session.timeout.ms": "52000"})
    # An alteration writes them anew.
    alter_configs(world.brokers[1], GROUP, "odd", consumer_heartbeat_interval_ms="6000")
    alter_configs(world.brokers[1], BROKER, "", max_connections="902")
    both = {"consumer.session.timeout.ms": "52000", "consumer.heartbeat.interval.ms": "6000"}
    until_alike(world, lambda one: own_configs(one, GROUP, "odd"), both)
    until_alike(world, lambda one: own_configs(one, BROKER, "").get("max.connections"), "902")
    with connected(world.servers) as client:
        assert json.loads(client.get("/config/groups/odd")[0])["config"] == both


def test_a_broker_whose_session_was_lost_reads_all_configs_again(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path) as world:
        world.pause(3)
        world.until_known({1, 2})
        alter_configs(world.brokers[1], GROUP, "g", consumer_session_timeout_ms="50000")
        alter_configs(world.brokers[1], BROKER, "", max_connections="900")
        set_quotas(world.brokers[2], {"user": "u"}, producer_byte_rate=5.0)
        with connected(world.servers) as client:
            for name in client.get_children("/config/changes"):
                client.delete(f"/config/changes/{name}")
        world.resume(3)
        until_alike(world, lambda one: own_configs(one, GROUP, "g"), {"consumer.session.timeout.ms": "50000"})
        until_alike(world, lambda one: own_configs(one, BROKER, ""), {"max.connections": "900"})
        until_alike(world, quotas, {(("user", "u"),): {"producer_byte_rate": 5.0}})
