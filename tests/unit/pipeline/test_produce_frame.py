"""The produce frame written by hand is the codec's own encoding, byte for byte, and Java's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.clients.produceframe import LOWEST_VERSION, TOPIC_IDS_FROM, produce_frame
from penstock.pyx.wire.header import decode_request, encode_request
from penstock.pyx.wire.messages import ProduceRequest

VERSIONS = range(LOWEST_VERSION, ProduceRequest.MAX_VERSION + 1)
GOLDEN = (Path(__file__).parents[2] / "golden" / "wire_java.hex").read_text().splitlines()
JAVA = {
    int(version): bytes.fromhex(content)
    for name, version, kind, content in (line.split(" ") for line in GOLDEN if not line.startswith("#"))
    if (name, kind) == ("ProduceRequest", "full")
}


def topic_id(topic: str) -> bytes:
    return topic.encode()[:16].ljust(16, b"i")


@pytest.mark.parametrize("version", VERSIONS)
@given(
    st.text(max_size=20),
    st.none() | st.text(max_size=200),
    st.sampled_from([-1, 0, 1]),
    st.dictionaries(
        st.text(min_size=1, max_size=200),
        st.dictionaries(st.integers(0, 2**31 - 1), st.lists(st.binary(max_size=300), max_size=4), max_size=4),
        max_size=4,
    ),
)
def test_frame_is_the_codecs(
    version: int,
    client_id: str,
    transactional_id: str | None,
    acks: int,
    topics: dict[str, dict[int, list[bytes]]],
) -> None:
    made = produce_frame(
        version,
        99,
        client_id,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1234,
        batches={
            topic: [(number, [memoryview(piece) for piece in pieces]) for number, pieces in partitions.items()]
            for topic, partitions in topics.items()
        },
        topic_ids={topic: topic_id(topic) for topic in topics},
    )
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1234,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                topic_id=topic_id(topic),
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=number, records=b"".join(pieces))
                    for number, pieces in partitions.items()
                ],
            )
            for topic, partitions in topics.items()
        ],
    )
    assert b"".join(made) == encode_request(request, version, 99, client_id)


@pytest.mark.parametrize("version", VERSIONS)
def test_frame_is_what_javas_classes_make_of_two_topics_with_two_partitions(version: int) -> None:
    java = JAVA[version]
    head = encode_request(ProduceRequest(), version, 99, "me")[: header_bytes(version)]
    _, request = decode_request(head + java)
    assert isinstance(request, ProduceRequest) and len(request.topic_data) == 2
    names = {topic.name or topic.topic_id.hex(): topic for topic in request.topic_data}
    made = produce_frame(
        version,
        99,
        "me",
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        batches={
            name: [(part.index, [memoryview(part.records or b"")]) for part in topic.partition_data]
            for name, topic in names.items()
        },
        topic_ids={name: topic.topic_id for name, topic in names.items()} if version >= TOPIC_IDS_FROM else {},
    )
    assert b"".join(made) == head + java


def header_bytes(version: int) -> int:
    """Key, version, correlation id, client id `me`, and the tags of a flexible header."""
    return 2 + 2 + 4 + 2 + 2 + (version >= 9)
