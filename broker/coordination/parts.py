"""What the coordinators use of the broker. They see its context through this alone, since the context holds them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.entities import Entities
from penstock.broker.configs.features import Features
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.store.base import Store
from penstock.broker.topics.changes import Topics
from penstock.broker.transactionmessages import Fates, MarkerAnswer, MarkerWrite, OpenTransaction, Verification
from penstock.pyx.log.logmanager import LogManager


class BrokerSender(Protocol):
    """Sends the coordinators' requests to other brokers of a cluster. Raises ConnectionError where nobody has answered."""

    async def verify(self, broker: int, question: Verification) -> Sequence[int]:
        """Ask the broker that coordinates a transaction; the error code of each partition."""
        ...

    def lease_is_over(self) -> bool:
        """Whether this broker's session may have ended, so that others lead, coordinate and control by now."""
        ...

    async def write_markers(self, broker: int, write: MarkerWrite) -> Mapping[TopicPartition, MarkerAnswer]:
        """Have a broker append markers to partitions that it leads; what it has answered."""
        ...

    async def find_led(self, broker: int, epochs: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Ask a broker which of these partitions it leads, each in that leader epoch."""
        ...

    async def find_fates(self, broker: int, asked: Sequence[OpenTransaction]) -> Fates:
        """Ask a broker's coordinators what becomes of transactions that are open in logs."""
        ...

    async def read_leaders(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """By the metadata store, as it is after the call: leader and leader epoch of each partition of a topic. Raises nothing:
        none, where the topic isn't there or the store can't be asked."""
        ...

    async def is_gone(self, partition: TopicPartition, topic_id: bytes = b"") -> bool:
        """Whether a partition that isn't known here was deleted, by the metadata store. topic_id: of the topic that it was
        one of; a later one of the name doesn't count then. Raises nothing: False."""
        ...

    async def next_picture(self, timeout_s: float) -> None:
        """Wait until the controller tells of brokers or partitions, or the time is over. Raises nothing."""
        ...


class Commits(Protocol):
    """See `penstock.broker.replication.commits`."""

    async def wait(self, partition: tuple[str, int], needed: int, leader_epoch: int, timeout_ms: int = 30_000) -> int:
        """Wait until all below an offset is in all in-sync replicas; an error code."""
        ...

    def is_committed(self, partition: tuple[str, int], needed: int, leader_epoch: int) -> bool:
        """Whether it is now."""
        ...


class Parts(Protocol):
    """See `penstock.broker.context.Context`, which is one."""

    node_id: int
    config: BrokerConfig
    store: Store
    topics: Topics
    log_manager: LogManager
    entities: Entities
    features: Features

    @property
    def cluster(self) -> BrokerSender | None:
        """None on a single node."""
        ...

    @property
    def commits(self) -> Commits:
        """Waits for the commit."""
        ...

    def now_ms(self) -> int:
        """The wall clock in milliseconds since 1970."""
        ...

    def age_now_ms(self) -> int:
        """The clock by which things are old enough to be deleted, in milliseconds since 1970."""
        ...

    def monotonic_ms(self) -> int:
        """The clock for timers and sessions, in milliseconds."""
        ...
