"""Fetch requests as consumers make them, and what answers say of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.metadata import NO_EPOCH, NO_TOPIC_ID
from penstock.pyx.wire.messages import FetchRequest, FetchResponse

Isolation = Literal["read_committed", "read_uncommitted"]
PART_BYTES = 1 << 20

TopicIds = Mapping[str, bytes | None]
"""The topics of a request with their ids, as far as brokers have said them."""


class FetchFrom(NamedTuple):
    """A partition, and from where so many bytes of it are asked for. The first batch comes whole, even if it has more.

    leader_epoch: of the last batch below the offset, if it is known: a log that was cut back below the offset is noticed by it.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int = PART_BYTES
    leader_epoch: int = NO_EPOCH

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition as a pair."""
        return self.topic, self.partition


def fetch_request(
    client: Client,
    parts: Iterable[FetchFrom],
    topic_ids: TopicIds,
    *,
    isolation: Isolation,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    rack: str | None = None,
) -> FetchRequest:
    """A request for parts of different partitions, with the leader epochs that the client knows."""
    topics: dict[str, FetchRequest.FetchTopic] = {}
    for part in parts:
        topic = topics.get(part.topic)
        if topic is None:
            topic_id = topic_ids[part.topic] or NO_TOPIC_ID
            topic = topics[part.topic] = FetchRequest.FetchTopic(topic=part.topic, topic_id=topic_id, partitions=[])
        topic.partitions.append(
            FetchRequest.FetchPartition(
                partition=part.partition,
                current_leader_epoch=client.leader_epoch(*part.tp),
                fetch_offset=part.offset,
                partition_max_bytes=part.max_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(isolation == "read_committed"),
        topics=list(topics.values()),
        rack_id=rack or "",
    )


def parts_of(answer: FetchResponse, topic_ids: TopicIds) -> Iterator[tuple[TopicPartition, FetchResponse.PartitionData]]:
    """The partitions of an answer to a request for these topics; newer versions name topics by id alone."""
    names = {topic_id: topic for topic, topic_id in topic_ids.items()}
    for found in answer.responses:
        name = found.topic or names.get(bytes(found.topic_id), "")
        for part in found.partitions:
            yield (name, part.partition_index), part
