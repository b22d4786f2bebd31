"""Which members of a group have a partition's replica in their own rack, and needn't read from another one (KIP-881)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.metadata import Cluster

PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks that have a replica, of the partitions of which that is known."""
NO_RACKS: PartitionRacks = {}


def partition_racks(cluster: Cluster) -> PartitionRacks:
    """The racks of all replicas."""
    racks = {node_id: broker.rack for node_id, broker in cluster.brokers.items() if broker.rack}
    return {
        (name, number): frozenset(racks[node_id] for node_id in info.replicas if node_id in racks)
        for name, topic in cluster.topics.items()
        for number, info in topic.partitions.items()
    }


class Racks:
    """The racks of members, by their ids, and those of some partitions.

    They `matter` if a member can be near a partition at all, and not each partition has a replica in each rack.
    """

    def __init__(self, members: Mapping[str, str | None], partitions: PartitionRacks, tps: Iterable[TopicPartition]) -> None:
        self._members = {member_id: rack for member_id, rack in members.items() if rack}
        self._partitions = {tp: partitions.get(tp, frozenset()) for tp in tps}
        self._counts = Counter(self._members.values())
        everywhere = frozenset[str]().union(*self._partitions.values())
        self.matter = not everywhere.isdisjoint(self._counts) and any(
            racks != everywhere for racks in self._partitions.values()
        )

    def is_near(self, member_id: str, tp: TopicPartition) -> bool:
        """Whether a member has a replica in its rack."""
        return self._members.get(member_id) in self._partitions[tp]

    def is_far(self, member_id: str, tp: TopicPartition) -> bool:
        """Whether a member has a rack, and no replica there."""
        return member_id in self._members and not self.is_near(member_id, tp)

    def near_members(self, tp: TopicPartition) -> int:
        """How many members are near a partition."""
        return sum(self._counts[rack] for rack in self._partitions[tp])

    def next_near(self, tp: TopicPartition, members: Sequence[str], first: int = 0) -> int | None:
        """The place of the next member in a ring, from the place `first` on, that is near a partition."""
        places = (place % len(members) for place in range(first, first + len(members)))
        return next((place for place in places if self.is_near(members[place], tp)), None)
