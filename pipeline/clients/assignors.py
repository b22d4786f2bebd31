"""How a group's leader shares partitions out among its members (the `consumer` protocol of Kafka's clients)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from penstock.config import ConfigError
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.partitionlists import by_topic, number
from penstock.pipeline.clients.racks import NO_RACKS, PartitionRacks, Racks
from penstock.pipeline.clients.stickiness import NO_GENERATION, Assignment, Member, assign_sticky, withhold
from penstock.pyx.wire.consumerprotocol import read_assignment, read_subscription, version_of
from penstock.pyx.wire.header import encode_versioned
from penstock.pyx.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription, StickyAssignorUserData

ASSIGNMENT_VERSION = 0
PLAIN_VERSION = 0  # of a subscription that says no more than topics: every client reads it
USER_DATA_VERSION = 1
RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY = "range", "roundrobin", "sticky", "cooperative-sticky"


class Assignor(Protocol):
    """Shares the partitions of topics, given by their counts, out among members."""

    def __call__(
        self, partitions: Mapping[str, int], members: Sequence[Member], racks: PartitionRacks = NO_RACKS
    ) -> Assignment: ...


class _Range:
    """A topic's partitions that nobody has yet, and how many of them each member gets."""

    def __init__(self, topic: str, count: int, members: Sequence[Member], racks: PartitionRacks) -> None:
        self.members = {member.member_id: member.rack for member in members}
        self.left: dict[TopicPartition, None] = {(topic, n): None for n in range(count)}
        self.racks = Racks(self.members, racks, self.left)
        self.shape = frozenset(self.members.items()), count
        self._counts = dict.fromkeys(self.members, 0)
        self._each, self._extra = divmod(count, len(members))

    def room(self, member_id: str) -> int:
        """How many more a member may get now."""
        return max(0, self._each + (self._extra > 0) - self._counts[member_id])

    def give(self, member_id: str, tps: Sequence[TopicPartition], assigned: Assignment) -> None:
        """A member gets some of what is left."""
        assigned[member_id] += tps
        self._counts[member_id] += len(tps)
        self._extra -= self._counts[member_id] > self._each
        for tp in tps:
            del self.left[tp]

    def give_ranges(self, assigned: Assignment, *, nearby: bool) -> None:
        """Each member in turn gets the first of what is left, or with `nearby` of that which isn't in other racks alone."""
        for member_id in self.members:
            fit = (tp for tp in self.left if not (nearby and self.racks.is_far(member_id, tp)))
            if taken := list(itertools.islice(fit, self.room(member_id))):
                self.give(member_id, taken, assigned)


def assign_range(partitions: Mapping[str, int], members: Sequence[Member], racks: PartitionRacks = NO_RACKS) -> Assignment:
    """Kafka's `range`: for each topic by itself, neighbouring partitions to the members in order, the first members one
    more when it does not come out even. Topics that don't exist are left out. Where racks matter, members first get partitions
    of their own racks; topics with the same members and as many partitions are still shared out alike."""
    ordered = sorted(members, key=lambda member: member.order)
    assigned: Assignment = {member.member_id: [] for member in ordered}
    ranges = [
        _Range(topic, partitions[topic], [member for member in ordered if topic in member.topics], racks)
        for topic in sorted({topic for member in ordered for topic in member.topics} & partitions.keys())
    ]
    by_rack = any(one.racks.matter for one in ranges)
    if by_rack:
        alike: dict[object, list[_Range]] = {}
        for one in ranges:
            alike.setdefault(one.shape, []).append(one)
        for group in alike.values():
            if len(group) > 1:
                _give_alike(group, assigned)
            elif group[0].racks.matter:
                group[0].give_ranges(assigned, nearby=True)
    for one in ranges:
        one.give_ranges(assigned, nearby=False)
    if by_rack:
        for tps in assigned.values():
            tps.sort()
    return assigned


def _give_alike(group: Sequence[_Range], assigned: Assignment) -> None:
    """A member that gets a partition of one topic gets those of the same number of the others, too: the first one with room for
    which none of them lies in other racks alone."""
    for tps in list(zip(*(one.left for one in group), strict=True)):
        parts = list(zip(group, tps, strict=True))
        for member_id in group[0].members:
            if all(one.room(member_id) and not one.racks.is_far(member_id, tp) for one, tp in parts):
                for one, tp in parts:
                    one.give(member_id, [tp], assigned)
                break


def assign_roundrobin(partitions: Mapping[str, int], members: Sequence[Member], racks: PartitionRacks = NO_RACKS) -> Assignment:
    """Kafka's `roundrobin`: all partitions of all topics, one after the other, to the next member that wants it, in whichever
    rack it is."""
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


def assign_cooperatively(
    partitions: Mapping[str, int], members: Sequence[Member], racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Kafka's `cooperative-sticky`: members go on with what they keep; what changes its owner waits until that gave it back."""
    return withhold(assign_sticky(partitions, members, racks), members)


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
    owned: tuple[TopicPartition, ...] = ()
    generation = NO_GENERATION
    if name == STICKY and wishes.user_data:
        had = StickyAssignorUserData.decode(wishes.user_data, USER_DATA_VERSION)
        owned = tuple((share.topic, n) for share in had.previous_assignment for n in share.partitions)
        generation = had.generation
    elif name == COOPERATIVE_STICKY and version_of(bytes(data)) >= 1:
        owned = tuple((share.topic, n) for share in wishes.owned_partitions for n in share.partitions)
        generation = wishes.generation_id
    return Member(member_id, tuple(wishes.topics), group_instance_id, owned, generation, wishes.rack_id)


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    """A member's share for SyncGroup."""
    share = ConsumerProtocolAssignment.TopicPartition
    shares = [share(topic=topic, partitions=numbers) for topic, numbers in by_topic(tps, number)]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=shares), ASSIGNMENT_VERSION)


def decode_assignment(data: bytes | memoryview) -> list[TopicPartition]:
    """The partitions of a share; an empty one is none. Raises WireError."""
    return [(share.topic, number) for share in read_assignment(data).assigned_partitions for number in share.partitions]
