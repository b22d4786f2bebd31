"""Transactions over partitions that three brokers lead: each is in all of them or in none, whoever dies; none hangs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.broker.coordination.statelog import java_hash_partition
from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE
from penstock.errors import ErrorCode as E
from penstock.pyx.wire.messages import AddOffsetsToTxnRequest, FindCoordinatorRequest
from support.cluster_transactions import Transactions, check, committed
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.harness import WireConnection
from support.kafka_jars import java
from support.patience import until
from support.transaction_wire import Owner, add, batch, commit_offset, end, end_and_go_on, init, produce
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka

PARTITIONS = 3
HOMES = 4
FEW: dict[str, Any] = {"offsets_topic_num_partitions": HOMES, "transaction_state_log_num_partitions": HOMES}


@pytest.fixture
def world(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster(zookeeper, tmp_path, **FEW) as made:
        yield made


def make(world: ClusterProcesses) -> None:
    """A topic of which each broker leads a partition."""
    world.create("t", PARTITIONS, min_insync_replicas="2")
    leaders = {world.until_led("t", by={1, 2, 3}, isr={1, 2, 3}, partition=index) for index in range(PARTITIONS)}
    assert leaders == {1, 2, 3}


def begun(world: ClusterProcesses) -> list[Transactions]:
    """Producers, each with a coordinator of its own, as their partitions are led by now."""
    every = [Transactions(world, "t", PARTITIONS, f"x{number}", number * 1_000_000) for number in range(3)]
    return [one.start() for one in every]


def coordinator(world: ClusterProcesses, name: str) -> int:
    return world.until_led(TRANSACTION_STATE, by={1, 2, 3}, partition=java_hash_partition(name, HOMES))


def leader(world: ClusterProcesses, index: int) -> int:
    """Of a partition of `t`."""
    return world.until_led("t", by={1, 2, 3}, partition=index)


def test_transactions_reach_all_their_partitions_whoever_is_killed(world: ClusterProcesses) -> None:
    make(world)
    every = begun(world)
    try:
        for one in every:
            one.wait_for(20)
        for killed in (coordinator(world, "x0"), leader(world, 1), coordinator(world, "x1")):
            world.brokers[killed].kill()
            for one in every:
                one.wait_for(10)
            world.brokers[killed].start()
            world.until_known({1, 2, 3})
            for index in range(PARTITIONS):
                world.until_led("t", by={1, 2, 3}, isr={1, 2, 3}, partition=index)
            for one in every:
                one.wait_for(10)
    finally:
        for one in every:
            one.end()
    check(world, "t", PARTITIONS, every)


@pytest.mark.parametrize(
    "step", ["coordinator.before_markers=kill@4", "coordinator.before_marker=kill@9", "coordinator.after_markers=kill@4"]
)
def test_a_decided_transaction_is_finished_by_the_next_coordinator(zookeeper: ZooKeeper, tmp_path: Path, step: str) -> None:
    with cluster(zookeeper, tmp_path, **FEW) as world:
        make(world)
        for number in (1, 2):  # Two of three stay to be killed: one has to live.
            world.brokers[number].stop()
            world.brokers[number].environment["PENSTOCK_FAILPOINTS"] = step
            world.brokers[number].start()
            world.until_known({1, 2, 3})
            for index in range(PARTITIONS):
                world.until_led("t", by={1, 2, 3}, isr={1, 2, 3}, partition=index)
        every = begun(world)
        died: set[int] = set()

        def revive() -> None:
            for number in (1, 2):
                if not world.brokers[number].running:
                    died.add(number)
                    world.brokers[number].environment.clear()
                    world.brokers[number].start()

        def went_on() -> bool:
            revive()
            return bool(died) and all(len(one.committed) >= 20 for one in every)

        try:
            until(went_on, f"transactions to go on after {step}", world.log_text)
        finally:
            revive()
            for one in every:
                one.end()
        revive()
        check(world, "t", PARTITIONS, every)


class Peer:
    """What a client says to each broker, request by request, about a transactional id and a topic."""

    def __init__(self, world: ClusterProcesses, wires: Mapping[int, WireConnection]) -> None:
        self.world = world
        self.wires = wires

    @property
    def coordinator(self) -> WireConnection:
        return self.wires[coordinator(self.world, "x")]

    def elsewhere(self) -> tuple[int, WireConnection]:
        """A partition that another broker than the coordinator leads, and its leader."""
        other = coordinator(self.world, "x")
        leaders = {index: leader(self.world, index) for index in range(PARTITIONS)}
        index = next(index for index, one in leaders.items() if one != other)
        return index, self.wires[leaders[index]]

    def begin(self) -> Owner:
        """InitProducerId, once a coordinator is there."""
        found: list[Owner] = []

        def is_there() -> bool:
            find_coordinator(self.wires[1])
            error, *owner = init(self.coordinator, "x")
            found.append((owner[0], owner[1]))
            return not error

        until(is_there, "a producer id", self.world.log_text)
        return found[-1]


def until_taken(ask: Callable[[], int], world: ClusterProcesses) -> None:
    """Until a request is answered with no error; those that a client tries again may come before."""
    again = (E.CONCURRENT_TRANSACTIONS, E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_LOAD_IN_PROGRESS, E.UNKNOWN_TOPIC_OR_PARTITION)
    errors: list[int] = []

    def is_taken() -> bool:
        errors.append(ask())
        assert errors[-1] in (E.NONE, *again), errors
        return not errors[-1]

    until(is_taken, "an answer without an error", world.log_text)


def find_coordinator(wire: WireConnection) -> None:
    """The first question makes the coordinators' topic."""
    wire.ask(FindCoordinatorRequest(key="x", key_type=1), 3)


@pytest.fixture
def peer(world: ClusterProcesses) -> Iterator[Peer]:
    make(world)
    with contextlib.ExitStack() as opened:
        wires = {number: opened.enter_context(WireConnection(broker.bootstrap)) for number, broker in world.brokers.items()}
        yield Peer(world, wires)


@pytest.mark.parametrize("version", [11, 12])
def test_a_late_produce_begins_no_transaction_that_nothing_ends(peer: Peer, version: int) -> None:
    """The coordinator is another broker than the partition's leader: it verifies before version 12, and adds from then on."""
    owner = peer.begin()
    index, elsewhere = peer.elsewhere()

    def send(sequence: int) -> int:
        return produce(elsewhere, "x", version, ("t", index, batch(owner, sequence, b"7")))[0]

    if version < 12:
        assert send(0) == E.TRANSACTION_ABORTABLE
        until_taken(lambda: add(peer.coordinator, "x", owner, 3, ("t", index))[0], peer.world)
    until_taken(lambda: send(0), peer.world)
    assert send(1) == E.NONE
    assert end(peer.coordinator, "x", owner, True, 4 if version < 12 else 5) == E.NONE
    assert send(2) in ((E.TRANSACTION_ABORTABLE, E.NOT_ENOUGH_REPLICAS) if version < 12 else (E.INVALID_PRODUCER_EPOCH,))
    assert committed(peer.world, "t", index) == [7, 7]


def test_a_late_end_ends_no_later_transaction(peer: Peer) -> None:
    first = peer.begin()
    index, elsewhere = peer.elsewhere()
    until_taken(lambda: produce(elsewhere, "x", 12, ("t", index, batch(first, 0, b"7")))[0], peer.world)
    _, second = end_and_go_on(peer.coordinator, "x", first, False, 5)
    until_taken(lambda: produce(elsewhere, "x", 12, ("t", index, batch(second, 0, b"7")))[0], peer.world)
    died = coordinator(peer.world, "x")
    peer.world.brokers[died].kill()
    peer.world.until_led(TRANSACTION_STATE, by={1, 2, 3} - {died}, partition=java_hash_partition("x", HOMES))

    def late() -> bool:
        """The next coordinator knows what the one before has decided."""
        error = end(peer.coordinator, "x", first, True, 5)
        assert error in (E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR, E.PRODUCER_FENCED)
        return error == E.PRODUCER_FENCED

    until(late, "the late end to be refused", peer.world.log_text)
    until_taken(lambda: end(peer.coordinator, "x", second, True, 5), peer.world)
    if leader(peer.world, index) != died:
        assert committed(peer.world, "t", index) == [7]


@pytest.mark.parametrize("version", [4, 5])
def test_positions_of_a_group_are_part_of_a_transaction_of_another_coordinator(peer: Peer, version: int) -> None:
    """Offsets that are committed late begin nothing either."""
    owner = peer.begin()
    wires, world = peer.wires, peer.world
    wires[1].ask(FindCoordinatorRequest(key="g", key_type=0), 3)
    away = {
        name: world.until_led(GROUP_OFFSETS, by={1, 2, 3}, partition=java_hash_partition(name, HOMES)) for name in "abcdefgh"
    }
    group = next(name for name, leader in away.items() if leader != coordinator(world, "x"))

    def commit() -> int:
        return commit_offset(wires[away[group]], "x", group, owner, "t", version)

    if version < 5:
        until_taken(lambda: add_offsets(peer.coordinator, "x", owner, group), world)
    until_taken(commit, world)
    assert end(peer.coordinator, "x", owner, True, 5 if version == 5 else 4) == E.NONE
    late = (E.INVALID_PRODUCER_EPOCH,) if version == 5 else (E.TRANSACTION_ABORTABLE, E.COORDINATOR_LOAD_IN_PROGRESS)
    assert commit() in late
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": group})
    try:
        (where,) = consumer.committed([TopicPartition("t", 0)], WAIT_S)
        assert where.offset == 3
    finally:
        consumer.close()


def add_offsets(wire: WireConnection, name: str, owner: Owner, group: str) -> int:
    asked = AddOffsetsToTxnRequest(transactional_id=name, producer_id=owner[0], producer_epoch=owner[1], group_id=group)
    return int(wire.ask(asked, 3).error_code)


def test_javas_transactions_are_read_whole(world: ClusterProcesses) -> None:
    make(world)
    written = java(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", "t", "--num-records", "3000", "--record-size", "100",
        "--throughput", "1000", "--transactional-id", "java", "--transaction-duration-ms", "200",
        "--producer-props", f"bootstrap.servers={world.bootstrap}", "acks=all",
    )  # fmt: skip
    assert "3000 records sent" in written
    read_back = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", world.bootstrap, "--topic", "t",
        "--from-beginning", "--isolation-level", "read_committed", "--max-messages", "3000", "--timeout-ms", "60000",
    )  # fmt: skip
    assert len(read_back.splitlines()) == 3000
