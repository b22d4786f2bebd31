"""Requests about a group's offsets: the commits that they ask for, and the answer for each partition that they name.

They name partitions in messages of their own, which differ in little: `Asked` and `AskedCommit` are what is common to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.offsets import Committed
from penstock.broker.topics.changes import Topics
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode


class AskedTopic(Protocol):
    """A topic in a request; which of the two it has, depends on the version."""

    name: str
    topic_id: bytes


class Asked(Protocol):
    """A partition in a request."""

    partition_index: int


class AskedCommit(Asked, Protocol):
    """A partition in a request that commits."""

    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


def name_of(topics: Topics, asked: AskedTopic, by_id: bool) -> str | None:
    """The name of a topic in a request; None: no topic has its id."""
    if not by_id:
        return asked.name
    known = topics.get_by_id(asked.topic_id)
    return known.name if known is not None else None


def commits_of(topics: Topics, asked: Iterable[tuple[str | None, Sequence[AskedCommit]]]) -> dict[TopicPartition, Committed]:
    """The commits of the partitions that exist; `asked` are a topic's name (None: it isn't known) and its partitions."""
    commits: dict[TopicPartition, Committed] = {}
    for name, partitions in asked:
        topic = topics.get(name) if name is not None else None
        for one in partitions:
            if topic is not None and 0 <= one.partition_index < len(topic.partitions):
                commits[topic.name, one.partition_index] = Committed(
                    one.committed_offset, one.committed_leader_epoch, one.committed_metadata or "", -1
                )
    return commits


async def errors_of(
    name: str | None, asked: Sequence[Asked], results: int | Mapping[TopicPartition, int], turns: Turns
) -> list[tuple[int, int]]:
    """The index and error code of each partition of a topic that was asked, in order; one without a result doesn't exist."""
    if name is None:
        results = ErrorCode.UNKNOWN_TOPIC_ID
    errors: list[tuple[int, int]] = []
    async for one in turns.each(asked):
        index, unknown = one.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        errors.append((index, results if isinstance(results, int) else results.get((name or "", index), unknown)))
    return errors
