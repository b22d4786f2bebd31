"""Headers, versions, nulls, tags and limits of the wire codec."""

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from penstock.pyx.wire.header import (
    REQUESTS,
    RESPONSES,
    decode_request,
    decode_request_header,
    decode_response,
    decode_version,
    encode_request,
    encode_response,
    encode_versioned,
)
from penstock.pyx.wire.message import CompactReader, CompactWriter, Message, WireError
from penstock.pyx.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerProtocolSubscription,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    FetchResponse,
    HeartbeatResponse,
    JoinGroupRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitKey,
    ProduceRequest,
)


def test_request_frame() -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="flights")])
    for version in (0, 8, 9, 13):
        frame = encode_request(request, version, 7, "me")
        header = decode_request_header(frame)
        assert header[:4] == (3, version, 7, "me")
        assert decode_request(frame) == (header, request)
        assert MetadataRequest.decode(frame[header.body_start :], version) == request


def test_request_header_of_unknown_api_and_odd_client_id() -> None:
    assert decode_request_header(struct.pack(">hhih", 999, 3, 5, -1)) == (999, 3, 5, None, 10)
    odd = decode_request_header(struct.pack(">hhih", 3, 0, 5, 2) + b"a\xff")
    assert odd.client_id == "a\ufffd"
    with pytest.raises(WireError, match="api key 999"):
        decode_request(struct.pack(">hhih", 999, 3, 5, -1))


@pytest.mark.parametrize("size", range(14))
def test_cut_request_header(size: int) -> None:
    frame = encode_request(MetadataRequest(), 9, 7, "me")
    with pytest.raises(WireError):
        decode_request(frame[:size])


def test_response_frame() -> None:
    response = MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="a", port=9092)],
        cluster_id="c",
        topics=[
            MetadataResponse.MetadataResponseTopic(
                name="t",
                topic_id=bytes(range(16)),
                partitions=[MetadataResponse.MetadataResponsePartition(leader_id=1, replica_nodes=[1, 2])],
            )
        ],
    )
    assert decode_response(MetadataResponse, encode_response(response, 13, -5), 13) == (-5, response)


def test_api_versions_answer_has_the_old_header() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersionsResponse.ApiVersion(api_key=3, max_version=13)])
    frame = encode_response(response, 3, 1)
    assert frame == struct.pack(">i", 1) + response.encode(3)
    assert decode_response(ApiVersionsResponse, frame, 3) == (1, response)
    assert encode_response(HeartbeatResponse(), 4, 1) == struct.pack(">ib", 1, 0) + HeartbeatResponse().encode(4)


def test_unknown_tags_of_header_and_message_are_passed_over() -> None:
    body = ApiVersionsRequest(client_software_name="x", client_software_version="1").encode(3)
    w = CompactWriter(struct.pack(">hhih", 18, 3, 5, -1))
    w.tags([(0, CompactWriter(b"abc")), (9, CompactWriter())])
    frame = bytes(w) + body[:-1] + b"\x01\x05\x02zz"
    header, request = decode_request(frame)
    assert header.correlation_id == 5
    assert request == ApiVersionsRequest(client_software_name="x", client_software_version="1")


@pytest.mark.parametrize(
    "tags",
    [
        b"\x02\x05\x00\x05\x00",  # the same tag twice
        b"\x02\x05\x00\x04\x00",  # descending
        b"\x01\x05\x09z",  # longer than the rest
        b"\x01\x05",  # no size
        b"\xff\xff\xff\xff\xff\x01",  # count of more than 32 bits
        b"\xff\xff\xff\xff\x1f",
    ],
)
def test_bad_tags(tags: bytes) -> None:
    body = ApiVersionsRequest().encode(3)
    with pytest.raises(WireError):
        ApiVersionsRequest.decode(body[:-1] + tags, 3)


def test_known_tag_of_wrong_size() -> None:
    good = ApiVersionsResponse(finalized_features_epoch=4).encode(3)
    assert ApiVersionsResponse.decode(good, 3).finalized_features_epoch == 4
    assert good.endswith(b"\x01\x01\x08" + struct.pack(">q", 4))
    for tail in (b"\x01\x01\x07" + struct.pack(">q", 4), b"\x01\x01\x09" + struct.pack(">qb", 4, 0)):
        with pytest.raises(WireError):
            ApiVersionsResponse.decode(good[:-11] + tail, 3)


def test_unknown_versions() -> None:
    for version in (-1, 14):
        with pytest.raises(WireError, match="v0-13"):
            MetadataRequest().encode(version)
        with pytest.raises(WireError, match="v0-13"):
            MetadataRequest.decode(b"", version)


def test_values_that_a_version_cannot_carry() -> None:
    with pytest.raises(WireError, match="group_instance_id"):
        JoinGroupRequest(group_instance_id="static").encode(4)
    with pytest.raises(WireError, match="allow_auto_topic_creation"):
        MetadataRequest(allow_auto_topic_creation=False).encode(3)
    with pytest.raises(WireError, match="null"):
        MetadataRequest(topics=None).encode(0)
    with pytest.raises(WireError, match="forgotten"):
        FetchRequest(forgotten_topics_data=[FetchRequest.ForgottenTopic()]).encode(6)
    with pytest.raises(WireError):
        ProduceRequest(acks=40_000).encode(9)
    # Ignorable ones are dropped.
    assert JoinGroupRequest(reason="bye").encode(7) == JoinGroupRequest().encode(7)
    assert FetchRequest(cluster_id="c").encode(11) == FetchRequest().encode(11)


def test_null_where_the_version_has_none() -> None:
    with pytest.raises(WireError):
        MetadataRequest.decode(struct.pack(">i", -1), 0)
    assert MetadataRequest.decode(struct.pack(">i", -1), 1).topics is None


def test_nullable_struct() -> None:
    cursor = DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=4)
    for request in (DescribeTopicPartitionsRequest(), DescribeTopicPartitionsRequest(cursor=cursor)):
        assert DescribeTopicPartitionsRequest.decode(request.encode(0), 0) == request
    with pytest.raises(WireError):
        DescribeTopicPartitionsRequest.decode(b"\x01" + bytes(4) + b"\x00\x00", 0)


def test_bytes_are_slices_of_the_input() -> None:
    partition = ProduceRequest.PartitionProduceData(index=1, records=b"batch")
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    data = bytearray(ProduceRequest(topic_data=[topic]).encode(9))
    records = ProduceRequest.decode(data, 9).topic_data[0].partition_data[0].records
    assert records == b"batch"
    assert isinstance(records, memoryview) and records.obj is data


def test_something_after_the_message() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a"])
    data = subscription.encode(3) + b"more"
    with pytest.raises(WireError, match="4 bytes after"):
        ConsumerProtocolSubscription.decode(data, 3)
    assert ConsumerProtocolSubscription.decode(data, 3, trailing=True) == subscription


def test_versioned_records() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=2)
    data = encode_versioned(key, 1)
    version, rest = decode_version(data)
    assert (version, OffsetCommitKey.decode(rest, version)) == (1, key)
    with pytest.raises(WireError):
        decode_version(b"\x00")


def test_constructed_messages_share_nothing() -> None:
    a, b = FetchResponse(), FetchResponse()
    a.responses.append(FetchResponse.FetchableTopicResponse())
    assert b.responses == [] and FetchResponse().responses == []
    p, q = FetchResponse.PartitionData(), FetchResponse.PartitionData()
    p.current_leader.leader_id = 5
    assert q.current_leader.leader_id == -1 and p != q


def test_too_long_strings() -> None:
    with pytest.raises(WireError):
        ApiVersionsRequest(client_software_name="x" * 32_768).encode(3)
    w = CompactWriter()
    w.varint(32_769)
    w += b"x" * 40_000
    with pytest.raises(WireError):
        CompactReader(bytes(w)).string()


def test_tables_by_key() -> None:
    assert REQUESTS.keys() == RESPONSES.keys() and len(REQUESTS) == 59
    for key in REQUESTS:
        assert REQUESTS[key].API_KEY == RESPONSES[key].API_KEY == key
        assert REQUESTS[key].MAX_VERSION == RESPONSES[key].MAX_VERSION
        assert REQUESTS[key].FLEXIBLE_FROM == RESPONSES[key].FLEXIBLE_FROM


HUGE = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f", b"\xff\xff\xff\xfe", b"\x00\x00\x00\x10"]


@pytest.mark.parametrize("table", [REQUESTS, RESPONSES])
@pytest.mark.parametrize("piece", HUGE)
def test_lengths_on_the_wire_take_no_memory(table: dict[int, type[Message]], piece: bytes) -> None:
    """1,000 bytes that claim to be gigabytes take no more than what 1,000 bytes can hold."""
    data: Any = (piece * 1000)[:1000]
    tracemalloc.start()
    try:
        for message_class in table.values():
            for version in range(message_class.MIN_VERSION, message_class.MAX_VERSION + 1):
                with suppress(WireError):
                    message_class.decode(data, version)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
