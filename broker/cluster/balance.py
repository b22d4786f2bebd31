"""Which partitions should be led by their preferred leaders again: a pure function.

The first replica of an assignment is the preferred leader. Assignments spread these evenly, so that a cluster is balanced while
they lead; after a broker's restart others lead what it led.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from penstock.broker.cluster.messages import Partition
from penstock.broker.cluster.planning import PartitionImage


def find_unbalanced(partitions: Mapping[Partition, PartitionImage], live: Collection[int], percentage: int) -> list[Partition]:
    """The partitions that live preferred leaders in sync don't lead, of the brokers that lack more than a percentage of those
    that they should lead.
    """
    preferred = Counter(image.replicas[0] for image in partitions.values())
    lacking = {one: image for one, image in partitions.items() if image.state.leader != image.replicas[0]}
    lacked = Counter(image.replicas[0] for image in lacking.values())
    poor = {broker for broker in live if lacked[broker] * 100 > percentage * preferred[broker]}
    return [one for one, image in lacking.items() if image.replicas[0] in poor and _can_lead(image, image.replicas[0])]


def _can_lead(image: PartitionImage, broker: int) -> bool:
    return broker in image.state.isr and broker not in image.unwritable
