"""Partitions and their offsets as Kafka's requests list them: under their topics."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Mapping
from typing import Any, TypeVar

from penstock.pipeline.clients.client import TopicPartition

P = TypeVar("P")
T = TypeVar("T")
Offsets = Mapping[TopicPartition, int | tuple[int, str]]
"""Offsets to commit, with or without metadata."""


def by_topic(tps: Iterable[TopicPartition], part: Callable[[TopicPartition], P]) -> ItemsView[str, list[P]]:
    """Topics, each with what `part` makes of its partitions; both in the order in which they come."""
    topics: dict[str, list[P]] = {}
    for tp in tps:
        topics.setdefault(tp[0], []).append(part(tp))
    return topics.items()


def number(tp: TopicPartition) -> int:
    """A partition's number, for requests that list no more than that."""
    return tp[1]


def with_metadata(offsets: Offsets) -> dict[TopicPartition, tuple[int, str]]:
    """Offsets to commit, each with its metadata, which may be empty."""
    return {tp: (at, "") if isinstance(at, int) else at for tp, at in offsets.items()}


def offset_topics(
    offsets: Mapping[TopicPartition, tuple[int, str]],
    topic: Callable[..., T],
    partition: Callable[..., Any],
    epochs: Mapping[TopicPartition, int] | None = None,
) -> list[T]:
    """Offsets to commit in the types that OffsetCommit and TxnOffsetCommit have for topics and partitions. epochs: the leader
    epochs of the last batches below them, as far as they are known."""
    known = epochs or {}

    def part(tp: TopicPartition) -> Any:
        offset, metadata = offsets[tp]
        epoch = known.get(tp, -1)
        return partition(
            partition_index=tp[1], committed_offset=offset, committed_metadata=metadata, committed_leader_epoch=epoch
        )

    return [topic(name=name, partitions=parts) for name, parts in by_topic(offsets, part)]


def partition_codes(answer: Any) -> list[int]:
    """The error codes of an answer: its own, if it has one, then those of its partitions."""
    own = getattr(answer, "error_code", 0)
    return [own, *(part.error_code for topic in answer.topics for part in topic.partitions)]
