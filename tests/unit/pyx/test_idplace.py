"""Where ids belong, beside the partitioner's own murmur2."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.pipeline.clients.partitioner import partition_for
from penstock.pyx.ids.place import homes
from support.id_columns import column


def test_ids_of_all_lengths_are_where_producers_put_them() -> None:
    chance = random.Random(1)
    ids = [chance.randbytes(length) for length in range(1, 70) for _ in range(20)]
    for partitions in (1, 2, 7, 64):
        assert homes(*column(ids), partitions).tolist() == [partition_for(word, partitions) for word in ids]


def test_a_record_without_an_id_belongs_anywhere() -> None:
    assert homes(*column([None, b"a", None]), 5).tolist() == [-1, partition_for(b"a", 5), -1]
    assert homes(*column([]), 5).tolist() == []


def test_columns_that_do_not_fit() -> None:
    data, starts, null = column([b"a", b"bc"])
    for wrong in (starts[:2], np.array([0, -1, 3]), np.array([0, 2, 1]), np.array([0, 1, 4])):
        with pytest.raises(ValueError, match="fit together"):
            homes(data, wrong, null, 3)
    with pytest.raises(ValueError, match="0 partitions"):
        homes(data, starts, null, 0)
