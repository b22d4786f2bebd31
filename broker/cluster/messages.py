"""What brokers say to each other about replicas: the requests of Kafka 3.9 as values, without their wire forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.broker.cluster.leaderandisr import NO_EPOCH, LeaderAndIsr

Partition = tuple[str, int]

BEING_DELETED = -2  # in place of a leader: the topic is being deleted


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower asks its leader for what follows its log. Everything below `offset` is in its log already."""

    replica: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int  # of the follower's last batch; NO_EPOCH: its log is empty


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer. The batches from `Fetch.offset` to `end` travel with it, as bytes that may be read from the file later.

    OFFSET_OUT_OF_RANGE with `removed_below`: the follower may keep what was deleted, and begins again at its leader's start.
    """

    error: int
    high_watermark: int = 0
    end: int = 0
    diverging: tuple[int, int] | None = None  # the leader's largest epoch up to the follower's last, and where it ends
    removed_below: int = 0  # the leader's, if it is past `Fetch.offset`


@dataclass(frozen=True, slots=True)
class PartitionRole:
    """What a broker has to know of a partition to lead or to follow it."""

    partition: Partition
    topic_id: bytes
    replicas: tuple[int, ...]
    state: LeaderAndIsr
    broker_epochs: Mapping[int, int]  # the registrations under which the controller knows the replicas


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """The controller tells a broker its roles: only what the store has confirmed."""

    controller: int
    controller_epoch: int
    broker: int
    broker_epoch: int
    roles: tuple[PartitionRole, ...]


@dataclass(frozen=True, slots=True)
class RoleAnswer:
    """What became of one role. If nobody leads it has the log's end, after which the replica appends nothing."""

    error: int
    last_epoch: int = NO_EPOCH
    log_end: int = 0


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAnswer:
    """A broker's answer to its roles; `controller_epoch` is the newest that it has heard of."""

    broker: int
    broker_epoch: int
    error: int
    controller_epoch: int
    answers: Mapping[Partition, RoleAnswer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A leader asks the controller for another ISR, in place of the one of `partition_epoch`. A later topic of the name begins
    with the same epochs, so the topic's id belongs to the question, and to its answer."""

    partition: Partition
    topic_id: bytes
    broker: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    entrants: Mapping[int, int]  # who isn't in the ISR yet, with the broker epoch of the fetch that caught up


@dataclass(frozen=True, slots=True)
class AlterPartitionAnswer:
    """NONE: `state` is what the store has now. INELIGIBLE_REPLICA: an entrant isn't live under the epoch that was named."""

    ask: AlterPartition
    error: int
    state: LeaderAndIsr | None = None


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """An address of a broker, by the name of its listener; the security protocol has Kafka's number (0: PLAINTEXT)."""

    listener: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that lives, as clients are told of it."""

    broker: int
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """What every broker has to know of a partition. The state's leader: NO_LEADER, or BEING_DELETED with its topic."""

    partition: Partition
    topic_id: bytes
    replicas: tuple[int, ...]
    state: LeaderAndIsr
    offline: tuple[int, ...] = ()  # replicas whose broker or log folder isn't there


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """The controller tells a broker which brokers live (all of them), and some partitions."""

    controller: int
    controller_epoch: int
    broker: int
    broker_epoch: int
    brokers: tuple[LiveBroker, ...]
    partitions: tuple[PartitionMetadata, ...]
    is_whole: bool = True  # with this one the broker has been told of all partitions
    number: int = 0  # grows within the controller's term; 0: an older version numbers nothing


@dataclass(frozen=True, slots=True)
class StoppedReplica:
    """A replica that a broker holds no longer. The topic's id decides which log is deleted: a name may be used again."""

    partition: Partition
    topic_id: bytes
    leader_epoch: int = NO_EPOCH
    delete: bool = False


@dataclass(frozen=True, slots=True)
class StopReplica:
    """The controller takes replicas from a broker."""

    controller: int
    controller_epoch: int
    broker: int
    broker_epoch: int
    replicas: tuple[StoppedReplica, ...]


@dataclass(frozen=True, slots=True)
class StopReplicaAnswer:
    """What became of each; `controller_epoch` is the newest that the broker has heard of."""

    broker: int
    broker_epoch: int
    error: int
    controller_epoch: int
    errors: Mapping[Partition, int] = field(default_factory=dict)
