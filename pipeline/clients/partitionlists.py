"""Partitions and offsets as Kafka's requests list them: under their topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.pipeline.clients.client import TopicPartition
from penstock.pyx.wire import messages


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions under their topics, as Kafka's requests name them; both in the order in which they come."""
    topics: dict[str, list[int]] = {}
    for topic, partition in tps:
        topics.setdefault(topic, []).append(partition)
    return topics


def commit_topics(
    offsets: Mapping[TopicPartition, tuple[int, str]],
) -> list[messages.OffsetCommitRequest.OffsetCommitRequestTopic]:
    """Offsets by partition in the shape that OffsetCommit wants them."""

    def request_partition(topic: str, partition: int) -> messages.OffsetCommitRequest.OffsetCommitRequestPartition:
        offset, metadata = offsets[topic, partition]
        return messages.OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )

    return [
        messages.OffsetCommitRequest.OffsetCommitRequestTopic(
            name=topic, partitions=[request_partition(topic, partition) for partition in partitions]
        )
        for topic, partitions in by_topic(offsets).items()
    ]
