"""Produce requests that come together are appended together. The log must be what it is when they come one by one."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import ProduceRequest, ProduceResponse
from support.dataplane import Broker, Peer, lead, produce
from support.logs import LOGS, NOW_MS, batch
from support.messagesets import SNAPPY, Message, pack_set, wrap

PARTITIONS = 2
PLAIN = (-1, -1, -1)
_numbers = itertools.count()

records = st.one_of(
    # Of producers without and with sequences: the next ones, those before, or a gap.
    st.builds(
        lambda producer, count, size, codec: batch(count, producer=producer, size=size, codec=codec),
        st.one_of(st.just(PLAIN), st.tuples(st.sampled_from([7, 8]), st.integers(0, 1), st.integers(0, 6))),
        st.integers(1, 3),
        st.sampled_from([10, 200, 900]),
        st.sampled_from([0, 3]),
    ),
    st.builds(lambda damaged: batch(1)[:-damaged] + b"?" * damaged, st.integers(1, 3)),
    st.just(b""),
)
parts = st.lists(st.tuples(st.integers(0, PARTITIONS), records), min_size=1, max_size=3)
modern = st.tuples(st.sampled_from([3, 7, 9]), st.sampled_from([-1, 1]), parts)


def message_set(magic: int, count: int, wrapped: bool) -> bytes:
    """Messages as clients of Kafka 0.8 (magic 0) and 0.10 (magic 1) send them."""
    messages = [Message(n if magic else n + 9, None, b"v%d" % n, NOW_MS if magic else -1) for n in range(count)]
    return wrap(magic, messages, SNAPPY, count - 1, timestamp_ms=NOW_MS) if wrapped else pack_set(magic, messages)


sets = st.builds(message_set, st.sampled_from([0, 1]), st.integers(1, 3), st.booleans())
old = st.tuples(st.sampled_from([0, 2]), st.just(1), st.lists(st.tuples(st.integers(0, PARTITIONS), sets), max_size=2))
wrong = st.tuples(st.just(9), st.sampled_from([2, 1]), st.just([(0, b"")]))
requests = st.lists(st.one_of(modern, modern, modern, old, wrong), min_size=4, max_size=30)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Broker() as served, served.connect() as made:
        yield made


def frame(topic: str, number: int, version: int, acks: int, asked: list[tuple[int, bytes]]) -> bytes:
    """A request."""
    request = produce(topic, None, version, acks)
    request.topic_data[0].partition_data = [
        ProduceRequest.PartitionProduceData(index=index, records=taken) for index, taken in asked
    ]
    return encode_request(request, version, number, "c")


def answer(peer: Peer, number: int, version: int) -> list[object]:
    """What the next answer says of each partition."""
    got, message = decode_response(ProduceResponse, peer.receive(), version)
    assert got == number
    return [
        (one.index, one.error_code, one.base_offset, one.log_start_offset, one.record_errors, one.error_message)
        for topic in message.responses
        for one in topic.partition_responses
    ]


def files(root: Path, topic: str) -> dict[str, bytes]:
    """What its partitions have left on the disk."""
    return {
        f"{index}/{path.name}": path.read_bytes()
        for index in range(PARTITIONS)
        for path in sorted((root / f"{topic}-{index}").iterdir())
        if path.name != "partition.metadata"
    }


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    asked=requests,
    segment_bytes=st.sampled_from([700, 2000, 1 << 30]),
    index_bytes=st.sampled_from([24, 1 << 20]),
    message_magic=st.sampled_from([0, 2]),
)
def test_together_is_as_one_by_one(
    peer: Peer,
    asked: list[tuple[int, int, list[tuple[int, bytes]]]],
    segment_bytes: int,
    index_bytes: int,
    message_magic: int,
) -> None:
    root = Path(tempfile.mkdtemp(prefix="together-"))
    apart, joined = (f"{kind}{next(_numbers)}" for kind in ("apart", "joined"))
    config = {
        "segment_bytes": segment_bytes,
        "segment_index_bytes": index_bytes,
        "index_interval_bytes": 100,
        "message_magic": message_magic,
    }
    try:
        for topic in (apart, joined):
            lead(root, topic, PARTITIONS, **config)
        told = []
        for number, one in enumerate(asked):
            peer.send(frame(apart, number, *one))
            told.append(answer(peer, number, one[0]))
        peer.send_all([frame(joined, number, *one) for number, one in enumerate(asked)])
        assert [answer(peer, number, one[0]) for number, one in enumerate(asked)] == told
        for index in range(PARTITIONS):
            of_both = [
                (
                    LOGS.offsets(topic, index),
                    LOGS.read(topic, index, LOGS.offsets(topic, index).log_start, 1 << 24),
                    [LOGS.sequences(topic, index, producer_id) for producer_id in (7, 8)],
                )
                for topic in (apart, joined)
            ]
            assert of_both[0] == of_both[1]
        for topic in (apart, joined):
            for index in range(PARTITIONS):
                LOGS.stop(topic, index)
        assert files(root, apart) == files(root, joined)
        event(f"segments: {min(4, sum(name.endswith('.log') for name in files(root, joined)))}")
    finally:
        for name, index in LOGS.partitions():
            LOGS.stop(name, index)
        shutil.rmtree(root)
