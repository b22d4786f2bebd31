"""What a client knows of a cluster: brokers, topics, and who leads which partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import MetadataResponse

NO_TOPIC_ID = bytes(16)  # what brokers older than topic ids (KIP-516) say
NO_EPOCH = -1  # of a leader, batch or position whose leader epoch nobody knows: of old brokers, of an old format
OLDER_MAX = 10  # so many answers in a row with an older leader epoch than the known one are no broker's lag


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's id and its advertised address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Which broker leads a partition (-1: none now), since which epoch, and where its replicas are. `older` answers in a row
    had an older epoch. offline: replicas whose brokers are away, or whose log folders have failed or are full."""

    leader: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    older: int = 0
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: its id (16 zero bytes from brokers without topic ids) and its partitions by number."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionInfo]
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster at one moment. A topic that does not exist is not in `topics`; `errors` says why, by name."""

    brokers: dict[int, Broker] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    controller_id: int = -1
    cluster_id: str | None = None

    def only(self, names: Iterable[str]) -> Cluster:
        """The same with these topics alone."""
        wanted = set(names)
        return replace(
            self,
            topics={name: info for name, info in self.topics.items() if name in wanted},
            errors={name: code for name, code in self.errors.items() if name in wanted},
        )

    def topic(self, name: str, what: str = "") -> TopicInfo:
        """A topic, which messages call `what`. Raises KafkaError for one that isn't there."""
        if name not in self.topics:
            raise KafkaError(self.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), what or f"topic `{name}`")
        return self.topics[name]

    def merge(self, answer: MetadataResponse, whole: bool) -> Cluster:
        """What is known after an answer; `whole` says that it lists every topic there is.

        A partition whose leader epoch in the answer is older than the known one keeps the known leader, as
        long as the topic is the same one by id: a broker that lags must not send clients back (KIP-320). `OLDER_MAX` such
        answers in a row are believed: the cluster was put back from a copy, which knows no later epochs.
        """
        brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
        topics = {} if whole else dict(self.topics)
        errors = {} if whole else dict(self.errors)
        for topic in answer.topics:
            if topic.name is None:
                continue
            errors.pop(topic.name, None)
            if topic.error_code:
                topics.pop(topic.name, None)
                errors[topic.name] = topic.error_code
            else:
                topics[topic.name] = _topic(topic, self.topics.get(topic.name))
        return Cluster(brokers or self.brokers, topics, errors, answer.controller_id, answer.cluster_id)


def _topic(topic: MetadataResponse.MetadataResponseTopic, known: TopicInfo | None) -> TopicInfo:
    assert topic.name is not None
    topic_id = bytes(topic.topic_id)
    same = known is not None and known.topic_id == topic_id != NO_TOPIC_ID
    partitions: dict[int, PartitionInfo] = {}
    for part in topic.partitions:
        info = PartitionInfo(
            part.leader_id,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            offline=tuple(part.offline_replicas),
        )
        before = known.partitions.get(part.partition_index) if same and known is not None else None
        if before is not None and -1 < info.leader_epoch < before.leader_epoch and before.older < OLDER_MAX:
            info = replace(before, older=before.older + 1)
        partitions[part.partition_index] = info
    return TopicInfo(topic.name, topic_id, partitions, topic.is_internal)
