"""The controller in a process: elected in a real ZooKeeper, it gives partitions their states and tells brokers their roles.

The brokers here have the real role machines, and logs in memory; they answer what the controller sends without a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
from sim.cluster_log import ReplicaLog

from penstock.broker.cluster import roles
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import (
    AlterPartition,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from penstock.broker.cluster.registration import OwnRegistration
from penstock.broker.cluster.replica import Replica, on_role
from penstock.broker.configs.confignodes import config_json
from penstock.broker.endpoint import Endpoint
from penstock.broker.replication import brokerid, topicdeletions
from penstock.broker.replication.controllership import Controllership
from penstock.broker.replication.electioncount import ElectionCount
from penstock.broker.replication.reading import read_one_state
from penstock.broker.replication.session import SessionStore
from penstock.broker.replication.term import Term
from penstock.broker.store.base import Create, NoNodeError, StoreError, paths
from penstock.broker.store.zookeeper import ZooKeeperSessions
from penstock.broker.topic import PartitionState, Topic
from penstock.broker.topics.nodes import topic_json
from penstock.broker.uuids import new_uuid
from penstock.errors import ErrorCode
from support.store_homes import WAIT_S
from support.zookeeper import SESSION_MS, ZooKeeper, ZooKeeperHome

pytestmark = pytest.mark.kafka

ADDRESS = {
    "host": "h",
    "port": 9092,
    "endpoints": ["PLAINTEXT://h:9092"],
    "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
}


def now_ms() -> int:
    """A clock for all that needs one."""
    return time.monotonic_ns() // 1_000_000


class Broker:
    """A registered broker with its role machines, and what it was told."""

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.world = world
        self.session = SessionStore(ZooKeeperSessions(world.servers, SESSION_MS, WAIT_S))
        self.member = OwnRegistration(number, f"run-{number}-{now_ms()}", clean=True)
        self.roles = roles.Roles(number)
        self.logs: dict[Partition, ReplicaLog] = {}
        self.pictures: dict[Partition, tuple[int, int]] = {}  # leader, leader epoch
        self.stopped: list[Partition] = []
        self.is_away = False
        self.controllership: Controllership | None = None
        self.running: asyncio.Task[None] | None = None

    async def start(self) -> Broker:
        """Register, and stand for controller."""
        store = await self.session.begin()
        await brokerid.register(
            store, self.member, ADDRESS, {"folders": [{"id": str(self.number)}], "machine": "m", "boot": "b"}
        )
        self.controllership = Controllership(
            self.number, store, self.world, self.world.config, now_ms=now_ms, monotonic_ms=now_ms,
            newer_epoch=lambda: self.roles.controller_epoch,
            lease_is_over=lambda: False,
            elections=ElectionCount(),
        )  # fmt: skip
        self.running = asyncio.create_task(self._run(self.controllership))
        return self

    async def _run(self, controllership: Controllership) -> None:
        with contextlib.suppress(StoreError):
            await controllership.run()

    async def end(self) -> None:
        """End its session, as the end of its process would some seconds later."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        self.controllership = None
        await self.session.close()

    @property
    def term(self) -> Term | None:
        """While it is the controller."""
        return None if self.controllership is None else self.controllership.term

    def take(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """Its role machines' answer."""
        refusal = roles.refuse(self.roles, request.controller_epoch, request.broker_epoch, self.member.epoch)
        if refusal:
            return LeaderAndIsrAnswer(self.number, self.member.epoch, refusal, self.roles.controller_epoch)
        answers = {}
        for role in request.roles:
            before = self.roles.replicas.get(role.partition)
            if before is None or before.newest_role is None or before.newest_role.topic_id != role.topic_id:
                self.logs[role.partition] = ReplicaLog()
                self.roles.replicas[role.partition] = Replica(self.number, role.partition, 0)
            log, replica = self.logs[role.partition], self.roles.replicas[role.partition]
            answers[role.partition] = on_role(replica, role, self.member.epoch, log, now_ms())
        return LeaderAndIsrAnswer(self.number, self.member.epoch, ErrorCode.NONE, self.roles.controller_epoch, answers)


class World:
    """Brokers around one chroot; it carries what the controller sends (`sender.ControllerSender`)."""

    def __init__(self, server: ZooKeeper) -> None:
        self.servers = ZooKeeperHome(server.address).servers
        self.brokers: dict[int, Broker] = {}
        self.config: dict[str, object] = {
            "unclean.leader.election.enable": False,
            "min.insync.replicas": 1,
            "unclean.recovery.timeout.ms": -1,
            "auto.leader.rebalance.enable": True,
            "leader.imbalance.check.interval.seconds": 300,
            "leader.imbalance.per.broker.percentage": 10,
        }

    async def start(self, *numbers: int) -> None:
        """Start these brokers."""
        for number in numbers:
            self.brokers[number] = await Broker(number, self).start()

    def know(self, endpoints: Mapping[int, Mapping[str, Endpoint]]) -> None:
        """Nobody is dialled here."""

    async def send_roles(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """To a broker that isn't away."""
        return self._reach(request.broker).take(request)

    async def send_picture(self, picture: UpdateMetadata) -> int:
        """To a broker that isn't away."""
        broker = self._reach(picture.broker)
        if picture.broker_epoch != broker.member.epoch:
            return int(ErrorCode.STALE_BROKER_EPOCH)
        broker.pictures.update({one.partition: (one.state.leader, one.state.leader_epoch) for one in picture.partitions})
        return int(ErrorCode.NONE)

    async def send_stop(self, request: StopReplica) -> StopReplicaAnswer:
        """To a broker that isn't away."""
        broker = self._reach(request.broker)
        broker.stopped += [one.partition for one in request.replicas if one.delete]
        return StopReplicaAnswer(request.broker, broker.member.epoch, ErrorCode.NONE, request.controller_epoch, {})

    def _reach(self, number: int) -> Broker:
        broker = self.brokers[number]
        if broker.is_away or broker.controllership is None:
            raise ConnectionError(f"broker {number} is away")
        return broker

    @property
    def term(self) -> Term:
        """The controller's term."""
        (term,) = (one.term for one in self.brokers.values() if one.term is not None)
        return term

    @property
    def any(self) -> Broker:
        """A broker that lives."""
        return next(one for one in self.brokers.values() if one.controllership is not None)

    async def create(self, name: str, *replicas: list[int], configs: dict[str, str] | None = None) -> bytes:
        """Write a topic's nodes, as any broker does."""
        states = [PartitionState(index, -1, 0, placed, []) for index, placed in enumerate(replicas)]
        topic = Topic(name, new_uuid(), states, configs or {})
        await self.any.session.multi(
            [Create(paths.topic_config(name), config_json(topic.configs)), Create(paths.topic(name), topic_json(topic))]
        )
        return topic.topic_id

    async def state(self, name: str, index: int = 0) -> LeaderAndIsr | None:
        """A partition's state, as the store has it."""
        await self.any.session.sync()
        return await read_one_state(self.any.session, (name, index))

    async def become(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait until this is so."""
        while not await is_so():  # noqa: ASYNC110 - nothing tells it but asking
            await asyncio.sleep(0.02)

    async def leads(self, name: str, leader: int, isr: set[int]) -> None:
        """Wait until the store says so, and the leader's machine knows it."""

        async def is_so() -> bool:
            state = await self.state(name)
            if state is None or state.leader != leader or set(state.isr) != isr:
                return False
            replica = self.brokers[leader].roles.replicas.get((name, 0))
            return replica is not None and replica.leader is not None and replica.leader.state == state

        await self.become(is_so)


@contextlib.asynccontextmanager
async def begun(server: ZooKeeper, *numbers: int) -> AsyncIterator[World]:
    """A world with these brokers."""
    world = World(server)
    try:
        async with asyncio.timeout(WAIT_S):
            await world.start(*numbers)
            yield world
    finally:
        for broker in world.brokers.values():
            await broker.end()


def controllers(world: World) -> list[int]:
    """The brokers that have a term as controller."""
    return [number for number, broker in world.brokers.items() if broker.term is not None]


def test_a_new_topic_gets_leaders_and_everybody_hears_of_it(zookeeper: ZooKeeper) -> None:
    async def play() -> None:
        async with begun(zookeeper, 1, 2, 3) as world:
            await world.create("t", [1, 2, 3], [2, 3, 1], configs={"min.insync.replicas": "2"})
            await world.leads("t", 1, {1, 2, 3})
            assert len(controllers(world)) == 1
            state = await world.state("t", 1)
            assert state is not None and (state.leader, state.min_isr, set(state.isr)) == (2, 2, {1, 2, 3})

            async def is_told() -> bool:
                return all(broker.pictures.get(("t", 1)) == (2, 0) for broker in world.brokers.values())

            await world.become(is_told)

    asyncio.run(play())


def test_a_broker_that_ends_loses_lead_and_seat_and_comes_back(zookeeper: ZooKeeper) -> None:
    async def play() -> None:
        async with begun(zookeeper, 1, 2, 3) as world:
            await world.create("t", [3, 1, 2])
            await world.leads("t", 3, {1, 2, 3})
            await world.brokers[3].end()
            await world.leads("t", 1, {1, 2})
            await world.start(3)
            await world.become(lambda: knows(world.brokers[3], "t", leader=1))
            ask = await proposal(world, "t", leader=1, entrant=3)
            (answer,) = await world.term.alter([ask])
            assert answer.error == ErrorCode.NONE and answer.state is not None and set(answer.state.isr) == {1, 2, 3}
            (answer,) = await world.term.alter([ask])
            assert answer.error == ErrorCode.INVALID_UPDATE_VERSION

    asyncio.run(play())


async def knows(broker: Broker, name: str, leader: int) -> bool:
    """Whether a broker was told who leads."""
    replica = broker.roles.replicas.get((name, 0))
    return replica is not None and replica.state is not None and replica.state.leader == leader


async def proposal(world: World, name: str, leader: int, entrant: int) -> AlterPartition:
    """What the leader proposes once a replica has caught up."""
    state = await world.state(name)
    assert state is not None
    isr, epoch = (*state.isr, entrant), world.brokers[leader].member.epoch
    entrants = {entrant: world.brokers[entrant].member.epoch}
    replica = world.brokers[leader].roles.replicas[name, 0]
    assert replica.newest_role is not None
    topic_id = replica.newest_role.topic_id
    return AlterPartition((name, 0), topic_id, leader, epoch, state.leader_epoch, state.partition_epoch, isr, entrants)


def test_another_broker_becomes_the_controller_and_goes_on(zookeeper: ZooKeeper) -> None:
    async def play() -> None:
        async with begun(zookeeper, 1, 2, 3) as world:
            await world.create("t", [1, 2, 3])
            await world.leads("t", 1, {1, 2, 3})
            epoch = world.brokers[1].roles.controller_epoch
            await world.brokers[1].end()
            await world.leads("t", 2, {2, 3})
            assert controllers(world) and world.brokers[2].roles.controller_epoch > epoch
            await world.create("later", [2, 3])
            await world.leads("later", 2, {2, 3})

    asyncio.run(play())


def test_a_topic_is_deleted_though_one_of_its_brokers_is_away(zookeeper: ZooKeeper) -> None:
    async def play() -> None:
        async with begun(zookeeper, 1, 2, 3) as world:
            topic_id = await world.create("t", [1, 2, 3])
            await world.leads("t", 1, {1, 2, 3})
            world.brokers[3].is_away = True
            store = world.brokers[2].session
            await store.create(paths.deleted_topic("t"))

            async def is_gone() -> bool:
                return await store.exists(paths.topic("t")) is None and await store.exists(paths.deleted_topic("t")) is None

            await world.become(is_gone)
            assert world.brokers[2].stopped == [("t", 0)] and world.brokers[2].pictures["t", 0][0] == -2
            (left,) = await store.children(paths.DELETED)
            assert json.loads((await store.get(f"{paths.DELETED}/{left}"))[0])["brokers"] == [3]
            with pytest.raises(NoNodeError):
                await store.get(paths.partition_state("t", 0))
            world.brokers[3].is_away = False
            assert await world.create("t", [2, 3]) != topic_id
            await world.leads("t", 2, {2, 3})

    asyncio.run(play())


def test_deletions_are_noted_up_to_a_bound(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it a topic goes all the same: its broker sets the logs aside once it is back."""
    monkeypatch.setattr(topicdeletions, "NOTED_MAX", 1)

    async def play() -> None:
        async with begun(zookeeper, 1, 2) as world:
            store = world.brokers[1].session
            _, before = await store.get(paths.DELETED)
            world.brokers[2].is_away = True
            for name in ("t", "u"):
                await world.create(name, [2, 1])

                async def is_there(name: str = name) -> bool:
                    return await world.state(name) is not None

                await world.become(is_there)
                await store.create(paths.deleted_topic(name))

                async def is_gone(name: str = name) -> bool:
                    return await store.exists(paths.deleted_topic(name)) is None

                await world.become(is_gone)
                assert await store.exists(paths.topic(name)) is None
            assert len(await store.children(paths.DELETED)) == 1
            _, after = await store.get(paths.DELETED)
            assert after.version == before.version + 2  # By which alterations know that a topic was deleted meanwhile.

    asyncio.run(play())


def test_a_topic_grows_and_changes_how_many_must_be_in_sync(zookeeper: ZooKeeper) -> None:
    async def play() -> None:
        async with begun(zookeeper, 1, 2) as world:
            await world.create("t", [1, 2])
            await world.leads("t", 1, {1, 2})
            store = world.any.session
            data, stat = await store.get(paths.topic("t"))
            grown = json.loads(data)
            grown["partitions"]["1"] = [2, 1]
            await store.set(paths.topic_config("t"), config_json({"min.insync.replicas": "2"}))
            await store.set(paths.topic("t"), json.dumps(grown).encode(), stat.version)

            async def is_so() -> bool:
                first, second = await world.state("t", 0), await world.state("t", 1)
                return first is not None and second is not None and first.min_isr == second.min_isr == second.leader == 2

            await world.become(is_so)

    asyncio.run(play())


def test_a_broker_with_an_id_that_lives_is_refused_with_both_addresses(zookeeper: ZooKeeper) -> None:
    async def play() -> None:
        async with begun(zookeeper, 1) as world:
            session = SessionStore(ZooKeeperSessions(world.servers, SESSION_MS, WAIT_S))
            other = OwnRegistration(1, "another", clean=True)
            try:
                store = await session.begin()
                there = {"folders": [{"id": "elsewhere"}], "machine": "m2", "boot": "b"}
                with pytest.raises(brokerid.IdTakenError, match=r"it is at h:9092, this one would be at other:9093"):
                    await brokerid.register(store, other, {**ADDRESS, "host": "other", "port": 9093}, there)
            finally:
                await session.close()

    asyncio.run(play())
