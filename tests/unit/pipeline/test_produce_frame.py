"""The produce frame written by hand is the codec's own encoding, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.clients.sender import LOWEST_VERSION, produce_frame
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import ProduceRequest


@pytest.mark.parametrize("version", range(LOWEST_VERSION, ProduceRequest.MAX_VERSION + 1))
@given(
    st.text(max_size=20),
    st.none() | st.text(max_size=200),
    st.sampled_from([-1, 0, 1]),
    st.text(min_size=1, max_size=200),
    st.integers(0, 2**31 - 1),
    st.lists(st.binary(max_size=300), max_size=4),
)
def test_frame_is_the_codecs(
    version: int,
    client_id: str,
    transactional_id: str | None,
    acks: int,
    topic: str,
    partition: int,
    pieces: list[bytes],
) -> None:
    made = produce_frame(
        version,
        99,
        client_id,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1234,
        topic=topic,
        topic_id=b"0123456789abcdef",
        partition=partition,
        pieces=[memoryview(piece) for piece in pieces],
    )
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1234,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                topic_id=b"0123456789abcdef",
                partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=b"".join(pieces))],
            )
        ],
    )
    assert b"".join(made) == encode_request(request, version, 99, client_id)
