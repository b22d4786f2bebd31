"""Which partition a record goes to: by default Kafka's murmur2 for keys, so that all producers put a key into the same one."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

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


def crc32_for(key: bytes, partitions: int) -> int:
    """The partition of a key among so many, as librdkafka's `consistent` has it."""
    return zlib.crc32(key) % partitions


def crc32_for_many(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """`crc32_for` of many keys at once."""
    keys = np.ascontiguousarray(data).data
    places = starts.tolist()
    hashes = (zlib.crc32(keys[start:end]) for start, end in pairwise(places))
    return np.fromiter(hashes, np.int64, len(places) - 1) % partitions


class Sticky:
    """One partition of a topic until it has got the bytes of a batch and its batch is full, or those of two; then another,
    by chance (KIP-794). So batches fill, and partitions get equal shares."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = max(1, batch_bytes)
        self._current: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def partition(self, topic: str, available: Sequence[int]) -> int:
        """The present partition of a topic, of those that have a leader (or of all, if none has one)."""
        current = self._current.get(topic)
        if current is None or current not in available:
            current = self._current[topic] = random.choice(available)
            self._bytes[topic] = 0
        return current

    def add(self, topic: str, size_bytes: int, filled: bool, available: Sequence[int]) -> None:
        """The present partition got so many bytes, which filled its batch or not."""
        size_bytes += self._bytes.get(topic, 0)
        self._bytes[topic] = size_bytes
        if size_bytes >= self._batch_bytes * (1 if filled else 2):
            self._bytes[topic] = 0
            others = [partition for partition in available if partition != self._current.get(topic)]
            if others:
                self._current[topic] = random.choice(others)


STICKY, ROUND_ROBIN, RANDOM, EXPLICIT = "sticky", "round_robin", "random", "explicit"


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


class PartitionChoice:
    """A producer's way to choose: one by the name that `partitioner.class` has, or the user's own."""

    def __init__(self, partitioner: Partitioner | str, ignore_keys: bool, batch_bytes: int) -> None:
        self.sticky = Sticky(batch_bytes)
        self._own = None if isinstance(partitioner, str) else partitioner
        kind = _Kind() if self._own is not None else KINDS[str(partitioner)]
        self._kind = _Kind() if ignore_keys and kind.hash is not None else kind
        self._turns: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, count: int, available: Sequence[int]) -> tuple[int, bool]:
        """A record's partition, and whether it is the sticky one. Raises ValueError where only records themselves say it."""
        if self._own is not None:
            return self._own(topic, key, count), False
        kind = self._kind
        if kind.hash is not None and (kind.hashes_all or key or (key is not None and not kind.empty_is_none)):
            return kind.hash(key or b"", count), False
        if kind.others == STICKY:
            return self.sticky.partition(topic, available), True
        return available[self._place(topic, len(available))], False

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
            return np.array([available[self._place(topic, len(available))] for _ in range(records)], np.int64), None
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

    def _place(self, topic: str, available: int) -> int:
        """A place among so many partitions, whatever the key is."""
        if self._kind.others == EXPLICIT:
            raise ValueError("`partitioner.class=explicit`: each record has to say its `partition`")
        if self._kind.others == RANDOM:
            return random.randrange(available)
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + 1
        return turn % available
