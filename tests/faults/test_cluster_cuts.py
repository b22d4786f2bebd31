"""Three broker processes whose links are cut: who may answer for what, and what is there afterwards.

Promised are records that were answered with acks=all. With acks=1 the leader alone answers: a record counts as promised only if
the high watermark was past it before the cut. What a leader answers between a cut and the end of its lease may be lost with it;
from then on it answers for nothing.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from penstock.broker.store.base import paths
from penstock.errors import ErrorCode
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.connection import WireConnection
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import ListOffsetsRequest, ProduceRequest, ProduceResponse
from support.asking import metadata
from support.cluster_clients import Writer, check, check_answered, read, write
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.cuttingproxy import Net
from support.patience import until
from support.zookeeper import ZooKeeper, connected, ensemble

pytestmark = pytest.mark.kafka

SESSION_MS = 8_000
NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
VERSION = 9


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    made.close()


@pytest.fixture
def world(zookeeper: ZooKeeper, tmp_path: Path, net: Net) -> Iterator[ClusterProcesses]:
    """Three brokers, whose links can be cut."""
    with cluster(zookeeper, tmp_path, net=net, zookeeper_session_timeout_ms=SESSION_MS) as made:
        yield made


def produce_request(topic: str, acks: int, value: int) -> ProduceRequest:
    builder = BatchBuilder()
    assert builder.append(None, b"%d" % value, time.time_ns() // 1_000_000)
    data = ProduceRequest.PartitionProduceData(index=0, records=builder.build())
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topics)


class Asked:
    """One broker, asked past all proxies."""

    def __init__(self, world: ClusterProcesses, number: int) -> None:
        self.number = number
        self.broker = world.brokers[number]
        self.answered: list[int] = []
        """The values of records that were answered with acks=1."""

    def put(self, topic: str, acks: int = 1) -> int:
        """Produce a record; the error code."""
        value = len(self.answered)
        with WireConnection(self.broker.bootstrap) as wire:
            answer = wire.ask(produce_request(topic, acks, value), VERSION)
        error = int(answer.responses[0].partition_responses[0].error_code)
        if error == NONE and acks == 1:
            self.answered.append(value)
        return error

    def end(self, topic: str) -> tuple[int, int]:
        """The error code and the offset of the question for the end of the log."""
        partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])
        with WireConnection(self.broker.bootstrap) as wire:
            answer = wire.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7).topics[0].partitions[0]
        return int(answer.error_code), int(answer.offset)

    def sends_away(self, topic: str) -> bool:
        """Whether it closes the connection of a client that asks it who leads."""
        try:
            metadata(self.broker, topic)
        except EOFError:
            return True
        return False


def place(world: ClusterProcesses, name: str, *replicas: int) -> None:
    """A topic of one partition on these brokers, the first of which leads."""
    made = NewTopic(name, num_partitions=1, replication_factor=-1, replica_assignment=[list(replicas)])
    admin = world.admin()
    admin.create_topics([made])[name].result(WAIT_S)
    world.until_led(name, by={replicas[0]}, isr=set(replicas))
    until(lambda: Asked(world, replicas[0]).end(name)[0] == NONE, f"{name} to be served", world.log_text)


def others_of(number: int) -> set[int]:
    return {1, 2, 3} - {number}


def becomes(world: ClusterProcesses, asked: Callable[[], int], error: int, what: str) -> None:
    until(lambda: asked() == error, what, world.log_text)


def test_a_leader_that_is_cut_off_answers_for_nothing_once_its_lease_is_over(world: ClusterProcesses, net: Net) -> None:
    place(world, "all", 1, 2, 3)
    place(world, "one", 1, 2, 3)
    place(world, "alone", 1)
    cut_off, others = Asked(world, 1), others_of(1)
    writer = Writer(world, "all").start()
    try:
        writer.wait_for(200, world)
        for _ in range(20):
            assert cut_off.put("one") == NONE
        until(lambda: cut_off.end("one") == (NONE, 20), "all of them to be committed", world.log_text)
        promised = set(cut_off.answered)
        with connected(world.servers) as client:
            net.cut_off("1", "z1", "2", "3")
            becomes(world, partial(cut_off.put, "one"), NOT_LEADER, "the end of the lease")
            assert client.exists(paths.broker(1)) is not None, "the session was over before the lease"
        until(lambda: cut_off.sends_away("one"), "clients to be sent to other brokers", world.log_text)
        assert not cut_off.sends_away("alone")
        assert cut_off.put("one", -1) == NOT_LEADER and cut_off.end("one")[0] == NOT_LEADER
        assert cut_off.put("alone") == NONE and cut_off.end("alone")[0] == NONE  # Nobody else can be elected.
        leader = world.until_led("one", by=others)
        until(lambda: Asked(world, leader).put("one", -1) == NONE, "the new leader to serve", world.log_text)
        assert cut_off.put("one") == NOT_LEADER
        writer.wait_for(200, world)
        net.heal()
        for topic in ("all", "one"):
            world.until_led(topic, by=others, isr={1, 2, 3})
        world.until_led("alone", by={1})
    finally:
        net.heal()
        writer.end()
    check(world, "all", writer)
    found = {value for _, value in read(world, "one", 21)}
    assert promised <= found


def test_an_outage_of_zookeeper_alone_stops_no_producer_with_acks_of_all(world: ClusterProcesses, net: Net) -> None:
    place(world, "all", 1, 2, 3)
    place(world, "one", 2, 1, 3)
    place(world, "alone", 3)
    leader = Asked(world, 2)
    writer = Writer(world, "all").start()
    try:
        writer.wait_for(100, world)  # It has its producer id: that takes a ZooKeeper.
        assert leader.put("one") == NONE
        net.cut_off("z1", "1", "2", "3")
        becomes(world, partial(leader.put, "one"), NOT_LEADER, "the end of the lease")
        assert leader.end("one")[0] == NOT_LEADER
        assert leader.put("one", -1) == NONE
        assert Asked(world, 3).put("alone") == NONE
        writer.wait_for(300, world)
        assert not world_has_elected(world)
        end = max(offset for offset, _ in writer.answered) + 1
        assert len(read(world, "all", end)) >= end
        net.heal()
        for topic in ("all", "one", "alone"):
            world.until_led(topic, by={1, 2, 3})
        writer.wait_for(200, world)
        becomes(world, lambda: Asked(world, world.until_led("one", by={1, 2, 3})).put("one"), NONE, "a lease again")
    finally:
        net.heal()
        writer.end()
    check(world, "all", writer)


def world_has_elected(world: ClusterProcesses) -> bool:
    """Whether any broker was cut off from its clients."""
    return any("no client is served of" in broker.log_text() for broker in world.brokers.values())


def test_a_leader_that_sleeps_past_its_session_answers_for_nothing_of_before(world: ClusterProcesses) -> None:
    place(world, "one", 1, 2, 3)
    leader, others = Asked(world, 1), others_of(1)
    assert leader.put("one") == NONE
    with WireConnection(leader.broker.bootstrap, WAIT_S) as wire:
        world.pause(1)
        try:
            wire.send(encode_request(produce_request("one", 1, 99), VERSION, 7, "test"))
            world.until_led("one", by=others, isr=others)
        finally:
            world.resume(1)
        _, answer = decode_response(ProduceResponse, wire.receive(), VERSION)
        assert answer.responses[0].partition_responses[0].error_code == NOT_LEADER
    world.until_led("one", by=others, isr={1, 2, 3})


@pytest.fixture
def ensemble_world(tmp_path: Path, net: Net) -> Iterator[tuple[ClusterProcesses, list[ZooKeeper]]]:
    """Three brokers around three ZooKeepers."""
    with (
        ensemble(tmp_path / "zookeepers") as servers,
        cluster(servers, tmp_path, net=net, zookeeper_session_timeout_ms=SESSION_MS) as world,
    ):
        yield world, servers


def test_brokers_go_on_while_members_of_an_ensemble_die_and_sleep(
    ensemble_world: tuple[ClusterProcesses, list[ZooKeeper]],
) -> None:
    world, servers = ensemble_world
    world.create("t", min_insync_replicas="2")
    world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
    writer = Writer(world, "t").start()
    try:
        for mode in ("follower", "leader"):
            server = next(one for one in servers if one.mode() == mode)
            server.kill()
            made = f"after-a-{mode}"
            writer.wait_for(200, world)
            world.create(made)
            world.until_led(made, by={1, 2, 3}, isr={1, 2, 3})
            server.start()
        sleeper = next(one for one in servers if one.mode() == "follower")
        assert sleeper.process is not None
        sleeper.process.send_signal(signal.SIGSTOP)
        try:
            dead = world.until_led("t", by={1, 2, 3})
            world.brokers[dead].kill()
            world.until_led("t", by=others_of(dead), isr=others_of(dead))
            writer.wait_for(200, world)
            world.brokers[dead].start()
            world.until_led("t", by={1, 2, 3}, isr={1, 2, 3})
        finally:
            sleeper.process.send_signal(signal.SIGCONT)
        writer.wait_for(200, world)
    finally:
        writer.end()
    check(world, "t", writer)


@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_a_leader_that_reaches_no_zookeeper_one_way_is_no_judge_of_its_lead(
    ensemble_world: tuple[ClusterProcesses, list[ZooKeeper]], net: Net, lost: str
) -> None:
    world, _ = ensemble_world
    place(world, "all", 1, 2, 3)
    place(world, "one", 1, 2, 3)
    leader = Asked(world, 1)
    writer = Writer(world, "all").start()
    try:
        writer.wait_for(100, world)
        assert leader.put("one") == NONE
        ways = [("1", f"z{at}") for at in (1, 2, 3)]
        net.cut(*(ways if lost == "requests" else [(to, source) for source, to in ways]))
        becomes(world, partial(leader.put, "one"), NOT_LEADER, "the end of the lease")
        writer.wait_for(300, world)
        net.heal()
        world.until_led("all", by={1, 2, 3}, isr={1, 2, 3})
        becomes(world, lambda: Asked(world, world.until_led("one", by={1, 2, 3})).put("one"), NONE, "a leader with a lease")
        writer.wait_for(100, world)
    finally:
        net.heal()
        writer.end()
    check(world, "all", writer)


def test_a_leader_that_the_controller_cannot_tell_follows_its_successor(world: ClusterProcesses, net: Net) -> None:
    """Cut off from the controller alone; then somebody wants the preferred leader."""
    controller = json.loads(world.node(paths.CONTROLLER))["brokerid"]
    preferred, leader = sorted(others_of(controller))
    place(world, "t", preferred, leader, controller)
    world.brokers[preferred].kill()
    world.until_led("t", by={leader}, isr={leader, controller})
    world.brokers[preferred].start()
    world.until_led("t", by={leader}, isr={1, 2, 3})
    net.cut_off(str(controller), str(leader))
    with connected(world.servers) as client:
        asked = {"version": 1, "partitions": [{"topic": "t", "partition": 0}]}
        client.create(paths.PREFERRED_ELECTION, json.dumps(asked).encode())
    world.until_stored("t", leader=preferred)
    becomes(world, lambda: Asked(world, leader).put("t"), NOT_LEADER, "the former leader to refuse records")
    named = partial(metadata, world.brokers[leader], "t")
    until(lambda: named().topics[0].partitions[0].leader_id == preferred, "clients to hear who leads", world.log_text)
    until(lambda: set(world.state("t")["isr"]) == {1, 2, 3}, "the former leader to follow, still cut off", world.log_text)
    net.heal()
    writer = write(world, "t")
    world.until_led("t", by={preferred}, isr={1, 2, 3})
    check_answered(world, "t", writer)
