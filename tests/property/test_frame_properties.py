"""Requests of every shape against live network threads: answered in the codec's own bytes, or refused; never worse."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from support.dataplane import Broker, Peer, batch, forget_all, lead, topic_id

KNOWN = "frames"
BATCHES = [batch([b"a"]), batch([b"b", b"c"], codec=1), batch([bytes(20_000)])]
quick = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
)

names = st.sampled_from([KNOWN, "nowhere", "", "__consumer_offsets", "x" * 300])
small = st.integers(-2, 4)
tagless = st.sampled_from([None, "", "client", "c" * 1000])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    lead(tmp_path_factory.mktemp("frames"), KNOWN, partitions=3)
    with Broker() as made:
        yield made
    forget_all()


@st.composite
def produces(draw: st.DrawFn) -> tuple[ProduceRequest, int]:
    version = draw(st.integers(3, 13))
    record_sets = st.one_of(st.none(), st.binary(max_size=80), st.sampled_from(BATCHES))
    part = st.builds(ProduceRequest.PartitionProduceData, index=small, records=record_sets)
    topic = st.builds(
        lambda name, parts: ProduceRequest.TopicProduceData(
            name=name if version < 13 else "",
            topic_id=topic_id(name) if version >= 13 else bytes(16),
            partition_data=parts,
        ),
        names,
        st.lists(part, max_size=4),
    )
    acks = draw(st.sampled_from([-1, 1, 7]))
    topics = draw(st.lists(topic, max_size=4))
    return ProduceRequest(transactional_id=draw(tagless), acks=acks, topic_data=topics), version


@st.composite
def fetches(draw: st.DrawFn) -> tuple[FetchRequest, int]:
    version = draw(st.integers(4, 18))
    part = st.builds(
        FetchRequest.FetchPartition,
        partition=small,
        current_leader_epoch=st.sampled_from([-1, 0, 1]) if version >= 9 else st.just(-1),
        fetch_offset=st.integers(-2, 9),
        last_fetched_epoch=st.sampled_from([-1, -1, 0, 3]) if version >= 12 else st.just(-1),
        partition_max_bytes=st.sampled_from([-1, 0, 1, 100, 1 << 20, 2**31 - 1]),
    )
    topic = st.builds(
        lambda name, parts: FetchRequest.FetchTopic(
            topic=name if version < 13 else "",
            topic_id=topic_id(name) if version >= 13 else bytes(16),
            partitions=parts,
        ),
        names,
        st.lists(part, max_size=4),
    )
    return FetchRequest(
        max_wait_ms=draw(st.sampled_from([-1, 0, 3])),
        min_bytes=draw(st.sampled_from([-1, 0, 1, 1 << 30])),
        max_bytes=draw(st.sampled_from([-1, 0, 1, 1000, 2**31 - 1])),
        isolation_level=draw(st.sampled_from([0, 1, 5])),
        topics=draw(st.lists(topic, max_size=4)),
    ), version


def answer_body(served: Broker, frame: bytes, flexible: bool) -> bytes:
    with served.connect() as peer:
        peer.send(frame)
        answer = peer.receive()
    assert answer[:4] == struct.pack(">i", 77)
    return answer[5:] if flexible else answer[4:]


@quick
@given(asked=produces(), client=tagless)
def test_produce_answers_are_the_codecs_bytes(served: Broker, asked: tuple[ProduceRequest, int], client: str | None) -> None:
    request, version = asked
    body = answer_body(served, encode_request(request, version, 77, client), version >= 9)
    answer = ProduceResponse.decode(body, version)
    assert answer.encode(version) == body
    shape = [(topic.name, [one.index for one in topic.partition_data]) for topic in request.topic_data]
    got = [(topic.name, [one.index for one in topic.partition_responses]) for topic in answer.responses]
    assert got == shape


@quick
@given(asked=fetches(), client=tagless)
def test_fetch_answers_are_the_codecs_bytes(served: Broker, asked: tuple[FetchRequest, int], client: str | None) -> None:
    request, version = asked
    body = answer_body(served, encode_request(request, version, 77, client), version >= 12)
    answer = FetchResponse.decode(body, version)
    assert answer.encode(version) == body
    # A topic that is named without partitions is not answered, as in Kafka.
    shape = [(topic.topic, [one.partition for one in topic.partitions]) for topic in request.topics if topic.partitions]
    got = [(topic.topic, [one.partition_index for one in topic.partitions]) for topic in answer.responses]
    assert got == shape


def outcome(peer: Peer) -> None:
    """An answer or the end comes, unless the damage made a wait that is as long as it says."""
    if peer.is_silent(0.2):
        return
    try:
        peer.receive()
    except (EOFError, ConnectionResetError):
        return


@quick
@given(asked=st.one_of(produces(), fetches()), data=st.data())
def test_damaged_requests_are_answered_or_refused(
    served: Broker, asked: tuple[ProduceRequest | FetchRequest, int], data: st.DataObject
) -> None:
    request, version = asked
    frame = bytearray(encode_request(request, version, 77, "c"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(8, len(frame) - 1))
        what = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if what == "set":
            frame[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        elif what == "cut" and len(frame) > 12:
            del frame[max(at, 11) :]
        else:
            frame[at:at] = data.draw(st.binary(max_size=5))
    with served.connect() as peer:
        peer.send(bytes(frame))
        peer.send(struct.pack(">hhih", 18, 0, 1, -1))
        outcome(peer)
    assert served.is_alive()
