"""Which partition a record goes to; see partitioning.pyi."""

import random
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t

from penstock.pyx.record.murmur2 cimport murmur2 as hash_of, murmur2_partition

STICKY, ROUND_ROBIN, RANDOM, EXPLICIT = "sticky", "round_robin", "random", "explicit"


def murmur2(bytes key not None):
    """See partitioning.pyi."""
    return hash_of(<const uint8_t*>PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key))


def partition_for(bytes key not None, int32_t partitions):
    """See partitioning.pyi."""
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    return murmur2_partition(<const uint8_t*>PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key), partitions)


# A topic's partition, the bytes that it got, and the partitions that it was chosen from.
cdef class _Current:
    cdef Py_ssize_t partition
    cdef int64_t size_bytes
    cdef object available


cdef class Sticky:
    """See partitioning.pyi."""

    def __init__(self, int64_t batch_bytes):
        self.batch_bytes = max(batch_bytes, <int64_t>1)
        self.topics = {}

    cdef Py_ssize_t choose(self, object topic, object available) except -1:
        cdef _Current current = self.topics.get(topic)
        if current is None:
            current = self.topics[topic] = _Current()
        elif current.available is available:
            return current.partition
        if current.available is None or current.partition not in available:
            current.partition = random.choice(available)
            current.size_bytes = 0
        current.available = available
        return current.partition

    cdef int note(self, object topic, int64_t size_bytes, bint filled, object available) except -1:
        cdef _Current current = self.topics.get(topic)
        if current is None:
            return 0
        current.size_bytes += size_bytes
        if current.size_bytes >= self.batch_bytes * (1 if filled else 2):
            current.size_bytes = 0
            others = [partition for partition in available if partition != current.partition]
            if others:
                current.partition, current.available = random.choice(others), available
        return 0

    def partition(self, topic, available):
        """See partitioning.pyi."""
        return self.choose(topic, available)

    def add(self, topic, int64_t size_bytes, bint filled, available):
        """See partitioning.pyi."""
        self.note(topic, size_bytes, filled, available)


cdef class Choice:
    """See partitioning.pyi."""

    def __init__(self, own, kind, int64_t batch_bytes):
        self.sticky = Sticky(batch_bytes)
        self.own = own
        self.kind = kind
        self.hash = kind.hash
        self.hashes_all = kind.hashes_all
        self.empty_is_none = kind.empty_is_none
        self.is_sticky = kind.others == STICKY
        self.turns = {}

    def choose(self, topic, bytes key, Py_ssize_t count, available):
        """See partitioning.pyi."""
        cdef bint sticky = False
        partition = self.choose_one(topic, key, count, available, &sticky)
        return partition, sticky

    cdef Py_ssize_t choose_one(
        self, object topic, bytes key, Py_ssize_t count, object available, bint* sticky
    ) except? -1:
        sticky[0] = False
        if self.own is not None:
            return self.own(topic, key, count)
        if self.hash is not None and (self.hashes_all or key or key is not None and not self.empty_is_none):
            return self.hash(key or b"", count)
        if self.is_sticky:
            sticky[0] = True
            return self.sticky.choose(topic, available)
        return available[self.place(topic, len(available))]

    def place(self, topic, Py_ssize_t available):
        """See partitioning.pyi."""
        if self.kind.others == EXPLICIT:
            raise ValueError("`partitioner.class=explicit`: each record has to say its `partition`")
        if self.kind.others == RANDOM:
            return random.randrange(available)
        turn = self.turns.get(topic, 0)
        self.turns[topic] = turn + 1
        return turn % available
