"""Which partition a record goes to: Kafka's murmur2 for keys, so that every producer puts a key into the same one."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from penstock.pipeline.clients.outgoing import Columns

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
MASK = 0xFFFFFFFF
POSITIVE = 0x7FFFFFFF

Partitioner = Callable[[str, bytes | None, int], int]
"""A user's own: gets topic, serialized key and partition count, gives a partition."""


def murmur2(key: bytes) -> int:
    """The 32-bit murmur2 hash that Kafka's Java producer uses, as an unsigned number."""
    length = len(key)
    words = length >> 2
    h = SEED ^ length
    for k in struct.unpack_from(f"<{words}I", key):
        k = k * MULTIPLIER & MASK
        h = (h * MULTIPLIER ^ (k ^ k >> 24) * MULTIPLIER) & MASK
    if length & 3:
        h = (h ^ int.from_bytes(key[words << 2 :], "little")) * MULTIPLIER & MASK
    h = (h ^ h >> 13) * MULTIPLIER & MASK
    return h ^ h >> 15


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


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a key among so many, as Kafka's Java producer has it."""
    return (murmur2(key) & POSITIVE) % partitions


def partitions_for(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """`partition_for` of many keys at once."""
    return (murmur2_many(data, starts) & np.uint32(POSITIVE)).astype(np.int64) % partitions


class Sticky:
    """The partition of records without a key: one for a whole batch, then another (KIP-480), so batches fill."""

    def __init__(self) -> None:
        self._current: dict[str, int] = {}

    def partition(self, topic: str, available: Sequence[int]) -> int:
        """The present partition of a topic, of those that have a leader (or of all, if none has one)."""
        current = self._current.get(topic)
        if current is None or current not in available:
            current = self._current[topic] = random.choice(available)
        return current

    def next(self, topic: str, available: Sequence[int]) -> None:
        """A batch was filled: another partition, by chance."""
        others = [partition for partition in available if partition != self._current.get(topic)]
        if others:
            self._current[topic] = random.choice(others)


class PartitionChoice:
    """A producer's way to choose: the user's partitioner, else by key, else the sticky partition."""

    def __init__(self, partitioner: Partitioner | None, ignore_keys: bool) -> None:
        self._partitioner = partitioner
        self._ignore_keys = ignore_keys
        self.sticky = Sticky()

    def choose(self, topic: str, key: bytes | None, count: int, available: Sequence[int]) -> tuple[int, bool]:
        """A record's partition, and whether it is the sticky one."""
        if self._partitioner is not None:
            return self._partitioner(topic, key, count), False
        if key is None or self._ignore_keys:
            return self.sticky.partition(topic, available), True
        return partition_for(key, count), False

    def choose_many(self, topic: str, columns: Columns, count: int, available: Sequence[int]) -> npt.NDArray[np.int64]:
        """Each record's partition; those without a key go to one."""
        if self._partitioner is not None:
            keys = [
                None if null else columns.key_data[start:end].tobytes()
                for null, start, end in zip(columns.key_null, columns.key_starts, columns.key_starts[1:], strict=False)
            ]
            return np.array([self._partitioner(topic, key, count) for key in keys], np.int64)
        sticky = self.sticky.partition(topic, available)
        if self._ignore_keys:
            return np.full(len(columns.timestamps), sticky, np.int64)
        chosen = partitions_for(columns.key_data, columns.key_starts, count)
        if columns.key_null.any():
            chosen[columns.key_null] = sticky
            self.sticky.next(topic, available)
        return chosen
