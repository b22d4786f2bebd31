"""A single node becomes the first broker of a cluster, killed at each step of it: no record and no config is lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from penstock.broker.logs.folder import META, STORE
from penstock.broker.replication import growth
from penstock.broker.store.sound import node
from penstock.failpoints import ENVIRONMENT
from penstock.ports import hold_ports
from support.cluster_world import PROPERTIES
from support.harness import BrokerProcess
from support.kafka_fixtures import load_coordinators
from support.kafka_jars import ApacheKafka
from support.patience import until
from support.zookeeper import ZooKeeper, ZooKeeperHome, connected

pytestmark = pytest.mark.kafka

STEPS = [growth.CLAIMED, growth.PIECE, growth.COPIED, growth.MARKED, growth.FINISHED]
RECORDS = 20
WAIT_S = 60.0

Single = Callable[..., BrokerProcess]


@pytest.fixture
def servers(zookeeper: ZooKeeper) -> str:
    """A chroot that nobody has used."""
    return ZooKeeperHome(zookeeper.address).servers


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Single]:
    """Makes brokers that don't run yet; they end with the test."""
    made: list[BrokerProcess] = []

    def make(number: int = 1, folder: str = "") -> BrokerProcess:
        broker = BrokerProcess(tmp_path / (folder or f"broker-{number}"), {**PROPERTIES, "broker.id": number})
        (broker.port,) = hold_ports(1)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.close()


def fill(broker: BrokerProcess) -> None:
    """Two topics with configs and records, one of them compacted."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [
        NewTopic("orders", 3, 1, config={"retention.ms": "-1"}),
        NewTopic("kept.state", 1, 1, config={"cleanup.policy": "compact"}),
    ]
    for made in admin.create_topics(topics).values():
        made.result(WAIT_S)
    for partition in range(3):
        produce(broker, "orders", RECORDS, partition)


def produce(broker: BrokerProcess, topic: str, count: int, partition: int = 0) -> list[int]:
    """Offsets of so many more records."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "enable.idempotence": True})
    offsets: list[int] = []
    for number in range(count):
        producer.produce(
            topic, b"%d" % number, partition=partition, on_delivery=lambda error, message: offsets.append(message.offset())
        )
    assert producer.flush(WAIT_S) == 0
    return offsets


def read(broker: BrokerProcess, topic: str, partition: int, count: int) -> list[bytes]:
    """The records of a partition from its beginning on."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None, (topic, partition, values, broker.log_text()[-4000:])
        if message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def in_cluster(broker: BrokerProcess, servers: str) -> BrokerProcess:
    broker.arguments = ["--zookeeper", servers]
    return broker


def refusal(broker: BrokerProcess) -> str:
    """What a start says that is refused."""
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1, done
    return done.stderr.splitlines()[-1]


def until_led(broker: BrokerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def is_led() -> bool:
        found = admin.list_topics(timeout=WAIT_S).topics.get(topic)
        return found is not None and all(one.leader >= 0 for one in found.partitions.values())

    until(is_led, f"{topic} to have its leaders", broker.log_text)


def check_all_there(broker: BrokerProcess) -> None:
    """What `fill` has made is there, and more can be written."""
    until_led(broker, "orders")
    for partition in range(3):
        assert read(broker, "orders", partition, RECORDS) == [b"%d" % number for number in range(RECORDS)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = {"orders": ("retention.ms", "-1"), "kept.state": ("cleanup.policy", "compact")}
    for name, (key, value) in wanted.items():
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        assert admin.describe_configs([resource])[resource].result(WAIT_S)[key].value == value
    assert produce(broker, "orders", 5) == list(range(RECORDS, RECORDS + 5))


def in_sync(admin: AdminClient, topic: str) -> int:
    """How many replicas of a topic's first partition are in sync, as far as is shown."""
    shown = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions.get(0)
    return 0 if shown is None else len(shown.isrs)


def state(broker: BrokerProcess, servers: str) -> tuple[dict[str, object], dict[str, object]]:
    """The state of `orders-0` in the single node's store, and the one in the cluster's tree."""
    path = "/brokers/topics/orders/partitions/0/state"
    (aside,) = (one for one in broker.data.glob(f"{STORE}.aside-*Z") if one.is_file())
    hosts, _, chroot = servers.partition("/")
    with connected(hosts) as client:
        before = node(aside, path)
        assert before is not None
        return json.loads(before), json.loads(client.get(f"/{chroot}{path}")[0])


def test_a_single_node_grows_and_others_join_it(single: Single, servers: str) -> None:
    broker = single().start()
    fill(broker)
    alone = AdminClient({"bootstrap.servers": broker.bootstrap})
    cluster_id = alone.list_topics(timeout=WAIT_S).cluster_id
    broker.stop()
    in_cluster(broker, servers).start()
    check_all_there(broker)
    before, after = state(broker, servers)
    assert int(str(after["leader_epoch"])) > int(str(before["leader_epoch"]))
    assert "directories" not in after and after["isr"] == [1] and not after["unclean"], "a clean node keeps its clean seat"
    others = [in_cluster(single(number), servers).start() for number in (2, 3)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    until(lambda: set(admin.list_topics(timeout=WAIT_S).brokers) == {1, 2, 3}, "three brokers", broker.log_text)
    assert admin.list_topics(timeout=WAIT_S).cluster_id == cluster_id
    admin.create_topics([NewTopic("wide", 1, 3)])["wide"].result(WAIT_S)
    assert produce(others[0], "wide", 5) == list(range(5))
    until(lambda: in_sync(admin, "wide") == 3, "all in sync", broker.log_text)
    assert "its 2 topics keep one replica each" in broker.log_text().replace("Its", "its")
    broker.restart()
    check = read(others[1], "orders", 0, RECORDS + 5)
    assert check[:RECORDS] == [b"%d" % number for number in range(RECORDS)]
    broker.stop()
    broker.arguments = []
    said = refusal(broker)
    assert "belongs to a member of a cluster" in said and f"--zookeeper {servers}" in said
    for way in ("--adopt-topics", "--restore-metadata"):
        broker.arguments = [way]
        assert "belongs to a member of a cluster" in refusal(broker)


@pytest.mark.parametrize("step", STEPS)
def test_a_growth_that_is_killed_goes_on(single: Single, servers: str, step: str) -> None:
    broker = single().start()
    fill(broker)
    broker.kill()
    in_cluster(broker, servers)
    broker.environment[ENVIRONMENT] = f"{step}=kill"
    broker.launch()
    until(lambda: not broker.running, f"the kill at {step}", broker.log_text)
    broker.close()
    if step != growth.FINISHED:
        said = refusal(in_cluster(single(2), servers))
        assert "broker 1, which was a single node, is being copied there" in said
    broker.environment.clear()
    if step in (growth.CLAIMED, growth.PIECE, growth.COPIED):
        # It may still be started alone; what it changes then is copied, too.
        broker.arguments = []
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("later", 1, 1)])["later"].result(WAIT_S)
        broker.stop()
    else:
        broker.arguments = []
        assert "belongs to a member of a cluster" in refusal(broker)
    in_cluster(broker, servers).start()
    check_all_there(broker)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names = set(admin.list_topics(timeout=WAIT_S).topics)
    assert ("later" in names) == (step in (growth.CLAIMED, growth.PIECE, growth.COPIED))
    assert not (broker.data / STORE).exists()
    in_cluster(single(2), servers).start()


def test_a_tree_that_is_not_empty_is_refused(single: Single, servers: str) -> None:
    broker = single().start()
    fill(broker)
    broker.stop()
    hosts, _, chroot = servers.partition("/")
    with connected(hosts) as client:
        client.create(f"/{chroot}/cluster/id", b'{"version":"1","id":"AAAAAAAAAAAAAAAAAAAAAQ"}', makepath=True)
        said = refusal(in_cluster(broker, servers))
        assert "brokers that aren't Penstock's" in said
        assert "brokers that aren't Penstock's" in refusal(in_cluster(single(2), servers))
        client.delete(f"/{chroot}/cluster/id")
        client.create(f"/{chroot}/brokers/topics/others", b"{}", makepath=True)
        assert "holds `/brokers/topics/others`" in refusal(broker)
        client.delete(f"/{chroot}/brokers/topics/others")
    other = in_cluster(single(2), servers).start()
    said = refusal(broker)
    assert "holds the cluster" in said and "empty chroot" in said
    other.stop()
    assert "penstock.zookeeper" not in (broker.data / META).read_text()
    broker.arguments = []
    broker.start()
    for partition in range(3):
        assert len(read(broker, "orders", partition, RECORDS)) == RECORDS


def test_a_member_makes_no_cluster_where_there_is_none(single: Single, servers: str, zookeeper: ZooKeeper) -> None:
    broker = in_cluster(single(), servers).start()
    broker.stop()
    said = refusal(in_cluster(broker, ZooKeeperHome(zookeeper.address).servers))
    assert "knows no cluster" in said and "zookeeper.connect" in said
    assert refusal_of_options(broker)


def refusal_of_options(broker: BrokerProcess) -> bool:
    """A single node's ways out are none of a cluster's."""
    broker.arguments += ["--adopt-topics"]
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=WAIT_S, check=False)
    return done.returncode != 0 and "--adopt-topics" in done.stderr and "ZooKeeper" in done.stderr


def test_a_folder_of_apache_kafka_is_adopted_first_and_grows_then(single: Single, servers: str, tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka")
    try:
        load_coordinators(kafka.bootstrap)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number, partition=0)
        assert producer.flush(WAIT_S) == 0
    finally:
        kafka.stop()
    broker = in_cluster(single(1, "kafka/data"), servers)
    assert "holds topics and no metadata store" in refusal(broker)
    broker.arguments = []
    broker.start()
    broker.stop()
    in_cluster(broker, servers).start()
    until_led(broker, "orders")
    assert read(broker, "orders", 0, RECORDS) == [b"%d" % number for number in range(RECORDS)]
