"""One broker as a member of a cluster: a session after the other, the registration in each, and all that hangs on it.

While a session lasts this broker is registered, stands for controller, and follows changed configs. When it is over, or
somebody has removed the registration, nothing is led any more, what waits for acks=all is answered NOT_LEADER_OR_FOLLOWER, and
a term as controller ends. Then comes the next session. Following goes on meanwhile: it does no harm.

What other brokers send comes in by `on_...`. What this broker sends to itself, since the controller is a broker like others,
takes the same way without a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster import roles
from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from penstock.broker.cluster.registration import OwnRegistration, on_lost, on_roles
from penstock.broker.clustermember import ReplicationFigures
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.brokernodes import BrokerNodes
from penstock.broker.configs.entities import Entities
from penstock.broker.configs.features import Features
from penstock.broker.endpoint import Endpoint
from penstock.broker.logs.logdirs import LogDir, LogDirs
from penstock.broker.replication import brokerid, requests
from penstock.broker.replication.configchanges import ConfigChanges
from penstock.broker.replication.controllership import Controllership
from penstock.broker.replication.electioncount import ElectionCount
from penstock.broker.replication.fetching import Fetching
from penstock.broker.replication.leadermoves import REASSIGNMENT_REFUSED
from penstock.broker.replication.leaseholder import LeaseHolder
from penstock.broker.replication.leftovers import Leftovers
from penstock.broker.replication.moves import Moves
from penstock.broker.replication.peers import Peers, Prepare
from penstock.broker.replication.replicalogs import Coordinators
from penstock.broker.replication.replicas import Replicas
from penstock.broker.replication.session import AGAIN_S, SessionStore
from penstock.broker.replication.term import Term
from penstock.broker.replication.topics import ClusterTopics
from penstock.broker.replication.transactions import TransactionPeers
from penstock.broker.store.base import Operation, Store, StoreError, paths
from penstock.broker.transactionmessages import MarkerAnswer, MarkerWrite, Verification
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.hints import quoted
from penstock.pyx.log.logmanager import LogManager

LOOK_S = 0.05
"""How often it looks where followers' logs begin, while somebody waits for that."""
HAND_OVER_S = 5.0
"""How long a stop waits for the controller to move what this broker leads."""

PICTURED_S = 5.0
"""How long what clients ask waits for the controller's first picture."""

_log = log.get(__name__)


class Membership:
    """The membership of one broker; `join` once, `leave` once.

    between_brokers: the listener on which brokers are served. address: what the registration says of where it is reached.
    clean: the log folders have all that they had when the last controller noted this broker. coordinators: they hear of the
    internal topics' roles. entities, broker_nodes: they hear of what was altered elsewhere. note_dirs: the
    change of the store that names this broker's log folders. Its registration makes it, so that two of one id don't both.
    noted: called once roles were taken and all logs are open, to say in the folders that a crash from here on is no power
    cut. prepare: see `Peers`.
    """

    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        config: BrokerConfig,
        store: SessionStore,
        topics: ClusterTopics,
        dirs: LogDirs,
        logs: LogManager,
        executor: ThreadPoolExecutor,
        *,
        between_brokers: str,
        address: Mapping[str, Any],
        clean: bool,
        features: Features,
        coordinators: Coordinators,
        entities: Entities,
        broker_nodes: BrokerNodes,
        note_dirs: Callable[[], Awaitable[Operation]],
        noted: Callable[[], Awaitable[None]],
        prepare: Prepare | None,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._config = config
        self._entities = entities
        self._broker_nodes = broker_nodes
        self._topics = topics
        self._features = features
        self._between_brokers = between_brokers
        self._address = address
        self._home = brokerid.home_of(dirs)
        self._dirs = dirs
        self._executor = executor
        self._note_dirs = note_dirs
        self._noted = noted
        self.is_noted = clean
        """Whether a controller has dealt with what this broker may have lost, and all that its folders held has been opened."""
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._registration = OwnRegistration(node_id, uuid_text(new_uuid()), clean)
        self._peers = Peers(node_id, cluster_id, prepare)
        self._transactions = TransactionPeers(node_id, cluster_id, lambda: self._registration.epoch, prepare)
        self._fetching = Fetching(node_id, config, logs, self._peers, len(list(dirs)))
        self._lease = LeaseHolder(node_id, logs, is_enabled=config["penstock.lease.enable"])
        self._replicas = Replicas(
            node_id, config, dirs, logs, executor, self._fetching.threads,
            coordinators=coordinators, configs=self._configs_of, stored_id=topics.stored_id, alter=self._alter,
            lease_is_over=self._lease.is_over, isolate=topics.isolate, monotonic_ms=monotonic_ms,
        )  # fmt: skip
        topics.folder_lost = self._folder_lost
        topics.count_led = partial(requests.count_led, self._peers)
        self._is_known = False  # whether the store knew an earlier run of this broker
        self._abandoned = False
        self._controllership: Controllership | None = None
        self._elections = ElectionCount()
        self._sessions_lost = 0
        self._running = tasks.Group("cluster")
        self.outlived: Callable[[], None] = lambda: None
        """Called when another run has lived under this broker's id: this one has to end."""

    async def join(self) -> None:
        """Register, and live as a member from then on. Raises IdTakenError, StoreError."""
        store = self._store.present
        await brokerid.register(store, self._registration, self._address, self._home, self._begin, self._note_dirs)
        self.is_noted = self._registration.clean
        _log.info("broker %d is registered, broker epoch %d", self._node_id, self._registration.epoch)
        self._replicas.start()
        self._fetching.start()
        self._fetching.set_broker_epoch(self._registration.epoch)
        self._running.start(self._live(store))

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
        self._topics.departures.stop()
        await self._replicas.isolation.stop()  # A lease that ends by this stop is no news.
        await self._running.stop()
        on_lost(self._registration)
        await self._replicas.fence_all()
        await self._store.close()
        await self._replicas.stop()
        await self._fetching.stop()
        await self._transactions.stop()
        await self._peers.stop()

    def abandon(self) -> None:
        """Fetch nothing and say nothing any more, as one whose process was killed; `leave` is still to come."""
        self._abandoned = True
        self._fetching.threads.stop()
        self._transactions.abandon()
        self._peers.abandon()

    def pause(self) -> None:
        """Hold the fetcher threads; what they have begun is ended when it returns."""
        self._fetching.threads.pause()

    def go_on(self) -> None:
        """Let them run again."""
        self._fetching.threads.go_on()

    async def until_live(self, brokers: Set[int]) -> None:
        """Wait until this broker has heard from a controller that all of these live."""
        await self._topics.until_live(brokers)

    @property
    def _term(self) -> Term | None:
        """While this broker is the controller."""
        return None if self._controllership is None else self._controllership.term

    @property
    def _deciding(self) -> Term | None:
        """While this broker is the controller, and knows that it still is."""
        return None if self._lease.is_over() else self._term

    async def _hand_over(self) -> None:
        """Controlled shutdown: the controller moves the lead to replicas that are in sync, where there are any."""
        if self._registration.epoch == NO_EPOCH or not self._replicas.roles.led:
            return
        try:
            async with asyncio.timeout(HAND_OVER_S):
                if self._term is not None:
                    error, left = await self.on_controlled_shutdown(self._node_id, self._registration.epoch)
                else:
                    asked = self._peers, self._topics.controller, self._node_id, self._registration.epoch
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
            self._sessions_lost += 1
            store = await self._next_session(store, former)

    async def _live_in(self, store: Store) -> None:
        """As long as the session lasts, and the registration in it is this broker's."""
        over = asyncio.Event()
        session = tasks.Group("session")
        controllership = self._controllership = Controllership(
            self._node_id, store, self, self._config, now_ms=self._now_ms, monotonic_ms=self._monotonic_ms,
            newer_epoch=lambda: self._replicas.roles.controller_epoch, lease_is_over=self._lease.is_over,
            elections=self._elections,
        )  # fmt: skip
        leftovers = Leftovers(self._node_id, store, self._replicas, is_known=self._is_known, settled=self._note_if_open)
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
        ):
            session.start(work)
        session.start(self._lease.run(store))
        try:
            await over.wait()
        finally:
            on_lost(self._registration)
            self._lease.end()
            await session.stop()
            self._controllership = None
        await self._replicas.fence_all()

    async def _next_session(self, store: Store, former: int) -> Store:
        """former: the broker epoch of the session that is over."""
        await store.close()
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
                self._fetching.set_broker_epoch(self._registration.epoch)
                return store

    # What other brokers send

    @property
    def topic_names(self) -> Mapping[bytes, str]:
        """The topics that this broker knows, by their ids."""
        return self._topics.names

    @property
    def is_pictured(self) -> bool:
        """Whether this broker has been told of all partitions."""
        return self._topics.pictured.is_set()

    async def pictured(self) -> None:
        """Return once it has, or after PICTURED_S. Before, it would say of each topic that there is none."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._topics.pictured.wait(), PICTURED_S)

    @property
    def controller(self) -> int:
        """The broker that is the controller, as it has told this one; -1: none has."""
        return self._topics.controller

    @property
    def controller_epoch(self) -> int:
        """Of the newest controller that this one has heard of."""
        return self._replicas.roles.controller_epoch

    @property
    def racks(self) -> Mapping[int, str]:
        """Where brokers stand that say it."""
        return self._topics.racks

    @property
    def figures(self) -> ReplicationFigures:
        """What this broker counts of replication."""
        term, fetched = self._term, self._fetching.threads.counters()
        return ReplicationFigures(
            lease_left_ms=self._lease.left_ms,
            isolated=len(self._replicas.isolation.partitions),
            is_controller=term is not None,
            controller_queue=0 if term is None else term.queued,
            elections=self._elections.leaders,
            unclean_elections=self._elections.unclean,
            isr_shrinks=self._replicas.proposals.isr_shrinks,
            isr_expands=self._replicas.proposals.isr_expands,
            lag=fetched["lag"],
            fetched_bytes=fetched["bytes"],
            fetch_errors=fetched["errors"],
            refused_truncations=self._fetching.refused_truncations,
            begun_again=self._fetching.begun_again,
            sessions_lost=self._sessions_lost,
        )

    def lease_is_over(self) -> bool:
        """Whether this broker's session may have ended, so that others lead, coordinate and control by now."""
        return self._lease.is_over()

    def brokers_for(self, listener: str) -> Mapping[int, Endpoint]:
        """The brokers that live, and where the clients of a listener reach them."""
        found = {}
        for broker, one in self._topics.live.items():
            for at in one.endpoints:
                if at.listener == listener:
                    found[broker] = Endpoint(at.host, at.port)
        return found

    async def low_watermark(self, partition: Partition, topic_id: bytes, offset: int) -> int:
        """Wait until the logs of all live replicas of a partition that this broker leads begin at an offset or later;
        answers it. Raises KafkaError, also once a later topic has the name."""
        while True:
            starts = await self._replicas.log_starts(partition, topic_id)
            if all(start >= offset for broker, start in starts.items() if broker in self._topics.live):
                return offset
            await asyncio.sleep(LOOK_S)  # Followers hear of it, and say that they have, with their fetches.

    async def on_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """Take roles."""
        on_roles(self._registration, request)
        answer = await self._replicas.take(request, lambda: self._registration.epoch)
        if answer.error == ErrorCode.NONE:
            await self._note_if_open()
        return answer

    async def _note_if_open(self) -> None:
        """Only now a crash of this process is no power cut any more: what was lost is dealt with, and each log was opened as
        one that a power cut may have torn."""
        if self._registration.clean and not self.is_noted and self._replicas.all_open:
            await self._noted()
            self.is_noted = True

    async def on_stop_replica(self, request: StopReplica) -> StopReplicaAnswer:
        """Stop replicas."""
        return await self._replicas.drop(request, lambda: self._registration.epoch)

    async def on_update_metadata(self, update: UpdateMetadata) -> int:
        """Take what is known of brokers and partitions; an error code."""
        error = roles.refuse(self._replicas.roles, update.controller_epoch, update.broker_epoch, self._registration.epoch)
        if error:
            return error
        async with self._topics.taking:  # One after the other: one that waits for the store isn't shown over a newer one.
            if self._topics.is_overtaken(update):
                _log.debug(
                    "picture %d of controller epoch %d comes late: newer ones overtook it",
                    update.number,
                    update.controller_epoch,
                )
                return int(ErrorCode.STALE_BROKER_EPOCH)
            try:
                prepared = await self._topics.prepare(update)
            except StoreError as failure:
                _log.error("the picture of controller epoch %d can't be taken: %s", update.controller_epoch, failure)
                return int(ErrorCode.KAFKA_STORAGE_ERROR)
            # Another controller, or another registration of this broker, may have come meanwhile.
            error = roles.refuse(self._replicas.roles, update.controller_epoch, update.broker_epoch, self._registration.epoch)
            if error:
                return error
            self._topics.take(update, prepared)
        self.know({one.broker: {at.listener: Endpoint(at.host, at.port) for at in one.endpoints} for one in update.brokers})
        return int(ErrorCode.NONE)

    def name_of(self, topic_id: bytes) -> str:
        """As the controller: the name of a topic, which this broker's own picture may not show yet. Raises KafkaError:
        NOT_CONTROLLER, or UNKNOWN_TOPIC_ID."""
        term = self._deciding
        if term is None or not term.has_begun:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker doesn't know the topic id, and isn't the controller.")
        name = term.name_of(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return name

    async def on_alter_partition(self, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        """As the controller: answer each proposal."""
        return await asyncio.gather(*map(self._decide, asks))

    async def on_controlled_shutdown(self, broker: int, broker_epoch: int) -> tuple[int, Sequence[Partition]]:
        """As the controller: move what a broker leads to others; an error code, and what it still leads."""
        term = self._deciding
        if term is None:
            return int(ErrorCode.NOT_CONTROLLER), []
        if not term.is_registered(broker, broker_epoch):
            return int(ErrorCode.STALE_BROKER_EPOCH), []
        try:
            return int(ErrorCode.NONE), await term.moves.move_away(broker)
        except ConnectionError:
            return int(ErrorCode.NOT_CONTROLLER), []

    @property
    def refused_reassignment(self) -> str | None:
        """As the controller: what is said of a wish to move replicas that an old tool has left in the store; None: there is
        none, or this broker isn't the controller."""
        term = self._term
        if term is None or not term.moves.is_reassignment_asked:
            return None
        servers, _, chroot = self._store.place.partition("/")
        node = f"/{chroot}{paths.REASSIGNMENT}" if chroot else paths.REASSIGNMENT
        return f"{REASSIGNMENT_REFUSED}\nhint: zkCli.sh -server {quoted(servers)} delete {quoted(node)}"

    async def on_elect_leaders(
        self, asked: Sequence[Partition] | None, *, unclean: bool, timeout_ms: int
    ) -> Mapping[Partition, int] | None:
        """As the controller: elect preferred leaders, or whoever lives; an error code each. None: this isn't the controller."""
        term = self._deciding
        if term is None:
            return None
        try:
            return await term.moves.elect(asked, unclean=unclean, timeout_s=timeout_ms / 1000)
        except ConnectionError:
            return None

    # What this broker sends, to itself too

    def know(self, endpoints: Mapping[int, Mapping[str, Endpoint]]) -> None:
        """Where brokers are reached."""
        own = self._between_brokers
        places = {broker: at[own] for broker, at in endpoints.items() if own in at and broker != self._node_id}
        addresses = {broker: (at.host, at.port) for broker, at in places.items()}
        self._peers.set_brokers(addresses)
        self._transactions.set_brokers(addresses)

    async def send_roles(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """As the controller: tell a broker its roles. Raises OSError."""
        if request.broker == self._node_id:
            return await self.on_leader_and_isr(request)
        return await requests.tell_roles(self._peers, request)

    async def send_picture(self, picture: UpdateMetadata) -> int:
        """As the controller: tell a broker who lives and leads. Raises OSError."""
        if picture.broker == self._node_id:
            return await self.on_update_metadata(picture)
        return await requests.tell_metadata(self._peers, picture)

    async def send_stop(self, request: StopReplica) -> StopReplicaAnswer:
        """As the controller: take replicas from a broker. Raises OSError."""
        if request.broker == self._node_id:
            return await self.on_stop_replica(request)
        return await requests.stop_replicas(self._peers, request)

    async def verify(self, broker: int, question: Verification) -> Sequence[int]:
        """Ask the broker that coordinates a transaction; the error code of each partition. Raises ConnectionError."""
        return await self._transactions.verify(broker, question)

    async def write_markers(self, broker: int, write: MarkerWrite) -> Mapping[Partition, MarkerAnswer]:
        """Have a broker append markers to partitions that it leads; what it has answered. Raises ConnectionError."""
        return await self._transactions.write_markers(broker, write)

    async def find_led(self, broker: int, epochs: Mapping[Partition, int]) -> Collection[Partition]:
        """Ask a broker which of these partitions it leads, each in that leader epoch. Raises ConnectionError."""
        return await self._transactions.find_led(broker, epochs)

    async def is_gone(self, partition: Partition, topic_id: bytes = b"") -> bool:
        """Whether a partition that isn't known here was deleted, by the metadata store. If that can't be asked: False."""
        try:
            return await self._topics.is_gone(partition, topic_id)
        except StoreError as error:
            _log.warning("nobody knows whether topic=%s partition=%d was deleted: %s", *partition, error)
            return False

    async def next_picture(self, timeout_s: float) -> None:
        """Wait until the controller tells of brokers or partitions, or the time is over."""
        await self._topics.next_picture(timeout_s)

    async def _alter(self, ask: AlterPartition) -> AlterPartitionAnswer:
        """As a leader: ask the controller. Raises OSError."""
        controller = self._topics.controller
        if controller == self._node_id:
            return await self._decide(ask)
        if controller < 0:
            raise ConnectionError("no controller is known")
        return (await requests.propose(self._peers, controller, [ask]))[0]

    async def _decide(self, ask: AlterPartition) -> AlterPartitionAnswer:
        term = self._deciding
        if term is None:
            return AlterPartitionAnswer(ask, ErrorCode.NOT_CONTROLLER)
        try:
            return await term.alter(ask)
        except ConnectionError:
            return AlterPartitionAnswer(ask, ErrorCode.NOT_CONTROLLER)

    # Configs

    async def _configs_of(self, name: str, topic_id: bytes | None) -> dict[str, str]:
        """A topic's own configs; the one that this broker knows may be a former one of the name. Raises StoreError."""
        topic = self._topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            return await self._topics.read_configs(name)
        return topic.configs

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
        if self._term is not None:
            self._term.configs_changed()


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
