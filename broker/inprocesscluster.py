"""A cluster of brokers inside this process: for tests of what clients do when leaders, controllers and coordinators move.

    from penstock.broker import Cluster

    with Cluster(brokers=3) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        cluster.kill(cluster.leader("orders", 0), expire=True)

Each broker is one of `penstock broker --zookeeper`, but for its metadata tree, which lies in one file that all of them share.
A thread of the cluster has that tree. It ends the session of a broker whose loop hasn't run for `zookeeper.session.timeout.ms`,
so one that is killed or paused is known to be gone after that time, as with a ZooKeeper.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterable, Mapping, Set
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from penstock.broker.inprocess import Broker
from penstock.broker.links import Links
from penstock.broker.neighbours import IN_PROCESS
from penstock.broker.store.base import NoNodeError, paths
from penstock.broker.store.embedded import EmbeddedSessions, EmbeddedStore
from penstock.broker.store.sharedtree import SharedTree
from penstock.suggestions import did_you_mean

SESSION_TIMEOUT = "zookeeper.session.timeout.ms"
READY_S = 60.0
"""How long brokers may take to know each other."""
BEATS = 6
"""How often the loop of a broker is asked within its session's timeout whether it runs."""
FACTORS = ("default.replication.factor", "offsets.topic.replication.factor", "transaction.state.log.replication.factor")

T = TypeVar("T")


class _Neighbours:
    """What one broker has from the cluster, from one start of it to its end."""

    def __init__(self, sessions: EmbeddedSessions, links: Links, broker: int) -> None:
        self.sessions = sessions
        self._links = links
        self._broker = broker

    def prepare(self, broker: int, sock: socket.socket) -> None:
        """See `Neighbours.prepare`."""
        self._links.prepare(self._broker, broker, sock)


class Cluster:
    """Brokers with the ids from 1 on, started by `with` or `start()`.

    data: the folder of the tree and of the brokers' folders; None = a temporary one. properties: of each broker, by Kafka's
    names. Topics have three replicas (or one a broker, if there are fewer) unless properties say otherwise. Their faults are
    planted with `cluster.brokers[1].faults`.

    Raises ConfigError for properties, on `start` what `Broker.start` raises, and TimeoutError if the brokers don't find each
    other. The methods may be called from any one thread at a time.
    """

    def __init__(
        self, brokers: int = 3, *, data: str | Path | None = None, properties: Mapping[str, object] | None = None
    ) -> None:
        copies = {**dict.fromkeys(FACTORS, min(brokers, 3)), "transaction.state.log.min.isr": min(brokers, 2)}
        given = {**copies, **(properties or {}), "zookeeper.connect": IN_PROCESS}
        self._own_folder = data is None
        self._data = Path(tempfile.mkdtemp(prefix="penstock-") if data is None else data)
        if self._own_folder:
            atexit.register(self._remove_folder)
        self._tree: _Tree | None = None
        self._sessions: dict[int, EmbeddedSessions] = {}
        self._links = Links(self._ports)
        self.brokers: Mapping[int, Broker] = {
            number: Broker(
                self._data / f"broker-{number}",
                properties={**given, "broker.id": number},
                neighbours=partial(self._begin_neighbours, number),
            )
            for number in range(1, brokers + 1)
        }
        self._timeout_ms = int(str(given.get(SESSION_TIMEOUT, 6_000)))

    @property
    def bootstrap(self) -> str:
        """All addresses, for clients' `bootstrap.servers`. Raises RuntimeError before the first start."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def running(self) -> Set[int]:
        """The brokers that serve, paused ones too."""
        return {number for number, broker in self.brokers.items() if broker.running}

    @property
    def controller(self) -> int:
        """The broker that is the controller, by the tree; -1: none is."""
        found = self._read(paths.CONTROLLER)
        return -1 if found is None else int(found["brokerid"])

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, by the tree; -1: none does. Raises LookupError: there is no such partition."""
        found = self._state(topic, partition)
        return -1 if found is None else int(found["leader"])

    def isr(self, topic: str, partition: int) -> Set[int]:
        """The brokers that are in sync, by the tree. Raises LookupError: there is no such partition."""
        found = self._state(topic, partition)
        return set() if found is None else set(found["isr"])

    def start(self, *numbers: int) -> Cluster:
        """Start these brokers, by default all. Returns when each of them knows all that run. Those that run already are left
        alone."""
        if self._tree is None:
            self._data.mkdir(parents=True, exist_ok=True)
            self._tree = _Tree(self._data / "metadata.db", self._timeout_ms)
        self._check_ids(*numbers)
        started = [self.brokers[number] for number in numbers or self.brokers]
        for broker in started:
            broker.launch()
        for broker in started:
            broker.start()
        self._links.apply()
        self.until_live(self.running, numbers or self.running)
        return self

    def until_live(self, brokers: Set[int], known_to: Iterable[int] | None = None) -> None:
        """Wait until the running brokers, or these, have heard from a controller that these live. Raises TimeoutError."""
        until_s = time.monotonic() + READY_S
        for number in self.running if known_to is None else known_to:
            self.brokers[number].call(lambda server: server.until_live(brokers), max(until_s - time.monotonic(), 0))

    def stop(self, number: int) -> None:
        """Stop a broker cleanly: others lead what it led."""
        self._check_ids(number)
        self.brokers[number].stop()

    def kill(self, number: int, *, expire: bool = False) -> None:
        """Kill a broker, see `Broker.kill`. Its session ends by its timeout, or with expire at once."""
        self._check_ids(number)
        self.brokers[number].kill()
        if expire:
            self.expire(number)

    def pause(self, number: int) -> None:
        """Have a broker stand still, see `Broker.pause`. Its session ends by its timeout."""
        self._check_ids(number)
        self.brokers[number].pause()

    def resume(self, number: int) -> None:
        """Let a paused broker go on."""
        self._check_ids(number)
        self.brokers[number].resume()

    def expire(self, number: int) -> None:
        """End a broker's session: it learns that, registers again, and leads nothing until a controller says so. Raises
        LookupError for a broker that the cluster hasn't."""
        self._check_ids(number)
        if number in self._sessions:
            self._running_tree.call(self._sessions[number].expire())

    def cut(self, one: int, other: int, *, one_way: bool = False) -> None:
        """Lose all packets between two brokers, or with one_way those that `one` sends to `other`. Connections stay, and
        nothing comes through. Raises LookupError for a broker that the cluster hasn't."""
        self._check_ids(one, other)
        self._links.cut(one, other, one_way=one_way)

    def cut_store(self, number: int) -> None:
        """Cut a broker off from the metadata tree, as from a ZooKeeper: its session ends by its timeout, and it hears of that
        only after `heal`. Other brokers and clients still reach it. Raises LookupError for a broker that the cluster hasn't."""
        self._check_ids(number)
        if number in self._sessions:
            self._running_tree.call(self._sessions[number].cut())

    def heal(self) -> None:
        """Mend all cuts; TCP takes as much longer as they took at most."""
        self._links.heal()
        for sessions in self._sessions.values() if self._tree is not None else ():
            self._running_tree.call(sessions.heal())

    def close(self) -> None:
        """Stop all brokers; a temporary folder is removed."""
        self.heal()
        failure: BaseException | None = None
        for broker in self.brokers.values():
            broker.resume()
        for broker in self.brokers.values():
            try:
                broker.close()
            except Exception as error:  # noqa: BLE001 - the others are stopped, too; raised below
                failure = failure or error
        tree, self._tree = self._tree, None
        if tree is not None:
            tree.close()
        if self._own_folder:
            self._remove_folder()
            atexit.unregister(self._remove_folder)
        if failure is not None:
            raise failure

    def __enter__(self) -> Cluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def _running_tree(self) -> _Tree:
        if self._tree is None:
            raise RuntimeError("the cluster was not started yet, or is closed")
        return self._tree

    def _begin_neighbours(self, number: int) -> _Neighbours:
        self._sessions[number] = EmbeddedSessions(self._running_tree.shared, self._timeout_ms)
        return _Neighbours(self._sessions[number], self._links, number)

    def _ports(self) -> Mapping[int, int]:
        return {number: int(broker.bootstrap.rpartition(":")[2]) for number, broker in self.brokers.items() if broker.running}

    def _check_ids(self, *numbers: int) -> None:
        """Raises LookupError."""
        for number in numbers:
            if number not in self.brokers:
                raise LookupError(f"the cluster has no broker {number}: its brokers are {', '.join(map(str, self.brokers))}")

    def _state(self, topic: str, partition: int) -> dict[str, Any] | None:
        """What the tree says of a partition; None: nobody has led it yet. Raises LookupError."""
        found = self._read(paths.partition_state(topic, partition))
        if found is not None:
            return found
        made = self._read(paths.topic(topic))
        if made is None:
            raise LookupError(
                f"the cluster has no topic `{topic}`{did_you_mean(topic, self._running_tree.children(paths.TOPICS))}"
            )
        if str(partition) not in made["partitions"]:
            raise LookupError(f"topic `{topic}` has no partition {partition}: it has {len(made['partitions'])}")
        return None

    def _read(self, path: str) -> dict[str, Any] | None:
        data = self._running_tree.read(path)
        return None if data is None else json.loads(data)

    def _remove_folder(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)


class _Tree:
    """The metadata tree, in a thread with a loop of its own, from its making to `close`."""

    def __init__(self, path: Path, timeout_ms: int) -> None:
        """Raises StoreError."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-tree", daemon=True)
        self._thread.start()
        try:
            self.shared = self.call(SharedTree.open(path))
            self._store = self.call(EmbeddedStore.begin(self.shared))
        except BaseException:
            self._end()
            raise
        self._expiring = asyncio.run_coroutine_threadsafe(self._expire_for_ever(timeout_ms / 1000 / BEATS), self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives on the tree's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def read(self, path: str) -> bytes | None:
        """The bytes of a node; None: it isn't there."""
        try:
            return self.call(self._store.get(path))[0]
        except NoNodeError:
            return None

    def children(self, path: str) -> list[str]:
        """The names of the nodes below a node; none if it isn't there."""
        try:
            return self.call(self._store.children(path))
        except NoNodeError:
            return []

    def close(self) -> None:
        """Close it; all sessions have ended."""
        self._expiring.cancel()
        self.call(self._store.close())
        self.call(self.shared.close())
        self._end()

    async def _expire_for_ever(self, every_s: float) -> None:
        asked_s = since_s = time.monotonic()
        while True:
            await asyncio.sleep(every_s)
            now_s = time.monotonic()
            if now_s - asked_s > 2 * every_s:  # This process stood still, or is slow: nobody was asked meanwhile.
                since_s = now_s
            asked_s = now_s
            await self.shared.run("/", partial(self.shared.expire_silent, since_s))

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
