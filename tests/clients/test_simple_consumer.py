"""Fetches at offsets that the caller keeps, from our broker and from Apache Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.clients.simpleconsumer import EARLIEST, LATEST, FetchFrom, SimpleConsumer

LIMIT_S = 120.0
HOUR_MS = 3_600_000


@pytest.fixture(params=["shared_broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """A cluster that tests share: ours, and Apache Kafka."""
    return str(request.getfixturevalue(request.param).bootstrap)


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[SimpleConsumer]:
    """A consumer of that cluster."""
    with SimpleConsumer(bootstrap, fetch_max_wait_ms=100) as simple:
        yield simple


@pytest.fixture
def filled(bootstrap: str, new_topic: Callable[[str], str]) -> str:
    """A topic of two partitions with twenty batches of a record each; partition 1 has them an hour later."""
    name = new_topic("simple")
    now_ms = time.time_ns() // 1_000_000

    async def create() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics({name: 2})

    asyncio.run(create())
    with Producer(bootstrap, linger_ms=0) as producer:
        for i in range(20):
            for partition in range(2):
                at = now_ms - 2 * HOUR_MS + i * 1000 + partition * HOUR_MS
                producer.send(name, b"k", b"%d" % i, timestamp_ms=at, partition=partition).result(LIMIT_S)
    return name


def test_fetch_goes_on_where_the_caller_says(consumer: SimpleConsumer, filled: str) -> None:
    offset, values = 0, []
    while offset < 20:
        fetched = consumer.fetch(filled, 0, offset, 200)
        assert fetched.records and fetched.next_offset == fetched.records[-1].offset + 1
        assert (fetched.high_watermark, fetched.log_start_offset, fetched.error) == (20, 0, None)
        values += [record.value for record in fetched.records]
        offset = fetched.next_offset
    assert values == [b"%d" % i for i in range(20)]
    again = consumer.fetch(filled, 0, 5, 1)
    assert [record.offset for record in again.records] == [5], "the first batch comes whole, and no more"
    at_end = consumer.fetch(filled, 0, 20)
    assert (at_end.records, at_end.next_offset) == ([], 20)


def test_errors_are_kafkas(consumer: SimpleConsumer, filled: str) -> None:
    for topic, partition, offset, code in (
        (filled, 0, 21, ErrorCode.OFFSET_OUT_OF_RANGE),
        (filled, 2, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (f"{filled}-not", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        with pytest.raises(KafkaError) as caught:
            consumer.fetch(topic, partition, offset)
        assert caught.value.code == code and f"`{topic}` partition {partition} at {offset}" in str(caught.value)


def test_multifetch_answers_each_part_in_order(consumer: SimpleConsumer, filled: str) -> None:
    """Also one partition twice, and one of them wrong."""
    parts = [
        FetchFrom(filled, 1, 18),
        FetchFrom(filled, 0, 3, 1),
        FetchFrom(filled, 1, 2, 1),
        FetchFrom(filled, 0, 99),
        FetchFrom(f"{filled}-not", 0, 0),
    ]
    found = consumer.multifetch(parts)
    assert [(f.topic, f.partition) for f in found] == [part.tp for part in parts]
    assert [[record.offset for record in f.records] for f in found] == [[18, 19], [3], [2], [], []]
    codes = [f.error.code if isinstance(f.error, KafkaError) else f.error for f in found]
    assert codes == [None, None, None, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert consumer.multifetch([]) == []


def test_offsets_before_a_time_are_those_to_start_from(consumer: SimpleConsumer, filled: str) -> None:
    assert consumer.get_offsets_before(filled, 0, LATEST) == [20]
    assert consumer.get_offsets_before(filled, 0, LATEST, 10) == [20, 0]
    assert consumer.get_offsets_before(filled, 0, EARLIEST, 10) == [0]
    now_ms = time.time_ns() // 1_000_000
    for offset in consumer.get_offsets_before(filled, 1, now_ms + HOUR_MS, 10):
        first = consumer.fetch(filled, 1, offset).records[:1]
        assert all(record.offset == offset for record in first)
    for topic, partition in ((filled, 2), (f"{filled}-not", 0)):
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            consumer.get_offsets_before(topic, partition, LATEST)
