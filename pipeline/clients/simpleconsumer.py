"""Fetches without a state: the caller says from which offset, and keeps where it stands.

The consumer finds each partition's leader, and follows it when it changes. It knows no group and commits nothing.

A caller that goes on at the `next_offset` of the last fetch of a partition hears of a log that was cut back below it
(LogTruncatedError, KIP-320). Where another process goes on, it needs the `leader_epoch` of that fetch, too.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.background import SyncClient
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import unpack
from penstock.pipeline.clients.fetchrequest import PART_BYTES, FetchFrom, fetch_request, parts_of
from penstock.pipeline.clients.metadata import NO_EPOCH
from penstock.pipeline.clients.partitionbuffer import ConsumerRecord, CorruptBatchError, PartitionBuffer
from penstock.pipeline.clients.truncation import LogTruncatedError, Position, find_truncations
from penstock.pyx.wire.messages import FetchResponse

__all__ = ["EARLIEST", "LATEST", "FetchFrom", "FetchedRecords", "LogTruncatedError", "SimpleConsumer"]


@dataclass(slots=True)
class FetchedRecords:
    """What came for one part. `next_offset` is where to go on: past records that were left out, such as aborted ones, too;
    `leader_epoch` is that of the last batch below it, -1 if that isn't known.

    The records are those before the `error`, if there is one: KafkaError with the broker's code, or CorruptBatchError.
    """

    topic: str
    partition: int
    next_offset: int
    records: list[ConsumerRecord] = field(default_factory=list)
    high_watermark: int = -1
    log_start_offset: int = -1
    leader_epoch: int = NO_EPOCH
    error: KafkaError | CorruptBatchError | None = None


class SimpleConsumer(SyncClient[Admin]):
    """Fetches at offsets that the caller keeps. Threads may share one. Properties are those of Consumer.

        with SimpleConsumer("host:9092") as consumer:
            fetched = consumer.fetch("events", 0, offset, 1 << 20)
            for record in fetched.records:
                ...
            offset = fetched.next_offset

    The constructor raises ConfigError for a property that is unknown or wrong, KafkaError if no broker answers.
    """

    def __init__(self, bootstrap: str = "", **given: object) -> None:
        super().__init__(Admin, bootstrap, properties.CONSUMER, given)
        self._closed = False
        self._followed: dict[TopicPartition, tuple[Position, int]] = {}
        """A position that the log of a leader epoch has: of each partition the newest, where its last fetch ended."""
        with self._beginning():
            self._call(self._client.start())

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = PART_BYTES, leader_epoch: int = NO_EPOCH
    ) -> FetchedRecords:
        """Records from an offset on. At the log's end it waits for `fetch.max.wait.ms`, then gives none.

        Raises KafkaError, such as OFFSET_OUT_OF_RANGE or UNKNOWN_TOPIC_OR_PARTITION, and CorruptBatchError where no record is
        sound before the batch that can't be read. LogTruncatedError: the log was cut back below the offset, and what is there
        now follows on other records than were read; each fetch of that offset raises it, one of `truncation.end` goes on. While
        the partition has no leader it tries until `default.api.timeout.ms`.
        """
        (fetched,) = self.multifetch([FetchFrom(topic, partition, offset, max_bytes, leader_epoch)])
        if fetched.error is not None and not fetched.records:
            raise fetched.error
        return fetched

    def multifetch(self, parts: Sequence[FetchFrom]) -> list[FetchedRecords]:
        """Fetch from several partitions, with one request to each leader. The answers have the parts' order, and an error of
        their own. Raises KafkaError REQUEST_TIMED_OUT."""
        return self._call(self._fetch(list(parts)))

    async def _fetch(self, parts: list[FetchFrom]) -> list[FetchedRecords]:
        answers: dict[int, FetchedRecords] = {}
        waiting = dict(enumerate(parts))
        while waiting:  # a request names each partition once
            turn = {part.tp: number for number, part in reversed(waiting.items())}
            asked = {number: waiting.pop(number) for number in turn.values()}
            answers |= await self._fetch_together(asked)
        return [answers[number] for number in range(len(parts))]

    async def _fetch_together(self, parts: dict[int, FetchFrom]) -> dict[int, FetchedRecords]:
        """Of different partitions. What another try may cure is tried again until `default.api.timeout.ms`."""
        answers: dict[int, FetchedRecords] = {}

        async def attempt() -> None:
            left = {number: part for number, part in parts.items() if number not in answers or _may_be_cured(answers[number])}
            leaders: dict[int, dict[TopicPartition, int]] = {}
            cluster = await self._client.metadata([part.topic for part in left.values()])
            for number, part in left.items():
                found = cluster.topics.get(part.topic)
                info = None if found is None else found.partitions.get(part.partition)
                if info is None or info.leader < 0:
                    unknown = cluster.errors.get(part.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    self._fail(answers, number, part, unknown if info is None else ErrorCode.LEADER_NOT_AVAILABLE)
                else:
                    leaders.setdefault(info.leader, {})[part.tp] = number
            await asyncio.gather(*(self._ask(node_id, asked, parts, answers) for node_id, asked in leaders.items()))
            for answer in answers.values():
                if _may_be_cured(answer):
                    assert answer.error is not None
                    raise answer.error

        try:
            await self._client.retry(attempt)
        except KafkaError as error:
            for number, part in parts.items():
                answers.setdefault(number, FetchedRecords(*part.tp, part.offset, error=error))
        return answers

    async def _ask(
        self,
        node_id: int,
        asked: dict[TopicPartition, int],
        parts: dict[int, FetchFrom],
        answers: dict[int, FetchedRecords],
    ) -> None:
        """One request to a leader, for several partitions."""
        missing = dict(asked)
        topic_ids = {topic: self._client.topic_id(topic) for topic, _ in asked}
        config = self.config
        code = int(ErrorCode.NETWORK_EXCEPTION)  # of what an answer lacks
        try:
            await self._leave_truncated(missing, parts, answers)
            if not missing:
                return
            epochs = {tp: self._client.leader_epoch(*tp) for tp in missing}
            request = fetch_request(
                self._client,
                [parts[number] for number in missing.values()],
                topic_ids,
                isolation=config["isolation.level"],
                max_wait_ms=config["fetch.max.wait.ms"],
                min_bytes=config["fetch.min.bytes"],
                max_bytes=config["fetch.max.bytes"],
            )
            answer: FetchResponse = await self._client.send(node_id, request)
            raise_for(answer.error_code, f"fetch from broker {node_id}")
            for tp, found in parts_of(answer, topic_ids):
                number = missing.pop(tp, -1)
                if number >= 0 and found.error_code:
                    self._fail(answers, number, parts[number], found.error_code)
                elif number >= 0:
                    answers[number] = self._read(parts[number], found, epochs[tp])
        except KafkaError as error:
            code = error.code
        for number in missing.values():
            self._fail(answers, number, parts[number], code)

    async def _leave_truncated(
        self, asked: dict[TopicPartition, int], parts: dict[int, FetchFrom], answers: dict[int, FetchedRecords]
    ) -> None:
        """Answer what was cut back below its position, and take it out of `asked`. The rest follows on what was read, in the
        logs of the leader epochs that the client knows now. Raises KafkaError."""
        while True:
            epochs = {tp: self._client.leader_epoch(*tp) for tp in asked}
            read = {tp: self._position(parts[number]) for tp, number in asked.items()}
            unsure = {tp: at for tp, at in read.items() if at.leader_epoch not in (NO_EPOCH, epochs[tp])}
            unsure = {tp: at for tp, at in unsure.items() if self._followed.get(tp) != (at, epochs[tp])}
            if not unsure:
                return
            truncated = await find_truncations(self._client, unsure)
            for tp, truncation in truncated.items():
                number = asked.pop(tp)
                answers[number] = FetchedRecords(*tp, parts[number].offset, error=LogTruncatedError(tp, truncation))
            self._followed |= {tp: (at, epochs[tp]) for tp, at in unsure.items() if tp not in truncated}

    def _position(self, part: FetchFrom) -> Position:
        """Where a fetch goes on, with the epoch that the caller gave, or that the fetch before it ended with."""
        asked = Position(part.offset, part.leader_epoch)
        followed, _ = self._followed.get(part.tp, (asked, NO_EPOCH))
        return followed if part.leader_epoch == NO_EPOCH and followed.offset == part.offset else asked

    def _fail(self, answers: dict[int, FetchedRecords], number: int, part: FetchFrom, code: int) -> None:
        error = KafkaError(code, f"fetch of `{part.topic}` partition {part.partition} at {part.offset}")
        answers[number] = FetchedRecords(part.topic, part.partition, part.offset, error=error)
        self._client.forget(part.topic)

    def _read(self, part: FetchFrom, found: FetchResponse.PartitionData, leader_epoch: int) -> FetchedRecords:
        """leader_epoch: of the leader that has answered, as the client knows it."""
        config = self.config
        buffer = PartitionBuffer(part.tp, *self._position(part))
        buffer.add(unpack(part.tp, part.offset, found, config["isolation.level"], config["check.crcs"]))
        records = buffer.take_records(sys.maxsize)
        assert buffer.error is None or isinstance(buffer.error, KafkaError | CorruptBatchError)
        position = Position(buffer.position, buffer.leader_epoch)
        self._followed[part.tp] = position, leader_epoch
        ends = found.high_watermark, found.log_start_offset
        return FetchedRecords(*part.tp, position.offset, records, *ends, position.leader_epoch, buffer.error)

    def get_offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int = 1) -> list[int]:
        """At most so many offsets to start from, the latest first, below which all records are older than a time (ms), or for
        LATEST the end of the log, for EARLIEST its beginning.

        Brokers that speak version 0 of ListOffsets say where the segments before that time begin, by the files' times. Newer
        ones say two offsets at most: the first record's of that time or later, and the beginning of the log. Raises KafkaError.
        """
        return self._call(self._offsets_before((topic, partition), time_ms, max_offsets))

    async def _offsets_before(self, tp: TopicPartition, time_ms: int, max_offsets: int) -> list[int]:
        parts = (await self._client.metadata([tp[0]])).topic(tp[0]).partitions
        if tp[1] not in parts:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"`{tp[0]}` partition {tp[1]}")
        try:
            return await self._client.segment_offsets(tp, time_ms, max_offsets)
        except KafkaError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
        isolation = self.config["isolation.level"]
        offsets = {(await self._client.list_offsets({tp: at}, isolation))[tp].offset for at in (time_ms, EARLIEST)}
        if -1 in offsets:  # no record is so late
            offsets = offsets - {-1} | {await self._client.end_offset(tp, isolation)}
        return sorted(offsets, reverse=True)[:max_offsets]

    def close(self) -> None:
        """Close the connections. Closing twice is nothing."""
        if not self._closed:
            self._closed = True
            self._end()

    async def _shut(self) -> None:
        """Nothing lives beside the client."""


def _may_be_cured(answer: FetchedRecords) -> bool:
    """Whether another try may give records: the leader has moved, or is gone. A topic that isn't there is an answer."""
    error = answer.error
    final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CORRUPT_MESSAGE)
    return isinstance(error, KafkaError) and error.retriable and error.code not in final
