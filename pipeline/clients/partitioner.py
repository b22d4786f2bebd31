"""Which partition a record goes to: by default Kafka's murmur2 for keys, so that all producers put a key into the same one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.pipeline.clients.outgoing import Columns
from penstock.pyx.producer.partitioning import EXPLICIT, RANDOM, ROUND_ROBIN, STICKY, Choice, Sticky, murmur2, partition_for

__all__ = ["PartitionChoice", "Sticky", "murmur2", "partition_for"]

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
POSITIVE = 0x7FFFFFFF

Partitioner = Callable[[str, bytes | None, int], int]
"""A user's own: gets topic, serialized key and partition count, gives a partition."""


def murmur2_many(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """`murmur2` of many keys at once: key i is `data[starts[i]:starts[i + 1]]`."""
    begins, lengths = starts[:-1], np.diff(starts)
    h = (np.uint32(SEED) ^ lengths.astype(np.uint32)).astype(np.uint32)
    m, shift = np.uint32(MULTIPLIER), np.uint32(24)
    data = np.concatenate([data, np.zeros(4, np.uint8)])  # so that the words of any key's end may be read
    words = lengths >> 2
    for i in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > i)
        k = _words(data, begins[rows] + 4 * i, 4) * m
        h[rows] = (h[rows] * m) ^ ((k ^ (k >> shift)) * m)
    for tail in (1, 2, 3):
        rows = np.flatnonzero(lengths & 3 == tail)
        if rows.size:
            h[rows] = (h[rows] ^ _words(data, begins[rows] + 4 * words[rows], tail)) * m
    h = (h ^ (h >> np.uint32(13))) * m
    return h ^ (h >> np.uint32(15))


def _words(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint32]:
    """The little-endian numbers of `size` bytes at these places."""
    word = np.zeros(at.size, np.uint32)
    for i in range(size):
        word |= data[at + i].astype(np.uint32) << np.uint32(8 * i)
    return word


def partitions_for(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """`partition_for` of many keys at once."""
    return (murmur2_many(data, starts) & np.uint32(POSITIVE)).astype(np.int64) % partitions


def crc32_for(key: bytes, partitions: int) -> int:
    """The partition of a key among so many, as librdkafka's `consistent` has it."""
    return zlib.crc32(key) % partitions


def crc32_for_many(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """`crc32_for` of many keys at once."""
    keys = np.ascontiguousarray(data).data
    places = starts.tolist()
    hashes = (zlib.crc32(keys[start:end]) for start, end in pairwise(places))
    return np.fromiter(hashes, np.int64, len(places) - 1) % partitions


@dataclass(frozen=True)
class _Kind:
    """By which hash keys choose, if they do, and what the records get that have none."""

    hash: Callable[[bytes, int], int] | None = None
    hash_many: Callable[[npt.NDArray[np.uint8], npt.NDArray[np.int64], int], npt.NDArray[np.int64]] | None = None
    others: str = STICKY
    hashes_all: bool = False  # a record without a key goes where the empty key does
    empty_is_none: bool = False  # an empty key is none


KINDS = {
    "murmur2_random": _Kind(partition_for, partitions_for),
    "murmur2": _Kind(partition_for, partitions_for, hashes_all=True),
    "consistent_random": _Kind(crc32_for, crc32_for_many, empty_is_none=True),
    "consistent": _Kind(crc32_for, crc32_for_many, hashes_all=True),
    STICKY: _Kind(),
    ROUND_ROBIN: _Kind(others=ROUND_ROBIN),
    RANDOM: _Kind(others=RANDOM),
    EXPLICIT: _Kind(others=EXPLICIT),
}
"""By the names that `partitioner.class` takes."""

Chosen = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]
"""Each record's partition, and which records got the sticky one."""


class PartitionChoice(Choice):
    """A producer's way to choose: one by the name that `partitioner.class` has, or the user's own."""

    def __init__(self, partitioner: Partitioner | str, ignore_keys: bool, batch_bytes: int) -> None:
        own = None if isinstance(partitioner, str) else partitioner
        kind = _Kind() if own is not None else KINDS[str(partitioner)]
        if ignore_keys and kind.hash is not None:
            kind = _Kind()
        super().__init__(own, kind, batch_bytes)
        self._own = own
        self._kind = kind

    def choose_many(self, topic: str, columns: Columns, count: int, available: Sequence[int]) -> Chosen:
        """Each record's partition; those that get the sticky one get the same. Raises ValueError as `choose` does."""
        records = len(columns.timestamps)
        if self._own is not None:
            keys = [
                None if null else columns.key_data[start:end].tobytes()
                for null, start, end in zip(columns.key_null, columns.key_starts, columns.key_starts[1:], strict=False)
            ]
            return np.array([self._own(topic, key, count) for key in keys], np.int64), None
        kind = self._kind
        if kind.hash_many is None:
            if kind.others == STICKY:
                sticky = self.sticky.partition(topic, available)
                return np.full(records, sticky, np.int64), np.ones(records, np.bool_)
            return np.array([available[self.place(topic, len(available))] for _ in range(records)], np.int64), None
        chosen = kind.hash_many(columns.key_data, columns.key_starts, count)
        if kind.hashes_all:
            return chosen, None
        others = columns.key_null
        if kind.empty_is_none:
            others = others | (np.diff(columns.key_starts) == 0)
        if not others.any():
            return chosen, None
        chosen[others] = self.sticky.partition(topic, available)
        return chosen, others
