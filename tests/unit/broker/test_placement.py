"""Where replicas go: spread over all brokers, leaders too, and each replica of a partition on another broker."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.cluster.placement import place


@given(st.sets(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 40), st.data(), st.binary(min_size=16, max_size=16))
def test_replicas_are_spread(brokers: set[int], partitions: int, data: st.DataObject, topic_id: bytes) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, partitions, factor, topic_id)
    assert len(placed) == partitions
    assert all(len(replicas) == len(set(replicas)) == factor and set(replicas) <= brokers for replicas in placed)
    led = Counter(replicas[0] for replicas in placed)
    assert max(led.values()) - min(led[broker] for broker in brokers) <= 1
    first = data.draw(st.integers(0, partitions))
    assert place(brokers, partitions - first, factor, topic_id, first) == placed[first:]


@given(
    st.dictionaries(st.integers(0, 30), st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9),
    st.integers(1, 40),
    st.data(),
    st.binary(min_size=16, max_size=16),
)
def test_replicas_are_spread_over_racks(racks: dict[int, str], partitions: int, data: st.DataObject, topic_id: bytes) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    placed = place(set(racks), partitions, factor, topic_id, racks=racks)
    led = Counter(replicas[0] for replicas in placed)
    assert max(led.values()) - min(led[broker] for broker in racks) <= 1
    size = Counter(racks.values())
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        held = Counter(racks[broker] for broker in replicas)
        # A rack has one more than another only where that one has no broker left.
        assert all(held[one] <= held[other] + 1 or held[other] == size[other] for one in size for other in size)
    first = data.draw(st.integers(0, partitions))
    assert place(set(racks), partitions - first, factor, topic_id, first, racks) == placed[first:]


def test_brokers_without_a_rack_count_as_one_rack() -> None:
    for replicas in place({1, 2, 3}, 12, 2, bytes(16), racks={3: "a"}):
        assert 3 in replicas


def test_followers_of_one_leader_are_not_always_the_same() -> None:
    placed = place({1, 2, 3, 4}, 24, 2, bytes(16))
    assert {replicas[1] for replicas in placed if replicas[0] == placed[0][0]} == {1, 2, 3, 4} - {placed[0][0]}
