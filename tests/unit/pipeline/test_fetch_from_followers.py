"""A fetcher with a rack goes to the replica that the leader names, and back to the leader when that one fails (KIP-392)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.errors import ErrorCode
from penstock.pipeline.clients.client import Client
from penstock.pipeline.clients.connection import ConnectionLost
from penstock.pipeline.clients.fetcher import Fetched, Fetcher
from penstock.pipeline.clients.metadata import PartitionInfo
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.messages import FetchRequest, FetchResponse

LEADER, FOLLOWER = 1, 2
FOR_EVER_MS = 1_000_000_000
Part = FetchResponse.PartitionData


class Asked(NamedTuple):
    """A fetch as a broker saw it."""

    node: int
    rack: str
    offset: int


class Numbered(NamedTuple):
    """What a fetcher asks a connection for."""

    number: int


class Cluster(Client):
    """A client of two replicas whose answers a test makes."""

    def __init__(self, answer: Callable[[int, int], Part], pause_ms: int = 1) -> None:
        pauses = {"retry.backoff.ms": pause_ms, "retry.backoff.max.ms": pause_ms}
        super().__init__("127.0.0.1:1", **{"metadata.max.age.ms": 60_000, **pauses})
        self.asked: list[Asked] = []
        self._answer = answer

    def partition_info(self, topic: str, partition: int) -> PartitionInfo | None:
        return PartitionInfo(LEADER, 3, (LEADER, FOLLOWER), (LEADER, FOLLOWER))

    def topic_id(self, topic: str) -> bytes | None:
        return b"t" * 16

    async def connection(self, node_id: int, purpose: str = "control") -> Any:
        return Numbered(1)

    async def send_on(self, connection: Any, node_id: int, request: Any, **options: Any) -> Any:
        assert isinstance(request, FetchRequest)
        offset = request.topics[0].partitions[0].fetch_offset
        self.asked.append(Asked(node_id, request.rack_id, offset))
        part = self._answer(node_id, offset)
        topic = FetchResponse.FetchableTopicResponse(topic_id=b"t" * 16, partitions=[part])
        return FetchResponse(responses=[topic])


def records(offset: int) -> Part:
    """One record at an offset."""
    builder = BatchBuilder(0, -1, 1000)
    builder.append(b"k", b"v", 1, ())
    batch = bytearray(builder.build())
    batch[:8] = offset.to_bytes(8, "big")
    return Part(partition_index=0, high_watermark=100, last_stable_offset=100, log_start_offset=0, records=bytes(batch))


def named(replica: int) -> Part:
    return Part(partition_index=0, high_watermark=100, preferred_read_replica=replica)


def fetch(cluster: Cluster, count: int) -> list[Fetched]:
    async def work() -> list[Fetched]:
        async with asyncio.timeout(60), Fetcher(cluster, {("t", 0): 5}, rack="r2", max_wait_ms=10) as fetcher:
            fetched: list[Fetched] = []
            while len(fetched) < count:
                fetched += await fetcher.fetch(1000, ahead=False)
            return fetched

    return asyncio.run(work())


def test_the_replica_that_the_leader_names_is_read() -> None:
    cluster = Cluster(lambda node, offset: named(FOLLOWER) if node == LEADER else records(offset))
    fetched = fetch(cluster, 3)
    assert [one.next_offset for one in fetched] == [6, 7, 8]
    assert cluster.asked[:4] == [Asked(LEADER, "r2", 5), *(Asked(FOLLOWER, "r2", offset) for offset in (5, 6, 7))]


def test_a_replica_that_lags_or_is_gone_gives_the_partition_back_to_its_leader() -> None:
    """An offset that the follower hasn't is no gap of the log."""
    for failure in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER, None):
        first = [named(FOLLOWER)]

        def answer(node: int, offset: int, failure: Any = failure, first: list[Part] = first) -> Part:
            if node == LEADER:
                return first.pop() if first else records(offset)
            if failure is None:
                raise ConnectionLost("gone")
            return Part(partition_index=0, error_code=failure)

        cluster = Cluster(answer)
        fetched = fetch(cluster, 2)
        assert [(one.next_offset, one.error) for one in fetched] == [(6, None), (7, None)]
        assert [asked.node for asked in cluster.asked[:3]] == [LEADER, FOLLOWER, LEADER]


@pytest.mark.parametrize("failure", [ErrorCode.OFFSET_OUT_OF_RANGE, None])
def test_a_replica_that_goes_on_failing_is_asked_once_though_its_leader_goes_on_naming_it(failure: ErrorCode | None) -> None:
    """The leader serves a client that says no rack. The partition isn't read after a pause: here none would end."""

    def answer(node: int, offset: int) -> Part:
        if node == LEADER:
            return named(FOLLOWER) if cluster.asked[-1].rack else records(offset)
        if failure is None:
            raise ConnectionLost("gone")
        return Part(partition_index=0, error_code=failure)

    cluster = Cluster(answer, pause_ms=FOR_EVER_MS)
    fetched = fetch(cluster, 3)
    assert [(one.next_offset, one.error) for one in fetched] == [(6, None), (7, None), (8, None)]
    assert cluster.asked[:2] == [Asked(LEADER, "r2", 5), Asked(FOLLOWER, "r2", 5)]
    assert cluster.asked[2:5] == [Asked(LEADER, "", offset) for offset in (5, 6, 7)]


def test_the_leader_may_name_a_replica_again_once_metadata_would_be_old() -> None:
    failing = [True]

    def answer(node: int, offset: int) -> Part:
        if node == LEADER:
            return named(FOLLOWER) if cluster.asked[-1].rack else records(offset)
        return Part(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE) if failing else records(offset)

    async def work() -> None:
        async with asyncio.timeout(60), Fetcher(cluster, {("t", 0): 5}, rack="r2", max_wait_ms=10) as fetcher:
            while Asked(LEADER, "", 5) not in cluster.asked:
                await fetcher.fetch(1000, ahead=False)
            failing.clear()
            fetcher._states["t", 0].leader_until = 0.0
            while cluster.asked[-1].node != FOLLOWER:
                await fetcher.fetch(1000, ahead=False)

    cluster = Cluster(answer)
    asyncio.run(work())
