"""The partitioner is Kafka's: hash values are those that Apache Kafka's own tests pin (org.apache.kafka UtilsTest)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.clients.partitioner import Sticky, murmur2, murmur2_many, partition_for, partitions_for

GOLDEN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "java"), GOLDEN.items())
def test_hash_is_javas(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF
    assert partition_for(key, 1000) == (java & 0x7FFFFFFF) % 1000


@given(st.lists(st.binary(max_size=70), min_size=1, max_size=50), st.integers(1, 100))
def test_columns_agree_with_single_keys(keys: list[bytes], partitions: int) -> None:
    data = np.frombuffer(b"".join(keys), np.uint8)
    starts = np.cumsum([0, *map(len, keys)])
    assert murmur2_many(data, starts).tolist() == [murmur2(key) for key in keys]
    assert partitions_for(data, starts, partitions).tolist() == [partition_for(key, partitions) for key in keys]


def test_sticky_stays_until_the_batch_is_full() -> None:
    sticky = Sticky()
    first = sticky.partition("t", [0, 1, 2])
    assert {sticky.partition("t", [0, 1, 2]) for _ in range(20)} == {first}
    sticky.next("t", [0, 1, 2])
    assert sticky.partition("t", [0, 1, 2]) != first


def test_sticky_leaves_a_partition_without_leader() -> None:
    sticky = Sticky()
    first = sticky.partition("t", [0, 1])
    assert sticky.partition("t", [1 - first]) == 1 - first
