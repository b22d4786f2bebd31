"""What a handler may use: the broker's parts, handed to each call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock import log
from penstock.broker import lasttime
from penstock.broker.clock import AgeClock
from penstock.broker.clustermember import ClusterMember, ReplicationFigures
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.brokernodes import BrokerNodes
from penstock.broker.configs.entities import Entities
from penstock.broker.configs.features import Features
from penstock.broker.configs.quotas import quotas_of
from penstock.broker.configs.scram import credentials_of
from penstock.broker.configs.storedentity import check_stored
from penstock.broker.coordination.coordinators import Coordinators
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.producerids import check_ids
from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.endpoint import Endpoint
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.patience import Patience
from penstock.broker.replication.commits import Commits
from penstock.broker.store.base import Store
from penstock.broker.topics.changes import Topics
from penstock.broker.turns import Turns
from penstock.pyx.log.logmanager import LogManager

_log = log.get(__name__)


@dataclass(frozen=True)
class Call:
    """Which client asks, and in which version."""

    api_version: int
    client_id: str | None
    peer: str  # "host:port" of the client
    listener: str
    turns: Turns = field(default_factory=Turns)


@dataclass
class Context:
    """The broker's parts. One per process; handlers run on the one asyncio loop, so no locks are needed.

    `log_manager` has this broker's logs (`penstock.pyx.log.logmanager`). Methods that touch a disk
    for long (`lead`, `upkeep`, `delete`, `stop`) are called in an executor, as are those that wait for a partition's lock,
    which a write that hangs keeps (`producers`, `read`). `append` may be called on the loop when little is written;
    `offsets`, `offset_for_epoch`, `segments`, `size_bytes` and `reconfigure` wait for nothing.
    """

    node_id: int
    config: BrokerConfig
    store: Store
    topics: Topics
    log_manager: LogManager
    advertised: Endpoint
    cluster_id: str
    dirs: LogDirs
    # The address for clients of a listener, by the listener's name; without an entry it is `advertised`.
    advertised_listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    features: Features = field(default_factory=Features)
    # Held from reading a resource's configs until they are replaced, so that two alterations both count on one node.
    config_changes: asyncio.Lock = field(default_factory=asyncio.Lock)
    patience: Patience = field(default_factory=Patience)
    # None on a single node.
    cluster: ClusterMember | None = None
    # The name of the listener on which other brokers are served.
    between_brokers: str | None = None
    # Read by `load`.
    entities: Entities = field(init=False)
    broker_nodes: BrokerNodes = field(init=False)
    commits: Commits = field(init=False)
    coordinators: Coordinators = field(init=False)
    ages: AgeClock = field(init=False)

    def __post_init__(self) -> None:
        self.entities = Entities(self.store, is_shared=self.is_member, check=check_stored)
        self.broker_nodes = BrokerNodes(
            self.node_id, self.config, self.store, is_shared=self.is_member, changed=self.topics.broker_configs_changed
        )
        self.ages = AgeClock(self.now_ms, self.monotonic_ms, self.config)
        self.commits = Commits(self.log_manager)
        self.coordinators = Coordinators(self)

    @property
    def is_member(self) -> bool:
        """Whether this broker is one of a cluster, be it that it is still about to join."""
        return self.config["zookeeper.connect"] is not None

    @property
    def groups(self) -> GroupCoordinator:
        """Consumer groups and their offsets."""
        return self.coordinators.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        """Producer ids and transactional ids."""
        return self.coordinators.transactions

    async def load(self) -> None:
        """Read the last known time, and what the store keeps beside topics; warn of what isn't enforced yet.

        Raises StoreError, also for what is stored and can't be.
        """
        folders = [log_dir.path for log_dir in self.dirs.online]
        last_ms = await asyncio.get_running_loop().run_in_executor(None, lasttime.read, folders)
        if last_ms is not None:
            self.ages.begin(last_ms)
        await check_ids(self.store)
        await self.entities.load()
        await self.features.load(self.store)  # Last: it stores what isn't there yet.
        credentials = sum(len(list(credentials_of(configs))) for _, configs in self.entities)
        quotas = sum(len(quotas_of(configs)) for _, configs in self.entities)
        if quotas or credentials:
            _log.warning(
                "not enforced yet: %d client quotas, %d SCRAM credentials are stored, but any client may do "
                "everything that the listeners let it reach",
                quotas, credentials,
            )  # fmt: skip

    def advertised_for(self, listener: str) -> Endpoint:
        """This broker's address for the clients of a listener (`Call.listener`)."""
        return self.advertised_listeners.get(listener, self.advertised)

    def brokers_for(self, listener: str) -> Mapping[int, Endpoint]:
        """The brokers that live, by id, and the addresses of them for the clients of a listener."""
        if self.cluster is None:
            return {self.node_id: self.advertised_for(listener)}
        return self.cluster.brokers_for(listener)

    @property
    def racks(self) -> Mapping[int, str]:
        """Where brokers stand that say it (`broker.rack`)."""
        if self.cluster is not None:
            return self.cluster.racks
        rack = self.config["broker.rack"]
        return {} if rack is None else {self.node_id: rack}

    def addresses(self) -> dict[str, list[tuple[int, str, int, str | None]]]:
        """Where the clients of each listener reach the brokers that live: id, host, port and rack."""
        racks = self.racks
        return {
            listener: [(broker, *at, racks.get(broker)) for broker, at in self.brokers_for(listener).items()]
            for listener in self.advertised_listeners
        }

    @property
    def replication(self) -> ReplicationFigures:
        """What this broker counts of replication; on one node nothing ever happens."""
        return ReplicationFigures() if self.cluster is None else self.cluster.figures

    @property
    def controller_id(self) -> int:
        """The broker that is the controller; -1: nobody knows it now."""
        return self.node_id if self.cluster is None else self.cluster.controller

    @property
    def controller_epoch(self) -> int:
        """Of the newest controller that this broker has heard of, itself on one node."""
        return self.topics.controller_epoch if self.cluster is None else self.cluster.controller_epoch

    def now_ms(self) -> int:
        """The wall clock in milliseconds since 1970: for timestamps only, never for timers."""
        return time.time_ns() // 1_000_000

    def age_now_ms(self) -> int:
        """The clock by which things are old enough to be deleted, in milliseconds since 1970: see `AgeClock`."""
        return self.ages.now_ms()

    def monotonic_ms(self) -> int:
        """The clock for timers and sessions, in milliseconds."""
        return time.monotonic_ns() // 1_000_000


def member(context: Context) -> ClusterMember:
    """The member of the cluster that a handler of another broker's request needs; a single node serves no such request."""
    assert context.cluster is not None
    return context.cluster
