"""How a group's leader shares partitions out among its members (the `consumer` protocol of Kafka's clients)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.config import ConfigError
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.partitionlists import by_topic, number
from penstock.pyx.wire.consumerprotocol import read_assignment, read_subscription
from penstock.pyx.wire.header import encode_versioned
from penstock.pyx.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

PROTOCOL_VERSION = 0  # all that eager assignors need; every client reads it


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the leader sees it."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str, str]:
        """Java's order of members: static ones first, by their instance id, then by member id."""
        return self.group_instance_id is None, self.group_instance_id or "", self.member_id


Assignment = dict[str, list[TopicPartition]]
Assignor = Callable[[Mapping[str, int], Iterable[Member]], Assignment]


def assign_range(partitions: Mapping[str, int], members: Iterable[Member]) -> Assignment:
    """Kafka's `range`: for each topic by itself, neighbouring partitions to the members in order, the first members one
    more when it does not come out even. Topics that don't exist are left out."""
    ordered = sorted(members, key=lambda member: member.order)
    assigned: Assignment = {member.member_id: [] for member in ordered}
    for topic in sorted({topic for member in ordered for topic in member.topics}):
        sharing = [member for member in ordered if topic in member.topics]
        each, extra = divmod(partitions.get(topic, 0), len(sharing))
        start = 0
        for i, member in enumerate(sharing):
            count = each + (i < extra)
            assigned[member.member_id] += [(topic, start + j) for j in range(count)]
            start += count
    return assigned


def assign_roundrobin(partitions: Mapping[str, int], members: Iterable[Member]) -> Assignment:
    """Kafka's `roundrobin`: all partitions of all topics, one after the other, to the next member that wants it."""
    ordered = sorted(members, key=lambda member: member.order)
    assigned: Assignment = {member.member_id: [] for member in ordered}
    turn = 0
    for topic in sorted({topic for member in ordered for topic in member.topics}):
        for partition in range(partitions.get(topic, 0)):
            while topic not in ordered[turn % len(ordered)].topics:
                turn += 1
            assigned[ordered[turn % len(ordered)].member_id].append((topic, partition))
            turn += 1
    return assigned


ASSIGNORS: dict[str, Assignor] = {"range": assign_range, "roundrobin": assign_roundrobin}


def chosen(names: Iterable[str]) -> dict[str, Assignor]:
    """The assignors of these names, in order of preference. Raises ConfigError for an unknown one."""
    found: dict[str, Assignor] = {}
    for name in names:
        if name not in ASSIGNORS:
            raise ConfigError(f"`partition.assignment.strategy` has no `{name}`; there are: {', '.join(ASSIGNORS)}")
        found[name] = ASSIGNORS[name]
    return found


def encode_subscription(topics: Iterable[str]) -> bytes:
    """A member's wishes for JoinGroup."""
    return encode_versioned(ConsumerProtocolSubscription(topics=sorted(topics)), PROTOCOL_VERSION)


def decode_subscription(data: bytes | memoryview) -> tuple[str, ...]:
    """The topics of a member's wishes. Raises WireError."""
    return tuple(read_subscription(data).topics)


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    """A member's share for SyncGroup."""
    share = ConsumerProtocolAssignment.TopicPartition
    shares = [share(topic=topic, partitions=numbers) for topic, numbers in by_topic(tps, number)]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=shares), PROTOCOL_VERSION)


def decode_assignment(data: bytes | memoryview) -> list[TopicPartition]:
    """The partitions of a share; an empty one is none. Raises WireError."""
    return [(share.topic, number) for share in read_assignment(data).assigned_partitions for number in share.partitions]
