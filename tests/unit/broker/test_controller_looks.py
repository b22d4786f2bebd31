"""What a controller reads and writes of topics while one of them is removed or altered, large ones too."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from penstock.broker.cluster.messages import (
    BEING_DELETED,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    RoleAnswer,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from penstock.broker.cluster.registration import OwnRegistration
from penstock.broker.configs.confignodes import config_json
from penstock.broker.replication import brokerid
from penstock.broker.replication.controllership import Controllership
from penstock.broker.replication.electioncount import ElectionCount
from penstock.broker.replication.reading import read_one_state
from penstock.broker.replication.sender import ControllerSender
from penstock.broker.replication.session import SessionStore
from penstock.broker.replication.term import Term
from penstock.broker.store.base import (
    MULTI_OPERATIONS,
    Create,
    Delete,
    Operation,
    Sessions,
    Set,
    Stat,
    Store,
    TooLargeError,
    Watch,
    paths,
)
from penstock.broker.store.values import to_json
from penstock.broker.topic import PartitionState, Topic
from penstock.broker.topics.nodes import topic_json
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.errors import ErrorCode
from support.store_homes import WAIT_S, EmbeddedHome, Seen, play

CONFIG: dict[str, object] = {
    "unclean.leader.election.enable": False,
    "min.insync.replicas": 1,
    "unclean.recovery.timeout.ms": -1,
    "auto.leader.rebalance.enable": False,
    "leader.imbalance.check.interval.seconds": 300,
    "leader.imbalance.per.broker.percentage": 10,
}


class Gate:
    """Holds what comes to it, once it is closed."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._reached = asyncio.Event()

    def close(self) -> None:
        """Hold the next ones."""
        self._open.clear()
        self._reached.clear()

    def open(self) -> None:
        """Let go."""
        self._open.set()

    async def reached(self) -> None:
        """Wait until somebody is held."""
        await self._reached.wait()

    async def pass_through(self) -> None:
        """Be held while it is closed."""
        self._reached.set()
        await self._open.wait()


class SlowStore(SessionStore):
    """A store that takes its time for two kinds of reads, for writes of states, and before it removes a topic's own node. It
    can't remove that of a topic named `stuck`."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(sessions)
        self.lists, self.configs, self.states, self.ends = Gate(), Gate(), Gate(), Gate()

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        if path.startswith(paths.TOPIC_CONFIGS):
            await self.configs.pass_through()
        return await super().get(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        if path == paths.TOPICS:
            await self.lists.pass_through()
        return await super().children(path, watch)

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        for one in operations:
            if isinstance(one, Delete) and one.path == paths.topic("stuck"):
                raise TooLargeError(one.path, "it never gets small enough")
            if isinstance(one, Delete) and one.path == paths.topic("t"):
                await self.ends.pass_through()
            elif isinstance(one, Set) and one.path.endswith("/state"):
                await self.states.pass_through()
        return await super().multi(operations)


class OneSession(Sessions):
    """The sessions of a home."""

    place = "here"

    def __init__(self, home: EmbeddedHome) -> None:
        self._home = home

    async def begin(self) -> Store:
        return await self._home.session()


class Brokers:
    """Brokers that take every role, and delete every replica, when they are told to."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()
        """Topics that they were told are being deleted: one partition of it says so of a topic."""

    def know(self, endpoints: object) -> None:
        """Nobody is dialled."""

    async def send_roles(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """All is well."""
        answers = {role.partition: RoleAnswer(ErrorCode.NONE) for role in request.roles}
        return LeaderAndIsrAnswer(request.broker, request.broker_epoch, ErrorCode.NONE, request.controller_epoch, answers)

    async def send_picture(self, picture: UpdateMetadata) -> int:
        """All is well."""
        self.hidden |= {one.partition[0] for one in picture.partitions if one.state.leader == BEING_DELETED}
        return int(ErrorCode.NONE)

    async def send_stop(self, request: StopReplica) -> StopReplicaAnswer:
        """All is well."""
        return StopReplicaAnswer(request.broker, request.broker_epoch, ErrorCode.NONE, request.controller_epoch)


async def live(store: Store) -> None:
    """Register broker 1."""
    protocols = {"PLAINTEXT": "PLAINTEXT"}
    address = {"host": "h", "port": 1, "endpoints": ["PLAINTEXT://h:1"], "listener_security_protocol_map": protocols}
    home = {"folders": [{"id": "1"}], "machine": "m", "boot": "b"}
    await brokerid.register(store, OwnRegistration(1, "run", clean=True), address, home)


@contextlib.asynccontextmanager
async def controller(store: Store, others: Brokers | None = None) -> AsyncIterator[Term]:
    """The term of a controller that has begun."""
    made = Controllership(
        1,
        store,
        cast(ControllerSender, others or Brokers()),
        CONFIG,
        now_ms=lambda: 1,
        monotonic_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
        newer_epoch=lambda: 0,
        lease_is_over=lambda: False,
        elections=ElectionCount(),
    )
    running = asyncio.create_task(made.run())
    try:
        while made.term is None:  # noqa: ASYNC110 - nothing tells it but asking
            await asyncio.sleep(0.01)
        yield made.term
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def create(store: Store, name: str, partitions: int = 1, replicas: Sequence[int] = (1,)) -> bytes:
    """Write a topic's nodes; its id."""
    states = [PartitionState(index, -1, 0, list(replicas), []) for index in range(partitions)]
    topic = Topic(name, new_uuid(), states, {})
    await store.multi([Create(paths.topic_config(name), config_json({})), Create(paths.topic(name), topic_json(topic))])
    return topic.topic_id


async def shown(term: Term, name: str, topic_id: bytes | None) -> None:
    """Wait until the controller knows a topic's partition under this id; None: until it knows none."""
    while True:
        image = term._controller.partitions.get((name, 0))
        if (None if image is None else image.topic_id) == topic_id:
            return
        await asyncio.sleep(0.01)


async def gone(store: Store, path: str) -> None:
    """Wait until there is no such node."""
    while await store.exists(path) is not None:  # noqa: ASYNC110 - nothing tells it but asking
        await asyncio.sleep(0.01)


async def led(term: Term, name: str, partitions: int) -> None:
    """Wait until all partitions of a topic have leaders, by the store's word."""
    while True:
        images = [term._controller.partitions.get((name, index)) for index in range(partitions)]
        if all(image is not None and image.state.leader == 1 for image in images):
            return
        await asyncio.sleep(0.01)


async def carried_out(term: Term) -> None:
    """Wait until the machine has had all events."""
    while term.queued:  # noqa: ASYNC110 - nothing tells it but asking
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)


def play_with(tmp_path: Path, scene: Callable[[SlowStore, Store], Awaitable[None]]) -> None:
    """Play a scene with a slow store for the controller and another session for everybody else; broker 1 lives."""
    home = EmbeddedHome(tmp_path / "metadata.db")

    async def scenario(_: object) -> None:
        store, other = SlowStore(OneSession(home)), await home.session()
        await store.begin()
        await live(other)
        async with asyncio.timeout(WAIT_S):
            await scene(store, other)

    play(home, scenario)


def test_a_topic_that_is_removed_while_it_is_read_does_not_come_back(tmp_path: Path) -> None:
    home = EmbeddedHome(tmp_path / "metadata.db")

    async def scenario(_: object) -> None:
        store = SlowStore(OneSession(home))
        await store.begin()
        other = await home.session()
        async with asyncio.timeout(WAIT_S), controller(store) as term:
            await shown(term, "t", await create(other, "t"))
            store.configs.close()
            term.configs_changed()
            await store.configs.reached()  # The look has read the topic's node, and not yet its configs.
            await other.create(paths.deleted_topic("t"))
            await gone(other, paths.topic("t"))
            await shown(term, "t", None)
            store.lists.close()
            store.configs.open()
            await store.lists.reached()  # That look is over, and the next one has read nothing yet.
            await carried_out(term)
            assert ("t", 0) not in term._controller.partitions
            again = await create(other, "t")
            store.lists.open()
            await shown(term, "t", again)

    play(home, scenario)


def test_a_topic_that_is_made_again_while_it_is_read_is_the_new_one(tmp_path: Path) -> None:
    home = EmbeddedHome(tmp_path / "metadata.db")

    async def scenario(_: object) -> None:
        store = SlowStore(OneSession(home))
        await store.begin()
        other = await home.session()
        async with asyncio.timeout(WAIT_S), controller(store) as term:
            await shown(term, "t", await create(other, "t"))
            store.configs.close()
            term.configs_changed()
            await store.configs.reached()
            await other.create(paths.deleted_topic("t"))
            await shown(term, "t", None)
            again = await create(other, "t")
            store.configs.open()
            await shown(term, "t", again)
            await carried_out(term)
            # The new one is deleted as what it is, by its own id and replicas.
            await other.create(paths.deleted_topic("t"))
            await shown(term, "t", None)
            await gone(other, paths.deleted_topic("t"))
            assert await other.children(paths.TOPICS) == []

    play(home, scenario)


MANY = MULTI_OPERATIONS
"""Partitions whose nodes don't fit into one multi."""


def test_a_topic_of_many_partitions_is_deleted_by_the_controller_that_began(tmp_path: Path) -> None:
    async def scene(store: SlowStore, other: Store) -> None:
        async with controller(store) as term:
            await create(other, "t", MANY)
            await led(term, "t", MANY)
            await other.create(paths.deleted_topic("t"))
            await gone(other, paths.deleted_topic("t"))
            assert await other.children(paths.TOPICS) == await other.children(paths.TOPIC_CONFIGS) == []
            await create(other, "t")
            await led(term, "t", 1)
            assert not term._events.is_over

    play_with(tmp_path, scene)


def test_another_controller_goes_on_with_a_deletion_and_makes_nothing_of_it_again(tmp_path: Path) -> None:
    async def scene(store: SlowStore, other: Store) -> None:
        async with controller(store) as term:
            await create(other, "t", MANY)
            await led(term, "t", MANY)
            store.ends.close()
            await other.create(paths.deleted_topic("t"))
            await store.ends.reached()
        assert await other.tree(paths.topic("t")) == {}  # Only the topic's own node is left.
        brokers, made = Brokers(), Seen()
        await other.children(paths.topic("t"), made)
        store.ends.close()
        async with controller(store, brokers) as term:
            await store.ends.reached()
            await carried_out(term)
            assert not made.events, "a state was made again"
            assert brokers.hidden == {"t"}
            store.ends.open()
            await gone(other, paths.deleted_topic("t"))
            assert await other.exists(paths.topic("t")) is None
            await shown(term, "t", None)

    play_with(tmp_path, scene)


def test_a_topic_that_grows_while_it_is_deleted_goes_whole(tmp_path: Path) -> None:
    async def scene(store: SlowStore, other: Store) -> None:
        async with controller(store) as term:
            await create(other, "t")
            await led(term, "t", 1)
            store.ends.close()
            await other.create(paths.deleted_topic("t"))
            await store.ends.reached()
            node = json.loads((await other.get(paths.topic("t")))[0])
            node["partitions"]["1"] = [1]
            await other.set(paths.topic("t"), to_json(**node))
            while ("t", 1) not in term._controller.partitions:  # noqa: ASYNC110 - nothing tells it but asking
                await asyncio.sleep(0.01)
            store.ends.open()
            await gone(other, paths.deleted_topic("t"))
            assert await other.children(paths.TOPICS) == []
            await carried_out(term)
            assert not term._controller.partitions and not term._controller.deleting

    play_with(tmp_path, scene)


def test_a_topic_that_is_made_while_a_mark_of_its_name_goes_is_whole_or_goes_too(tmp_path: Path) -> None:
    async def scene(store: SlowStore, other: Store) -> None:
        async with controller(store) as term:
            store.ends.close()
            await other.create(paths.deleted_topic("t"))
            await store.ends.reached()  # It has seen that there is no such topic.
            await create(other, "t")
            store.ends.open()
            await gone(other, paths.deleted_topic("t"))
            assert await other.children(paths.TOPICS) == await other.children(paths.TOPIC_CONFIGS) == []
            await shown(term, "t", None)

    play_with(tmp_path, scene)


def test_a_topic_is_not_deleted_in_place_of_the_one_before_it(tmp_path: Path) -> None:
    async def scene(store: SlowStore, other: Store) -> None:
        async with controller(store) as term:
            topic_id = await create(other, "t")
            await led(term, "t", 1)
            await other.create(paths.deleted_topic("t"), uuid_text(new_uuid()).encode())
            await gone(other, paths.deleted_topic("t"))
            assert term._controller.partitions["t", 0].topic_id == topic_id and not term._controller.deleting
        await other.create(paths.deleted_topic("t"), uuid_text(new_uuid()).encode())
        async with controller(store) as term:
            await gone(other, paths.deleted_topic("t"))
            await led(term, "t", 1)
            assert not term._controller.deleting
            await other.create(paths.deleted_topic("t"), uuid_text(topic_id).encode())
            await gone(other, paths.topic("t"))

    play_with(tmp_path, scene)


def test_a_topic_that_cannot_be_deleted_holds_up_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(store: SlowStore, other: Store) -> None:
        async with controller(store) as term:
            for name in ("stuck", "t"):
                await create(other, name)
                await led(term, name, 1)
            for name in ("stuck", "t"):
                await other.create(paths.deleted_topic(name))
            await gone(other, paths.deleted_topic("t"))
            await create(other, "later")
            await led(term, "later", 1)
            assert not term._events.is_over
            assert await other.children(paths.DELETE_TOPICS) == ["stuck"]
        assert "topic=stuck can't be deleted" in caplog.text

    play_with(tmp_path, scene)


def test_a_config_that_is_altered_twice_within_one_write_ends_as_it_was(tmp_path: Path) -> None:
    async def scene(store: SlowStore, other: Store) -> None:
        async with controller(store) as term:
            await create(other, "t")
            await led(term, "t", 1)
            path = paths.topic_config("t")
            store.states.close()
            await other.set(path, config_json({"min.insync.replicas": "3"}))
            term.configs_changed()
            await store.states.reached()
            await other.set(path, config_json({"min.insync.replicas": "1"}))
            term.configs_changed()
            while term._topics.by_name["t"].min_isr != 1:  # noqa: ASYNC110 - nothing tells it but asking
                await asyncio.sleep(0.01)
            await carried_out(term)
            store.states.open()
            partition = ("t", 0)
            while partition in term._controller.writing:  # noqa: ASYNC110 - nothing tells it but asking
                await asyncio.sleep(0.01)
            state = await read_one_state(other, partition)
            assert state is not None and state.min_isr == 1

    play_with(tmp_path, scene)
