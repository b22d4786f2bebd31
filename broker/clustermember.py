"""One broker as a member of a cluster: what handlers ask of it, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.broker.coordination.parts import BrokerSender
from penstock.broker.endpoint import Endpoint

if TYPE_CHECKING:  # One node loads nothing of what a cluster needs.
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


class ReplicationFigures(NamedTuple):
    """What one broker of a cluster counts of replication, since its start, and how it is now."""

    lease_left_ms: int | None = None  # None: it needs none
    isolated: int = 0  # partitions that it leads, and serves to no client
    is_controller: bool = True
    controller_queue: int = 0
    elections: int = 0
    unclean_elections: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    lag: int = 0  # the most records that one of its replicas lacks
    fetched_bytes: int = 0
    fetch_errors: int = 0
    refused_truncations: int = 0
    begun_again: int = 0  # copies, as compaction had removed deletions from the leader's log
    sessions_lost: int = 0
    hangs: int = 0  # how often it left its cluster as a disk hung
    full_folders: int = 0  # log folders whose partitions others lead, as they are full


class ClusterMember(BrokerSender, Protocol):
    """What handlers of other brokers' requests ask of this broker, as one of a cluster. All on the loop but `topic_names`."""

    @property
    def topic_names(self) -> Mapping[bytes, str]:
        """The topics that this broker knows, by their ids; read by a thread, too, while the loop changes it."""
        ...

    @property
    def is_pictured(self) -> bool:
        """Whether this broker has been told of all partitions."""
        ...

    async def pictured(self) -> None:
        """Return once it has, or after a while."""
        ...

    @property
    def controller(self) -> int:
        """The broker that is the controller, as it has told this one; -1: none has."""
        ...

    @property
    def controller_epoch(self) -> int:
        """Of the newest controller that this one has heard of."""
        ...

    def brokers_for(self, listener: str) -> Mapping[int, Endpoint]:
        """The brokers that live, and where the clients of a listener reach them."""
        ...

    @property
    def racks(self) -> Mapping[int, str]:
        """Where brokers stand that say it."""
        ...

    @property
    def refused_reassignment(self) -> str | None:
        """As the controller: what is said of a wish to move replicas that an old tool has left in the store; None: none."""
        ...

    @property
    def figures(self) -> ReplicationFigures:
        """What it counts."""
        ...

    async def low_watermark(self, partition: Partition, topic_id: bytes, offset: int) -> int:
        """Wait until the logs of all live replicas of a partition that this broker leads begin at an offset or later;
        answers it. Raises KafkaError, also once a later topic has the name."""
        ...

    async def on_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """Take roles."""
        ...

    async def on_stop_replica(self, request: StopReplica) -> StopReplicaAnswer:
        """Stop replicas."""
        ...

    async def on_update_metadata(self, update: UpdateMetadata) -> int:
        """Take what is known of brokers and partitions; an error code."""
        ...

    def name_of(self, topic_id: bytes) -> str:
        """As the controller: the name of a topic. Raises KafkaError: NOT_CONTROLLER, or UNKNOWN_TOPIC_ID."""
        ...

    async def on_alter_partition(self, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        """As the controller: answer each proposal."""
        ...

    async def on_elect_leaders(
        self, asked: Sequence[Partition] | None, *, unclean: bool, timeout_ms: int
    ) -> Mapping[Partition, int] | None:
        """As the controller: elect preferred leaders, or whoever lives; an error code each. None: this isn't the controller."""
        ...

    async def on_controlled_shutdown(self, broker: int, broker_epoch: int) -> tuple[int, Sequence[Partition]]:
        """As the controller: move what a broker leads to others; an error code, and what it still leads."""
        ...
