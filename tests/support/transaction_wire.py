"""Transactions request by request, for what no client library can be made to send."""

from __future__ import annotations

from typing import Any

from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from support.harness import WireConnection

Owner = tuple[int, int]  # producer id and epoch


def init(
    wire: WireConnection, name: str | None, version: int = 4, timeout_ms: int = 60_000, **given: int
) -> tuple[int, int, int]:
    """InitProducerId: error, producer id, epoch."""
    asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms, **given)
    answer = wire.ask(asked, version)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def add(
    wire: WireConnection, name: str, owner: Owner, version: int, *topics: tuple[str, int], verify: bool = False
) -> list[int]:
    """AddPartitionsToTxn: an error for each partition."""
    kind = AddPartitionsToTxnRequest
    asked = [kind.AddPartitionsToTxnTopic(name=topic, partitions=[index]) for topic, index in topics]
    if version < 4:
        request = kind(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=owner[0],
            v3_and_below_producer_epoch=owner[1],
            v3_and_below_topics=asked,
        )
        results = wire.ask(request, version).results_by_topic_v3_and_below
    else:
        one = kind.AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=owner[0], producer_epoch=owner[1], verify_only=verify, topics=asked
        )
        results = wire.ask(kind(transactions=[one]), version).results_by_transaction[0].topic_results
    return [part.partition_error_code for topic in results for part in topic.results_by_partition]


def end(wire: WireConnection, name: str, owner: Owner, commit: bool, version: int) -> int:
    """EndTxn: its error."""
    return end_and_go_on(wire, name, owner, commit, version)[0]


def end_and_go_on(wire: WireConnection, name: str, owner: Owner, commit: bool, version: int) -> tuple[int, Owner]:
    """EndTxn: its error, and the producer id and epoch to go on with (from version 5 on)."""
    asked = EndTxnRequest(transactional_id=name, producer_id=owner[0], producer_epoch=owner[1], committed=commit)
    answer = wire.ask(asked, version)
    return answer.error_code, (answer.producer_id, answer.producer_epoch)


def commit_offset(wire: WireConnection, name: str, group: str, owner: Owner, topic: str, version: int, **given: Any) -> int:
    """TxnOffsetCommit of offset 3 of partition 0: its error."""
    kind = TxnOffsetCommitRequest
    part = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="m")
    asked = kind(
        transactional_id=name,
        group_id=group,
        producer_id=owner[0],
        producer_epoch=owner[1],
        topics=[kind.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        **given,
    )
    return int(wire.ask(asked, version).topics[0].partitions[0].error_code)


def batch(owner: Owner, sequence: int, value: bytes = b"x", transactional: bool = True) -> bytes:
    """One record of a producer."""
    builder = BatchBuilder()
    builder.append(None, value, 1_700_000_000_000)
    return bytes(builder.build(*owner, sequence, transactional))


def produce_request(
    wire: WireConnection, name: str | None, version: int, *parts: tuple[str, int, bytes], acks: int = -1
) -> ProduceRequest:
    """A Produce of one batch to each of some partitions."""
    ids = topic_ids(wire, *{topic for topic, _, _ in parts}) if version >= 13 else {}
    kind = ProduceRequest
    topics = [
        kind.TopicProduceData(
            name=topic,
            topic_id=ids.get(topic, b"\0" * 16),
            partition_data=[kind.PartitionProduceData(index=index, records=records)],
        )
        for topic, index, records in parts
    ]
    return kind(transactional_id=name, acks=acks, timeout_ms=10_000, topic_data=topics)


def produce(wire: WireConnection, name: str | None, version: int, *parts: tuple[str, int, bytes]) -> list[int]:
    """Produce: an error for each partition."""
    answer = wire.ask(produce_request(wire, name, version, *parts), version)
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def topic_ids(wire: WireConnection, *names: str) -> dict[str, bytes]:
    """The ids of topics."""
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])
    return {topic.name: topic.topic_id for topic in wire.ask(asked, 12).topics}
