"""How many leaders one broker has elected as the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.broker.cluster.leaderandisr import NO_LEADER, LeaderAndIsr
from penstock.broker.cluster.messages import Partition
from penstock.broker.cluster.planning import PartitionImage


@dataclass(slots=True)
class ElectionCount:
    """Leaders that one broker has elected as the controller, over all its terms. A partition's first one is none."""

    leaders: int = 0
    unclean: int = 0
    _known: dict[Partition, LeaderAndIsr] = field(default_factory=dict)

    def begin(self, images: Mapping[Partition, PartitionImage]) -> None:
        """A term begins with these states."""
        self._known = {partition: image.state for partition, image in images.items()}

    def look(self, changed: Iterable[Partition], images: Mapping[Partition, PartitionImage]) -> None:
        """These states are others."""
        for partition in changed:
            image, before = images.get(partition), self._known.get(partition)
            if image is None:
                self._known.pop(partition, None)
                continue
            state = self._known[partition] = image.state
            if before is None or not before.is_created:
                continue
            if before.leader_epoch < state.leader_epoch and state.leader != NO_LEADER:
                self.leaders += 1
                self.unclean += before.unclean_epoch < state.unclean_epoch
