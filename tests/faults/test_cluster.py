"""Three broker processes around a ZooKeeper, with stock clients: what acks=all has answered is there, whoever dies."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from penstock.broker.process import PROGRAM
from support.cluster_clients import Writer, check
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.harness import output
from support.kafka_jars import java
from support.patience import until
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka


@pytest.fixture
def world(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three brokers."""
    with cluster(zookeeper, tmp_path) as made:
        yield made


def test_nothing_answered_is_lost_when_leaders_are_killed(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="2")
    world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    writer = Writer(world, "t").start()
    try:
        for _ in range(2):
            writer.wait_for(200, world)
            leader = world.until_led("t", by={1, 2, 3})
            world.brokers[leader].kill()
            others = {1, 2, 3} - {leader}
            world.until_led("t", by=others, isr=others)
            writer.wait_for(200, world)
            world.brokers[leader].start()
            world.until_led("t", by=others, isr={1, 2, 3})
    finally:
        writer.end()
    check(world, "t", writer)


def test_a_leader_that_was_paused_answers_for_nothing_that_others_lack(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="2")
    leader = world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    writer = Writer(world, "t").start()
    try:
        writer.wait_for(200, world)
        world.pause(leader)
        others = {1, 2, 3} - {leader}
        world.until_led("t", by=others, isr=others)
        writer.wait_for(200, world)
        world.resume(leader)
        world.until_led("t", by=others, isr={1, 2, 3})
        writer.wait_for(200, world)
    finally:
        world.resume(leader)
        writer.end()
    check(world, "t", writer)


def test_brokers_are_restarted_in_turn_under_a_producer(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="2")
    world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    writer = Writer(world, "t").start()
    try:
        for number in (1, 2, 3):
            writer.wait_for(100, world)
            leads = world.leader("t") == number
            assert world.brokers[number].stop() == 0
            said = re.findall(
                r"others lead what this broker led; of (\d+) partitions none could", world.brokers[number].log_text()
            )
            assert not leads or said[-1:] == ["0"], "it handed its lead over to nobody"
            others = {1, 2, 3} - {number}
            world.until_led("t", by=others, isr=others)
            writer.wait_for(100, world)
            world.brokers[number].start()
            world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    finally:
        writer.end()
    check(world, "t", writer)


def test_topics_grow_get_configs_and_go(world: ClusterProcesses) -> None:
    world.create("t", 3, min_insync_replicas="2")
    admin = world.admin()
    admin.create_partitions([NewPartitions("t", 5)])["t"].result(WAIT_S)
    assert {world.until_led("t", by={1, 2, 3}, partition=index) for index in range(5)} == {1, 2, 3}
    world.alter("t", world.brokers, "retention.ms", "1000")

    def is_known_everywhere() -> bool:
        asked = ConfigResource(ConfigResource.Type.TOPIC, "t")
        for broker in world.brokers.values():
            one = AdminClient({"bootstrap.servers": broker.bootstrap})
            if one.describe_configs([asked])[asked].result(WAIT_S)["retention.ms"].value != "1000":
                return False
        return True

    until(is_known_everywhere, "the config on all brokers", world.log_text)
    admin.delete_topics(["t"])["t"].result(WAIT_S)
    until(lambda: not any(list(broker.data.glob("t-*")) for broker in world.brokers.values()), "its logs gone", world.log_text)


def test_two_growths_in_one_moment_lose_no_partition(world: ClusterProcesses) -> None:
    """The second one is asked before the first one is shown: by what the broker shows it would be a growth, too."""
    world.create("t", 1)
    admin = world.admin()
    for larger, smaller in ((4, 3), (7, 6)):
        first = admin.create_partitions([NewPartitions("t", larger)])["t"]
        second = admin.create_partitions([NewPartitions("t", smaller)])["t"]
        first.result(WAIT_S)
        assert isinstance(second.exception(WAIT_S), KafkaException)
        world.until_led("t", by={1, 2, 3}, partition=larger - 1)
        world.until_shown("t", larger, by=world.brokers)


def test_min_insync_replicas_of_the_brokers_counts_for_topics_that_have_none(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, count=2, min_insync_replicas=2) as world:
        world.create("t", 1, 2)
        leader = world.until_led("t", by={1, 2}, isr={1, 2})
        world.brokers[3 - leader].kill()
        world.until_led("t", by={leader}, isr={leader})
        producer = Producer({"bootstrap.servers": world.brokers[leader].bootstrap, "acks": "all", "message.timeout.ms": 5_000})
        failed: list[object] = []
        producer.produce("t", b"x", on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(WAIT_S) == 0
        assert failed[0] is not None


def test_a_cluster_is_shown_with_what_it_lacks(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="3")
    leader = world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    command = [*PROGRAM, "cluster", "--json", "--bootstrap", world.bootstrap]
    said = json.loads(output(command))
    assert said["partitions"] == []
    assert said["counts"] == {"partitions": 1, "no_leader": 0, "under_min_isr": 0, "under_replicated": 0, "not_preferred": 0}
    other = next(number for number in (1, 2, 3) if number != leader)
    world.brokers[other].kill()
    world.until_led("t", by={leader}, isr={1, 2, 3} - {other})
    # A replica that fetches no more may leave the ISR before the session of its broker is over.
    world.until_known({1, 2, 3} - {other})
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    said = json.loads(shown.stdout)
    assert shown.returncode == 1 and said["partitions"][0]["trouble"] == "under min ISR"
    assert (said["counts"]["partitions"], said["counts"]["under_min_isr"]) == (1, 1)
    assert [one["address"] == "away" for one in said["brokers"]] == [number == other for number in (1, 2, 3)]


def test_a_lost_log_is_not_made_again_empty(world: ClusterProcesses) -> None:
    world.create("one", 1, 1)
    holder = world.until_led("one", by={1, 2, 3})
    writer = Writer(world, "one").start()
    writer.wait_for(50, world)
    writer.end()
    broker = world.brokers[holder]
    broker.kill()
    (folder,) = broker.data.glob("one-0")
    folder.rename(broker.data.with_name("elsewhere"))
    broker.start()
    until(lambda: "no log folder holds it" in broker.log_text(), "the lost log to be missed", world.log_text)
    world.until_led("one", by={-1})
    time.sleep(1)
    assert world.until_led("one", by={-1, 1, 2, 3}) == -1 and not folder.exists()
    broker.kill()
    broker.data.with_name("elsewhere").rename(folder)
    broker.start()
    world.until_led("one", by={holder})
    check(world, "one", writer)


def test_a_topic_that_is_made_again_while_a_broker_is_paused_begins_empty(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="2")
    leader = world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    writer = Writer(world, "t").start()
    writer.wait_for(50, world)
    writer.end()
    world.pause(leader)
    try:
        others = {1, 2, 3} - {leader}
        world.until_led("t", by=others, isr=others)
        admin = world.admin(others)
        admin.delete_topics(["t"])["t"].result(WAIT_S)
        made = NewTopic("t", 1, 2, config={"min.insync.replicas": "2"})
        admin.create_topics([made])["t"].result(WAIT_S)
    finally:
        world.resume(leader)
    world.until_led("t", by=others, isr=others)
    again = Writer(world, "t").start()
    again.wait_for(50, world)
    again.end()
    check(world, "t", again)


def test_a_topic_is_seen_whole_though_one_of_its_brokers_is_dead(world: ClusterProcesses) -> None:
    world.brokers[3].kill()
    world.until_known({1, 2})
    world.create("t", 4, 2)
    placed = NewTopic("placed", replication_factor=-1, num_partitions=2, replica_assignment=[[1], [2]])
    admin = world.admin({1, 2})
    admin.create_topics([placed])["placed"].result(WAIT_S)
    for name, count in (("t", 4), ("placed", 2)):
        for index in range(count):
            world.until_led(name, by={1, 2}, partition=index)
    world.brokers[3].start()
    world.until_known({1, 2, 3})
    for name, count in (("t", 4), ("placed", 2)):
        world.until_shown(name, count, by={3})


def test_javas_clients_write_and_read(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="2")
    written = java(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", "t", "--num-records", "2000", "--record-size", "100",
        "--throughput", "-1", "--producer-props", f"bootstrap.servers={world.bootstrap}", "acks=all",
    )  # fmt: skip
    assert "2000 records sent" in written
    read_back = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", world.bootstrap, "--topic", "t",
        "--partition", "0", "--offset", "earliest", "--max-messages", "2000", "--timeout-ms", "60000",
    )  # fmt: skip
    assert len(read_back.splitlines()) == 2000
