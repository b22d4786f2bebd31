"""How `sticky` and `cooperative-sticky` share partitions out: as evenly as subscriptions allow, and each partition with its
owner as far as that goes (KIP-54, KIP-341, KIP-429).

Where all members want the same topics the result is the one of Kafka's own assignor. Elsewhere it is as balanced as can be,
which Kafka's isn't always: a partition also moves by way of a third member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.pipeline.clients.client import TopicPartition

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the leader sees it. `owned`: the partitions that it has, since `generation`."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = field(default=())
    generation: int = NO_GENERATION

    @property
    def order(self) -> tuple[bool, str, str]:
        """Java's order of members: static ones first, by their instance id, then by member id."""
        return self.group_instance_id is None, self.group_instance_id or "", self.member_id


Assignment = dict[str, list[TopicPartition]]


def assign_sticky(partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
    """Each member's partitions; see the module. Topics that don't exist are left out."""
    wanted = {member.member_id: frozenset(member.topics) for member in members}
    owned = _owned(partitions, members)
    if len(set(wanted.values())) > 1:
        return _share_out(partitions, wanted, owned)
    return _share_out_evenly(
        [(topic, n) for topic in sorted({*members[0].topics}) for n in range(partitions.get(topic, 0))], owned
    )


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


def _share_out_evenly(all_tps: Sequence[TopicPartition], owned: Assignment) -> Assignment:
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


def _share_out(partitions: Mapping[str, int], wanted: Mapping[str, frozenset[str]], made: Assignment) -> Assignment:
    """Members want different topics. First everything is given out, what few can take before what many can; then partitions
    move from those that have more to those that have less, as long as that makes them more equal."""
    takers = {
        topic: sorted(member_id for member_id, topics in wanted.items() if topic in topics)
        for topic in sorted({topic for topics in wanted.values() for topic in topics})
        if partitions.get(topic, 0)
    }
    taken = {tp for tps in made.values() for tp in tps}
    for topic in sorted(takers, key=lambda topic: (len(takers[topic]), topic)):
        for number in range(partitions[topic]):
            if (topic, number) not in taken:
                least = min(takers[topic], key=lambda member_id: (len(made[member_id]), member_id))
                made[least].append((topic, number))
    while (moves := _moves(made, takers)) is not None:
        for source, tp, target in moves:
            made[source].remove(tp)
            made[target].append(tp)
    return made


def _moves(made: Assignment, takers: Mapping[str, Sequence[str]]) -> list[tuple[str, TopicPartition, str]] | None:
    """The fewest moves after which a member that has more has one less, and one that has at least two less has one more, by way
    of others if need be. None: nobody can be relieved."""
    settled: set[str] = set()  # those that can only relieve each other, and are even
    for begin in sorted(made, key=lambda member_id: (-len(made[member_id]), member_id)):
        if begin in settled:
            continue
        reached = _reach(begin, made, takers)
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


def _reach(begin: str, made: Assignment, takers: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, TopicPartition]]:
    """Who can get a partition of a member, each with whom it then comes from and which it is, on the shortest way."""
    reached: dict[str, tuple[str, TopicPartition]] = {}
    passed: set[str] = set()
    queue = deque([begin])
    while queue:
        source = queue.popleft()
        for topic, number in dict(made[source]).items():  # of each topic the newest moves
            if topic in passed:
                continue
            passed.add(topic)
            for target in takers[topic]:
                if target != begin and target not in reached:
                    reached[target] = source, (topic, number)
                    queue.append(target)
    return reached
