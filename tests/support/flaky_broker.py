"""A broker that fails as it is told, for clients: it speaks the protocol over a real socket, and keeps a log with Kafka's rules
for sequence numbers (the last five batches are known again)."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ErrorCode
from penstock.pipeline.clients.background import BackgroundLoop
from penstock.pyx.record.rawbatch import RawBatch, records
from penstock.pyx.wire import messages
from penstock.pyx.wire.header import decode_request, encode_response

SEQUENCES_KEPT = 5
QUICK: dict[str, Any] = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 5,
}
Fault = Callable[[], str]


@dataclass
class Flaky:
    """One broker, one topic `t`. `fault()` names what goes wrong with a produce request, "" for nothing."""

    fault: Fault = lambda: ""
    partitions: int = 2
    refuse: Callable[[RawBatch], int] = lambda batch: 0
    port: int = 0
    log: dict[int, list[RawBatch]] = field(default_factory=lambda: defaultdict(list))
    last: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    producers: int = 100
    versions: set[int] = field(default_factory=set)
    requests: list[list[int]] = field(default_factory=list)  # the partitions of each produce request
    sizes: list[int] = field(default_factory=list)  # and the bytes of its batches
    identities: set[str | None] = field(default_factory=set)  # transactional ids
    answering: asyncio.Event = field(default_factory=asyncio.Event)  # while it isn't set, produce requests wait
    server: asyncio.Server | None = None

    async def start(self) -> Flaky:
        self.answering.set()
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                header, request = decode_request(await reader.readexactly(size))
                if isinstance(request, messages.ProduceRequest):
                    await self.answering.wait()
                response = self.answer(header.api_version, request)
                if response is None:
                    return
                frame = encode_response(response, header.api_version, header.correlation_id)
                writer.write(len(frame).to_bytes(4, "big") + frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, version: int, request: Any) -> Any:
        if isinstance(request, messages.ApiVersionsRequest):
            apis = [(0, 3, 13), (3, 0, 12), (18, 0, 3), (22, 0, 4)]
            api_version = messages.ApiVersionsResponse.ApiVersion
            return messages.ApiVersionsResponse(
                api_keys=[api_version(api_key=k, min_version=a, max_version=b) for k, a, b in apis]
            )
        if isinstance(request, messages.MetadataRequest):
            return self.metadata()
        if isinstance(request, messages.InitProducerIdRequest):
            self.producers += 1
            return messages.InitProducerIdResponse(producer_id=self.producers, producer_epoch=0)
        assert isinstance(request, messages.ProduceRequest)
        self.versions.add(version)
        return self.produce(request)

    def metadata(self) -> messages.MetadataResponse:
        response = messages.MetadataResponse
        return response(
            brokers=[response.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            controller_id=1,
            topics=[
                response.MetadataResponseTopic(
                    name="t",
                    topic_id=b"t" * 16,
                    partitions=[
                        response.MetadataResponsePartition(partition_index=i, leader_id=1, leader_epoch=0)
                        for i in range(self.partitions)
                    ],
                )
            ],
        )

    def produce(self, request: messages.ProduceRequest) -> messages.ProduceResponse | None:
        """Each batch meets a fault of its own; one that breaks the connection does so for the whole request."""
        (topic,) = request.topic_data
        numbers = [part.index for part in topic.partition_data]
        assert len(set(numbers)) == len(numbers), "two batches of one partition"
        self.requests.append(numbers)
        self.sizes.append(sum(len(part.records or b"") for part in topic.partition_data))
        self.identities.add(request.transactional_id)
        kinds = [self.fault() for _ in topic.partition_data]
        if "drop" in kinds:
            return None
        response = messages.ProduceResponse
        answers = []
        for part, fault in zip(topic.partition_data, kinds, strict=True):
            assert part.records is not None
            error, offset = int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1
            if fault != "not_leader":
                batch = RawBatch(bytes(part.records))
                batch.check(client=True)
                error, offset = self.append(part.index, batch)
            if fault == "error_after" and not error:
                error = int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            answer = response.PartitionProduceResponse
            if fault != "leave_out":
                answers.append(answer(index=part.index, error_code=error, base_offset=offset))
        if "lose_answer" in kinds:
            return None
        return response(
            responses=[response.TopicProduceResponse(name="t", topic_id=topic.topic_id, partition_responses=answers)]
        )

    def append(self, partition: int, batch: RawBatch) -> tuple[int, int]:
        refused = self.refuse(batch)
        if refused:
            return refused, -1
        if batch.producer_id >= 0:
            seen = self.last[partition, batch.producer_id]
            for first, last, offset in seen:
                if (first, last) == (batch.base_sequence, batch.last_sequence):
                    return 0, offset
            # As Kafka: a producer that the partition does not know may begin anywhere.
            if seen and batch.base_sequence != seen[-1][1] + 1:
                return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1
            seen.append((batch.base_sequence, batch.last_sequence, self.end(partition)))
            del seen[:-SEQUENCES_KEPT]
        offset = self.end(partition)
        self.log[partition].append(batch)
        return 0, offset

    def end(self, partition: int) -> int:
        return sum(batch.record_count for batch in self.log[partition])

    def values(self, partition: int) -> list[bytes | None]:
        return [record.value for batch in self.log[partition] for record in records(batch)]


def faults(seed: int, share: float) -> Fault:
    dice = random.Random(seed)
    kinds = ["drop", "lose_answer", "not_leader", "error_after", "leave_out"]
    return lambda: dice.choice(kinds) if dice.random() < share else ""


class InThread:
    """A flaky broker on a loop of its own, for the synchronous producer."""

    def __init__(self, broker: Flaky) -> None:
        self.broker = broker
        self.loop = BackgroundLoop("flaky")

    def __enter__(self) -> Flaky:
        return self.loop.call(self.broker.start())

    def __exit__(self, *exception: object) -> None:
        self.loop.stop()
