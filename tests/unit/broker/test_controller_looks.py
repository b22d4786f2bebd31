"""What a controller reads of topics while one of them is removed: it doesn't come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

from penstock.broker.configs.confignodes import config_json
from penstock.broker.replication.controllership import Controllership, Elections, Others, Term
from penstock.broker.replication.session import SessionStore
from penstock.broker.store.base import Create, Sessions, Stat, Store, Watch, paths
from penstock.broker.topic import PartitionState, Topic
from penstock.broker.topics.nodes import topic_json
from penstock.broker.uuids import new_uuid
from support.store_homes import WAIT_S, EmbeddedHome, play

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
    """A store that takes its time for two kinds of reads."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(sessions)
        self.lists, self.configs = Gate(), Gate()

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        if path.startswith(paths.TOPIC_CONFIGS):
            await self.configs.pass_through()
        return await super().get(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        if path == paths.TOPICS:
            await self.lists.pass_through()
        return await super().children(path, watch)


class OneSession(Sessions):
    """The sessions of a home."""

    place = "here"

    def __init__(self, home: EmbeddedHome) -> None:
        self._home = home

    async def begin(self) -> Store:
        return await self._home.session()


class Nobody:
    """No broker lives."""

    def know(self, endpoints: object) -> None:
        """Nobody is dialled."""


@contextlib.asynccontextmanager
async def controller(store: Store) -> AsyncIterator[Term]:
    """The term of a controller that has begun."""
    made = Controllership(
        1,
        store,
        cast(Others, Nobody()),
        CONFIG,
        now_ms=lambda: 1,
        monotonic_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
        newer_epoch=lambda: 0,
        lease_is_over=lambda: False,
        elections=Elections(),
    )
    running = asyncio.create_task(made.run())
    try:
        while made.term is None:  # noqa: ASYNC110 - nothing tells it but asking
            await asyncio.sleep(0.01)
        yield made.term
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def create(store: Store, name: str) -> bytes:
    """Write a topic's nodes; its id."""
    topic = Topic(name, new_uuid(), [PartitionState(0, -1, 0, [1], [])], {})
    await store.multi([Create(paths.topic_config(name), config_json({})), Create(paths.topic(name), topic_json(topic))])
    return topic.topic_id


async def shown(term: Term, name: str, topic_id: bytes | None) -> None:
    """Wait until the controller knows a topic's partition under this id; None: until it knows none."""
    while True:
        image = term._controller.partitions.get((name, 0))
        if (None if image is None else image.topic_id) == topic_id:
            return
        await asyncio.sleep(0.01)


async def carried_out(term: Term) -> None:
    """Wait until the machine has had all events."""
    while term.queued:  # noqa: ASYNC110 - nothing tells it but asking
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)


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
            while await other.exists(paths.topic("t")) is not None:  # noqa: ASYNC110 - nothing tells it but asking
                await asyncio.sleep(0.01)
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
            while await other.exists(paths.deleted_topic("t")) is not None:  # noqa: ASYNC110 - nothing tells it but asking
                await asyncio.sleep(0.01)
            assert await other.children(paths.TOPICS) == []

    play(home, scenario)
