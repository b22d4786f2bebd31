"""The picture of all topics in memory: plain dictionary look-ups, on the loop. `changes.py` changes it, behind the store."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.broker.topic import PartitionState, Topic
from penstock.errors import ErrorCode, KafkaError


class Image:
    """All topics that can be seen: not those that are being made or deleted."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self.names: dict[bytes, str] = {}
        """Each topic's name, by its id; a thread may look into it."""
        self.version = 0
        """Grows whenever a topic is created, gets partitions or is deleted, or a log folder fails."""
        self.isolated: set[str] = set()
        """Topics with partitions that this broker leads and serves to nobody: it is cut off from the rest of its cluster."""

    def show(self, topic: Topic) -> None:
        """From now on the topic can be seen."""
        self._by_name[topic.name] = self._by_id[topic.topic_id] = topic
        self.names[topic.topic_id] = topic.name
        self.version += 1

    def hide(self, topic: Topic) -> None:
        """From now on it can't."""
        del self._by_name[topic.name], self._by_id[topic.topic_id], self.names[topic.topic_id]
        self.version += 1

    def get(self, name: str) -> Topic | None:
        """A topic by name, None if it is unknown or being deleted."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: bytes) -> Topic | None:
        """A topic by its id of 16 bytes."""
        return self._by_id.get(bytes(topic_id))

    def known(self, name: str) -> Topic:
        """A topic by name. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return topic

    def all(self) -> Iterable[Topic]:
        """Every topic, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def holding(self, name: str, index: int) -> Topic:
        """The topic, which has that partition. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{index}")
        return topic

    def partition(self, name: str, index: int) -> PartitionState:
        """A partition that is led here. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        return self.holding(name, index).partitions[index]

    def check_is_there(self, topic: Topic) -> None:
        """After a pause: that the topic wasn't deleted, and another one made of its name. Raises KafkaError."""
        if self._by_name.get(topic.name) is not topic:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' does not exist.")

    def check_leader_epoch(self, name: str, index: int, epoch: int) -> PartitionState:
        """A partition whose leader epoch a client believes to be `epoch` (-1 = it does not say; KIP-320)."""
        state = self.partition(name, index)
        if epoch >= 0 and epoch != state.leader_epoch:
            older = epoch < state.leader_epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH, f"{name}-{index}")
        return state

    def partition_count(self) -> int:
        """Of all topics."""
        return sum(len(topic.partitions) for topic in self._by_name.values())
