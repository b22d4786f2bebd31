"""How `sticky` and `cooperative-sticky` share partitions out: as evenly as subscriptions allow, and each partition with its
owner as far as that goes (KIP-54, KIP-341, KIP-429).

Where all members want the same topics the result is the one of Kafka's own assignor. Elsewhere it is as balanced as can be,
which Kafka's isn't always: a partition also moves by way of a third member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.racks import NO_RACKS, PartitionRacks, Racks

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the leader sees it. `owned`: the partitions that it has, since `generation`."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = field(default=())
    generation: int = NO_GENERATION
    rack: str | None = None

    @property
    def order(self) -> tuple[bool, str, str]:
        """Java's order of members: static ones first, by their instance id, then by member id."""
        return self.group_instance_id is None, self.group_instance_id or "", self.member_id


Assignment = dict[str, list[TopicPartition]]


def assign_sticky(partitions: Mapping[str, int], members: Sequence[Member], racks: PartitionRacks = NO_RACKS) -> Assignment:
    """Each member's partitions; see the module. Topics that don't exist are left out. Where racks matter, members first get
    what has a replica in theirs, and keep no claim to the rest."""
    wanted = {member.member_id: frozenset(member.topics) for member in members}
    topics = sorted({topic for topics in wanted.values() for topic in topics})
    all_tps = [(topic, n) for topic in topics for n in range(partitions.get(topic, 0))]
    placed = Racks({member.member_id: member.rack for member in members}, racks, all_tps)
    owned = _owned(partitions, members)
    if placed.matter:
        owned = {member_id: [tp for tp in tps if not placed.is_far(member_id, tp)] for member_id, tps in owned.items()}
    if len(set(wanted.values())) > 1:
        return _share_out(partitions, wanted, owned, placed)
    return _share_out_evenly(all_tps, owned, placed)


def withhold(assigned: Assignment, members: Sequence[Member]) -> Assignment:
    """The same without the partitions that another member has to give back first: the next rebalance gives them out."""
    owner: dict[TopicPartition, str] = {tp: member.member_id for member in members for tp in member.owned}
    return {member_id: [tp for tp in tps if owner.get(tp, member_id) == member_id] for member_id, tps in assigned.items()}


def _owned(partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
    """What members keep a claim to. Of several claims the one of the highest generation counts; of two of the same nobody's."""
    claims: dict[TopicPartition, Member | None] = {}
    for member in members:
        for tp in member.owned:
            topic, number = tp
            if topic not in member.topics or number >= partitions.get(topic, 0):
                continue
            other = claims.get(tp)
            if tp not in claims or (other is not None and other.generation < member.generation):
                claims[tp] = member
            elif other is not None and other.generation == member.generation:
                claims[tp] = None
    return {member.member_id: [tp for tp in member.owned if claims.get(tp) is member] for member in members}


def _share_out_evenly(all_tps: Sequence[TopicPartition], owned: Assignment, racks: Racks) -> Assignment:
    """All members want all: so many have one more than the others."""
    least, with_more = divmod(len(all_tps), len(owned))
    made: Assignment = {}
    low: list[str] = []  # who has less than the least
    exact: list[str] = []  # who has the least, and may get one more
    for member_id in sorted(owned):
        tps = sorted(owned[member_id], key=lambda tp: (tp[1], tp[0]))  # so that it keeps some of each topic
        may_have_more = len(tps) > least and with_more > 0
        with_more -= may_have_more
        made[member_id] = tps[: least + may_have_more]
        if len(tps) < least:
            low.append(member_id)
        elif not may_have_more:
            exact.append(member_id)
    taken = {tp for tps in made.values() for tp in tps}
    left = deque(tp for tp in all_tps if tp not in taken)
    if racks.matter:
        left = _give_nearby(left, made, low, exact, least, with_more, racks)
    while low and left:
        for member_id in list(low):
            made[member_id].append(left.popleft())
            if len(made[member_id]) == least:
                low.remove(member_id)
                exact.append(member_id)
    for member_id in exact:
        if not left:
            break
        made[member_id].append(left.popleft())
    return made


def _give_nearby(
    left: Iterable[TopicPartition],
    made: Assignment,
    low: list[str],
    exact: list[str],
    least: int,
    with_more: int,
    racks: Racks,
) -> deque[TopicPartition]:
    """Give out what has replicas in members' own racks, what is near the fewest members first: in turn to those that have less
    than the least, then one more to others. Gives the rest."""
    rest: deque[TopicPartition] = deque()
    turn = 0
    for tp in sorted(left, key=racks.near_members):
        if not with_more:
            exact.clear()
        if (place := racks.next_near(tp, low, turn)) is not None:
            member_id = low[place]
            made[member_id].append(tp)
            if len(made[member_id]) == least:
                low.pop(place)
                exact.append(member_id)
            else:
                place += 1
            turn = place % len(low) if low else 0
        elif (place := racks.next_near(tp, exact)) is not None:
            made[exact.pop(place)].append(tp)
            with_more -= 1
        else:
            rest.append(tp)
    return rest


def _share_out(
    partitions: Mapping[str, int], wanted: Mapping[str, frozenset[str]], made: Assignment, racks: Racks
) -> Assignment:
    """Members want different topics. First everything is given out, what few can take before what many can; then partitions
    move from those that have more to those that have less, as long as that makes them more equal."""
    takers = {
        topic: sorted(member_id for member_id, topics in wanted.items() if topic in topics)
        for topic in sorted({topic for topics in wanted.values() for topic in topics})
        if partitions.get(topic, 0)
    }
    taken = {tp for tps in made.values() for tp in tps}
    by_takers = sorted(takers, key=lambda topic: (len(takers[topic]), topic))
    left = [(topic, n) for topic in by_takers for n in range(partitions[topic]) if (topic, n) not in taken]
    near = {tp: [member_id for member_id in takers[tp[0]] if racks.is_near(member_id, tp)] for tp in left}
    for tp in sorted(left, key=lambda tp: not near[tp]):
        least = min(near[tp] or takers[tp[0]], key=lambda member_id: (len(made[member_id]), member_id))
        made[least].append(tp)
    while (moves := _moves(made, takers, racks)) is not None:
        for source, tp, target in moves:
            made[source].remove(tp)
            made[target].append(tp)
    return made


def _moves(made: Assignment, takers: Mapping[str, Sequence[str]], racks: Racks) -> list[tuple[str, TopicPartition, str]] | None:
    """The fewest moves after which a member that has more has one less, and one that has at least two less has one more, by way
    of others if need be. None: nobody can be relieved."""
    settled: set[str] = set()  # those that can only relieve each other, and are even
    for begin in sorted(made, key=lambda member_id: (-len(made[member_id]), member_id)):
        if begin in settled:
            continue
        reached = _reach(begin, made, takers, racks)
        end = min(reached, key=lambda member_id: (len(made[member_id]), member_id), default=begin)
        if len(made[end]) > len(made[begin]) - 2:
            settled |= {begin, *reached}
            continue
        moves: list[tuple[str, TopicPartition, str]] = []
        while end != begin:
            source, tp = reached[end]
            moves.append((source, tp, end))
            end = source
        return moves
    return None


def _reach(
    begin: str, made: Assignment, takers: Mapping[str, Sequence[str]], racks: Racks
) -> dict[str, tuple[str, TopicPartition]]:
    """Who can get a partition of a member, each with whom it then comes from and which it is, on the shortest way."""
    reached: dict[str, tuple[str, TopicPartition]] = {}
    passed: set[str] = set()
    queue = deque([begin])
    while queue:
        source = queue.popleft()
        by_topic: dict[str, list[TopicPartition]] = {}
        for tp in reversed(made[source]):
            by_topic.setdefault(tp[0], []).append(tp)
        for topic, tps in by_topic.items():
            if topic in passed:
                continue
            passed.add(topic)
            for target in takers[topic]:
                if target != begin and target not in reached:
                    # Of each topic the newest moves, of those that get nearer by it, if there are any.
                    gains = {tp: racks.is_near(target, tp) - racks.is_near(source, tp) for tp in tps}
                    reached[target] = source, max(gains, key=gains.__getitem__)
                    queue.append(target)
    return reached
