"""What brokers of a cluster show after pictures that came late, and of topics that were deleted while they heard nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Broker, Cluster
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import (
    LiveBroker,
    PartitionMetadata,
    StopReplica,
    UpdateMetadata,
)
from penstock.broker.cluster.metadata import Told, find_unnamed, is_overtaken, on_taken
from penstock.broker.coordination.statelog import java_hash_partition
from penstock.broker.replication import requests
from penstock.broker.replication.peers import Peers
from penstock.errors import ErrorCode
from support.asking import metadata, names
from support.patience import until

WAIT_S = 60.0
T, U = b"t" * 16, b"u" * 16


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three brokers whose sessions outlast a pause."""
    with Cluster(
        brokers=3, properties={"zookeeper.session.timeout.ms": 60_000, "transaction.state.log.num.partitions": 8}
    ) as made:
        yield made


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def create(cluster: Cluster, name: str, on: int) -> None:
    """A topic of one partition, with its only replica on one broker."""
    admin = admin_of(cluster.brokers[on])  # It lives until it is answered.
    admin.create_topics([NewTopic(name, 1, replica_assignment=[[on]])])[name].result(WAIT_S)


def until_shown(cluster: Cluster, number: int, *topics: str) -> None:
    """Wait until a broker shows these topics and no others, but for internal ones."""

    def shown() -> set[str | None]:
        return {name for name in names(cluster.brokers[number]) if name is not None and not name.startswith("__")}

    until(lambda: shown() == set(topics), f"broker {number} to show {topics}", lambda: str(shown()))


def delete_unheard(cluster: Cluster, name: str, unheard: int) -> None:
    """Delete a topic while a broker stands still, to which the controller has sent an earlier picture."""
    controller = cluster.controller
    cluster.pause(unheard)
    create(cluster, "earlier", on=controller)
    admin = admin_of(cluster.brokers[controller])
    admin.delete_topics([name])[name].result(WAIT_S)


async def tell_late(broker: Broker, number: int, controller: int) -> int:
    """Tell a broker, as its controller did at first, that nobody else lives; the answer."""
    host, port = broker.bootstrap.split(":")
    peers = Peers(controller, str(metadata(broker).cluster_id))
    peers.set_brokers({number: (host, int(port))})
    try:
        # The refusal of a request of an older controller says which epochs count.
        epochs = await requests.stop_replicas(peers, StopReplica(controller, 0, number, 0, ()))
        assert epochs.error == ErrorCode.STALE_CONTROLLER_EPOCH
        late = UpdateMetadata(
            controller, epochs.controller_epoch, number, epochs.broker_epoch, (LiveBroker(number, ()),), (), number=1
        )
        return await requests.tell_metadata(peers, late)
    finally:
        await peers.stop()


def test_a_picture_that_newer_ones_have_overtaken_is_refused(cluster: Cluster) -> None:
    controller = cluster.controller
    viewer = next(iter({1, 2, 3} - {controller}))
    create(cluster, "t", on=controller)
    until_shown(cluster, viewer, "t")
    error = asyncio.run(tell_late(cluster.brokers[viewer], viewer, controller))
    assert sorted(one.node_id for one in metadata(cluster.brokers[viewer]).brokers) == [1, 2, 3]
    assert error == ErrorCode.STALE_BROKER_EPOCH
    create(cluster, "u", on=controller)
    until_shown(cluster, viewer, "t", "u")


def test_a_broker_that_is_being_told_something_hears_of_a_deletion(cluster: Cluster) -> None:
    controller = cluster.controller
    viewer = next(iter({1, 2, 3} - {controller}))
    create(cluster, "t", on=controller)
    until_shown(cluster, viewer, "t")
    delete_unheard(cluster, "t", viewer)
    cluster.resume(viewer)
    until_shown(cluster, viewer, "earlier")
    create(cluster, "t", on=controller)
    until_shown(cluster, viewer, "t", "earlier")


def test_a_new_controller_makes_a_broker_forget_what_was_deleted_before(cluster: Cluster) -> None:
    controller = cluster.controller
    viewer = next(iter({1, 2, 3} - {controller}))
    create(cluster, "t", on=controller)
    create(cluster, "kept", on=viewer)
    until_shown(cluster, viewer, "t", "kept")
    delete_unheard(cluster, "t", viewer)
    cluster.kill(controller, expire=True)
    cluster.until_live({1, 2, 3} - {controller, viewer}, {1, 2, 3} - {controller, viewer})
    cluster.resume(viewer)
    until_shown(cluster, viewer, "kept", "earlier")


def test_a_transaction_ends_though_a_topic_of_it_was_deleted_unheard(cluster: Cluster) -> None:
    controller = cluster.controller
    for name in ("t", "kept"):
        create(cluster, name, on=controller)
    for at in range(100):
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"id-{at}"})
        producer.init_transactions(WAIT_S)
        coordinator = coordinator_of(cluster, f"id-{at}")
        if coordinator != controller:
            break
    producer.begin_transaction()
    for name in ("t", "kept"):
        producer.produce(name, b"x")
    assert producer.flush(WAIT_S) == 0
    delete_unheard(cluster, "t", coordinator)
    cluster.resume(coordinator)
    producer.commit_transaction(WAIT_S)
    producer.begin_transaction()
    producer.produce("kept", b"y")
    producer.commit_transaction(WAIT_S)


def coordinator_of(cluster: Cluster, transactional_id: str) -> int:
    """The broker that coordinates a transaction."""
    count = len(metadata(cluster.brokers[1], "__transaction_state").topics[0].partitions)
    return cluster.leader("__transaction_state", java_hash_partition(transactional_id, count))


def update(number: int, *topics: bytes, is_whole: bool = True, terms: Mapping[str, int] | None = None) -> UpdateMetadata:
    """A picture of the controller of epoch 7, for the registration 70."""
    state = LeaderAndIsr(1, 0, (1,))
    shown = tuple(PartitionMetadata((str(one[:1]), 0), one, (1,), state) for one in topics)
    epochs = {"controller_epoch": 7, "broker_epoch": 70, **(terms or {})}
    return UpdateMetadata(controller=1, broker=2, brokers=(), partitions=shown, is_whole=is_whole, number=number, **epochs)


def test_pictures_of_one_term_are_taken_in_their_order() -> None:
    told = Told()
    on_taken(told, update(5))
    late = partial(is_overtaken, told)
    assert late(update(4)) and not late(update(5)) and not late(update(6))
    assert not late(update(1, terms={"controller_epoch": 8})) and not late(update(1, terms={"broker_epoch": 71}))
    on_taken(told, update(1, terms={"controller_epoch": 8}))
    assert told.number == 1
    unnumbered = {"controller_epoch": 9}
    on_taken(told, update(0, terms=unnumbered))
    assert not late(update(0, terms=unnumbered))


def test_only_a_picture_of_all_topics_misses_any_and_only_once_in_a_term() -> None:
    told, shown = Told(), [T, U]
    first, last = update(1, T, is_whole=False), update(2)
    assert find_unnamed(told, first, shown) == set()
    on_taken(told, first)
    assert find_unnamed(told, last, shown) == {U}
    assert find_unnamed(told, update(2, U), shown) == set()
    on_taken(told, last)
    assert find_unnamed(told, update(3), shown) == set()
    assert find_unnamed(told, update(1, terms={"controller_epoch": 8}), shown) == {T, U}
