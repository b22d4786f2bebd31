"""The membership of one broker: a session after the other, the registration in each, and all that hangs on it.

While a session lasts this broker is registered, stands for controller, and follows changed configs. When it is over, or
somebody has removed the registration, nothing is led any more, what waits for acks=all is answered NOT_LEADER_OR_FOLLOWER, and
a term as controller ends. Then comes the next session. Following goes on meanwhile: it does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.cluster.registration import on_lost
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.brokernodes import BrokerNodes
from penstock.broker.configs.entities import Entities
from penstock.broker.configs.features import Features
from penstock.broker.logs.logdirs import LogDir, LogDirs
from penstock.broker.replication import brokerid, requests
from penstock.broker.replication.configchanges import ConfigChanges
from penstock.broker.replication.controllership import Controllership
from penstock.broker.replication.leftovers import Leftovers
from penstock.broker.replication.member import Member
from penstock.broker.replication.moves import Moves
from penstock.broker.replication.session import AGAIN_S, SessionStore
from penstock.broker.store.base import Operation, Store, StoreError
from penstock.errors import raise_for

HAND_OVER_S = 5.0
"""How long a stop waits for the controller to move what this broker leads."""

_log = log.get(__name__)


class Membership:
    """The membership of one broker; `join` once, `leave` once.

    address: what the registration says of where it is reached. entities, broker_nodes: they hear of what was altered elsewhere.
    note_dirs: the change of the store that names this broker's log folders. Its registration makes it, so that two of one id
    don't both.
    """

    def __init__(
        self,
        member: Member,
        config: BrokerConfig,
        store: SessionStore,
        dirs: LogDirs,
        executor: ThreadPoolExecutor,
        *,
        address: Mapping[str, Any],
        features: Features,
        entities: Entities,
        broker_nodes: BrokerNodes,
        note_dirs: Callable[[], Awaitable[Operation]],
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.member = member
        self._node_id = member.node_id
        self._registration = member.registration
        self._replicas = member.replicas
        self._topics = member.topics
        self._lease = member.lease
        self._store = store
        self._config = config
        self._entities = entities
        self._broker_nodes = broker_nodes
        self._features = features
        self._address = address
        self._home = brokerid.home_of(dirs)
        self._dirs = dirs
        self._executor = executor
        self._note_dirs = note_dirs
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._topics.folder_lost = self._folder_lost
        self._is_known = False  # whether the store knew an earlier run of this broker
        self._abandoned = False
        self._running = tasks.Group("cluster")
        self.outlived: Callable[[], None] = lambda: None
        """Called when another run has lived under this broker's id: this one has to end."""

    async def join(self) -> None:
        """Register, and live as a member from then on. Raises IdTakenError, StoreError."""
        store = self._store.present
        await brokerid.register(store, self._registration, self._address, self._home, self._begin, self._note_dirs)
        self.member.is_noted = self._registration.clean
        _log.info("broker %d is registered, broker epoch %d", self._node_id, self._registration.epoch)
        self._replicas.start()
        self.member.fetching.start()
        self.member.fetching.set_broker_epoch(self._registration.epoch)
        self._running.start(self._live(store))
        self.member.hang_watch.start()

    async def _begin(self, newest: str) -> bool:
        """Say in the log folders that this incarnation begins; whether all of them are of the newest one before it."""
        self._is_known = bool(newest)
        begin = asyncio.get_running_loop().run_in_executor
        others = await begin(self._executor, self._dirs.begin_incarnation, self._registration.incarnation, newest)
        for log_dir in others:
            _log.warning(
                "log_dir=%s isn't as the last run of this broker left it: it was put back from a copy, changed, or away since. "
                "Its replicas have to catch up before they are in sync; nobody leads a partition of which it has the last one, "
                "until all its replicas are back or `penstock cluster elect TOPIC:PARTITION --unclean` gives up what they "
                "may hold", log_dir.path,
            )  # fmt: skip
        return not others

    def _folder_lost(self, path: str) -> None:
        log_dir = self._dirs.by_path(path)
        if log_dir is not None:
            self._running.start(self._report_failure(log_dir))

    async def _report_failure(self, log_dir: LogDir) -> None:
        """A log folder has failed: the controller hears of it, and the next start finds it noted, however this process ends."""
        await self._replicas.folder_failed(log_dir)
        while True:
            try:
                await self._topics.marks.note_failure(log_dir.id)
            except StoreError as error:
                _log.error("log_dir=%s: its failure can't be noted in the store: %s", log_dir.path, error)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def leave(self) -> None:
        """Have others lead what this broker leads, then lead and follow nothing any more, and end the session."""
        if not self._abandoned:
            await self._hand_over()
        await self.member.hang_watch.stop()
        self._topics.departures.stop()
        await self._replicas.isolation.stop()  # A lease that ends by this stop is no news.
        await self._running.stop()
        on_lost(self._registration)
        await self._replicas.fence_all()
        await self._store.close()
        await self._replicas.stop()
        await self.member.fetching.stop()
        await self.member.transactions.stop()
        await self.member.peers.stop()

    def abandon(self) -> None:
        """Fetch nothing and say nothing any more, as one whose process was killed; `leave` is still to come."""
        self._abandoned = True
        self.member.fetching.threads.stop()
        self.member.transactions.abandon()
        self.member.peers.abandon()

    def pause(self) -> None:
        """Hold the fetcher threads; what they have begun is ended when it returns."""
        self.member.fetching.threads.pause()

    def go_on(self) -> None:
        """Let them run again."""
        self.member.fetching.threads.go_on()

    async def until_live(self, brokers: Set[int]) -> None:
        """Wait until this broker has heard from a controller that all of these live."""
        await self._topics.until_live(brokers)

    async def _hand_over(self) -> None:
        """Controlled shutdown: the controller moves the lead to replicas that are in sync, where there are any."""
        if self._registration.epoch == NO_EPOCH or not self._replicas.roles.led:
            return
        try:
            async with asyncio.timeout(HAND_OVER_S):
                if self.member.term is not None:
                    error, left = await self.member.on_controlled_shutdown(self._node_id, self._registration.epoch)
                else:
                    asked = self.member.peers, self._topics.controller, self._node_id, self._registration.epoch
                    error, left = await requests.announce_stop(*asked)
            raise_for(error, "move what this broker leads")
        except Exception as error:  # noqa: BLE001 - the stop goes on, whatever it is
            _log.warning("the controller doesn't move what this broker leads: %s; others lead it once it is gone", error)
        else:
            _log.info("others lead what this broker led; of %d partitions none could", len(left))

    # A session after the other

    async def _live(self, store: Store) -> None:
        while True:
            former = self._registration.epoch
            await self._live_in(store)
            self.member.sessions_lost += 1
            store = await self._next_session(store, former)

    async def _live_in(self, store: Store) -> None:
        """As long as the session lasts, and the registration in it is this broker's."""
        over = asyncio.Event()
        session = tasks.Group("session")
        controllership = self.member.controllership = Controllership(
            self._node_id, store, self.member, self._config, now_ms=self._now_ms, monotonic_ms=self._monotonic_ms,
            newer_epoch=lambda: self._replicas.roles.controller_epoch, lease_is_over=self._lease.is_over,
            elections=self.member.elections,
        )  # fmt: skip
        leftovers = Leftovers(self._node_id, store, self._replicas, is_known=self._is_known, settled=self.member.note_if_open)
        changes = ConfigChanges(
            store,
            topic=self._topic_altered,
            broker=self._broker_altered,
            entity=self._entities.take,
            everything=self._take_configs,
        )
        moves = Moves(
            self._node_id, store, self._replicas, broker_epoch=lambda: self._registration.epoch, shown=self._topics.show_leaders
        )
        for work in (
            _ending(partial(brokerid.watch, store, self._registration, over.set), over),
            _until_lost(store, over),
            _ending(controllership.run, over),
            _ending(changes.run, over),
            _ending(partial(self._features.follow, store), over),
            _ending(leftovers.run, over),
            _ending(moves.run, over),
            _ending(partial(self.member.disk_reports.run, store, self._registration), over),
        ):
            session.start(work)
        session.start(self._lease.run(store))
        try:
            await over.wait()
        finally:
            on_lost(self._registration)
            self._lease.end()
            await session.stop()
            self.member.controllership = None
        await self._replicas.fence_all()

    async def _next_session(self, store: Store, former: int) -> Store:
        """former: the broker epoch of the session that is over."""
        await store.close()
        await self.member.hang_watch.until_back()
        while True:
            store = await self._store.begin_again()
            try:
                await brokerid.register(store, self._registration, self._address, self._home, former=former)
            except brokerid.OutlivedError as error:
                _log.error("%s", error)
                self.outlived()
                await asyncio.Future()  # Until the stop, which is asked for by that.
            except StoreError as error:
                _log.error("broker %d can't register again: %s", self._node_id, error)
                await store.close()
                await asyncio.sleep(AGAIN_S)
            else:
                _log.info("broker %d is registered again, broker epoch %d", self._node_id, self._registration.epoch)
                self.member.fetching.set_broker_epoch(self._registration.epoch)
                return store

    # Configs

    async def _topic_altered(self, name: str) -> None:
        await self._topics.take_configs(name)
        await self._configs_taken(name)

    async def _broker_altered(self, name: str) -> None:
        await self._broker_nodes.take_named(name)
        await self._configs_taken()

    async def _take_configs(self) -> None:
        """Read all configs again: this broker may have missed changes."""
        await self._entities.take_all()
        for default in (True, False):
            await self._broker_nodes.take(default=default)
        for topic in self._topics.all():
            await self._topics.take_configs(topic.name)
        await self._configs_taken()

    async def _configs_taken(self, *names: str) -> None:
        """Those of these topics, or of all, are others: replicas hear of it, and so does the controller if it is here."""
        await self._replicas.configs_changed(*names)
        if self.member.term is not None:
            self.member.term.configs_changed()


async def _until_lost(store: Store, over: asyncio.Event) -> None:
    await store.lost.wait()
    over.set()


async def _ending(work: Callable[[], Awaitable[None]], over: asyncio.Event) -> None:
    """What a session can't do without: its end is the session's."""
    try:
        await work()
    except StoreError as error:
        _log.warning("the session is given up: %s", error)
        await asyncio.sleep(AGAIN_S)  # What is wrong may be so in the next one, too.
    finally:
        over.set()
