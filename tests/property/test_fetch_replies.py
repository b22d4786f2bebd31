"""Answers to a follower's fetch, read while they come: what was written is read, and what lies ends with one exception."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.pyx.net.fetchreply import Answer, Part, read_answer
from penstock.pyx.wire.header import encode_response
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import FetchResponse

VERSION = 17
RECORDS_MAX = 1 << 20
GOLDEN = Path(__file__).parents[1] / "golden" / "wire_java.hex"
QUICK = settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)

int16, int32, int64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))
EPOCH_ENDS = st.builds(FetchResponse.EpochEndOffset, epoch=int32, end_offset=int64)
PARTITIONS = st.builds(
    FetchResponse.PartitionData,
    partition_index=int32,
    error_code=int16,
    high_watermark=int64,
    last_stable_offset=int64,
    log_start_offset=int64,
    diverging_epoch=EPOCH_ENDS,
    current_leader=st.builds(FetchResponse.LeaderIdAndEpoch, leader_id=int32, leader_epoch=int32),
    aborted_transactions=st.none()
    | st.lists(st.builds(FetchResponse.AbortedTransaction, producer_id=int64, first_offset=int64), max_size=3),
    preferred_read_replica=int32,
    records=st.none() | st.binary(max_size=300),
    removed_below=int64,
)
TOPICS = st.builds(
    FetchResponse.FetchableTopicResponse,
    topic_id=st.binary(min_size=16, max_size=16),
    partitions=st.lists(PARTITIONS, max_size=3),
)
ENDPOINTS = st.builds(FetchResponse.NodeEndpoint, node_id=int32, host=st.text(max_size=5), port=int32)
ANSWERS = st.builds(
    FetchResponse,
    throttle_time_ms=int32,
    error_code=int16,
    session_id=int32,
    responses=st.lists(TOPICS, max_size=3),
    node_endpoints=st.lists(ENDPOINTS, max_size=2),
)
PIECES = st.sampled_from([1, 2, 7, 64, 1 << 20])


def framed(answer: FetchResponse, correlation_id: int = 5) -> bytes:
    """As a broker sends it."""
    frame = encode_response(answer, VERSION, correlation_id)
    return struct.pack(">i", len(frame)) + frame


def wanted(answer: FetchResponse, correlation_id: int = 5) -> Answer:
    """What has to be read of it, by the codec of the wire tables."""
    parts = [
        Part(
            topic.topic_id,
            one.partition_index,
            one.error_code,
            one.high_watermark,
            one.log_start_offset,
            bytes(one.records or b""),
            (one.diverging_epoch.epoch, one.diverging_epoch.end_offset) if one.diverging_epoch.end_offset >= 0 else None,
            one.removed_below,
        )
        for topic in answer.responses
        for one in topic.partitions
    ]
    return Answer(correlation_id, answer.error_code, answer.session_id, parts)


@QUICK
@given(ANSWERS, PIECES)
def test_reads_what_was_written_however_it_comes(answer: FetchResponse, piece_bytes: int) -> None:
    assert read_answer(framed(answer), piece_bytes=piece_bytes, records_max=RECORDS_MAX) == wanted(answer)


@QUICK
@given(ANSWERS, PIECES, st.data())
def test_an_answer_that_is_cut_short_is_not_whole(answer: FetchResponse, piece_bytes: int, data: Any) -> None:
    frame = framed(answer)
    with pytest.raises(EOFError):
        read_answer(frame[: data.draw(st.integers(0, len(frame) - 1))], piece_bytes=piece_bytes, records_max=RECORDS_MAX)


@settings(QUICK, max_examples=600)
@given(ANSWERS, PIECES, st.data())
def test_an_answer_that_lies_is_refused_or_read_as_the_wire_tables_read_it(
    answer: FetchResponse, piece_bytes: int, data: Any
) -> None:
    """Bytes are changed, taken out and put in; the size in front stays right, or doesn't."""
    frame = bytearray(framed(answer))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        put = data.draw(st.sampled_from([b"", b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff\x0f"]))
        frame[at : at + data.draw(st.integers(0, 2))] = put
    if len(frame) > 4 and data.draw(st.booleans()):
        struct.pack_into(">i", frame, 0, len(frame) - 4)
    try:
        found = read_answer(bytes(frame), piece_bytes=piece_bytes, records_max=RECORDS_MAX)
    except (EOFError, ValueError):
        return
    assert len(frame) == 4 + struct.unpack_from(">i", frame)[0]
    assert sum(len(part.records) for part in found.parts) <= len(frame)
    try:
        read = FetchResponse.decode(bytes(frame[9:]), VERSION)
    except WireError:
        return  # of what isn't read here, text that isn't UTF-8 for example
    if frame[8] == 0:
        assert found == wanted(read, struct.unpack_from(">i", frame, 4)[0])


@pytest.mark.parametrize("records", [1 << 20, (1 << 31) - 60])
def test_a_length_of_records_beyond_the_bound_ends_the_answer_before_they_come(records: int) -> None:
    head = struct.pack(">ibihib", 5, 0, 0, 0, 77, 2) + bytes(16) + b"\x02" + struct.pack(">ihqqqbi", 0, 0, 0, 0, 0, 0, -1)
    length, raw = bytearray(), records + 1
    while raw >= 0x80:
        length.append(raw & 0x7F | 0x80)
        raw >>= 7
    frame = struct.pack(">i", (1 << 31) - 1) + head + bytes(length) + bytes([raw])
    with pytest.raises(ValueError, match="no Fetch answer"):
        read_answer(frame, piece_bytes=1, records_max=(1 << 20) - 1)


@pytest.mark.parametrize("at", range(4))
def test_a_count_of_what_cannot_be_there_ends_the_answer(at: int) -> None:
    """Topics, partitions, aborted transactions, tags: two thousand million of each."""
    many = b"\xff\xff\xff\xff\x07"
    parts = [
        struct.pack(">ibihi", 5, 0, 0, 0, 77),
        b"\x02" + bytes(16),
        b"\x02" + struct.pack(">ihqqq", 0, 0, 0, 0, 0),
        b"\x00" + struct.pack(">i", -1) + b"\x00",
    ]
    frame = b"".join(parts[: at + 1]) + many + bytes(1000)
    with pytest.raises(ValueError, match="no Fetch answer"):
        read_answer(struct.pack(">i", len(frame)) + frame, piece_bytes=1 << 20, records_max=RECORDS_MAX)


def test_what_is_no_records_is_bounded() -> None:
    """A leader that sends aborted transactions, or tags, for ever isn't kept in memory."""
    head = struct.pack(">ibihib", 5, 0, 0, 0, 77, 2) + bytes(16) + b"\x02" + struct.pack(">ihqqq", 0, 0, 0, 0, 0)
    aborted = b"\xff\xff\xff\x07" + bytes(17) * 30_000
    frame = struct.pack(">i", (1 << 31) - 1) + head + aborted
    with pytest.raises(ValueError, match="no Fetch answer"):
        read_answer(frame, piece_bytes=1 << 16, records_max=RECORDS_MAX)


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_reads_the_answers_of_apache_kafka(piece_bytes: int) -> None:
    lines = [line.split(" ") for line in GOLDEN.read_text().splitlines() if line.startswith(f"FetchResponse {VERSION} ")]
    assert {kind for _, _, kind, _ in lines} >= {"default", "full"}
    for _, _, _, content in lines:
        body = struct.pack(">ib", 5, 0) + bytes.fromhex(content)
        frame = struct.pack(">i", len(body)) + body
        read = FetchResponse.decode(bytes.fromhex(content), VERSION)
        assert read_answer(frame, piece_bytes=piece_bytes, records_max=RECORDS_MAX) == wanted(read)
