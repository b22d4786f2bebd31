"""Assignors share out as Kafka's do, and every partition goes to exactly one member."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import ConfigError
from penstock.pipeline.clients.assignors import (
    ASSIGNORS,
    are_cooperative,
    chosen,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.pipeline.clients.racks import NO_RACKS, PartitionRacks
from penstock.pipeline.clients.stickiness import Assignment, Member
from penstock.pyx.wire.message import WireError

NAMES = st.sampled_from("abcdef")


RACK = st.sampled_from(["r1", "r2", "r3"])


def shares(
    name: str, partitions: dict[str, int], *members: Member, racks: PartitionRacks = NO_RACKS
) -> dict[str, list[tuple[str, int]]]:
    return ASSIGNORS[name](partitions, members, racks)


@pytest.mark.parametrize(
    ("members", "counts"), [(1, [3]), (2, [2, 1]), (3, [1, 1, 1]), (4, [1, 1, 1, 0]), (5, [1, 1, 1, 0, 0])]
)
def test_three_partitions_among_members(members: int, counts: list[int]) -> None:
    made = shares("range", {"t": 3}, *(Member(f"m{i}", ("t",)) for i in range(members)))
    assert [len(made[f"m{i}"]) for i in range(members)] == counts


def test_range_gives_neighbours_topic_by_topic() -> None:
    made = shares("range", {"t": 3, "u": 3}, Member("b", ("t", "u")), Member("a", ("t", "u")))
    assert made == {"a": [("t", 0), ("t", 1), ("u", 0), ("u", 1)], "b": [("t", 2), ("u", 2)]}


def test_roundrobin_deals_all_topics_in_turn() -> None:
    made = shares("roundrobin", {"t": 3, "u": 3}, Member("b", ("t", "u")), Member("a", ("t", "u")))
    assert made == {"a": [("t", 0), ("t", 2), ("u", 1)], "b": [("t", 1), ("u", 0), ("u", 2)]}


def test_static_members_keep_their_place() -> None:
    """Whatever member ids a restart brings, the share follows the instance id."""
    before = shares("range", {"t": 2}, Member("zz", ("t",), "one"), Member("aa", ("t",), "two"))
    after = shares("range", {"t": 2}, Member("00", ("t",), "two"), Member("99", ("t",), "one"))
    assert before["zz"] == after["99"] == [("t", 0)]


def test_missing_topics_are_left_out() -> None:
    assert shares("range", {}, Member("a", ("gone",))) == {"a": []}


@given(
    st.sampled_from(sorted(ASSIGNORS)),
    st.dictionaries(NAMES, st.integers(0, 9)),
    st.lists(st.frozensets(NAMES, max_size=4), min_size=1, max_size=6),
)
def test_each_partition_once_and_only_to_subscribers(
    name: str, partitions: dict[str, int], wishes: list[frozenset[str]]
) -> None:
    members = [Member(f"m{i}", tuple(sorted(topics))) for i, topics in enumerate(wishes)]
    made = shares(name, partitions, *members)
    given_out = sorted(tp for share in made.values() for tp in share)
    wanted = {topic for topics in wishes for topic in topics}
    assert given_out == sorted((t, p) for t, count in partitions.items() if t in wanted for p in range(count))
    for member in members:
        assert {topic for topic, _ in made[member.member_id]} <= set(member.topics)


@given(st.lists(st.tuples(NAMES, st.integers(0, 99)), unique=True))
def test_shares_survive_the_wire(tps: list[tuple[str, int]]) -> None:
    assert sorted(decode_assignment(encode_assignment(tps))) == sorted(tps)


@pytest.mark.parametrize("name", ASSIGNORS)
def test_subscriptions_survive_the_wire(name: str) -> None:
    owned = (("a", 0), ("a", 3), ("b", 1))
    is_sticky = "sticky" in name
    for rack in (None, "r1"):
        member = Member("m", ("a", "b"), "one", owned if is_sticky else (), 7 if is_sticky else -1, rack)
        data = encode_subscription(name, {"b", "a"}, owned, 7, rack)
        assert decode_subscription(data, "m", "one", name) == member


def test_a_java_consumers_subscription_is_read() -> None:
    """Version 1 with user data and owned partitions, written by hand from the protocol's definition."""
    data = bytes.fromhex("0001 00000001 0001 74 ffffffff 00000001 0001 74 00000001 00000000")
    assert decode_subscription(data).topics == ("t",)
    assert decode_subscription(data, name="cooperative-sticky").owned == (("t", 0),)


def test_of_a_newer_version_what_is_known_is_read() -> None:
    """Versions only add to the end; version 9 adds a byte here."""
    assert decode_subscription(bytes.fromhex("0009 00000001 0001 74 ffffffff 00000000 ffffffff ffff 07")).topics == ("t",)
    assert decode_assignment(bytes.fromhex("0009 00000001 0001 74 00000001 00000005 ffffffff 07")) == [("t", 5)]


@pytest.mark.parametrize("data", ["ffff 00000000 ffffffff", "00", "0000 00000001 0001"])
def test_what_is_no_share_or_wish_is_refused(data: str) -> None:
    for decode in (decode_subscription, decode_assignment):
        with pytest.raises(WireError):
            decode(bytes.fromhex(data))


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no `fair`; there are: range, roundrobin, sticky, cooperative-sticky"):
        chosen(["range", "fair"])


def test_a_member_is_cooperative_only_if_nothing_else_may_be_chosen() -> None:
    assert are_cooperative(["cooperative-sticky"])
    assert not are_cooperative(["range", "cooperative-sticky"]) and not are_cooperative(["sticky"])


# Sticky assignment: rounds in which members come, go, change their topics, and topics grow


def counts_of(made: Assignment) -> list[int]:
    return sorted(len(tps) for tps in made.values())


def is_even(partitions: dict[str, int], members: list[Member], made: Assignment) -> bool:
    """Whether no partition could move, by way of others too, from a member that has two more than another: a walk over all."""
    holder = {tp: member_id for member_id, tps in made.items() for tp in tps}
    for begin in members:
        seen, ways = {begin.member_id}, [begin.member_id]
        while ways:
            source = ways.pop()
            for member in members:
                may_take = any(holder[tp] == source and tp[0] in member.topics for tp in holder)
                if member.member_id not in seen and may_take:
                    seen.add(member.member_id)
                    ways.append(member.member_id)
        if any(len(made[other]) < len(made[begin.member_id]) - 1 for other in seen):
            return False
    return True


@given(
    st.dictionaries(NAMES, st.integers(0, 6)),
    st.lists(st.tuples(st.frozensets(NAMES, max_size=4), st.frozensets(st.tuples(NAMES, st.integers(0, 7)), max_size=6),
                       st.integers(-1, 2)), min_size=1, max_size=6),
)  # fmt: skip
def test_sticky_is_complete_and_even_whatever_members_claim(
    partitions: dict[str, int], wishes: list[tuple[frozenset[str], frozenset[tuple[str, int]], int]]
) -> None:
    members = [
        Member(f"m{i}", tuple(sorted(topics)), None, tuple(sorted(owned)), generation)
        for i, (topics, owned, generation) in enumerate(wishes)
    ]
    made = shares("sticky", partitions, *members)
    wanted = {topic for member in members for topic in member.topics}
    assert sorted(tp for tps in made.values() for tp in tps) == sorted(
        (t, p) for t, count in partitions.items() if t in wanted for p in range(count)
    )
    assert is_even(partitions, members, made)
    # Where it is even already, nothing moves.
    again = shares("sticky", partitions, *(Member(m.member_id, m.topics, None, tuple(made[m.member_id]), 9) for m in members))
    assert {member_id: sorted(tps) for member_id, tps in again.items()} == {m: sorted(tps) for m, tps in made.items()}


@given(
    st.integers(0, 20),
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
def test_cooperative_members_never_share_a_partition_and_come_to_rest(count: int, sizes: list[int]) -> None:
    """Members come and go; each round's shares are what members then have, and claim."""
    has: dict[str, tuple[tuple[str, int], ...]] = {}
    for size in sizes:
        for _ in range(3):
            members = [Member(f"m{i}", ("t",), None, has.get(f"m{i}", ()), 1) for i in range(size)]
            made = shares("cooperative-sticky", {"t": count}, *members)
            held = {tp: member.member_id for member in members for tp in member.owned}
            for member_id, tps in made.items():
                assert all(held.get(tp, member_id) == member_id for tp in tps), "it is given out before it was given back"
            has = {member_id: tuple(tps) for member_id, tps in made.items()}
        given_out = [tp for tps in has.values() for tp in tps]
        assert sorted(given_out) == [("t", n) for n in range(count)]
        assert max(map(len, has.values())) - min(map(len, has.values())) <= 1


# Racks (KIP-881)

PLACES = st.lists(st.frozensets(RACK, max_size=2), max_size=9)
MEMBERS_IN_RACKS = st.lists(st.tuples(st.frozensets(st.sampled_from("ab")), st.none() | RACK), min_size=1, max_size=6)


@given(st.sampled_from(sorted(ASSIGNORS)), PLACES, PLACES, MEMBERS_IN_RACKS)
def test_members_in_racks_get_each_partition_once_as_evenly_as_without_and_come_to_rest(
    name: str, of_a: list[frozenset[str]], of_b: list[frozenset[str]], wishes: list[tuple[frozenset[str], str | None]]
) -> None:
    partitions = {"a": len(of_a), "b": len(of_b)}
    racks = {(topic, n): one for topic, placed in (("a", of_a), ("b", of_b)) for n, one in enumerate(placed)}
    members = [Member(f"m{i}", tuple(sorted(topics)), rack=rack) for i, (topics, rack) in enumerate(wishes)]
    rounds: list[Assignment] = []
    while len(rounds) < 2 or rounds[-1] != rounds[-2]:
        assert len(rounds) < 8
        made = shares(name, partitions, *members, racks=racks)
        rounds.append({member_id: sorted(tps) for member_id, tps in made.items()})
        if "sticky" in name:
            members = [replace(m, owned=tuple(rounds[-1][m.member_id]), generation=len(rounds)) for m in members]
    wanted = {topic for topics, _ in wishes for topic in topics}
    assert sorted(tp for tps in rounds[-1].values() for tp in tps) == sorted(tp for tp in racks if tp[0] in wanted)
    plain = shares(name, partitions, *[replace(m, owned=()) for m in members])
    for topics in ("a", "b") if name == "range" else ("ab",):  # `range` shares out each topic by itself
        of_topics = [
            {member_id: [tp for tp in tps if tp[0] in topics] for member_id, tps in one.items()} for one in (rounds[-1], plain)
        ]
        assert counts_of(of_topics[0]) == counts_of(of_topics[1])


def test_range_gives_members_what_is_in_their_racks_and_topics_alike_together() -> None:
    placed = [frozenset({"r2"}), frozenset({"r1"}), frozenset({"r3"})]
    racks = {(topic, n): one for topic in "tu" for n, one in enumerate(placed)}
    members = [Member("a", ("t", "u"), rack="r1"), Member("b", ("t", "u"), rack="r2")]
    made = shares("range", {"t": 3, "u": 3}, *members, racks=racks)
    assert made == {"a": [("t", 1), ("t", 2), ("u", 1), ("u", 2)], "b": [("t", 0), ("u", 0)]}


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_a_sticky_member_gives_up_what_is_in_other_racks_alone(name: str) -> None:
    racks = {("t", 0): frozenset({"r2"}), ("t", 1): frozenset({"r1"})}
    members = [
        Member("a", ("t",), owned=(("t", 0),), generation=1, rack="r1"),
        Member("b", ("t",), owned=(("t", 1),), generation=1, rack="r2"),
    ]
    made = shares(name, {"t": 2}, *members, racks=racks)
    if name == "cooperative-sticky":
        assert made == {"a": [], "b": []}, "both have to give theirs back first"
        members = [replace(member, owned=()) for member in members]
        made = shares(name, {"t": 2}, *members, racks=racks)
    assert made == {"a": [("t", 1)], "b": [("t", 0)]}


def test_racks_make_no_difference_where_each_partition_is_in_all_of_them() -> None:
    racks = {("t", n): frozenset({"r1", "r2"}) for n in range(4)}
    members = [Member("b", ("t",), rack="r1"), Member("a", ("t",), rack="r2")]
    for name in ASSIGNORS:
        assert shares(name, {"t": 4}, *members, racks=racks) == shares(name, {"t": 4}, *members)
