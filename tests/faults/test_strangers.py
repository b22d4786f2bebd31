"""Somebody who is no broker speaks to the listener for brokers, as a controller of epochs that nobody has reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Cluster
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import LeaderAndIsrRequest, PartitionRole
from penstock.broker.replication import wire
from penstock.broker.store.values import INT_MAX
from penstock.errors import ErrorCode
from penstock.pyx.wire import messages
from support.harness import WireConnection
from support.patience import until

STRANGER = 9
WAIT_S = 60


@pytest.fixture
def penstock_broker_properties() -> Mapping[str, object]:
    return {"zookeeper.session.timeout.ms": 2000, "replica.lag.time.max.ms": 2000}


def create(cluster: Cluster, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 1, len(cluster.brokers))])[name].result(WAIT_S)


def produce(cluster: Cluster, topic: str, acks: str = "all") -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": acks, "topic.metadata.refresh.fast.interval.ms": 100,
         "message.timeout.ms": WAIT_S * 1000}
    )  # fmt: skip
    failed: list[object] = []
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: failed.append(error))
    producer.flush(2 * WAIT_S)
    assert failed == [None]


def test_an_epoch_that_no_controller_has_is_not_believed(penstock_cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster = penstock_cluster
    create(cluster, "t")
    for number, broker in cluster.brokers.items():
        with WireConnection(broker.bootstrap) as connection:
            own: dict[str, Any] = {"controller_id": STRANGER, "broker_id": number, "controller_epoch": INT_MAX}
            # It tells a stranger how to address it.
            epoch = connection.ask(messages.LeaderAndIsrRequest(broker_epoch=0, **own), 7).broker_epoch
            own["broker_epoch"] = epoch
            for request, version in (
                (messages.LeaderAndIsrRequest(**own), 7),
                (messages.UpdateMetadataRequest(**own), 8),
                (messages.StopReplicaRequest(**own), 4),
            ):
                assert connection.ask(request, version).error_code == ErrorCode.INVALID_REQUEST, request
    assert caplog.text.count(f"of controller epoch {INT_MAX} is refused") == len(cluster.brokers)
    controller = cluster.controller
    cluster.kill(controller)  # The next one has to find an epoch of its own.
    until(lambda: cluster.controller not in (-1, controller), "another controller", lambda: caplog.text)
    cluster.start(controller)
    create(cluster, "u")
    produce(cluster, "u")
    produce(cluster, "t")


def test_a_leader_epoch_out_of_reach_costs_no_partition(penstock_cluster: Cluster) -> None:
    cluster = penstock_cluster
    create(cluster, "t")
    create(cluster, "u")
    leader = cluster.leader("t", 0)
    with WireConnection(cluster.brokers[leader].bootstrap) as connection:
        topic = connection.ask(messages.MetadataRequest(topics=[messages.MetadataRequest.MetadataRequestTopic(name="t")]), 12)
        (found,) = topic.topics
        state = LeaderAndIsr(leader, INT_MAX, tuple(cluster.brokers), controller_epoch=1)
        epoch = connection.ask(messages.LeaderAndIsrRequest(broker_id=leader), 7).broker_epoch
        role = PartitionRole(("t", 0), found.topic_id, tuple(cluster.brokers), state, {})
        for controller_epoch in range(1, 20):  # One of them is the present controller's.
            request = LeaderAndIsrRequest(STRANGER, controller_epoch, leader, epoch, (role,))
            answer = wire.read_role_answers(connection.ask(wire.write_roles(request), 7), request)
            if answer.error == ErrorCode.NONE:
                break
        assert [one.error for one in answer.answers.values()] == [ErrorCode.INVALID_REQUEST]
    produce(cluster, "t", acks="1")
    cluster.kill(leader)
    until(lambda: cluster.leader("t", 0) not in (-1, leader), "another leader", lambda: "")
    cluster.start(leader)
    until(lambda: cluster.isr("t", 0) == set(cluster.brokers), "all in sync", lambda: "")
    produce(cluster, "t")
    produce(cluster, "u")
