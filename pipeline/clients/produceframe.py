"""Produce requests as bytes: batches of many partitions in one frame, none of which is copied."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from penstock.pipeline.clients.connection import Piece
from penstock.pyx.wire.message import CompactWriter, Writer
from penstock.pyx.wire.messages import ProduceResponse

PRODUCE_KEY = 0
LOWEST_VERSION = 3  # the first with batches of magic 2
FLEXIBLE_FROM = 9
TRANSACTIONS_V2_FROM = 12  # the broker adds partitions to transactions by itself (KIP-890)
TOPIC_IDS_FROM = 13
_HEAD = struct.Struct(">hhi")
_SETTINGS = struct.Struct(">hi")
_NUMBER = struct.Struct(">i")

Batches = Mapping[str, Sequence[tuple[int, Sequence[memoryview]]]]
"""The batches of a request: by topic its partitions, each with the pieces of its one batch."""


def produce_frame(
    version: int,
    correlation_id: int,
    client_id: str,
    *,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Batches,
    topic_ids: Mapping[str, bytes],
) -> list[Piece]:
    """A Produce request as pieces (without the size), so that the batches themselves are not copied.

    The same bytes as ProduceRequest's own encoding; written by hand because that one would join them.
    """
    writer = CompactWriter if version >= FLEXIBLE_FROM else Writer
    head = Writer(_HEAD.pack(PRODUCE_KEY, version, correlation_id))
    head.string(client_id)
    between = writer(head)
    between.tags()  # of the header
    between.nullable_string(transactional_id)
    between += _SETTINGS.pack(acks, timeout_ms)
    between.array_length(len(batches))
    pieces: list[Piece] = []
    for topic, partitions in batches.items():
        if version >= TOPIC_IDS_FROM:
            between += topic_ids[topic]
        else:
            between.string(topic)
        between.array_length(len(partitions))
        for partition, batch in partitions:
            between += _NUMBER.pack(partition)
            between.bytes_length(sum(piece.nbytes for piece in batch))
            pieces += [between, *batch]
            between = writer()
            between.tags()  # of the partition
        between.tags()  # of the topic
    between.tags()  # of the request
    return [*pieces, between] if between else pieces


Answers = dict[tuple[str | bytes, int], ProduceResponse.PartitionProduceResponse]
"""What a broker says of each partition, by the topic's name, or its id from TOPIC_IDS_FROM on."""


def answers_of(response: ProduceResponse, version: int) -> Answers:
    """What a response says, by partition."""
    return {
        (topic.topic_id if version >= TOPIC_IDS_FROM else topic.name, part.index): part
        for topic in response.responses
        for part in topic.partition_responses
    }
