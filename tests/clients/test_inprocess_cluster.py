"""A cluster inside the test's process, used by other people's clients, while its brokers are killed, paused and cut off."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Broker, Cluster
from penstock.errors import KafkaError
from penstock.pipeline.clients.producer import Producer as OurProducer
from support.patience import LIMIT_S, until

SESSION_MS = 2000
PARTITIONS = 1_000
DELAY_S = 0.35


@pytest.fixture
def penstock_broker_properties() -> Mapping[str, object]:
    return {"zookeeper.session.timeout.ms": SESSION_MS, "replica.lag.time.max.ms": 2000}


def create(cluster: Cluster, name: str, **configs: str) -> None:
    """A topic of one partition, with a replica on each broker."""
    topic = NewTopic(name, 1, len(cluster.brokers), config={key.replace("_", "."): text for key, text in configs.items()})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # It lives until it is answered.
    admin.create_topics([topic])[name].result(60)


def idempotent(cluster: Cluster) -> Producer:
    """A producer whose records are acknowledged by all."""
    return Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True,
         "topic.metadata.refresh.fast.interval.ms": 100, "message.timeout.ms": 60_000}
    )  # fmt: skip


def produce(cluster: Cluster, topic: str, values: list[bytes], producer: Producer | None = None) -> list[int]:
    """Offsets in the order of the values, each acknowledged by all."""
    producer = producer or idempotent(cluster)
    offsets: list[int] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, message: offsets.append(message.offset()))
    assert producer.flush(60) == 0
    return offsets


def consume(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """The first records of a topic, without a group."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": False,
         "topic.metadata.refresh.fast.interval.ms": 100}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(60)
        assert message is not None, values
        if message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def until_in_sync(cluster: Cluster, topic: str, brokers: set[int]) -> None:
    until(lambda: cluster.isr(topic, 0) == brokers, f"{topic} to be in sync on {brokers}")


def values(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_new_topics_have_three_replicas_and_clients_use_them(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "orders")
    assert produce(penstock_cluster, "orders", values(0, 50)) == list(range(50))
    until_in_sync(penstock_cluster, "orders", {1, 2, 3})
    assert consume(penstock_cluster, "orders", 50) == values(0, 50)


def test_a_topic_or_broker_that_is_not_there_is_named(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "orders")
    with pytest.raises(LookupError, match="no topic `ordres`; did you mean `orders`"):
        penstock_cluster.leader("ordres", 0)
    with pytest.raises(LookupError, match="topic `orders` has no partition 1: it has 1"):
        penstock_cluster.isr("orders", 1)
    for work in (penstock_cluster.cut_store, penstock_cluster.kill, penstock_cluster.pause, penstock_cluster.expire):
        with pytest.raises(LookupError, match="no broker 4: its brokers are 1, 2, 3"):
            work(4)
    with pytest.raises(LookupError, match="no broker 0"):
        penstock_cluster.cut(1, 0)


def test_a_batch_without_a_producer_id_fails_in_its_time(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "late")
    for broker in penstock_cluster.brokers.values():  # Without ZooKeeper each would have ids left, from the block of its start.
        broker.faults.delay("InitProducerId", 600, times=1_000)
    given: dict[str, Any] = {"delivery.timeout.ms": 2000, "request.timeout.ms": 30_000, "linger.ms": 0}
    with OurProducer(penstock_cluster.bootstrap, **given) as producer:
        delivery = producer.send("late", value=b"x")
        with pytest.raises(KafkaError, match="producer id"):
            delivery.result(60)
        producer.close(0)


def test_what_was_acknowledged_outlives_the_leader(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "killed", min_insync_replicas="2")
    produce(penstock_cluster, "killed", values(0, 50))
    leader = penstock_cluster.leader("killed", 0)
    penstock_cluster.kill(leader, expire=True)
    assert penstock_cluster.running == {1, 2, 3} - {leader}
    assert produce(penstock_cluster, "killed", values(50, 50)) == list(range(50, 100))
    assert penstock_cluster.leader("killed", 0) != leader
    penstock_cluster.start(leader)
    until_in_sync(penstock_cluster, "killed", {1, 2, 3})
    for number in {1, 2, 3} - {leader}:
        penstock_cluster.kill(number, expire=True)
    until(lambda: penstock_cluster.leader("killed", 0) == leader, "the one that was killed first to lead")
    assert consume(penstock_cluster, "killed", 100) == values(0, 100)


def test_a_session_ends_by_its_timeout_after_a_kill(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "silent")
    leader, controller = penstock_cluster.leader("silent", 0), penstock_cluster.controller
    penstock_cluster.kill(leader)
    if controller != leader:
        penstock_cluster.kill(controller)
    until(lambda: penstock_cluster.leader("silent", 0) not in {-1, leader}, "another leader")
    assert penstock_cluster.controller not in {-1, leader, controller} or controller == leader
    assert produce(penstock_cluster, "silent", [b"a"]) == [0]


def test_a_paused_leader_is_replaced_and_does_no_harm_when_it_goes_on(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "paused", min_insync_replicas="2")
    produce(penstock_cluster, "paused", values(0, 10))
    leader = penstock_cluster.leader("paused", 0)
    penstock_cluster.pause(leader)
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": penstock_cluster.brokers[leader].bootstrap}).list_topics(timeout=1)
    until(lambda: penstock_cluster.leader("paused", 0) not in {-1, leader}, "another leader")
    assert produce(penstock_cluster, "paused", values(10, 10)) == list(range(10, 20))
    penstock_cluster.resume(leader)
    until_in_sync(penstock_cluster, "paused", {1, 2, 3})
    assert consume(penstock_cluster, "paused", 20) == values(0, 20)


def test_a_paused_broker_can_be_killed(penstock_cluster: Cluster) -> None:
    penstock_cluster.pause(2)
    penstock_cluster.kill(2, expire=True)
    penstock_cluster.until_live({1, 3})
    penstock_cluster.start(2)
    assert penstock_cluster.running == {1, 2, 3}


def test_a_broker_whose_session_has_expired_registers_again(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "expired")
    leader = penstock_cluster.leader("expired", 0)
    penstock_cluster.expire(leader)
    until(lambda: penstock_cluster.leader("expired", 0) not in {-1, leader}, "another leader")
    until_in_sync(penstock_cluster, "expired", {1, 2, 3})
    assert produce(penstock_cluster, "expired", [b"a"]) == [0]


@pytest.mark.parametrize("one_way", [False, True])
def test_a_follower_that_is_cut_off_leaves_the_isr_and_comes_back(penstock_cluster: Cluster, one_way: bool) -> None:
    create(penstock_cluster, "cut")
    produce(penstock_cluster, "cut", values(0, 10))
    leader = penstock_cluster.leader("cut", 0)
    follower = next(iter({1, 2, 3} - {leader, penstock_cluster.controller}))
    penstock_cluster.cut(follower, leader, one_way=one_way)
    assert produce(penstock_cluster, "cut", values(10, 10)) == list(range(10, 20))
    until(lambda: follower not in penstock_cluster.isr("cut", 0), "the follower to leave the ISR")
    penstock_cluster.heal()
    until_in_sync(penstock_cluster, "cut", {1, 2, 3})
    assert consume(penstock_cluster, "cut", 20) == values(0, 20)


def test_a_leader_that_is_cut_off_from_the_store_is_replaced_and_comes_back(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "apart", min_insync_replicas="2")
    producer = idempotent(penstock_cluster)  # It has its producer id before: a broker that is cut off may have none to give.
    produce(penstock_cluster, "apart", values(0, 10), producer)
    leader = penstock_cluster.leader("apart", 0)
    penstock_cluster.cut_store(leader)
    until(lambda: penstock_cluster.leader("apart", 0) not in {-1, leader}, "another leader")
    assert produce(penstock_cluster, "apart", values(10, 10), producer) == list(range(10, 20))
    penstock_cluster.heal()
    until_in_sync(penstock_cluster, "apart", {1, 2, 3})
    assert consume(penstock_cluster, "apart", 20) == values(0, 20)


def test_all_of_them_killed_at_once_lose_nothing(penstock_cluster: Cluster) -> None:
    create(penstock_cluster, "all")
    produce(penstock_cluster, "all", values(0, 100))
    for number in (1, 2, 3):
        penstock_cluster.kill(number)
    penstock_cluster.start()
    assert produce(penstock_cluster, "all", values(100, 1)) == [100]
    assert consume(penstock_cluster, "all", 101) == values(0, 101)


def test_a_cluster_is_there_again_in_its_folder(tmp_path: Path) -> None:
    with Cluster(brokers=2, data=tmp_path / "data") as cluster:
        create(cluster, "kept")
        assert produce(cluster, "kept", [b"a"]) == [0]
    with Cluster(brokers=2, data=tmp_path / "data") as cluster:
        assert produce(cluster, "kept", [b"b"]) == [1]
        assert consume(cluster, "kept", 2) == [b"a", b"b"]


def test_a_killed_broker_alone_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("kept", b"value", partition=0)
        assert producer.flush(30) == 0
        broker.kill()
        assert not broker.running
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        broker.start()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
        consumer.assign([TopicPartition("kept", 0, 0)])
        assert consumer.poll(60).value() == b"value"
        consumer.close()


@pytest.fixture
def left_over() -> Iterator[None]:
    """Nothing of what a test starts in this process may be left at its end."""
    with Cluster(brokers=3):
        pass  # What the first one loads for good, and the network threads' descriptors, which are used again.
    threads = threading.active_count()
    yield
    until(lambda: threading.active_count() <= threads, "all threads to end", lambda: str(threading.enumerate()))


def count_descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("left_over")
def test_clusters_leave_no_threads_and_descriptors_behind() -> None:
    counts: list[int] = []
    # Network threads' descriptors are used again, and how many there are depends on what overlaps; what leaks grows each time.
    while len(counts) < 3 or counts[-1] > counts[-3]:
        assert len(counts) < 12, counts
        with Cluster(brokers=3) as cluster:
            cluster.kill(1, expire=True)
            cluster.pause(2)
            cluster.resume(2)
            cluster.start(1)
            cluster.pause(2)
            cluster.kill(3)
        counts.append(count_descriptors())


def test_a_restarted_broker_enters_its_isrs_by_few_requests() -> None:
    """Its leader has one request at a time under way, so no more than LIMIT_S / DELAY_S fit into the test."""
    properties = {"zookeeper.session.timeout.ms": 30_000, "log.retention.ms": -1}
    with Cluster(properties=properties) as cluster:
        head = cluster.controller
        leader, restarted = (number for number in cluster.brokers if number != head)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic("wide", PARTITIONS, replica_assignment=[[leader, head, restarted]] * PARTITIONS)
        admin.create_topics([topic], request_timeout=LIMIT_S)["wide"].result(LIMIT_S)
        until_all(cluster, lambda isr: isr == {1, 2, 3}, "all in sync")
        cluster.kill(restarted, expire=True)
        until_all(cluster, lambda isr: restarted not in isr, "its seats to be taken")
        asked = [broker.faults.delay("AlterPartition", DELAY_S, times=PARTITIONS**2) for broker in cluster.brokers.values()]
        cluster.start(restarted)
        until_all(cluster, lambda isr: isr == {1, 2, 3}, "all in sync again")
        assert sum(fault.hits for fault in asked) < PARTITIONS / 2


def until_all(cluster: Cluster, is_so: Callable[[Set[int]], bool], what: str) -> None:
    """Until the ISR of each partition of the wide topic was so."""
    left = set(range(PARTITIONS))

    def all_were() -> bool:
        left.difference_update([index for index in left if is_so(cluster.isr("wide", index))])
        return not left

    until(all_were, what, lambda: f"{len(left)} partitions are left", every_s=0.2)
