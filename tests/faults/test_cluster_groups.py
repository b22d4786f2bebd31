"""Groups in a cluster of processes: what a coordinator has answered is what the next one answers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition

from penstock.broker.coordination.statelog import java_hash_partition
from penstock.broker.process import BrokerProcess
from penstock.errors import ErrorCode
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
)
from support.cluster_world import WAIT_S, ClusterProcesses, cluster
from support.harness import WireConnection
from support.kafka_jars import java
from support.patience import until
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka

PARTITIONS = 4
OFFSETS = "__consumer_offsets"
PROTOCOLS = ("classic", "consumer")


@pytest.fixture
def world(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three brokers."""
    with cluster(
        zookeeper, tmp_path, offsets_topic_num_partitions=PARTITIONS, transaction_state_log_num_partitions=PARTITIONS
    ) as made:
        yield made


def home(name: str) -> int:
    """The partition of a coordinator's topic in which a name is kept."""
    return java_hash_partition(name, PARTITIONS)


def coordinator(world: ClusterProcesses, name: str, topic: str = OFFSETS, *, among: set[int] | None = None) -> int:
    """The broker that coordinates a name, once one does and all others that live are in sync with it."""
    live = among or {1, 2, 3}
    return world.until_led(topic, by=live, isr=live, partition=home(name))


def member(world: ClusterProcesses, group: str, protocol: str, **properties: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": world.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.fast.interval.ms": 100,
            **({"session.timeout.ms": 10_000} if protocol == "classic" else {}),
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
    )


def fill(world: ClusterProcesses, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": world.bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(WAIT_S) == 0


def committed(world: ClusterProcesses, group: str, topic: str, protocol: str = "classic") -> int:
    """The position of a group, as whoever coordinates it says."""
    consumer = member(world, group, protocol)
    try:
        while True:
            try:
                (where,) = consumer.committed([TopicPartition(topic, 0)], WAIT_S)
                return int(where.offset)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_positions_that_were_answered_outlive_the_coordinator(world: ClusterProcesses, protocol: str) -> None:
    group = f"g-{protocol}"
    world.create("t", min_insync_replicas="2")
    fill(world, "t", 400)
    reader = member(world, group, protocol)
    reader.subscribe(["t"])
    answered = asked = -1
    seen: list[int] = []

    def read(count: int) -> None:
        """Read, and commit each record's position until that is answered."""
        nonlocal answered, asked
        wanted = len(seen) + count

        def goes_on() -> bool:
            nonlocal answered, asked
            message = reader.poll(0.5)
            if message is not None and message.error() is None:
                offset = message.offset()
                assert offset is not None
                seen.append(offset)
                asked = max(asked, offset + 1)
                try:
                    reader.commit(offsets=[TopicPartition("t", 0, offset + 1)], asynchronous=False)
                    answered = offset + 1
                except KafkaException:
                    pass  # It may have been stored or not.
            return len(seen) >= wanted

        until(goes_on, f"{count} records more", lambda: f"{len(seen)} are read\n{world.log_text()}")

    try:
        read(50)
        for ends in (BrokerProcess.kill, BrokerProcess.stop, BrokerProcess.kill):
            first = coordinator(world, group)
            ends(world.brokers[first])
            others = {1, 2, 3} - {first}
            coordinator(world, group, among=others)
            assert answered <= committed(world, group, "t") <= asked
            read(50)
            assert answered <= committed(world, group, "t") <= asked
            world.brokers[first].start()
            world.until_known({1, 2, 3})
    finally:
        reader.close()
    assert set(range(max(seen) + 1)) == set(seen)


class RawMember:
    """A member of a classic group that does one step when it is told to."""

    def __init__(self, world: ClusterProcesses, group: str, name: str) -> None:
        self.world, self.group, self.name = world, group, name
        self.id, self.generation, self.leader = "", -1, ""
        self.others: list[str] = []
        self.assignment = b""
        self._wire: WireConnection | None = None

    def ask(self, request: Message, version: int) -> Any:
        """Ask the coordinator, whoever that is by now; gives up where it dies before it answers."""
        if self._wire is None:
            self._wire = WireConnection(find(self.world, self.group), 60)
        try:
            answer = self._wire.ask(request, version)
        except (OSError, EOFError):
            self.close()
            raise
        if getattr(answer, "error_code", 0) in MOVED:
            self.close()
        return answer

    def close(self) -> None:
        if self._wire is not None:
            self._wire.__exit__()
            self._wire = None

    def join(self) -> int:
        """Waits for the group."""
        protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=self.name.encode())]
        request = JoinGroupRequest(
            group_id=self.group, session_timeout_ms=20_000, rebalance_timeout_ms=20_000, member_id=self.id,
            protocol_type="consumer", protocols=protocols,
        )  # fmt: skip
        answer = self.ask(request, 5)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            return self.join()
        if not answer.error_code:
            self.id, self.generation, self.leader = answer.member_id, answer.generation_id, answer.leader
            self.others = [one.member_id for one in answer.members]
        return int(answer.error_code)

    def sync(self) -> int:
        """The leader's shares are the members' own ids."""
        given = SyncGroupRequest.SyncGroupRequestAssignment
        shares = [given(member_id=one, assignment=one.encode()) for one in self.others] if self.leader == self.id else []
        request = SyncGroupRequest(group_id=self.group, generation_id=self.generation, member_id=self.id, assignments=shares)
        answer = self.ask(request, 3)
        if not answer.error_code:
            self.assignment = answer.assignment
        return int(answer.error_code)

    def beat(self, generation: int | None = None) -> int:
        wanted = self.generation if generation is None else generation
        request = HeartbeatRequest(group_id=self.group, generation_id=wanted, member_id=self.id)
        return int(self.ask(request, 3).error_code)

    def live(self, ended: threading.Event) -> None:
        """As a client does, until it is told that it is enough."""
        while not ended.is_set():
            with contextlib.suppress(OSError, EOFError):
                error = self.beat() if self.generation >= 0 and self.assignment else ErrorCode.UNKNOWN_MEMBER_ID
                if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
                    self.assignment = b""
                    joined = self.join()
                    if joined == ErrorCode.UNKNOWN_MEMBER_ID:
                        self.id = ""
                    elif not joined:
                        self.sync()
            ended.wait(0.05)


MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def find(world: ClusterProcesses, name: str, among: Collection[int] = (1, 2, 3)) -> str:
    """The address of whoever coordinates a group, as the brokers that live say."""
    for number in itertools.cycle(among):
        with contextlib.suppress(OSError, EOFError), WireConnection(world.brokers[number].bootstrap, 5) as wire:
            answer = wire.ask(FindCoordinatorRequest(key=name), 3)
            if not answer.error_code and answer.node_id in among:
                return f"{answer.host}:{answer.port}"
        time.sleep(0.05)
    raise AssertionError


def beside(work: Callable[[], object]) -> threading.Thread:
    """Something that may not end before the coordinator does."""

    def run() -> None:
        with contextlib.suppress(OSError, EOFError):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


PHASES = ("told", "some heard", "some joined", "stored", "some answered")


@pytest.mark.parametrize("phase", PHASES)
def test_a_coordinator_dies_in_each_phase_of_a_rebalance_with_a_slow_member(world: ClusterProcesses, phase: str) -> None:
    """Two members share a group, a third one joins, and one of the first two does its next step only afterwards."""
    group = "phases"
    quick, slow, new = (RawMember(world, group, name) for name in ("quick", "slow", "new"))
    share([quick, slow], world)
    before, members = quick.generation, [quick, slow, new]
    broker = coordinator(world, group)
    assert heard(quick.beat) == heard(slow.beat) == 0
    threads = [beside(new.join)]
    if phase != "told":
        until(lambda: hears(quick), "the rebalance", world.log_text)
    if phase in ("some joined", "stored", "some answered"):
        threads.append(beside(quick.join))
    if phase in ("stored", "some answered"):
        threads.append(beside(slow.join))
        for thread in threads:
            thread.join()
        assert quick.generation == slow.generation == new.generation == before + 1
    if phase == "stored":
        assert next(one for one in members if one.id == one.leader).sync() == 0
    world.brokers[broker].kill()
    for thread in threads:
        thread.join()
    coordinator(world, group, among={1, 2, 3} - {broker})
    for one in members:
        one.close()
    if phase == "stored":
        assert heard(slow.sync) == 0 and slow.assignment == slow.id.encode(), "what was stored is what is answered"
        assert heard(lambda: quick.beat(before)) == ErrorCode.ILLEGAL_GENERATION
    elif phase in ("told", "some heard", "some joined"):
        assert heard(lambda: slow.beat(before)) in (0, ErrorCode.REBALANCE_IN_PROGRESS)
        assert heard(lambda: slow.beat(before + 1)) == ErrorCode.ILLEGAL_GENERATION
    else:
        assert heard(slow.sync) == ErrorCode.ILLEGAL_GENERATION, "nobody has stored that generation"
    share(members, world)
    assert quick.generation > before
    assert heard(lambda: quick.beat(before)) == ErrorCode.ILLEGAL_GENERATION


def share(members: Sequence[RawMember], world: ClusterProcesses) -> None:
    """Let them live until each has its share of one generation."""
    ended = threading.Event()
    living = [threading.Thread(target=one.live, args=(ended,)) for one in members]
    for thread in living:
        thread.start()
    try:
        until(
            lambda: (
                all(one.id and one.assignment == one.id.encode() for one in members)
                and len({one.generation for one in members}) == 1
            ),
            "all to share the group",
            world.log_text,
        )
    finally:
        ended.set()
        for thread in living:
            thread.join()
    assert len({one.id for one in members}) == len(members)


def hears(member: RawMember) -> bool:
    """Whether a heartbeat says that the group gets together again."""
    return member.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def heard(ask: Callable[[], int]) -> int:
    """What the coordinator answers, once there is one that has loaded."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(OSError, EOFError):
            error = ask()
            if error not in MOVED:
                return error
        assert time.monotonic() < deadline
        time.sleep(0.05)


def commit_request(group: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])


def commit(world: ClusterProcesses, group: str, offset: int, among: Collection[int] = (1, 2, 3)) -> int:
    """Commit a position of partition 0 as a client without a group does; the error code."""
    with WireConnection(find(world, group, among)) as wire:
        return int(wire.ask(commit_request(group, offset), 8).topics[0].partitions[0].error_code)


def test_a_coordinator_that_was_paused_past_its_session_answers_for_nothing(world: ClusterProcesses) -> None:
    group = "paused"
    world.create("t", min_insync_replicas="2")
    assert heard(lambda: commit(world, group, 5)) == 0
    first = coordinator(world, group)
    with WireConnection(world.brokers[first].bootstrap, 60) as stale:
        world.pause(first)
        try:
            stale.send(encode_request(commit_request(group, 7), 8, 1, "stale"))
            others = {1, 2, 3} - {first}
            coordinator(world, group, among=others)
            assert heard(lambda: commit(world, group, 6, others)) == 0
        finally:
            world.resume(first)
        try:
            _, refused = decode_response(OffsetCommitResponse, stale.receive(), 8)
        except EOFError:
            pass  # That is no answer either.
        else:
            assert refused.topics[0].partitions[0].error_code in MOVED
    coordinator(world, group)
    assert committed(world, group, "t") == 6


def test_a_deleted_topic_takes_its_positions_at_every_coordinator(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="2")
    names = [f"g{number}" for number in range(8)]
    assert {home(name) for name in names} == set(range(PARTITIONS))
    for name in names:
        assert heard(partial(commit, world, name, 5)) == 0
    admin = world.admin()
    admin.delete_topics(["t"])["t"].result(WAIT_S)
    world.create("t", min_insync_replicas="2")
    until(lambda: {committed(world, name, "t") for name in names} == {OFFSET_INVALID}, "the positions gone", world.log_text)


def test_the_coordinators_of_all_groups_are_asked_for_what_they_have(world: ClusterProcesses) -> None:
    world.create("t", min_insync_replicas="2")
    names = {f"g{number}" for number in range(8)}
    for name in names:
        assert heard(partial(commit, world, name, 5)) == 0
    admin = world.admin()
    listed = {one.group_id for one in admin.list_consumer_groups().result(WAIT_S).valid}
    assert names <= listed
    parts = [
        {group.group_id for group in wire.ask(ListGroupsRequest(), 4).groups}
        for broker in world.brokers.values()
        for wire in [WireConnection(broker.bootstrap)]
    ]
    assert sum(len(part & names) for part in parts) == len(names) and all(len(part & names) < len(names) for part in parts)
    for future in admin.delete_consumer_groups(sorted(names)).values():
        future.result(WAIT_S)
    assert not names & {one.group_id for one in admin.list_consumer_groups().result(WAIT_S).valid}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_javas_consumer_reads_in_a_group(world: ClusterProcesses, protocol: str) -> None:
    world.create("t", min_insync_replicas="2")
    fill(world, "t", 100)
    for part in (60, 40):
        said = java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", world.bootstrap, "--topic", "t", "--group",
            "java", "--from-beginning", "--max-messages", str(part), "--timeout-ms", "60000", "--command-property",
            f"group.protocol={protocol}",
        )  # fmt: skip
        assert len(said.splitlines()) == part
    assert committed(world, "java", "t") == 100


def test_names_without_a_leader_wait_for_it_and_lose_nothing(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, offsets_topic_num_partitions=PARTITIONS, offsets_topic_replication_factor=1) as world:
        world.create("t")
        assert heard(lambda: commit(world, "g", 5)) == 0
        only = world.until_led(OFFSETS, by={1, 2, 3}, partition=home("g"))
        others = {1, 2, 3} - {only}
        world.brokers[only].kill()
        world.until_known(others)

        def is_refused() -> bool:
            with WireConnection(world.brokers[min(others)].bootstrap) as wire:
                return bool(wire.ask(FindCoordinatorRequest(key="g"), 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE)

        until(is_refused, "nobody to coordinate it", world.log_text)
        world.brokers[only].start()
        world.until_known({1, 2, 3})
        assert committed(world, "g", "t") == 5
