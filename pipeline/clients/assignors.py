"""How a group's leader shares partitions out among its members (the `consumer` protocol of Kafka's clients)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.config import ConfigError
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.partitionlists import by_topic, number
from penstock.pipeline.clients.stickiness import NO_GENERATION, Assignment, Member, assign_sticky, withhold
from penstock.pyx.wire.consumerprotocol import read_assignment, read_subscription, version_of
from penstock.pyx.wire.header import encode_versioned
from penstock.pyx.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription, StickyAssignorUserData

ASSIGNMENT_VERSION = 0
PLAIN_VERSION = 0  # of a subscription that says no more than topics: every client reads it
USER_DATA_VERSION = 1
RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY = "range", "roundrobin", "sticky", "cooperative-sticky"

Assignor = Callable[[Mapping[str, int], Sequence[Member]], Assignment]


def assign_range(partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
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


def assign_roundrobin(partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
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


def assign_cooperatively(partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
    """Kafka's `cooperative-sticky`: members go on with what they keep; what changes its owner waits until that gave it back."""
    return withhold(assign_sticky(partitions, members), members)


ASSIGNORS: dict[str, Assignor] = {
    RANGE: assign_range,
    ROUNDROBIN: assign_roundrobin,
    STICKY: assign_sticky,
    COOPERATIVE_STICKY: assign_cooperatively,
}


def chosen(names: Iterable[str]) -> dict[str, Assignor]:
    """The assignors of these names, in order of preference. Raises ConfigError for an unknown one."""
    found: dict[str, Assignor] = {}
    for name in names:
        if name not in ASSIGNORS:
            raise ConfigError(f"`partition.assignment.strategy` has no `{name}`; there are: {', '.join(ASSIGNORS)}")
        found[name] = ASSIGNORS[name]
    return found


def are_cooperative(names: Iterable[str]) -> bool:
    """Whether a member that lists these assignors keeps its partitions while the group rebalances. In a list with others, as on
    the way from `range` to `cooperative-sticky`, it gives them back first, since any of the list may be chosen."""
    return set(names) == {COOPERATIVE_STICKY}


def encode_subscription(
    name: str,
    topics: Iterable[str],
    owned: Sequence[TopicPartition] = (),
    generation: int = NO_GENERATION,
    rack: str | None = None,
) -> bytes:
    """A member's wishes for JoinGroup, as the assignor of this name reads them. owned: what the member has, or for `sticky` had
    last, since this generation."""
    share = ConsumerProtocolSubscription.TopicPartition
    message = ConsumerProtocolSubscription(topics=sorted(topics), rack_id=rack)
    version = PLAIN_VERSION if rack is None else ConsumerProtocolSubscription.MAX_VERSION
    if name == COOPERATIVE_STICKY:
        message.owned_partitions = [share(topic=topic, partitions=numbers) for topic, numbers in by_topic(owned, number)]
        message.generation_id = generation
        version = ConsumerProtocolSubscription.MAX_VERSION
    elif name == STICKY and owned:
        last = StickyAssignorUserData.TopicPartition
        previous = [last(topic=topic, partitions=numbers) for topic, numbers in by_topic(owned, number)]
        message.user_data = StickyAssignorUserData(previous_assignment=previous, generation=generation).encode(
            USER_DATA_VERSION
        )
    return encode_versioned(message, version)


def decode_subscription(
    data: bytes | memoryview, member_id: str = "", group_instance_id: str | None = None, name: str = RANGE
) -> Member:
    """A member by its wishes, as the assignor of this name reads them. Raises WireError."""
    wishes = read_subscription(data)
    topics = tuple(wishes.topics)
    if name == STICKY and wishes.user_data:
        had = StickyAssignorUserData.decode(wishes.user_data, USER_DATA_VERSION)
        owned = tuple((share.topic, n) for share in had.previous_assignment for n in share.partitions)
        return Member(member_id, topics, group_instance_id, owned, had.generation)
    if name != COOPERATIVE_STICKY or version_of(bytes(data)) < 1:
        return Member(member_id, topics, group_instance_id)
    owned = tuple((share.topic, n) for share in wishes.owned_partitions for n in share.partitions)
    return Member(member_id, topics, group_instance_id, owned, wishes.generation_id)


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    """A member's share for SyncGroup."""
    share = ConsumerProtocolAssignment.TopicPartition
    shares = [share(topic=topic, partitions=numbers) for topic, numbers in by_topic(tps, number)]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=shares), ASSIGNMENT_VERSION)


def decode_assignment(data: bytes | memoryview) -> list[TopicPartition]:
    """The partitions of a share; an empty one is none. Raises WireError."""
    return [(share.topic, number) for share in read_assignment(data).assigned_partitions for number in share.partitions]
