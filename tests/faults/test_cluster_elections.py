"""Elections that somebody asks for: preferred leaders, and unclean ones by an operator, by config and by time."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from penstock.broker.process import PROGRAM
from support.cluster_clients import check, check_answered, write
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.kafka_jars import java
from support.patience import until
from support.zookeeper import ZooKeeper, connected

pytestmark = pytest.mark.kafka


def elect(world: ClusterProcesses, *words: str) -> tuple[int, list[dict[str, object]]]:
    """Exit code and rows of `penstock cluster elect`."""
    command = [*PROGRAM, "cluster", "elect", *words, "--json", "--bootstrap", world.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def leave_without_leader(world: ClusterProcesses, topic: str) -> None:
    """Of two brokers the second had records alone, and is dead; the first lives."""
    world.until_led(topic, by={1, 2}, isr={1, 2})
    write(world, topic)
    world.brokers[1].kill()
    world.until_led(topic, by={2}, isr={2})
    write(world, topic)
    world.brokers[2].kill()
    world.brokers[1].start()


def come_back(world: ClusterProcesses, topic: str) -> None:
    """The second one is back: its log becomes a part of the first one's."""
    state = world.state(topic)
    assert (state["leader"], state["isr"]) == (1, [1]) and state["unclean_epoch"] == state["leader_epoch"]
    write(world, topic)
    world.brokers[2].start()
    world.until_led(topic, by={1}, isr={1, 2})
    world.brokers[1].kill()
    world.until_led(topic, by={2}, isr={2})
    check_answered(world, topic, write(world, topic))


@pytest.mark.parametrize("tool", ["penstock", "kafka-leader-election.sh"])
def test_an_operator_lets_a_replica_lead_that_lacks_records(zookeeper: ZooKeeper, tmp_path: Path, tool: str) -> None:
    with cluster(zookeeper, tmp_path, 2) as world:
        world.create("t", 1, 2)
        leave_without_leader(world, "t")
        world.until_stored("t", leader=-1, isr=[2])
        if tool == "penstock":
            rows = [{"topic": "t", "partition": 0, "elected": True, "error": None}]
            assert elect(world, "t:0", "--unclean", "--yes") == (0, rows)
        else:
            said = java(
                "org.apache.kafka.tools.LeaderElectionCommand", "--bootstrap-server", world.brokers[1].bootstrap,
                "--election-type", "unclean", "--topic", "t", "--partition", "0",
            )  # fmt: skip
            assert "Successfully completed leader election (UNCLEAN)" in said
        world.until_led("t", by={1}, isr={1})
        come_back(world, "t")


def test_a_topic_may_prefer_a_leader_to_its_records(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, 2) as world:
        world.create("t", 1, 2, unclean_leader_election_enable="true")
        leave_without_leader(world, "t")
        world.until_led("t", by={1}, isr={1})
        come_back(world, "t")


def test_configs_reach_a_partition_that_nobody_leads(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, 2) as world:
        world.create("t", 1, 2)
        leave_without_leader(world, "t")
        world.until_stored("t", leader=-1, isr=[2])
        world.until_known({1})
        for key, value in (("max.message.bytes", "1000"), ("unclean.leader.election.enable", "true")):
            world.alter("t", {1}, key, value)
        world.until_led("t", by={1}, isr={1})
        answered: list[object] = []
        producer = Producer({"bootstrap.servers": world.brokers[1].bootstrap})
        producer.produce("t", bytes(5_000), on_delivery=lambda error, _: answered.append(error and error.code()))
        assert producer.flush(WAIT_S) == 0
        assert answered == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_broker_may_prefer_leaders_to_records_but_not_of_transactions(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, 2, unclean_leader_election_enable="true") as world:
        world.create("t", 1, 2)
        world.create("__transaction_state", 1, 2)
        world.until_led("__transaction_state", by={1, 2}, isr={1, 2})
        world.until_led("t", by={1, 2}, isr={1, 2})
        world.brokers[1].kill()
        for topic in ("t", "__transaction_state"):
            world.until_led(topic, by={2}, isr={2})
        world.brokers[2].kill()
        world.brokers[1].start()
        world.until_led("t", by={1}, isr={1})
        world.until_stored("__transaction_state", leader=-1)


def test_patience_may_have_an_end(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, 2, unclean_recovery_timeout_ms=1_500) as world:
        world.create("t", 1, 2)
        leave_without_leader(world, "t")
        world.until_led("t", by={1}, isr={1})
        come_back(world, "t")


@pytest.mark.parametrize("loss", ["missing", "damaged"])
def test_an_operator_gives_up_a_log_that_was_the_last_one(zookeeper: ZooKeeper, tmp_path: Path, loss: str) -> None:
    with cluster(zookeeper, tmp_path, 1) as world:
        world.create("t", 1, 1)
        write(world, "t")
        broker = world.brokers[1]
        broker.kill()
        folder = broker.data / "t-0"
        if loss == "missing":
            shutil.rmtree(folder)
        else:
            (segment,) = folder.glob("*.log")
            data = bytearray(segment.read_bytes().rstrip(b"\0"))
            data[len(data) // 2] ^= 0xFF
            segment.write_bytes(data)
        broker.start()
        hint = "`penstock cluster elect t:0 --unclean` gives up"
        until(lambda: hint in broker.log_text(), "the loss to be told", world.log_text)
        world.until_stored("t", leader=-1, isr=[1], unclean=[1])
        assert elect(world, "t:0") == (
            1,
            [{"topic": "t", "partition": 0, "elected": False, "error": "PREFERRED_LEADER_NOT_AVAILABLE"}],
        )
        assert elect(world, "t:0", "--unclean", "--yes")[0] == 0
        world.until_led("t", by={1}, isr={1})
        writer = write(world, "t")
        check(world, "t", writer)
        assert bool(list(broker.data.glob("t-0.*-stray"))) == (loss == "damaged")
        assert elect(world, "t:0", "--unclean", "--yes") == (
            0, [{"topic": "t", "partition": 0, "elected": False, "error": "ELECTION_NOT_NEEDED"}]
        )  # fmt: skip


@pytest.mark.parametrize("way", ["a command", "an old tool", "by itself"])
def test_a_preferred_leader_leads_again(zookeeper: ZooKeeper, tmp_path: Path, way: str) -> None:
    interval = 1 if way == "by itself" else 300
    with cluster(zookeeper, tmp_path, 2, leader_imbalance_check_interval_seconds=interval) as world:
        world.create("t", 4, 2)
        preferred = {index: world.until_led("t", by={1, 2}, isr={1, 2}, partition=index) for index in range(4)}
        assert set(preferred.values()) == {1, 2}
        world.brokers[1].restart()
        for index in range(4):
            if way != "by itself":
                world.until_led("t", by={2}, isr={1, 2}, partition=index)
        if way == "a command":
            code, rows = elect(world, "t")
            assert code == 0 and [row["elected"] for row in rows] == [preferred[index] == 1 for index in range(4)]
        elif way == "an old tool":
            named = [{"topic": "t", "partition": index} for index in range(4)]
            with connected(world.servers) as client:
                path = "/admin/preferred_replica_election"
                client.create(path, json.dumps({"version": 1, "partitions": named}).encode())
                until(lambda: client.exists(path) is None, "the node to be taken", world.log_text)
        for index in range(4):
            world.until_led("t", by={preferred[index]}, isr={1, 2}, partition=index)
