"""Assignors share out as Kafka's do, and every partition goes to exactly one member."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import ConfigError
from penstock.pipeline.clients.assignors import (
    ASSIGNORS,
    Member,
    chosen,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.pyx.wire.message import WireError

NAMES = st.sampled_from("abcdef")


def shares(name: str, partitions: dict[str, int], *members: Member) -> dict[str, list[tuple[str, int]]]:
    return ASSIGNORS[name](partitions, members)


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


def test_subscriptions_survive_the_wire() -> None:
    assert decode_subscription(encode_subscription({"b", "a"})) == ("a", "b")


def test_a_java_consumers_subscription_is_read() -> None:
    """Version 1 with user data and owned partitions, written by hand from the protocol's definition."""
    data = bytes.fromhex("0001 00000001 0001 74 ffffffff 00000001 0001 74 00000001 00000000")
    assert decode_subscription(data) == ("t",)


def test_of_a_newer_version_what_is_known_is_read() -> None:
    """Versions only add to the end; version 9 adds a byte here."""
    assert decode_subscription(bytes.fromhex("0009 00000001 0001 74 ffffffff 00000000 ffffffff ffff 07")) == ("t",)
    assert decode_assignment(bytes.fromhex("0009 00000001 0001 74 00000001 00000005 ffffffff 07")) == [("t", 5)]


@pytest.mark.parametrize("data", ["ffff 00000000 ffffffff", "00", "0000 00000001 0001"])
def test_what_is_no_share_or_wish_is_refused(data: str) -> None:
    for decode in (decode_subscription, decode_assignment):
        with pytest.raises(WireError):
            decode(bytes.fromhex(data))


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="sticky"):
        chosen(["sticky"])
