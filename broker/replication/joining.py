"""The start of a broker that joins a cluster, as far as it differs from one node's; `server.py` calls the steps in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock import log
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.context import Context
from penstock.broker.listeners import Listener
from penstock.broker.logs.folder import STORE, FolderError, cluster_of
from penstock.broker.logs.logdirs import LogDirs, partition_of
from penstock.broker.neighbours import Neighbours
from penstock.broker.replication.brokerid import address_of, await_id, home_of
from penstock.broker.replication.growth import grow
from penstock.broker.replication.hangwatch import Doors
from penstock.broker.replication.homes import strange_folders
from penstock.broker.replication.member import Member
from penstock.broker.replication.membership import Membership
from penstock.broker.replication.session import SessionStore
from penstock.broker.replication.topics import ClusterTopics
from penstock.broker.store.base import Operation
from penstock.broker.store.zookeeper import ZooKeeperSessions
from penstock.broker.topics.marks import Marks
from penstock.pyx.log.logmanager import LogManager

_log = log.get(__name__)


class Joining:
    """`begin`, `admit` once the log folders are open, `membership` once this broker is reached by others."""

    topics = ClusterTopics

    def __init__(self, node_id: int, config: BrokerConfig, neighbours: Neighbours | None) -> None:
        self._node_id = node_id
        self._config = config
        self._neighbours = neighbours
        self.store = SessionStore(_zookeeper(config) if neighbours is None else neighbours.sessions)
        self._there: Mapping[str, str] = {}  # the log folders from now on, path by id
        self._lost: set[str] = set()
        self._grows = False

    async def begin(self, first: Path) -> None:
        """Begin the session, and learn the cluster's id. first: the first log folder. Raises StoreError, FolderError."""
        own, place = await asyncio.get_running_loop().run_in_executor(None, cluster_of, first, self._node_id)
        self._grows = own is not None and (first / STORE).exists()
        if own is not None and not place and not self._grows and await asyncio.to_thread(_has_logs, first):
            raise _unadopted(first)
        await self.store.begin()
        if self._grows:
            self.store.cluster_id = own or ""
        else:
            await self.store.agree_on_cluster(own, is_member=place != "")

    async def grow(self, dirs: LogDirs, most: int) -> None:
        """Once the log folders are locked: a single node's store becomes the cluster's. most: partitions that a topic may have.
        Raises StoreError, FolderError, OSError."""
        if self._grows:
            await grow(self.store, self._node_id, dirs, most)
        elif dirs.found() and not any(one.folder is not None and one.folder.member_of for one in dirs.online):
            raise _unadopted(dirs.first.path)

    async def admit(self, context: Context, forget: Path | None) -> None:
        """Hold the log folders against those that this broker had when it was a member last. Raises StoreError, IdTakenError
        among them, FolderError, OSError."""
        marks, dirs, loop = context.topics.marks, context.dirs, asyncio.get_running_loop()
        known = await marks.log_dirs()
        has_logs, given = bool(dirs.found()), {one.path: one.id for one in dirs}
        self._there = await loop.run_in_executor(None, dirs.admit, known, None, forget)
        # A start that is refused changes nothing in the store: it would part its broker from the log folders.
        await await_id(context.store, self._node_id, str(context.advertised), home_of(dirs))
        if forget is None and not has_logs:
            wrong = await strange_folders(context.store, self._node_id, known, given)
            if wrong is not None:
                raise FolderError(wrong)
        self._lost = (set(known) - {log_dir.id for log_dir in dirs.online}) | set(await marks.failed_log_dirs())
        # A start without the cluster is refused from here on: this broker's topics aren't in any store of its own.
        await loop.run_in_executor(None, self._mark, dirs)

    def _mark(self, dirs: LogDirs) -> None:
        for log_dir in dirs.online:
            assert log_dir.folder is not None
            log_dir.folder.join(self.store.place)

    async def _note_dirs(self, marks: Marks) -> Operation:
        """Which log folders this broker has from its registration on. Those that failed stay noted until a controller has dealt
        with it: the kernel may have dropped pages that it couldn't write."""
        return await marks.log_dirs_node(self._there, await marks.failed_log_dirs())

    def hear(self, context: Context, brokers_changed: Callable[[], None]) -> None:
        """Say who hears of deleted topics, and of other brokers."""
        assert isinstance(context.topics, ClusterTopics)
        context.topics.deleted = context.coordinators.topic_deleted
        context.topics.led_uncleanly = context.coordinators.led_uncleanly
        context.topics.brokers_changed = brokers_changed

    async def _note(self, topics: ClusterTopics, dirs: LogDirs) -> None:
        """A controller has dealt with what this broker may have lost."""
        await topics.logs.note_opened()
        await topics.marks.forget_failures(lambda failed: any(one.offline and one.id == failed for one in dirs))

    def membership(
        self, context: Context, listeners: Sequence[Listener], logs: LogManager, executor: ThreadPoolExecutor, doors: Doors
    ) -> Membership:
        """The membership of this broker, which is still to `join`. doors: by which all others reach it."""
        dirs, topics = context.dirs, context.topics
        assert isinstance(topics, ClusterTopics) and context.between_brokers is not None
        is_cut = any(one.partitions and one.may_be_cut and not one.was_clean for one in dirs.online)
        if is_cut:
            _log.warning(
                "a power cut came before this start, or may have: where a partition has no other replica, "
                "its newest records may be gone, also those of a committed transaction; one that is open there is aborted"
            )
        member = Member(
            self._node_id,
            dirs.first.cluster_id,
            self._config,
            self.store,
            topics,
            dirs,
            logs,
            executor,
            between_brokers=context.between_brokers,
            clean=not is_cut and not self._lost,
            coordinators=context.coordinators,
            doors=doors,
            noted=lambda: self._note(topics, dirs),
            prepare=None if self._neighbours is None else self._neighbours.prepare,
            monotonic_ms=context.monotonic_ms,
        )
        return Membership(
            member,
            self._config,
            self.store,
            dirs,
            executor,
            address=address_of(listeners, self._config["broker.rack"], context.now_ms()),
            features=context.features,
            entities=context.entities,
            broker_nodes=context.broker_nodes,
            note_dirs=lambda: self._note_dirs(topics.marks),
            now_ms=context.now_ms,
            monotonic_ms=context.monotonic_ms,
        )


def _has_logs(path: Path) -> bool:
    return any(partition_of(folder.name) is not None and any(folder.glob("*.log")) for folder in path.glob("*-*"))


def _unadopted(path: Path) -> FolderError:
    return FolderError(
        f"`{path}` holds topics and no metadata store: start this broker once without `zookeeper.connect`, so that it adopts "
        "them, stop it, and start it again with it"
    )


def _zookeeper(config: BrokerConfig) -> ZooKeeperSessions:
    wait_s = config["zookeeper.connection.timeout.ms"] / 1000
    return ZooKeeperSessions(config["zookeeper.connect"], config["zookeeper.session.timeout.ms"], wait_s)
