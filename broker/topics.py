"""Topics and their partitions: the picture in memory of `/brokers/topics` and `/config/topics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

GROUP_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL = frozenset({GROUP_OFFSETS, TRANSACTION_STATE})


@dataclass
class PartitionState:
    """A partition's leadership, as in the store's partition state node."""

    index: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]


@dataclass
class Topic:
    """A topic that is led here: `partitions[i].index == i`, `configs` are its own, not the broker's."""

    name: str
    topic_id: bytes
    partitions: list[PartitionState] = field(default_factory=list)
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        """Whether it is one of the coordinators' own topics."""
        return self.name in INTERNAL


class Topics:
    """All topics. Reads are plain dictionary look-ups; changes are awaited and durable when they return."""

    def get(self, name: str) -> Topic | None:
        """A topic by name, None if it is unknown or being deleted."""
        raise NotImplementedError

    def get_by_id(self, topic_id: bytes) -> Topic | None:
        """A topic by its id of 16 bytes."""
        raise NotImplementedError

    def all(self) -> Iterable[Topic]:
        """Every topic, in no particular order."""
        raise NotImplementedError

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic and lead its partitions; they serve when it returns. Raises KafkaError."""
        raise NotImplementedError

    async def ensure_internal(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """A coordinator's topic, created at its first use; concurrent callers get the same one."""
        raise NotImplementedError

    async def delete(self, name: str) -> None:
        """Delete a topic; a crash in between is finished at the next start. Raises KafkaError."""
        raise NotImplementedError
