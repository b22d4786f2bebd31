"""Where ids belong, beside the partitioner's own murmur2."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.pipeline.partitioner import partition_for
from penstock.pyx.idplace import misplaced
from support.id_columns import column


def test_ids_of_all_lengths_are_where_producers_put_them() -> None:
    chance = random.Random(1)
    ids = [chance.randbytes(length) for length in range(1, 70) for _ in range(20)]
    for partitions in (1, 2, 7, 64):
        for partition in {0, partitions // 2, partitions - 1}:
            found = misplaced(*column(ids), partitions, partition)
            assert found.tolist() == [partition_for(word, partitions) != partition for word in ids]


def test_a_record_without_an_id_belongs_anywhere() -> None:
    data, starts, null = column([None, b"a", None])
    there = partition_for(b"a", 5)
    assert misplaced(data, starts, null, 5, (there + 1) % 5).tolist() == [False, True, False]
    assert misplaced(data, starts, null, 5, there).tolist() == [False, False, False]
    assert misplaced(*column([]), 5, 0).tolist() == []


def test_columns_that_do_not_fit() -> None:
    data, starts, null = column([b"a", b"bc"])
    for wrong in (starts[:2], np.array([0, -1, 3]), np.array([0, 2, 1]), np.array([0, 1, 4])):
        with pytest.raises(ValueError, match="fit together"):
            misplaced(data, wrong, null, 3, 0)
    with pytest.raises(ValueError, match="no partition 3 among 3"):
        misplaced(data, starts, null, 3, 3)
