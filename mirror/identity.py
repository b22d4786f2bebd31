"""The names under which a partition's copy is known."""

from __future__ import annotations

from penstock.hints import quoted
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.job import MIRROR_GROUPS, mirror_identity


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
        return f"{self.source} {self.copied}"

    @property
    def copied(self) -> str:
        """The source's partition, as commands take it."""
        return f"{self.partition[0]}:{self.partition[1]}"

    def way_to_begin(self, at: str = "OFFSET") -> str:
        """The command by which an operator says where the copy begins or goes on."""
        where = f"--at {at} --because TEXT"  # words of ours, `start|end|OFFSET`, from which an operator chooses
        return f"`penstock mirror begin {quoted(self.source)} {quoted(self.copied)} " + where + "`"

    def way_past(self, next_offset: int | None) -> str:
        """How an operator gets past a batch that can't be copied."""
        to = "OFFSET" if next_offset is None else next_offset
        command = f"`penstock mirror skip {quoted(self.source)} {quoted(self.copied)} --to {quoted(to)} --because TEXT`"
        return f"{command} sets it aside"

    def way_to_retry(self) -> str:
        """The command by which an operator lets it try again."""
        return f"`penstock mirror retry {quoted(self.source)} {quoted(self.copied)} --because TEXT`"
