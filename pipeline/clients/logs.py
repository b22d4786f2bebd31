"""Logs of partitions: offsets by time and epoch, what is deleted at their beginning, the folders that they lie in."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.fanout import ask_brokers, ask_leaders
from penstock.pipeline.clients.fetcher import split_sound
from penstock.pipeline.clients.fetchrequest import FetchFrom, Isolation, fetch_request, parts_of
from penstock.pipeline.clients.metadata import NO_TOPIC_ID
from penstock.pipeline.clients.partitionlists import by_topic
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.wire import messages

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
ANY_REPLICA = -2
"""In place of a consumer's number, whom leaders alone answer: each replica says where its own log ends, as to Kafka's tools."""
REPLICA_ANSWER_MS = 5000
BATCH_WAIT_MS = 3000  # for a batch that a cluster has to read from remote storage


class OffsetAt(NamedTuple):
    """An offset found by timestamp: -1 for all three when there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    client: Client, wanted: Mapping[TopicPartition, int], isolation: Isolation = "read_uncommitted"
) -> dict[TopicPartition, OffsetAt]:
    """For each partition the first offset at or after a timestamp (ms), or EARLIEST, LATEST,
    MAX_TIMESTAMP.

    With read_committed LATEST is the last stable offset. Offset -1: no record is so late.
    """
    request_type = messages.ListOffsetsRequest

    def build(node: Mapping[TopicPartition, int]) -> messages.ListOffsetsRequest:
        def part(tp: TopicPartition) -> messages.ListOffsetsRequest.ListOffsetsPartition:
            epoch = client.leader_epoch(*tp)
            return request_type.ListOffsetsPartition(partition_index=tp[1], current_leader_epoch=epoch, timestamp=node[tp])

        topics = [request_type.ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic(node, part)]
        return request_type(replica_id=-1, isolation_level=int(isolation == "read_committed"), topics=topics)

    def read(answer: messages.ListOffsetsResponse) -> Iterable[tuple[TopicPartition, int, OffsetAt]]:
        for topic in answer.topics:
            for part in topic.partitions:
                found = OffsetAt(part.offset, part.timestamp, part.leader_epoch)
                yield (topic.name, part.partition_index), part.error_code, found

    return await ask_leaders(client, wanted, build, read)


async def segment_offsets(client: Client, tp: TopicPartition, timestamp: int, most: int) -> list[int]:
    """Where segments begin that are older than a timestamp by their files' times, newest first; for LATEST the log's end before
    them. Raises KafkaError UNSUPPORTED_VERSION at brokers without ListOffsets' version 0 (Kafka from 4.0 on)."""
    request_type = messages.ListOffsetsRequest
    place = request_type.ListOffsetsPartition(partition_index=tp[1], timestamp=timestamp, max_num_offsets=most)
    request = request_type(replica_id=-1, topics=[request_type.ListOffsetsTopic(name=tp[0], partitions=[place])])

    async def attempt() -> list[int]:
        answer: messages.ListOffsetsResponse = await client.send(await client.leader(*tp), request, versions=(0, 0))
        part = answer.topics[0].partitions[0]
        if part.error_code:
            client.forget(tp[0])
        raise_for(part.error_code, f"offsets of `{tp[0]}` partition {tp[1]}")
        return list(part.old_style_offsets)

    return await client.retry(attempt)


async def replica_ends(
    client: Client, replicas: Mapping[int, Collection[TopicPartition]]
) -> dict[int, dict[TopicPartition, int]]:
    """Where logs end on the brokers that hold them, leaders or not, by broker. What a broker doesn't say is left out: it is
    gone, or it hasn't opened that log."""
    form = messages.ListOffsetsRequest

    async def ask(broker: int, held: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        def part(tp: TopicPartition) -> messages.ListOffsetsRequest.ListOffsetsPartition:
            return form.ListOffsetsPartition(partition_index=tp[1], timestamp=LATEST)

        topics = [form.ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic(held, part)]
        try:
            answer = await client.send(broker, form(replica_id=ANY_REPLICA, topics=topics), timeout_ms=REPLICA_ANSWER_MS)
        except KafkaError:
            return {}
        return {
            (topic.name, one.partition_index): one.offset
            for topic in answer.topics
            for one in topic.partitions
            if not one.error_code and one.offset >= 0
        }

    answers = await asyncio.gather(*(ask(*one) for one in replicas.items()))
    return dict(zip(replicas, answers, strict=True))


async def start_offset(client: Client, tp: TopicPartition) -> int:
    """The offset that a partition's log begins at."""
    return (await list_offsets(client, {tp: EARLIEST}))[tp].offset


async def end_offset(client: Client, tp: TopicPartition, isolation: Isolation = "read_uncommitted") -> int:
    """The offset that a partition's log ends at; with read_committed its last stable offset."""
    return (await list_offsets(client, {tp: LATEST}, isolation))[tp].offset


async def offsets_for_leader_epoch(
    client: Client, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """For each partition and leader epoch: (largest epoch not above it, its end offset). A log that was
    truncated ends an epoch earlier than a reader has seen it (KIP-320)."""
    request_type = messages.OffsetForLeaderEpochRequest

    def build(node: Mapping[TopicPartition, int]) -> messages.OffsetForLeaderEpochRequest:
        def part(tp: TopicPartition) -> messages.OffsetForLeaderEpochRequest.OffsetForLeaderPartition:
            epoch = client.leader_epoch(*tp)
            return request_type.OffsetForLeaderPartition(partition=tp[1], current_leader_epoch=epoch, leader_epoch=node[tp])

        topics = [request_type.OffsetForLeaderTopic(topic=name, partitions=parts) for name, parts in by_topic(node, part)]
        return request_type(replica_id=-1, topics=topics)

    def read(answer: messages.OffsetForLeaderEpochResponse) -> Iterable[tuple[TopicPartition, int, tuple[int, int]]]:
        for topic in answer.topics:
            for part in topic.partitions:
                found = part.leader_epoch, part.end_offset
                yield (topic.topic, part.partition), part.error_code, found

    return await ask_leaders(client, epochs, build, read)


async def fetch_at(
    client: Client,
    tp: TopicPartition,
    offset: int,
    max_bytes: int,
    *,
    isolation: Isolation = "read_uncommitted",
    topic_id: bytes | None = None,
    max_wait_ms: int = 0,
) -> messages.FetchResponse.PartitionData:
    """One fetch of a partition at an offset, whose first batch comes whole however small `max_bytes` is; `topic_id` None:
    that of the topic of that name. An answer without records means that the log has none there. A partition's error code that
    no other try cures is the caller's to read. Raises KafkaError, INCONSISTENT_TOPIC_ID if another topic has the name."""
    what = f"fetch of `{tp[0]}` partition {tp[1]} at {offset}"

    async def attempt() -> messages.FetchResponse.PartitionData:
        leader = await client.leader(*tp)
        known = client.topic_id(tp[0]) or NO_TOPIC_ID
        wanted = known if topic_id in (None, NO_TOPIC_ID) else topic_id
        if known not in (wanted, NO_TOPIC_ID):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{what}: the topic was created again")
        topic_ids = {tp[0]: wanted}
        request = fetch_request(
            client,
            [FetchFrom(*tp, offset, max_bytes)],
            topic_ids,
            isolation=isolation,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
        )
        answer: messages.FetchResponse = await client.send(leader, request)
        raise_for(answer.error_code, "fetch")
        part = dict(parts_of(answer, topic_ids)).get(tp)
        if part is None:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{what}: the answer lacks the partition")
        error = KafkaError(part.error_code, what)
        if part.error_code and error.retriable and part.error_code != ErrorCode.CORRUPT_MESSAGE:
            client.forget(tp[0])
            raise error
        # Kafka answers without records while it reads remote storage. So does a new leader that doesn't know yet how much of
        # its log is committed; it refuses to tell its end, though (KIP-207).
        if not part.error_code and not part.records and offset < await end_offset(client, tp, isolation):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{what} came back empty")
        return part

    return await client.retry(attempt)


async def batch_at(client: Client, tp: TopicPartition, offset: int) -> RawBatch | None:
    """The batch that has an offset, committed or not, unchecked; the next one if compaction has removed it; None where the log
    has nothing from there on, or no header that makes sense. Raises KafkaError, OFFSET_OUT_OF_RANGE outside of the log."""
    part = await fetch_at(client, tp, offset, 1, max_wait_ms=BATCH_WAIT_MS)
    raise_for(part.error_code, f"fetch of `{tp[0]}` partition {tp[1]} at {offset}")
    batches, _ = split_sound(memoryview(part.records or b""))
    return next((batch for batch in batches if batch.last_offset >= offset), None)


async def delete_records(client: Client, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete what lies before these offsets (-1: all); gives the new log start offsets."""
    request_type = messages.DeleteRecordsRequest

    def build(node: Mapping[TopicPartition, int]) -> messages.DeleteRecordsRequest:
        def part(tp: TopicPartition) -> messages.DeleteRecordsRequest.DeleteRecordsPartition:
            return request_type.DeleteRecordsPartition(partition_index=tp[1], offset=node[tp])

        topics = [request_type.DeleteRecordsTopic(name=name, partitions=parts) for name, parts in by_topic(node, part)]
        return request_type(topics=topics, timeout_ms=client.config["request.timeout.ms"])

    def read(answer: messages.DeleteRecordsResponse) -> Iterable[tuple[TopicPartition, int, int]]:
        for topic in answer.topics:
            for part in topic.partitions:
                yield (topic.name, part.partition_index), part.error_code, part.low_watermark

    return await ask_leaders(client, before, build, read)


async def log_dirs(client: Client) -> dict[int, list[messages.DescribeLogDirsResponse.DescribeLogDirsResult]]:
    """The log folders of every broker, by its id; one that is offline has an error code and no partitions."""
    answers = await ask_brokers(client, messages.DescribeLogDirsRequest(topics=None), "describe log folders")
    return {node: answer.results for node, answer in answers.items()}
