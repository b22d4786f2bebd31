"""The server's assignors: which of a group's members shall own which partition.

Both are pure: members and topics in, a target for every member out. `uniform` balances the number of partitions
and leaves with a member what it had as far as the balance allows; `range` gives each member of a topic a run of
neighbouring partitions, so that partitions of the same number of several topics meet in one member. Racks are not
looked at: a single node has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.broker.coordination.consumergroups.state import Partitions

Target = dict[str, Partitions]
_Owned = dict[str, dict[bytes, set[int]]]


@dataclass(slots=True)
class Wants:
    """What an assignor needs to know of a member."""

    instance_id: str | None
    topic_ids: frozenset[bytes]
    had: Partitions = field(default_factory=dict)


Assign = Callable[[Mapping[str, Wants], Mapping[bytes, int]], Target]


def assign_range(members: Mapping[str, Wants], counts: Mapping[bytes, int]) -> Target:
    """Members in the order of instance ids, then of member ids; the first ones of a topic get one more."""
    order = sorted(members, key=lambda one: (members[one].instance_id is None, members[one].instance_id or one))
    target: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, count in counts.items():
        takers = [member_id for member_id in order if topic_id in members[member_id].topic_ids]
        if not takers:
            continue
        least, more = divmod(count, len(takers))
        start = 0
        for position, member_id in enumerate(takers):
            end = start + least + (position < more)
            if start < end:
                target[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(target)


def assign_uniform(members: Mapping[str, Wants], counts: Mapping[bytes, int]) -> Target:
    """Each member as many as any other, as far as subscriptions allow, moving as little as possible."""
    order = sorted(members)
    owned, free = _kept(members, counts, order)
    if len({members[member_id].topic_ids for member_id in order}) <= 1:
        _level(owned, free, counts, order)
    else:
        _spread(members, owned, free, order)
        _balance(members, owned, counts, order)
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in owned[member_id].items() if partitions}
        for member_id in order
    }


def _kept(
    members: Mapping[str, Wants], counts: Mapping[bytes, int], order: Sequence[str]
) -> tuple[_Owned, dict[bytes, list[int]]]:
    """What members had and still may have, and what no member has."""
    owned: _Owned = {}
    taken: dict[bytes, set[int]] = {topic_id: set() for topic_id in counts}
    for member_id in order:
        wants = members[member_id]
        mine: dict[bytes, set[int]] = {}
        for topic_id, had in wants.had.items():
            if topic_id not in counts or topic_id not in wants.topic_ids:
                continue
            kept = {p for p in had if p < counts[topic_id]} - taken[topic_id]
            taken[topic_id] |= kept
            mine[topic_id] = kept
        owned[member_id] = mine
    wanted = frozenset[bytes]().union(*(wants.topic_ids for wants in members.values()))
    free = {
        topic_id: [p for p in range(counts[topic_id]) if p not in taken[topic_id]]
        for topic_id in sorted(counts)
        if topic_id in wanted
    }
    return owned, free


def _size(owned: Mapping[bytes, set[int]]) -> int:
    return sum(map(len, owned.values()))


def _level(owned: _Owned, free: Mapping[bytes, list[int]], counts: Mapping[bytes, int], order: Sequence[str]) -> None:
    """All want the same topics: each gets the same number, some one more, and a member that has too many gives back."""
    if not order:
        return
    pool = [(topic_id, p) for topic_id, partitions in free.items() for p in partitions]
    total = len(pool) + sum(_size(owned[member_id]) for member_id in order)
    least, more = divmod(total, len(order))
    for member_id in order:
        mine = owned[member_id]
        allowed = least
        if _size(mine) > least and more > 0:
            allowed, more = least + 1, more - 1
        surplus = _size(mine) - allowed
        for topic_id in sorted(mine, reverse=True):
            while surplus > 0 and mine[topic_id]:
                partition = max(mine[topic_id])
                mine[topic_id].discard(partition)
                pool.append((topic_id, partition))
                surplus -= 1
    pool.sort(key=lambda one: (one[1], one[0]), reverse=True)
    for member_id in order:
        mine = owned[member_id]
        room = least - _size(mine)
        if room >= 0 and more > 0:
            room, more = room + 1, more - 1
        for _ in range(min(room, len(pool))):
            topic_id, partition = pool.pop()
            mine.setdefault(topic_id, set()).add(partition)


def _spread(members: Mapping[str, Wants], owned: _Owned, free: Mapping[bytes, list[int]], order: Sequence[str]) -> None:
    """Hand out what is free, the topics with the fewest takers first, each partition to the member that has least."""
    sizes = {member_id: _size(owned[member_id]) for member_id in order}
    takers = {topic_id: [one for one in order if topic_id in members[one].topic_ids] for topic_id in free}
    for topic_id in sorted(free, key=lambda one: (len(takers[one]), one)):
        for partition in free[topic_id]:
            member_id = min(takers[topic_id], key=lambda one: (sizes[one], one))
            owned[member_id].setdefault(topic_id, set()).add(partition)
            sizes[member_id] += 1


def _balance(members: Mapping[str, Wants], owned: _Owned, counts: Mapping[bytes, int], order: Sequence[str]) -> None:
    """Move partitions one by one from the one that has most to the one that has least of a topic's takers, until no move helps.

    Every move makes the sum of squares smaller, so this ends.
    """
    sizes = {member_id: _size(owned[member_id]) for member_id in order}
    moved = True
    while moved:
        moved = False
        for topic_id in sorted(counts):
            takers = [one for one in order if topic_id in members[one].topic_ids]
            while takers:
                giving = [one for one in takers if owned[one].get(topic_id)]
                if not giving:
                    break
                most = max(giving, key=lambda one: (sizes[one], one))
                least = min(takers, key=lambda one: (sizes[one], one))
                if sizes[most] - sizes[least] <= 1:
                    break
                partition = max(owned[most][topic_id])
                owned[most][topic_id].discard(partition)
                owned[least].setdefault(topic_id, set()).add(partition)
                sizes[most] -= 1
                sizes[least] += 1
                moved = True


ASSIGNORS: dict[str, Assign] = {"uniform": assign_uniform, "range": assign_range}
