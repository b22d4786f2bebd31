"""The names under which a partition's copy is known."""

from __future__ import annotations

from penstock.groupnames import MIRROR_GROUPS
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.job import mirror_identity
from penstock.pipeline.stages.hints import LaneAddress, address


class Identity:
    """A partition of a source on its way `into` one of the target: its transactional id, its group.

    As text it is what the `penstock mirror` commands take: SOURCE TOPIC:PARTITION.
    """

    def __init__(self, mirror: str, source: str, partition: TopicPartition, into: TopicPartition) -> None:
        self.source = source
        self.partition = partition
        self.into = into
        self.group = MIRROR_GROUPS + mirror_identity(mirror, source)
        self.older_group = f"{MIRROR_GROUPS}{mirror}.{source}"  # before dots in names were escaped
        self.transactional_id = f"{self.group}.{partition[0]}-{partition[1]}"

    def __str__(self) -> str:
        return f"{self.source} {address(self.partition)}"

    @property
    def address(self) -> LaneAddress:
        """The words of an operator for it, as `hints` takes them."""
        return self.source, self.partition
