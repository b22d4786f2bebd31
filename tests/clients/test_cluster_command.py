"""`penstock cluster` and `penstock topics describe` beside what Kafka's own tools say of the same cluster, and of ours."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.broker import Cluster
from penstock.broker.process import PROGRAM
from support.harness import output
from support.kafka_jars import java
from support.moving_kafka import MovingKafka
from support.one_partition import write
from support.patience import until

TOPICS, QUORUM = "org.apache.kafka.tools.TopicCommand", "org.apache.kafka.tools.MetadataQuorumCommand"
LINE = re.compile(r"\tTopic: (\S+)\tPartition: (\d+)\tLeader: (\S+)\tReplicas: (\S*)\tIsr: (\S*)")

OPTIONS = ("--unavailable-partitions", "--under-min-isr-partitions", "--under-replicated-partitions")

Partition = tuple[str, int]


def shown(bootstrap: str) -> tuple[dict[str, Any], int]:
    """What `penstock cluster` says, and its exit code."""
    done = subprocess.run(
        [*PROGRAM, "cluster", "--json", "--bootstrap", bootstrap], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def partitions(said: dict[str, Any], *troubles: str) -> set[Partition]:
    return {(row["topic"], row["partition"]) for row in said["partitions"] if row["trouble"] in troubles}


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[MovingKafka]:
    with MovingKafka(tmp_path) as made:
        yield made


def described(bootstrap: str, *options: str) -> dict[Partition, tuple[int, list[int], list[int]]]:
    """Leader, replicas and ISR of partitions, as Kafka's tool says it."""
    said = java(TOPICS, "--bootstrap-server", bootstrap, "--describe", *options)
    return {
        (match[1], int(match[2])): (-1 if match[3] == "none" else int(match[3]), numbers(match[4]), numbers(match[5]))
        for match in LINE.finditer(said)
    }


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


@pytest.mark.kafka
def test_each_figure_of_a_cluster_with_a_dead_broker_is_what_kafkas_tools_say(kafka: MovingKafka) -> None:
    create = [*PROGRAM, "topics", "create", "--bootstrap", kafka.bootstrap]
    output([*create, "whole", "-p", "3", "-r", "3"])
    output([*create, "strict", "-p", "2", "-r", "3", "-c", "min.insync.replicas=3"])
    output([*create, "alone", "-p", "3", "-r", "1", "-c", "min.insync.replicas=1"])
    write(kafka.bootstrap, "whole", [str(number) for number in range(100)])
    until(lambda: shown(kafka.bootstrap)[0]["partitions"] == [], "all to follow", kafka.log_text)
    said, code = shown(kafka.bootstrap)
    assert code == 0 and said["controller"] == kafka.controller
    victim = kafka.controller
    kafka.kill(victim)
    live = {1, 2, 3} - {victim}
    until(lambda: kafka.controller in live and led(kafka) == live, "others to lead and control", kafka.log_text)
    looks: list[Look] = []
    states = [described(kafka.bootstrap)]

    def is_still() -> bool:
        """Whether nothing moved while all of them looked: on a busy machine a node may be taken for dead."""
        looks.append(look(kafka.bootstrap))
        states.append(described(kafka.bootstrap))
        return states[-2] == states[-1] and len({*looks[-1].controllers}) == 1

    until(is_still, "a moment in which nothing moves", kafka.log_text)
    seen, all_of = looks[-1], states[-1]
    unavailable, below, short = (seen.by_kafka[option] for option in OPTIONS)
    assert seen.code == 1 and len(unavailable) == 1 and len(below - unavailable) == 2 and len(short - unavailable) == 5
    assert partitions(seen.said, "no leader") == unavailable
    assert partitions(seen.said, "under min ISR") == below - unavailable
    assert partitions(seen.said, "under min ISR", "under-replicated") == short - unavailable
    counts = {"partitions": 8, "no_leader": 1, "under_min_isr": 2, "under_replicated": 3}
    assert {name: seen.said["counts"][name] for name in counts} == counts
    for row in seen.said["partitions"]:
        leader, replicas, isr = all_of[row["topic"], row["partition"]]
        assert (row["leader"], row["replicas"], row["isr"]) == (leader, replicas, isr)
        if leader >= 0:
            assert row["lag"] == [None if broker == victim else 0 for broker in replicas]
    assert [row["broker"] for row in seen.said["brokers"] if row["controller"]] == [seen.said["controller"]]
    for row in seen.said["brokers"]:
        number = row["broker"]
        assert (row["address"] == "away") is (number == victim)
        assert row["leads"] == sum(leader == number for leader, _, _ in all_of.values())
        assert row["replicas"] == sum(number in replicas for _, replicas, _ in all_of.values())
        assert row["in_sync"] == sum(number in isr for _, _, isr in all_of.values())
    ours = {(row["topic"], row["partition"]): (row["leader"], row["replicas"], row["isr"]) for row in seen.described}
    assert ours == {tp: state for tp, state in all_of.items() if tp[0] in ("whole", "alone")}
    assert sum(row["end"] for row in seen.described if row["topic"] == "whole") == 100
    assert [row["end"] for row in seen.described if row["leader"] < 0] == [None]


class Look(NamedTuple):
    """What both say within one moment."""

    said: dict[str, Any]
    code: int
    described: list[dict[str, Any]]
    by_kafka: dict[str, set[Partition]]
    controllers: tuple[int, int]  # ours, theirs


def look(bootstrap: str) -> Look:
    said, code = shown(bootstrap)
    rows = json.loads(output([*PROGRAM, "topics", "describe", "whole", "alone", "--json", "--bootstrap", bootstrap]))
    status = java(QUORUM, "--bootstrap-server", bootstrap, "describe", "--status")
    found = re.search(r"LeaderId:\s+(\d+)", status)
    assert found is not None, status
    by_kafka = {option: set(described(bootstrap, option)) for option in OPTIONS}
    return Look(said, code, rows["partitions"], by_kafka, (said["controller"], int(found[1])))


def led(kafka: MovingKafka) -> set[int]:
    """Who leads and follows in sync what has replicas elsewhere."""
    names = [("whole", 0), ("whole", 1), ("whole", 2), ("strict", 0), ("strict", 1)]
    states = [(kafka.leader(*name), kafka.isr(*name)) for name in names]
    return {broker for leader, isr in states for broker in (leader, *isr)}


def test_the_lag_of_a_replica_that_is_cut_off_is_shown(tmp_path: Path) -> None:
    # Long sessions: on a busy machine the leader must not be taken for dead.
    properties = {"replica.lag.time.max.ms": 3000, "zookeeper.session.timeout.ms": 120_000}
    with Cluster(data=tmp_path, properties=properties) as cluster:
        output([*PROGRAM, "topics", "create", "t", "-p", "1", "-r", "3", "--bootstrap", cluster.bootstrap])
        write(cluster.bootstrap, "t", ["before"] * 10)
        until(lambda: cluster.isr("t", 0) == {1, 2, 3}, "all to follow")
        leader = cluster.leader("t", 0)
        lost = next(broker for broker in (1, 2, 3) if broker not in (leader, cluster.controller))
        cluster.cut(lost, leader)
        until(lambda: lost not in cluster.isr("t", 0), "the ISR to shrink")
        write(cluster.bootstrap, "t", ["after"] * 15)
        # The one that is cut off may not have heard of anything. Another one may be late for a moment.
        looks: list[tuple[dict[str, Any], int]] = []

        def is_shown() -> bool:
            looks.append(shown(cluster.brokers[leader].bootstrap))
            rows = looks[-1][0]["partitions"]
            wanted = [[15 if broker == lost else 0 for broker in row["replicas"]] for row in rows]
            return len(rows) == 1 and [row["lag"] for row in rows] == wanted

        until(is_shown, "the lag", lambda: str(looks))
        said, code = looks[-1]
        assert code == 0 and said["partitions"][0]["trouble"] == "under-replicated"
        assert said["controller"] == cluster.controller
        assert [one["broker"] for one in said["brokers"] if one["controller"]] == [cluster.controller]
        cluster.heal()
        until(lambda: shown(cluster.bootstrap)[0]["partitions"] == [], "all to follow again")
