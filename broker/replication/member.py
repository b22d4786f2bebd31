"""One broker as a member of a cluster: its parts, what other brokers ask of it, and what it sends to them.

What other brokers send comes in by `on_...`. What this broker sends to itself, since the controller is a broker like others,
takes the same way without a connection. `membership.py` lets it live, a session after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from penstock import log
from penstock.broker.cluster import roles
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
from penstock.broker.cluster.registration import OwnRegistration, on_roles
from penstock.broker.clustermember import ReplicationFigures
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.endpoint import Endpoint
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.replication import requests
from penstock.broker.replication.controllership import Controllership
from penstock.broker.replication.diskreports import DiskReports
from penstock.broker.replication.electedepochs import ElectedEpochs
from penstock.broker.replication.electioncount import ElectionCount
from penstock.broker.replication.fetching import Fetching
from penstock.broker.replication.hangwatch import Doors, HangWatch
from penstock.broker.replication.leadermoves import REASSIGNMENT_REFUSED
from penstock.broker.replication.leaseholder import LeaseHolder
from penstock.broker.replication.peers import Peers, Prepare
from penstock.broker.replication.replicalogs import Coordinators
from penstock.broker.replication.replicas import Replicas
from penstock.broker.replication.session import SessionStore
from penstock.broker.replication.term import Term
from penstock.broker.replication.topics import ClusterTopics
from penstock.broker.replication.transactions import TransactionPeers
from penstock.broker.store.base import StoreError, paths
from penstock.broker.transactionmessages import Fates, MarkerAnswer, MarkerWrite, OpenTransaction, Verification
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pyx.log.logmanager import LogManager

LOOK_S = 0.05
"""How often it looks where followers' logs begin, while somebody waits for that."""
PICTURED_S = 5.0
"""How long what clients ask waits for the controller's first picture."""

_log = log.get(__name__)


class Member:
    """One broker's parts in its cluster.

    store: the present session's. between_brokers: the listener on which brokers are served. clean: the log folders have all
    that they had when the last controller noted this broker. coordinators: they hear of the internal topics' roles. doors: by
    which all others reach this broker. noted: called once roles were taken and all logs are open, to say in the folders that a
    crash from here on is no power cut. prepare: see `Peers`.
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
        clean: bool,
        coordinators: Coordinators,
        doors: Doors,
        noted: Callable[[], Awaitable[None]],
        prepare: Prepare | None,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.node_id = node_id
        self.topics = topics
        self._place = store.place
        self._elected = ElectedEpochs(store, monotonic_ms)
        self._between_brokers = between_brokers
        self._noted = noted
        self.is_noted = clean
        """Whether a controller has dealt with what this broker may have lost, and all that its folders held has been opened."""
        self.registration = OwnRegistration(node_id, uuid_text(new_uuid()), clean)
        self.peers = Peers(node_id, cluster_id, prepare)
        self.transactions = TransactionPeers(node_id, cluster_id, lambda: self.registration.epoch, prepare)
        self.fetching = Fetching(node_id, config, logs, self.peers, len(list(dirs)))
        self.lease = LeaseHolder(node_id, logs, is_enabled=config["penstock.lease.enable"])
        self.disk_reports = DiskReports(dirs, logs, config["penstock.disk.settle.ms"], monotonic_ms)
        self.replicas = Replicas(
            node_id, config, dirs, logs, executor, self.fetching.threads,
            coordinators=coordinators, configs=self._configs_of, stored_id=topics.stored_id,
            controller=lambda: self.topics.controller, alter=self._alter,
            lease_is_over=self.lease.is_over, isolate=topics.isolate, monotonic_ms=monotonic_ms,
        )  # fmt: skip
        self.hang_watch = HangWatch(
            logs, store, doors, lambda: list(self.replicas.roles.replicas.values()),
            hang_ms=config["penstock.disk.hang.ms"], settle_ms=config["penstock.disk.settle.ms"], monotonic_ms=monotonic_ms,
        )  # fmt: skip
        topics.count_led = partial(requests.count_led, self.peers)
        self.elections = ElectionCount()
        self.sessions_lost = 0
        self.controllership: Controllership | None = None
        """Of the present session."""

    @property
    def term(self) -> Term | None:
        """While this broker is the controller."""
        return None if self.controllership is None else self.controllership.term

    @property
    def _deciding(self) -> Term | None:
        """While this broker is the controller, and knows that it still is."""
        return None if self.lease.is_over() else self.term

    # What other brokers send

    @property
    def topic_names(self) -> Mapping[bytes, str]:
        """The topics that this broker knows, by their ids."""
        return self.topics.names

    @property
    def is_pictured(self) -> bool:
        """Whether this broker has been told of all partitions."""
        return self.topics.pictured.is_set()

    async def pictured(self) -> None:
        """Return once it has, or after PICTURED_S. Before, it would say of each topic that there is none."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.topics.pictured.wait(), PICTURED_S)

    @property
    def controller(self) -> int:
        """The broker that is the controller, as it has told this one; -1: none has."""
        return self.topics.controller

    @property
    def controller_epoch(self) -> int:
        """Of the newest controller that this one has heard of."""
        return self.replicas.roles.controller_epoch

    @property
    def racks(self) -> Mapping[int, str]:
        """Where brokers stand that say it."""
        return self.topics.racks

    @property
    def figures(self) -> ReplicationFigures:
        """What this broker counts of replication."""
        term, fetched = self.term, self.fetching.threads.counters()
        return ReplicationFigures(
            lease_left_ms=self.lease.left_ms,
            isolated=len(self.replicas.isolation.partitions),
            is_controller=term is not None,
            controller_queue=0 if term is None else term.queued,
            elections=self.elections.leaders,
            unclean_elections=self.elections.unclean,
            isr_shrinks=self.replicas.proposals.isr_shrinks,
            isr_expands=self.replicas.proposals.isr_expands,
            lag=fetched["lag"],
            fetched_bytes=fetched["bytes"],
            fetch_errors=fetched["errors"],
            refused_truncations=self.fetching.refused_truncations,
            begun_again=self.fetching.begun_again,
            sessions_lost=self.sessions_lost,
            hangs=self.hang_watch.left,
            full_folders=len(self.disk_reports.full),
        )

    def lease_is_over(self) -> bool:
        """Whether this broker's session may have ended, so that others lead, coordinate and control by now."""
        return self.lease.is_over()

    def brokers_for(self, listener: str) -> Mapping[int, Endpoint]:
        """The brokers that live, and where the clients of a listener reach them."""
        found = {}
        for broker, one in self.topics.live.items():
            for at in one.endpoints:
                if at.listener == listener:
                    found[broker] = Endpoint(at.host, at.port)
        return found

    async def low_watermark(self, partition: Partition, topic_id: bytes, offset: int) -> int:
        """Wait until the logs of all live replicas of a partition that this broker leads begin at an offset or later;
        answers it. Raises KafkaError, also once a later topic has the name."""
        while True:
            starts = await self.replicas.log_starts(partition, topic_id)
            if all(start >= offset for broker, start in starts.items() if broker in self.topics.live):
                return offset
            await asyncio.sleep(LOOK_S)  # Followers hear of it, and say that they have, with their fetches.

    async def on_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """Take roles."""
        if not await self._was_elected(request.controller_epoch):
            epochs = self.registration.epoch, ErrorCode.INVALID_REQUEST, self.replicas.roles.controller_epoch
            return LeaderAndIsrAnswer(self.node_id, *epochs)
        on_roles(self.registration, request)
        answer = await self.replicas.take(request, lambda: self.registration.epoch)
        if answer.error == ErrorCode.NONE:
            await self.note_if_open()
        return answer

    async def _was_elected(self, controller_epoch: int) -> bool:
        return await self._elected.has(controller_epoch, self.replicas.roles.controller_epoch)

    async def note_if_open(self) -> None:
        """Only now a crash of this process is no power cut any more: what was lost is dealt with, and each log was opened as
        one that a power cut may have torn."""
        if self.registration.clean and not self.is_noted and self.replicas.all_open:
            await self._noted()
            self.is_noted = True

    async def on_stop_replica(self, request: StopReplica) -> StopReplicaAnswer:
        """Stop replicas."""
        if not await self._was_elected(request.controller_epoch):
            epochs = self.registration.epoch, ErrorCode.INVALID_REQUEST, self.replicas.roles.controller_epoch
            return StopReplicaAnswer(self.node_id, *epochs, {})
        return await self.replicas.drop(request, lambda: self.registration.epoch)

    async def on_update_metadata(self, update: UpdateMetadata) -> int:
        """Take what is known of brokers and partitions; an error code."""
        if not await self._was_elected(update.controller_epoch):
            return int(ErrorCode.INVALID_REQUEST)
        error = roles.refuse(self.replicas.roles, update.controller_epoch, update.broker_epoch, self.registration.epoch)
        if error:
            return error
        async with self.topics.taking:  # One after the other: one that waits for the store isn't shown over a newer one.
            if self.topics.is_overtaken(update):
                _log.debug(
                    "picture %d of controller epoch %d comes late: newer ones overtook it",
                    update.number,
                    update.controller_epoch,
                )
                return int(ErrorCode.STALE_BROKER_EPOCH)
            try:
                prepared = await self.topics.prepare(update)
            except StoreError as failure:
                _log.error("the picture of controller epoch %d can't be taken: %s", update.controller_epoch, failure)
                return int(ErrorCode.KAFKA_STORAGE_ERROR)
            # Another controller, or another registration of this broker, may have come meanwhile.
            error = roles.refuse(self.replicas.roles, update.controller_epoch, update.broker_epoch, self.registration.epoch)
            if error:
                return error
            self.topics.take(update, prepared)
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
        term = self._deciding
        if term is not None and asks:
            with contextlib.suppress(ConnectionError):
                return await term.alter(asks)
        return [AlterPartitionAnswer(ask, ErrorCode.NOT_CONTROLLER) for ask in asks]

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
        term = self.term
        if term is None or not term.moves.is_reassignment_asked:
            return None
        servers, _, chroot = self._place.partition("/")
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
        places = {broker: at[own] for broker, at in endpoints.items() if own in at and broker != self.node_id}
        addresses = {broker: (at.host, at.port) for broker, at in places.items()}
        self.peers.set_brokers(addresses)
        self.transactions.set_brokers(addresses)

    async def send_roles(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """As the controller: tell a broker its roles. Raises OSError."""
        if request.broker == self.node_id:
            return await self.on_leader_and_isr(request)
        return await requests.tell_roles(self.peers, request)

    async def send_picture(self, picture: UpdateMetadata) -> int:
        """As the controller: tell a broker who lives and leads. Raises OSError."""
        if picture.broker == self.node_id:
            return await self.on_update_metadata(picture)
        return await requests.tell_metadata(self.peers, picture)

    async def send_stop(self, request: StopReplica) -> StopReplicaAnswer:
        """As the controller: take replicas from a broker. Raises OSError."""
        if request.broker == self.node_id:
            return await self.on_stop_replica(request)
        return await requests.stop_replicas(self.peers, request)

    async def verify(self, broker: int, question: Verification) -> Sequence[int]:
        """Ask the broker that coordinates a transaction; the error code of each partition. Raises ConnectionError."""
        return await self.transactions.verify(broker, question)

    async def write_markers(self, broker: int, write: MarkerWrite) -> Mapping[Partition, MarkerAnswer]:
        """Have a broker append markers to partitions that it leads; what it has answered. Raises ConnectionError."""
        return await self.transactions.write_markers(broker, write)

    async def find_led(self, broker: int, epochs: Mapping[Partition, int]) -> Collection[Partition]:
        """Ask a broker which of these partitions it leads, each in that leader epoch. Raises ConnectionError."""
        return await self.transactions.find_led(broker, epochs)

    async def find_fates(self, broker: int, asked: Sequence[OpenTransaction]) -> Fates:
        """Ask a broker's coordinators what becomes of transactions that are open in logs. Raises ConnectionError."""
        return await self.transactions.find_fates(broker, asked)

    async def read_leaders(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Leader and leader epoch of each partition of a topic, by the metadata store; none if that can't be asked."""
        try:
            return await self.topics.read_leaders(topic)
        except StoreError as error:
            _log.warning("nobody knows who leads topic=%s: %s", topic, error)
            return {}

    async def is_gone(self, partition: Partition, topic_id: bytes = b"") -> bool:
        """Whether a partition that isn't known here was deleted, by the metadata store. If that can't be asked: False."""
        try:
            return await self.topics.is_gone(partition, topic_id)
        except StoreError as error:
            _log.warning("nobody knows whether topic=%s partition=%d was deleted: %s", *partition, error)
            return False

    async def next_picture(self, timeout_s: float) -> None:
        """Wait until the controller tells of brokers or partitions, or the time is over."""
        await self.topics.next_picture(timeout_s)

    async def _alter(self, controller: int, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        """As a leader: ask the controller, -1: none is known. Raises OSError."""
        if controller == self.node_id:
            return await self.on_alter_partition(asks)
        if controller < 0:
            raise ConnectionError("no controller is known")
        return await requests.propose(self.peers, controller, asks)

    async def _configs_of(self, name: str, topic_id: bytes | None) -> dict[str, str]:
        """A topic's own configs; the one that this broker knows may be a former one of the name. Raises StoreError."""
        topic = self.topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            return await self.topics.read_configs(name)
        return topic.configs
