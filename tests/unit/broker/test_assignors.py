"""The server's assignors: everything is given out once, evenly, to who wants it, moving little."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from penstock.broker.coordination.consumergroups.assignors import ASSIGNORS, Target, Wants, assign_range, assign_uniform

TOPICS = [bytes([number]) * 16 for number in range(1, 6)]


def check(target: Target, members: Mapping[str, Wants], counts: Mapping[bytes, int]) -> None:
    given = [(topic, p) for parts in target.values() for topic, ps in parts.items() for p in ps]
    wanted = {topic for wants in members.values() for topic in wants.topic_ids if topic in counts}
    assert len(given) == len(set(given))
    assert set(given) == {(topic, p) for topic in wanted for p in range(counts[topic])}
    assert target.keys() == members.keys()
    for member_id, parts in target.items():
        assert set(parts) <= members[member_id].topic_ids and all(parts.values())


def sizes(target: Target) -> list[int]:
    return sorted(sum(map(len, parts.values())) for parts in target.values())


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("alike", [True, False])
def test_everything_is_given_out_once_whatever_happens(name: str, alike: bool) -> None:
    chance = random.Random(f"{name}{alike}")
    assign = ASSIGNORS[name]
    for _ in range(150):
        counts = {topic: chance.randint(1, 9) for topic in chance.sample(TOPICS, chance.randint(1, 5))}
        members: dict[str, Wants] = {}
        target: Target = {}
        for step in range(8):  # Members come and go, topics grow.
            if members and chance.random() < 0.3:
                members.pop(chance.choice(sorted(members)))
            else:
                topics = frozenset(TOPICS if alike else chance.sample(TOPICS, chance.randint(1, 4)))
                members[f"m{step}"] = Wants(chance.choice([None, f"i{step}"]), topics)
            if chance.random() < 0.3:
                counts[chance.choice(sorted(counts))] += 2
            members = {
                member_id: Wants(wants.instance_id, wants.topic_ids, target.get(member_id, {}))
                for member_id, wants in members.items()
            }
            target = assign(members, counts)
            check(target, members, counts)
            if name == "uniform" and alike and members:
                assert sizes(target)[-1] - sizes(target)[0] <= 1


def test_uniform_moves_no_more_than_the_balance_asks_for() -> None:
    topic, topics = TOPICS[0], frozenset(TOPICS[:1])
    first = assign_uniform({"a": Wants(None, topics), "b": Wants(None, topics)}, {topic: 9})
    assert sizes(first) == [4, 5]
    members = {name: Wants(None, topics, first[name]) for name in first}
    third = assign_uniform({**members, "c": Wants(None, topics)}, {topic: 9})
    assert sizes(third) == [3, 3, 3]
    assert all(third[name][topic] < first[name][topic] for name in first), "nothing goes from one to the other"
    members = {name: Wants(None, topics, third[name]) for name in ("a", "c")}
    left = assign_uniform(members, {topic: 9})
    assert all(third[name][topic] < left[name][topic] for name in left), "who stays keeps all"


def test_uniform_balances_members_of_different_wishes() -> None:
    both, one = frozenset(TOPICS[:2]), frozenset(TOPICS[:1])
    members = {"a": Wants(None, both), "b": Wants(None, one), "c": Wants(None, one)}
    target = assign_uniform(members, {TOPICS[0]: 6, TOPICS[1]: 3})
    assert target["a"] == {TOPICS[1]: frozenset({0, 1, 2})} and sizes(target) == [3, 3, 3]


def test_range_gives_neighbours_and_the_same_numbers_of_each_topic() -> None:
    topics = frozenset(TOPICS[:2])
    members = {"a": Wants(None, topics), "z": Wants("first", topics), "b": Wants(None, topics)}
    target = assign_range(members, {TOPICS[0]: 7, TOPICS[1]: 3})
    assert target["z"] == {TOPICS[0]: frozenset({0, 1, 2}), TOPICS[1]: frozenset({0})}, "static members come first"
    assert target["a"] == {TOPICS[0]: frozenset({3, 4}), TOPICS[1]: frozenset({1})}
    assert target["b"] == {TOPICS[0]: frozenset({5, 6}), TOPICS[1]: frozenset({2})}


def test_what_is_gone_is_not_given_out() -> None:
    members = {"a": Wants(None, frozenset(TOPICS), {TOPICS[0]: frozenset({0, 7}), TOPICS[3]: frozenset({1})})}
    assert assign_uniform(members, {TOPICS[0]: 2}) == {"a": {TOPICS[0]: frozenset({0, 1})}}
    assert assign_uniform({}, {TOPICS[0]: 2}) == {} == assign_range({}, {TOPICS[0]: 2})
