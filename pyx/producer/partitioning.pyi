"""Which partition a record goes to: Kafka's murmur2 for keys, the sticky partition for records without one."""

from collections.abc import Callable, Sequence
from typing import Protocol

STICKY: str
ROUND_ROBIN: str
RANDOM: str
EXPLICIT: str

class _Kind(Protocol):
    """By which hash keys choose, if they do, and what the records get that have none."""

    @property
    def hash(self) -> Callable[[bytes, int], int] | None: ...
    @property
    def others(self) -> str: ...
    @property
    def hashes_all(self) -> bool:
        """A record without a key goes where the empty key does."""

    @property
    def empty_is_none(self) -> bool:
        """An empty key is none."""

def murmur2(key: bytes) -> int:
    """Give the 32-bit murmur2 hash that Kafka's Java producer uses, as an unsigned number."""

def partition_for(key: bytes, partitions: int) -> int:
    """Give the partition of a key among so many, as Kafka's Java producer has it. Raises ValueError where there are none."""

class Sticky:
    """One partition of a topic until it has got the bytes of a batch and its batch is full, or those of two; then another,
    by chance (KIP-794). So batches fill, and partitions get equal shares."""

    def __init__(self, batch_bytes: int) -> None: ...
    def partition(self, topic: str, available: Sequence[int]) -> int:
        """Give the present partition of a topic, of those that have a leader (or of all, if none has one)."""

    def add(self, topic: str, size_bytes: int, filled: bool, available: Sequence[int]) -> None:
        """Note that the present partition got so many bytes, which filled its batch or not."""

class Choice:
    """A producer's way to choose: the user's `own` function, or a kind."""

    sticky: Sticky
    def __init__(self, own: Callable[[str, bytes | None, int], int] | None, kind: _Kind, batch_bytes: int) -> None: ...
    def choose(self, topic: str, key: bytes | None, count: int, available: Sequence[int]) -> tuple[int, bool]:
        """Give a record's partition, and whether it is the sticky one.

        Raises ValueError where only records themselves say their partition.
        """

    def place(self, topic: str, available: int) -> int:
        """Give a place among so many partitions, whatever the key is. Raises ValueError as `choose` does."""
