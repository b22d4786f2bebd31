"""Configs that one broker of a cluster alters are those of all its brokers, and no alteration undoes another one."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from penstock.broker import Broker, Cluster
from penstock.errors import ErrorCode
from penstock.pyx.wire import messages as wire
from support.asking import create, metadata
from support.config_asking import alter, alteration
from support.entity_asking import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    SET,
    TOPIC,
    alter_configs,
    own_configs,
    passwords,
    quotas,
    set_password,
    set_quotas,
)
from support.harness import WireConnection
from support.patience import until

WAIT_S = 60.0
ROUNDS = 25
Look = Callable[[Broker], object]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers for the tests of this file."""
    with Cluster(brokers=3, properties={"offsets.topic.num.partitions": 4, "group.initial.rebalance.delay.ms": 0}) as made:
        yield made


def until_alike(cluster: Cluster, look: Look, expected: object) -> None:
    """Wait until every broker shows this."""

    def seen() -> dict[int, object]:
        return {number: look(broker) for number, broker in cluster.brokers.items()}

    until(lambda: all(found == expected for found in seen().values()), f"{expected} on all brokers", lambda: str(seen()))


def new_topic(cluster: Cluster, partitions: int = 1) -> str:
    """A topic that all brokers know."""
    name = "t" + secrets.token_hex(4)
    create(cluster.brokers[1], name, partitions=partitions)
    until_alike(cluster, lambda one: metadata(one, name).topics[0].error_code, 0)
    return name


def test_configs_of_groups(cluster: Cluster) -> None:
    name = "g ü/" + secrets.token_hex(4)
    alter_configs(cluster.brokers[1], GROUP, name, consumer_session_timeout_ms="50000")
    until_alike(cluster, lambda one: own_configs(one, GROUP, name), {"consumer.session.timeout.ms": "50000"})
    alter_configs(cluster.brokers[2], GROUP, name, DELETE, consumer_session_timeout_ms="")
    until_alike(cluster, lambda one: own_configs(one, GROUP, name), {})


def test_a_group_obeys_what_was_altered_at_another_broker(cluster: Cluster) -> None:
    group, topic = "obeys-" + secrets.token_hex(4), new_topic(cluster)

    def coordinator() -> int:
        with WireConnection(cluster.brokers[1].bootstrap) as connection:
            found = connection.ask(wire.FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators[0]
        return int(found.node_id) if found.error_code == 0 else 0

    until(lambda: coordinator() in cluster.brokers, "a coordinator of the group")
    others = [broker for number, broker in cluster.brokers.items() if number != coordinator()]

    def heartbeat_ms() -> int:
        join = wire.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=secrets.token_hex(8),
            member_epoch=0,
            rebalance_timeout_ms=5000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        )
        with WireConnection(cluster.brokers[coordinator()].bootstrap) as connection:
            answer = connection.ask(join, 1)
        return int(answer.heartbeat_interval_ms) if answer.error_code == 0 else 0

    alter_configs(others[0], GROUP, group, consumer_heartbeat_interval_ms="6100")
    until(lambda: heartbeat_ms() == 6100, "the group's heartbeat interval")


@pytest.mark.parametrize(
    "parts",
    [
        {"user": "a/b ü"},
        {"user": None},
        {"client-id": "c*d"},
        {"user": "u%", "client-id": "<default>"},
        {"user": None, "client-id": None},
        {"ip": "::1"},
        {"ip": None},
    ],
)
def test_quotas(cluster: Cluster, parts: dict[str, str | None]) -> None:
    key = "connection_creation_rate" if "ip" in parts else "consumer_byte_rate"
    entity = tuple(parts.items())
    before = quotas(cluster.brokers[1])
    set_quotas(cluster.brokers[1], parts, **{key: 5.0})
    until_alike(cluster, lambda one: quotas(one).get(entity), {key: 5.0})
    set_quotas(cluster.brokers[2], parts, **{key: 7.0})
    until_alike(cluster, lambda one: quotas(one).get(entity), {key: 7.0})
    set_quotas(cluster.brokers[3], parts, **{key: None})
    until_alike(cluster, quotas, before)


def test_more_quotas_than_one_step_takes(cluster: Cluster) -> None:
    own = wire.AlterClientQuotasRequest
    users = [f"many-{number}" for number in range(300)]
    for value in (3.0, None):
        entries = [
            own.EntryData(
                entity=[own.EntityData(entity_type="user", entity_name=user)],
                ops=[own.OpData(key="producer_byte_rate", value=value or 0.0, remove=value is None)],
            )
            for user in users
        ]
        with WireConnection(cluster.brokers[1].bootstrap) as connection:
            assert {one.error_code for one in connection.ask(own(entries=entries), 1).entries} == {0}
        count = 0 if value is None else len(users)
        until_alike(cluster, lambda one: sum(dict(entity)["user"] in users for entity in quotas(one)), count)


def test_credentials(cluster: Cluster) -> None:
    def of_both(broker: Broker) -> object:
        return {user: found for user, found in passwords(broker).items() if user in ("alice", "bob")}

    set_password(cluster.brokers[1], "alice", b"pencil")
    until_alike(cluster, of_both, {"alice": [(1, 4096)]})
    set_password(cluster.brokers[2], "alice", b"pen", 5000)
    # Broker 3 may not have heard of it: what the store has is what can be deleted.
    set_password(cluster.brokers[3], "bob", b"pencil")
    set_password(cluster.brokers[1], "bob", None)
    set_password(cluster.brokers[3], "alice", None)
    until_alike(cluster, of_both, {})


def test_configs_of_all_brokers_are_in_force_in_each(cluster: Cluster) -> None:
    topic = new_topic(cluster, 3)

    def in_force(broker: Broker) -> str | None:
        asked = wire.DescribeConfigsRequest
        resource = asked.DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=["segment.bytes"])
        with WireConnection(broker.bootstrap) as connection:
            (result,) = connection.ask(asked(resources=[resource]), 4).results
        return result.configs[0].value if result.configs else None

    alter_configs(cluster.brokers[2], BROKER, "", log_segment_bytes="20000000")
    until_alike(cluster, lambda one: own_configs(one, BROKER, "").get("log.segment.bytes"), "20000000")
    until_alike(cluster, in_force, "20000000")
    alter_configs(cluster.brokers[3], BROKER, "", DELETE, log_segment_bytes="")
    until_alike(cluster, in_force, "1073741824")


def test_a_broker_is_altered_through_a_client_that_was_named_another_one(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.brokers[1].bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "2", incremental_configs=[])
    resource.add_incremental_config(ConfigEntry("max.connections", "900", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    assert own_configs(cluster.brokers[2], BROKER, "2") == {"max.connections": "900"}
    asked = ConfigResource(ConfigResource.Type.BROKER, "2")
    assert admin.describe_configs([asked])[asked].result(WAIT_S)["max.connections"].value == "900"
    assert own_configs(cluster.brokers[1], BROKER, "1") == {}
    with WireConnection(cluster.brokers[1].bootstrap) as connection:
        ((error, why),) = alter(connection, alteration(BROKER, "2", SET, **{"max.connections": "901"}))
    assert (error, why) == (ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 2")
    alter_configs(cluster.brokers[2], BROKER, "2", DELETE, max_connections="")


def _of_topic(cluster: Cluster) -> tuple[Callable[[Broker, int, int], None], Look]:
    topic = new_topic(cluster)
    keys = "retention.ms", "delete.retention.ms", "flush.ms"

    def change(broker: Broker, which: int, value: int) -> None:
        with WireConnection(broker.bootstrap) as connection:
            assert alter(connection, alteration(TOPIC, topic, SET, **{keys[which]: str(value)})) == [(0, "")]

    return change, lambda broker: [own_configs(broker, TOPIC, topic).get(key) for key in keys]


def _of_group(cluster: Cluster) -> tuple[Callable[[Broker, int, int], None], Look]:
    group = "raced-" + secrets.token_hex(4)
    keys = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms"
    least = 45_000, 5_000, 1_000

    def change(broker: Broker, which: int, value: int) -> None:
        with WireConnection(broker.bootstrap) as connection:
            asked = alteration(GROUP, group, SET, **{keys[which]: str(least[which] + value)})
            assert alter(connection, asked) == [(0, "")]

    def look(broker: Broker) -> list[str | None]:
        own = own_configs(broker, GROUP, group)
        return [None if key not in own else str(int(own[key] or 0) - low) for key, low in zip(keys, least, strict=True)]

    return change, look


def _of_all_brokers(cluster: Cluster) -> tuple[Callable[[Broker, int, int], None], Look]:
    keys = "log.retention.bytes", "log.flush.interval.messages", "max.connection.creation.rate"

    def change(broker: Broker, which: int, value: int) -> None:
        with WireConnection(broker.bootstrap) as connection:
            assert alter(connection, alteration(BROKER, "", SET, **{keys[which]: str(value + 1)})) == [(0, "")]

    def look(broker: Broker) -> list[str | None]:
        own = own_configs(broker, BROKER, "")
        return [None if key not in own else str(int(own[key] or 0) - 1) for key in keys]

    return change, look


def _of_user(cluster: Cluster) -> tuple[Callable[[Broker, int, int], None], Look]:
    user = "raced-" + secrets.token_hex(4)

    def change(broker: Broker, which: int, value: int) -> None:
        if which == 0:
            set_quotas(broker, {"user": user}, producer_byte_rate=value + 1.0)
        elif which == 1:
            set_quotas(broker, {"user": user, "client-id": "c"}, producer_byte_rate=value + 1.0)
        else:
            set_password(broker, user, b"pencil", 4096 + value)

    def look(broker: Broker) -> list[str | None]:
        found, credential = quotas(broker), passwords(broker).get(user)
        values = [found.get(parts) for parts in ((("user", user),), (("user", user), ("client-id", "c")))]
        rates = [None if one is None else str(int(one["producer_byte_rate"]) - 1) for one in values]
        return [*rates, None if credential is None else str(credential[0][1] - 4096)]

    return change, look


@pytest.mark.parametrize("kind", [_of_topic, _of_group, _of_all_brokers, _of_user], ids=lambda kind: kind.__name__[4:])
def test_brokers_that_alter_other_keys_in_one_moment_undo_nothing(
    cluster: Cluster, kind: Callable[[Cluster], tuple[Callable[[Broker, int, int], None], Look]]
) -> None:
    change, look = kind(cluster)
    failures: list[BaseException] = []
    start = threading.Barrier(len(cluster.brokers))

    def run(number: int) -> None:
        try:
            for value in range(ROUNDS):
                start.wait(WAIT_S)
                change(cluster.brokers[number], number - 1, value)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            failures.append(error)
            start.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in cluster.brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    until_alike(cluster, look, [str(ROUNDS - 1)] * 3)


def test_brokers_that_append_to_one_list_in_one_moment_append_all(cluster: Cluster) -> None:
    topic = new_topic(cluster)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for index in range(10):
                asked = {"follower.replication.throttled.replicas": f"{index}:{number}"}
                with WireConnection(cluster.brokers[number].bootstrap) as connection:
                    assert alter(connection, alteration(TOPIC, topic, APPEND, **asked)) == [(0, "")]
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in cluster.brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    expected = {f"{index}:{number}" for index in range(10) for number in cluster.brokers}
    until_alike(
        cluster,
        lambda one: set((own_configs(one, TOPIC, topic)["follower.replication.throttled.replicas"] or "").split(",")),
        expected,
    )


def test_a_new_topic_is_altered_at_a_broker_that_may_not_have_heard_of_it(cluster: Cluster) -> None:
    for number in range(10):
        topic = "t" + secrets.token_hex(4)
        create(cluster.brokers[1], topic)
        alter_configs(cluster.brokers[2 + number % 2], TOPIC, topic, flush_ms="1000")
        until_alike(cluster, lambda one, topic=topic: metadata(one, topic).topics[0].error_code, 0)  # type: ignore[misc]
        until_alike(cluster, lambda one, topic=topic: own_configs(one, TOPIC, topic), {"flush.ms": "1000"})  # type: ignore[misc]


def test_every_broker_lists_all_brokers(cluster: Cluster) -> None:
    def listed(broker: Broker) -> list[tuple[int, str]]:
        with WireConnection(broker.bootstrap) as connection:
            found = connection.ask(wire.ListConfigResourcesRequest(resource_types=[BROKER, 8]), 1).config_resources
        return [(one.resource_type, one.resource_name) for one in found if one.resource_name]

    until_alike(cluster, listed, [(kind, str(number)) for kind in (BROKER, 8) for number in cluster.brokers])
