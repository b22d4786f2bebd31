"""Partitioners choose as Kafka's own classes do (partitions_java.txt, and what its UtilsTest pins), and as librdkafka."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import ConfigError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.outgoing import Lists
from penstock.pipeline.clients.partitioner import (
    KINDS,
    PartitionChoice,
    Sticky,
    crc32_for_many,
    murmur2,
    murmur2_many,
    partition_for,
    partitions_for,
)
from penstock.pipeline.clients.producer import Producer

GOLDEN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
JAVA = [line.split() for line in (Path(__file__).parents[2] / "golden" / "partitions_java.txt").read_text().splitlines()]
JAVA_KEYS = [line for line in JAVA if line[0] == "key"]
KEYS = st.none() | st.binary(max_size=70)


def choice(name: str, batch_bytes: int = 100, ignore_keys: bool = False) -> PartitionChoice:
    return PartitionChoice(name, ignore_keys, batch_bytes)


def columns(keys: list[bytes | None]) -> Lists:
    return Lists(keys, None, None, None)


@pytest.mark.parametrize(("key", "java"), GOLDEN.items())
def test_hash_is_javas(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF
    assert partition_for(key, 1000) == (java & 0x7FFFFFFF) % 1000


def test_keys_go_where_javas_producer_puts_them() -> None:
    golden = [(bytes.fromhex(key[1:]), int(count), int(chosen)) for _, key, count, chosen in JAVA_KEYS]
    for name in ("murmur2", "murmur2_random"):
        kind = choice(name)
        for key, count, chosen in golden:
            assert kind.choose("t", key, count, range(count)) == (chosen, False)
            assert kind.choose_many("t", columns([key]), count, range(count))[0].tolist() == [chosen]


@pytest.mark.parametrize("line", [line for line in JAVA if line[0] == "round_robin"], ids=lambda line: line[1])
def test_round_robin_is_javas(line: list[str]) -> None:
    count, chosen = int(line[1]), [int(number) for number in line[2:]]
    one, many = choice("round_robin"), choice("round_robin")
    assert [one.choose("t", b"key", count, range(count)) for _ in chosen] == [(number, False) for number in chosen]
    halves = [many.choose_many("t", columns([b"key"] * size), count, range(count))[0] for size in (7, len(chosen) - 7)]
    assert np.concatenate(halves).tolist() == chosen


@given(st.binary(max_size=70), st.integers(1, 1000))
def test_keys_go_where_librdkafka_puts_them(key: bytes, count: int) -> None:
    for name, theirs in (("murmur2", confluent_kafka.murmur2), ("consistent", confluent_kafka.consistent)):
        chosen = theirs(key, count)
        assert choice(name).choose("t", key, count, range(count)) == (chosen, False)
        if key:
            assert choice(f"{name}_random").choose("t", key, count, range(count)) == (chosen, False)


@given(st.lists(st.binary(max_size=70), min_size=1, max_size=50), st.integers(1, 100))
def test_columns_agree_with_single_keys(keys: list[bytes], partitions: int) -> None:
    data = np.frombuffer(b"".join(keys), np.uint8)
    starts = np.cumsum([0, *map(len, keys)])
    assert murmur2_many(data, starts).tolist() == [murmur2(key) for key in keys]
    assert partitions_for(data, starts, partitions).tolist() == [partition_for(key, partitions) for key in keys]
    assert crc32_for_many(data, starts, partitions).tolist() == [confluent_kafka.consistent(key, partitions) for key in keys]


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"random", "explicit"}))
@pytest.mark.parametrize("ignore_keys", [False, True])
@given(st.lists(KEYS, min_size=1, max_size=30), st.integers(1, 50))
def test_records_in_columns_go_where_single_ones_go(name: str, ignore_keys: bool, keys: list[bytes | None], count: int) -> None:
    """The sticky partition is the same for both, as nothing is added to it meanwhile."""
    one, many = choice(name, ignore_keys=ignore_keys), choice(name, ignore_keys=ignore_keys)
    many.sticky = one.sticky
    chosen, sticky = many.choose_many("t", columns(keys), count, range(count))
    marks = [False] * len(keys) if sticky is None else sticky.tolist()
    assert list(zip(chosen.tolist(), marks, strict=True)) == [one.choose("t", key, count, range(count)) for key in keys]


def test_what_has_no_key() -> None:
    available = [1, 3]
    for name in ("murmur2_random", "consistent_random", "sticky"):
        assert choice(name).choose("t", None, 5, available)[1], name
    assert choice("consistent_random").choose("t", b"", 5, available)[1]
    assert choice("murmur2_random").choose("t", b"", 5, available) == (partition_for(b"", 5), False)
    assert choice("murmur2").choose("t", None, 5, available) == (partition_for(b"", 5), False)
    assert choice("consistent").choose("t", None, 5, available) == (0, False)


def test_random_takes_every_partition_that_has_a_leader_and_no_other() -> None:
    kind = choice("random")
    one = {kind.choose("t", b"k", 5, [1, 3, 4])[0] for _ in range(500)}
    many = set(kind.choose_many("t", columns([b"k"] * 500), 5, [1, 3, 4])[0].tolist())
    assert one == many == {1, 3, 4}


def test_explicit_refuses_a_record_without_its_partition() -> None:
    kind = choice("explicit")
    for send in (
        lambda: kind.choose("t", b"k", 5, range(5)),
        lambda: kind.choose_many("t", columns([b"k"]), 5, range(5)),
    ):
        with pytest.raises(ValueError, match="has to say its `partition`"):
            send()


def test_names_are_those_of_the_property() -> None:
    assert tuple(KINDS) == properties.PARTITIONERS
    assert properties.load(properties.PRODUCER, {})["partitioner.class"] == "murmur2_random"
    javas = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
    assert properties.load(properties.PRODUCER, {"partitioner_class": javas})["partitioner.class"] == "round_robin"
    with pytest.raises(ConfigError, match="is not one of murmur2_random, murmur2, "):
        Producer("127.0.0.1:1", partitioner="murmur3")
    with pytest.raises(ConfigError, match="leave one of them out"):
        Producer("127.0.0.1:1", partitioner="murmur2", partitioner_class="murmur2")


def test_sticky_stays_until_the_bytes_of_a_batch_have_filled_one() -> None:
    sticky = Sticky(100)
    first = sticky.partition("t", [0, 1, 2])
    for size_bytes, filled in ((60, True), (60, False)):  # another's records filled a batch; the next one isn't full
        sticky.add("t", size_bytes, filled, [0, 1, 2])
        assert sticky.partition("t", [0, 1, 2]) == first
    sticky.add("t", 1, True, [0, 1, 2])
    assert sticky.partition("t", [0, 1, 2]) != first


def test_sticky_leaves_a_partition_whose_batches_never_fill() -> None:
    """KIP-794: a trickle, whose batches linger out, would stay in one partition for good."""
    sticky = Sticky(100)
    seen = set()
    for _ in range(400):
        seen.add(sticky.partition("t", [0, 1, 2]))
        sticky.add("t", 50, False, [0, 1, 2])
    assert seen == {0, 1, 2}


def test_sticky_leaves_a_partition_without_leader() -> None:
    sticky = Sticky(100)
    first = sticky.partition("t", [0, 1])
    assert sticky.partition("t", [1 - first]) == 1 - first
