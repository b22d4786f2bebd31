"""What brokers ask of each other, from one broker's peers through sockets to the other's handlers and back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker import dispatch
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    BrokerEndpoint,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    LiveBroker,
    Partition,
    PartitionMetadata,
    PartitionRole,
    RoleAnswer,
    StoppedReplica,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from penstock.broker.configs.features import Features
from penstock.broker.context import Context
from penstock.broker.dispatch import HUGE_BYTES, Dispatch, serve_brokers
from penstock.broker.patience import Patience
from penstock.broker.replication import requests, wire
from penstock.broker.replication.peers import Peers
from penstock.errors import ErrorCode
from penstock.pyx.net.border import DataPlane
from penstock.pyx.wire.header import REQUESTS, decode_response, encode_request
from penstock.pyx.wire.messages import ApiVersionsRequest, ApiVersionsResponse, DeleteTopicsRequest
from support.hostile_frames import hostile
from support.logs import LOGS
from support.onloop import on_loop

INSIDE, OUTSIDE = "INSIDE", "OUTSIDE"
KEYS = {4: 7, 5: 4, 6: 8, 7: 3, 56: 3}
REPLICAS = (1, 2, 3)
EPOCHS = {1: 11, 2: 12, 3: 13}
STATE = LeaderAndIsr(1, 5, (1, 2), (3,), (), 4, 2, 7, 0, 6)


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"#")


def role(partition: Partition) -> PartitionRole:
    return PartitionRole(partition, topic_id(partition[0]), REPLICAS, STATE, EPOCHS)


def many(count: int) -> list[Partition]:
    """Partitions of a topic for every hundred."""
    return [(f"topic-{at // 100}", at % 100) for at in range(count)]


@dataclass
class Member:
    """A broker of a cluster that notes what it is asked, and in which thread messages were read."""

    topic_names: Mapping[bytes, str] = field(default_factory=lambda: {topic_id("t"): "t"})
    asked: list[Any] = field(default_factory=list)
    error: int = 0
    is_pictured: bool = True

    async def on_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        self.asked.append(request)
        answers = {} if self.error else {one.partition: RoleAnswer(0, 4, one.partition[1]) for one in request.roles}
        return LeaderAndIsrAnswer(request.broker, request.broker_epoch, self.error, 9, answers)

    async def on_stop_replica(self, request: StopReplica) -> StopReplicaAnswer:
        self.asked.append(request)
        errors = {one.partition: int(one.delete) for one in request.replicas}
        return StopReplicaAnswer(request.broker, request.broker_epoch, self.error, 9, errors)

    async def on_update_metadata(self, update: UpdateMetadata) -> int:
        self.asked.append(update)
        return self.error

    async def on_alter_partition(self, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        self.asked.append(asks)
        if self.error:
            return [AlterPartitionAnswer(ask, self.error) for ask in asks]
        return [AlterPartitionAnswer(ask, 0, replace(STATE, isr=ask.isr, partition_epoch=7)) for ask in asks]

    async def on_controlled_shutdown(self, broker: int, broker_epoch: int) -> tuple[int, Sequence[Partition]]:
        self.asked.append((broker, broker_epoch))
        return self.error, [("t", 1), ("u", 0)]


@dataclass
class Broker:
    """Broker 2 as far as its listeners and handlers go."""

    member: Member | None
    dispatch: Dispatch
    ports: dict[str, int]
    peers: Peers  # of broker 1


@contextlib.asynccontextmanager
async def running(member: Member | None, *names: str, between_brokers: str | None = INSIDE) -> AsyncIterator[Broker]:
    """A broker with these listeners."""
    plane = DataPlane(
        network_threads=1, logs=LOGS, node_id=2, max_request_bytes=64 << 20, max_idle_ms=600_000, queued_bytes_max=64 << 20,
        fetch_max_bytes=55 << 20,
    )  # fmt: skip
    ports = {name: plane.listen("127.0.0.1", 0, name) for name in names or (INSIDE, OUTSIDE)}
    context = SimpleNamespace(
        features=Features(), patience=Patience(), cluster=member, between_brokers=between_brokers, cluster_id="c", node_id=2
    )
    serve_brokers()
    rim = Dispatch(cast(Context, context), plane)
    loop = asyncio.get_running_loop()
    loop.add_reader(plane.request_fd, lambda: rim.take(plane.take_requests()))
    plane.start()
    peers = Peers(1, "c")
    peers.set_brokers({2: ("127.0.0.1", next(iter(ports.values())))})
    try:
        yield Broker(member, rim, ports, peers)
    finally:
        await peers.stop()
        request_fd = plane.request_fd
        await loop.run_in_executor(None, plane.stop)
        loop.remove_reader(request_fd)
        await rim.stop()


async def versions(port: int) -> dict[int, tuple[int, int]]:
    """What ApiVersions answers on a listener."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frame = encode_request(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3, 1, "t")
    writer.write(len(frame).to_bytes(4, "big") + frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    _, answer = decode_response(ApiVersionsResponse, await reader.readexactly(size), 3)
    writer.close()
    return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


async def fate(port: int, frame: bytes) -> bytes:
    """What comes for a frame with its size in front: an answer, or nothing and the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(frame)
    writer.write_eof()
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@on_loop
async def test_each_request_is_what_was_sent_and_so_is_its_answer() -> None:
    member = Member()
    async with running(member) as broker:
        roles = LeaderAndIsrRequest(1, 9, 2, 12, (role(("t", 3)), role(("u", 0))))
        told = await requests.tell_roles(broker.peers, roles)
        assert told == LeaderAndIsrAnswer(2, 12, 0, 9, {("t", 3): RoleAnswer(0, 4, 3), ("u", 0): RoleAnswer(0, 4, 0)})

        endpoints = (BrokerEndpoint(INSIDE, "h", 1), BrokerEndpoint(OUTSIDE, "::1", 2))
        being_deleted = replace(STATE, leader=-2)
        update = UpdateMetadata(
            1, 9, 2, 12, (LiveBroker(1, endpoints, "rack"), LiveBroker(3, endpoints)),
            (PartitionMetadata(("t", 0), topic_id("t"), REPLICAS, being_deleted, (3,)),),
        )  # fmt: skip
        assert await requests.tell_metadata(broker.peers, update) == 0

        stop = StopReplica(1, 9, 2, 12, (StoppedReplica(("t", 0), topic_id("t"), -2, True),))
        assert await requests.stop_replicas(broker.peers, stop) == StopReplicaAnswer(2, 12, 0, 9, {("t", 0): 1})

        known = AlterPartition(("t", 0), topic_id("t"), 1, 11, 5, 6, (1, 2, 3), {3: 13})
        unknown = replace(known, partition=("t", 1), topic_id=topic_id("gone"))
        answers = await requests.propose(broker.peers, 2, [unknown, known])
        state = replace(STATE, isr=(1, 2, 3), partition_epoch=7)
        refused = AlterPartitionAnswer(unknown, ErrorCode.UNKNOWN_TOPIC_ID)
        assert answers == [refused, AlterPartitionAnswer(known, 0, state)]

        assert await requests.announce_stop(broker.peers, 2, 1, 11) == (0, [("t", 1), ("u", 0)])
        assert member.asked == [roles, update, stop, (known,), (1, 11)]
        assert broker.dispatch.failed == 0


@on_loop
async def test_a_list_of_any_length_goes_in_pieces_that_are_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()

    def read(name: str) -> Any:
        whole = getattr(wire, name)

        def noting(*given: Any, **named: Any) -> Any:
            threads.add(threading.current_thread().name.rpartition("_")[0])
            return whole(*given, **named)

        return noting

    for name in ("read_roles", "read_metadata", "read_stops", "read_proposals"):
        monkeypatch.setattr(wire, name, read(name))
    partitions = many(6_000)
    ids = {name: topic_id(name) for name, _ in partitions}
    member = Member(topic_names={topic_id: name for name, topic_id in ids.items()})
    async with running(member) as broker:
        roles = LeaderAndIsrRequest(1, 9, 2, 12, tuple(map(role, partitions)))
        told = await requests.tell_roles(broker.peers, roles)
        assert told.answers == {partition: RoleAnswer(0, 4, partition[1]) for partition in partitions}
        assert [len(one.roles) for one in member.asked] == [2_500, 2_500, 1_000]
        assert sum((one.roles for one in member.asked), ()) == roles.roles

        member.asked.clear()
        shown = tuple(PartitionMetadata(one, topic_id(one[0]), REPLICAS, STATE) for one in partitions)
        update = UpdateMetadata(1, 9, 2, 12, (LiveBroker(1, ()),), shown)
        assert await requests.tell_metadata(broker.peers, update) == 0
        assert sum((one.partitions for one in member.asked), ()) == shown
        assert all(one.brokers == update.brokers for one in member.asked) and len(member.asked) == 3
        assert [one.is_whole for one in member.asked] == [False, False, True]

        member.asked.clear()
        stop = StopReplica(1, 9, 2, 12, tuple(StoppedReplica(one, topic_id(one[0])) for one in partitions))
        assert (await requests.stop_replicas(broker.peers, stop)).errors == dict.fromkeys(partitions, 0)
        assert sum((one.replicas for one in member.asked), ()) == stop.replicas

        asks = [AlterPartition(one, topic_id(one[0]), 1, 11, 5, 6, (1, 2, 3), {3: 13}) for one in partitions]
        answers = await requests.propose(broker.peers, 2, asks)
        assert [(one.ask, one.error) for one in answers] == [(ask, 0) for ask in asks]
    assert threads == {"coding-brokers"}


@on_loop
async def test_after_a_refused_piece_no_other_is_sent() -> None:
    member = Member(error=ErrorCode.STALE_CONTROLLER_EPOCH)
    async with running(member) as broker:
        partitions = many(6_000)
        told = await requests.tell_roles(broker.peers, LeaderAndIsrRequest(1, 9, 2, 12, tuple(map(role, partitions))))
        assert told == LeaderAndIsrAnswer(2, 12, ErrorCode.STALE_CONTROLLER_EPOCH, 9)
        shown = tuple(PartitionMetadata(one, topic_id(one[0]), REPLICAS, STATE) for one in partitions)
        assert await requests.tell_metadata(broker.peers, UpdateMetadata(1, 9, 2, 12, (), shown)) == 11
        assert len(member.asked) == 2


@on_loop
async def test_what_brokers_say_is_served_on_their_listener_alone() -> None:
    async with running(Member()) as broker:
        served = {name: await versions(port) for name, port in broker.ports.items()}
        assert {key: served[INSIDE][key] for key in KEYS} == {key: (version, version) for key, version in KEYS.items()}
        assert served[OUTSIDE] == {key: found for key, found in served[INSIDE].items() if key not in KEYS}
        for key, version in KEYS.items():
            frame = next(frame for frame in hostile(key, version, 1))
            assert await fate(broker.ports[OUTSIDE], frame) == b"", key
        stranger = Peers(3, "c")
        stranger.set_brokers({2: ("127.0.0.1", broker.ports[OUTSIDE])})
        with pytest.raises(ConnectionError, match="doesn't serve LeaderAndIsr"):
            await requests.tell_roles(stranger, LeaderAndIsrRequest(1, 9, 2, 12, ()))
        await stranger.stop()
        assert broker.member is not None and broker.member.asked == []


@on_loop
async def test_with_one_listener_it_serves_both() -> None:
    async with running(Member(), "PLAINTEXT", between_brokers="PLAINTEXT") as broker:
        served = await versions(broker.ports["PLAINTEXT"])
        assert {key: served[key] for key in KEYS} == {key: (version, version) for key, version in KEYS.items()}
        assert {0, 1, 3, 18} <= served.keys()


@on_loop
async def test_a_single_node_knows_none_of_it() -> None:
    async with running(None, "PLAINTEXT", between_brokers="PLAINTEXT") as broker:
        assert not (await versions(broker.ports["PLAINTEXT"])).keys() & KEYS.keys()
        for key, version in KEYS.items():
            assert await fate(broker.ports["PLAINTEXT"], next(hostile(key, version, 1))) == b"", key
        assert broker.dispatch.failed == 0


@on_loop
async def test_no_frame_is_worse_than_refused() -> None:
    """Cut, stretched, with wrong lengths and random bytes: an answer or the end, and the broker goes on."""
    dice = random.Random(20261128)
    async with running(Member()) as broker:
        answered = closed = 0
        for key, version in KEYS.items():
            frames = list(hostile(key, version, 3))
            whole = frames[0]
            for _ in range(60):
                damaged = bytearray(whole)
                for _ in range(dice.randint(1, 4)):
                    # Size, key and version stay, so that the damage reaches this handler.
                    damaged[dice.randrange(12, len(damaged))] = dice.choice((0, 1, 2, 5, 127, 128, 255))
                frames.append(bytes(damaged))
            for frame in frames:
                if await fate(broker.ports[INSIDE], frame):
                    answered += 1
                else:
                    closed += 1
        assert answered > 0 and closed > 0
        assert broker.dispatch.failed == 0
        told = await requests.tell_roles(broker.peers, LeaderAndIsrRequest(1, 9, 2, 12, (role(("t", 3)),)))
        assert told.error == 0


@on_loop
async def test_a_huge_request_of_a_client_does_not_hold_up_a_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the thread that decodes clients' requests, nor among those that are dealt with one after the other."""
    async with running(Member()) as broker:
        held, going = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        decode = Dispatch._decode

        def slow(self: Dispatch, request: Any) -> Any:
            if request.api_key == DeleteTopicsRequest.API_KEY:
                loop.call_soon_threadsafe(going.set)
                assert held.wait(100)
            return decode(self, request)

        monkeypatch.setattr(Dispatch, "_decode", slow)
        monkeypatch.setattr(dispatch, "ALONE_S", 1_000)
        frame = encode_request(DeleteTopicsRequest(topic_names=["a"]), 1, 1, "t")
        frame += bytes(HUGE_BYTES)  # Bytes behind a message are passed over.
        client = asyncio.ensure_future(fate(broker.ports[OUTSIDE], len(frame).to_bytes(4, "big") + frame))
        await going.wait()
        roles = LeaderAndIsrRequest(1, 9, 2, 12, tuple(map(role, many(2_500))))
        assert len(wire.write_roles(roles).encode(7)) > HUGE_BYTES
        assert len((await requests.tell_roles(broker.peers, roles)).answers) == 2_500
        assert not client.done()
        held.set()
        assert await client


def test_the_apis_between_brokers_are_those_of_the_wire_tables() -> None:
    assert {key: REQUESTS[key].MAX_VERSION for key in KEYS} == KEYS
