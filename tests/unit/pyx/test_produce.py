"""Produce in place: every version's layout, and what is refused."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import marker, records, split
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import ProduceRequest, ProduceResponse
from support.dataplane import Broker, Peer, api_versions, batch, forget_all, lead, produce, produced, topic_id
from support.logs import LOGS
from support.messagesets import Message, pack_set

VERSIONS = range(14)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("produce")
    for version in VERSIONS:
        lead(folder, f"v{version}")
        lead(folder, f"acks0-v{version}")
    for name in ("orders", "several", "queue", "turns", "unanswered", "small", "time", "sequence"):
        lead(folder, name, partitions=3, **({"max_message_bytes": 1000} if name == "small" else {}))
    lead(folder, "stamped", log_append_time=1)
    lead(folder, "compacted", cleanup_compact=1)
    for version, magic in product(range(3), range(2)):
        lead(folder, f"sets-{version}-{magic}")
        lead(folder, f"kept-{version}-{magic}", message_magic=magic)
    lead(folder, "batches-0")
    lead(folder, "batches-2")
    lead(folder, "__consumer_offsets")
    lead(folder, "__transaction_state")
    with Broker() as made:
        yield made
    forget_all()


@pytest.fixture
def peer(served: Broker) -> Iterator[Peer]:
    with served.connect() as made:
        yield made


def stored(name: str, index: int = 0) -> list[bytes | None]:
    """The values in a partition."""
    raw = LOGS.read(name, index, 0, 1 << 24)
    return [record.value for one in split(raw) for record in records(one)]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_appends_and_answers(peer: Peer, version: int) -> None:
    name = f"v{version}"
    for first in (0, 3):
        answer = peer.ask(produce(name, batch([b"a", b"b", b"c"]), version), version, ProduceResponse)
        one = produced(answer)
        assert (one.index, one.error_code, one.base_offset) == (0, 0, first)
        assert one.log_append_time_ms == -1
        assert one.log_start_offset == (0 if version >= 5 else -1)
        assert (one.record_errors, one.error_message, answer.throttle_time_ms) == ([], None, 0)
        topic = answer.responses[0]
        assert (topic.topic_id == topic_id(name)) if version >= 13 else (topic.name == name)
    assert stored(name) == [b"a", b"b", b"c"] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_each_versions_bytes_are_exactly_the_codecs(peer: Peer, version: int) -> None:
    request = produce(f"v{version}", batch([b"x"]), version)
    request.topic_data.append(request.topic_data[0])
    request.topic_data.append(ProduceRequest.TopicProduceData(name="none", topic_id=b"?" * 16))
    peer.send(encode_request(request, version, 1, None))
    frame = peer.receive()
    body = frame[5:] if version >= 9 else frame[4:]
    assert ProduceResponse.decode(body, version).encode(version) == body


@pytest.mark.parametrize("version", VERSIONS)
def test_acks_0_has_no_answer(peer: Peer, version: int) -> None:
    name = f"acks0-v{version}"
    peer.send(encode_request(produce(name, batch([b"a"]), version, acks=0), version, 1, "c"))
    answer = peer.ask(produce(name, batch([b"b"]), version, acks=1), version, ProduceResponse)
    assert produced(answer).base_offset == 1


@pytest.mark.parametrize("version", [3, 9, 13])
def test_acks_0_with_an_error_closes(peer: Peer, version: int) -> None:
    peer.send(api_versions(1))
    peer.send(encode_request(produce("nowhere", batch([b"a"]), version, acks=0), version, 2, "c"))
    peer.send(api_versions(3))
    assert peer.receive()[:4] == struct.pack(">i", 1)
    assert peer.has_ended()


@pytest.mark.parametrize("version", VERSIONS)
def test_wrong_acks_are_refused(peer: Peer, version: int) -> None:
    for acks in (-2, 2, 32767):
        one = produced(peer.ask(produce("orders", batch([b"a"]), version, acks), version, ProduceResponse))
        assert (one.error_code, one.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert stored("orders") == []


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_and_partitions_that_are_not_here(peer: Peer, version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = unknown if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    asked = [("nowhere", 0, topic), ("orders", 3, unknown), ("orders", -1, unknown), ("", 0, topic)]
    for name, index, expected in asked:
        request = produce(name, batch([b"a"]), version, index=index)
        one = produced(peer.ask(request, version, ProduceResponse))
        assert (one.index, one.error_code, one.base_offset) == (index, expected, -1)


@pytest.mark.parametrize("version", [3, 8, 12, 13])
@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_the_brokers_own(peer: Peer, name: str, version: int) -> None:
    one = produced(peer.ask(produce(name, batch([b"a"]), version), version, ProduceResponse))
    assert one.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert stored(name) == []


def test_several_topics_and_partitions_fail_one_by_one(peer: Peer) -> None:
    bad = bytearray(batch([b"corrupt"]))
    bad[-1] ^= 1
    part = ProduceRequest.PartitionProduceData
    request = ProduceRequest(
        acks=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="several",
                partition_data=[
                    part(index=0, records=batch([b"a"])),
                    part(index=1, records=bytes(bad)),
                    part(index=2, records=None),
                    part(index=7, records=batch([b"b"])),
                ],
            ),
            ProduceRequest.TopicProduceData(name="nowhere", partition_data=[part(index=0, records=batch([b"c"]))]),
            ProduceRequest.TopicProduceData(name="several", partition_data=[part(index=2, records=batch([b"d"]))]),
        ],
    )
    answer = peer.ask(request, 12, ProduceResponse)
    codes = [[one.error_code for one in topic.partition_responses] for topic in answer.responses]
    assert codes == [
        [0, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [0],
    ]
    assert [stored("several", index) for index in range(3)] == [[b"a"], [], [b"d"]]


def test_zstd_needs_version_7(peer: Peer) -> None:
    zstd = batch([b"z" * 100], codec=4)
    old = produced(peer.ask(produce("orders", zstd, 6, index=1), 6, ProduceResponse))
    new = produced(peer.ask(produce("orders", zstd, 7, index=1), 7, ProduceResponse))
    assert (old.error_code, new.error_code) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0)
    assert stored("orders", 1) == [b"z" * 100]


def test_batches_above_the_limit_are_refused(peer: Peer) -> None:
    one = produced(peer.ask(produce("small", batch([b"x" * 2000]), 9), 9, ProduceResponse))
    assert one.error_code == ErrorCode.MESSAGE_TOO_LARGE


def message_set(magic: int, *values: bytes) -> bytes:
    return pack_set(magic, [Message(i, b"k", value, 5) for i, value in enumerate(values)])


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("magic", range(2))
@pytest.mark.parametrize("stored_as", ["sets", "kept"])
def test_the_oldest_versions_bring_message_sets(peer: Peer, version: int, magic: int, stored_as: str) -> None:
    name = f"{stored_as}-{version}-{magic}"
    for first in (0, 2):
        request = produce(name, message_set(magic, b"a", b"b"), version)
        one = produced(peer.ask(request, version, ProduceResponse))
        assert (one.error_code, one.base_offset) == (0, first)
    assert stored(name) == [b"a", b"b"] * 2
    assert {raw.magic for raw in split(LOGS.read(name, 0, 0, 1 << 20))} == {magic if stored_as == "kept" else 2}


@pytest.mark.parametrize("version", [3, 7, 13])
def test_from_version_3_on_a_partition_gets_one_batch_of_magic_2(peer: Peer, version: int) -> None:
    end = LOGS.offsets("orders", 2).log_end
    cut = (b"x", batch([b"a"])[:11], batch([b"a"])[:30], batch([b"a"])[:-1])
    sets = (message_set(0, b"a"), message_set(1, b"a"))
    for wrong in (*cut, *sets, batch([b"a"]) * 2, batch([b"a"]) + message_set(1, b"a")):
        one = produced(peer.ask(produce("orders", wrong, version, index=2), version, ProduceResponse))
        assert (one.error_code, one.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert LOGS.offsets("orders", 2).log_end == end


@pytest.mark.parametrize("version", [0, 2])
def test_the_oldest_versions_may_bring_a_batch_or_nothing(peer: Peer, version: int) -> None:
    name = f"batches-{version}"
    codes = [
        produced(peer.ask(produce(name, data, version), version, ProduceResponse)).error_code
        for data in (batch([b"a"]), batch([b"b"]) * 2, b"", None)
    ]
    assert codes == [0, ErrorCode.INVALID_RECORD, 0, ErrorCode.INVALID_RECORD]
    assert stored(name) == [b"a"]
    zstd = produced(peer.ask(produce(name, batch([b"a"], codec=4), version), version, ProduceResponse))
    assert zstd.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("version", [2, 7, 8, 9, 13])
@pytest.mark.parametrize("codec", [0, 1])
def test_records_without_keys_are_named(peer: Peer, version: int, codec: int) -> None:
    builder = BatchBuilder(codec)
    for key in (b"a", None, b"b", None):
        builder.append(key, b"v", 0)
    one = produced(peer.ask(produce("compacted", builder.build(), version), version, ProduceResponse))
    assert (one.error_code, one.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert [error.batch_index for error in one.record_errors] == ([1, 3] if version >= 8 else [])
    for error in one.record_errors:
        assert error.batch_index_error_message == one.error_message == "a record of a compacted topic needs a key"


@pytest.mark.parametrize("codec", [0, 3])
def test_records_from_the_future_are_named(peer: Peer, codec: int) -> None:
    builder = BatchBuilder(codec)
    for time in (5, 2**50, 6, 2**50):
        builder.append(b"k", b"v", time)
    one = produced(peer.ask(produce("orders", builder.build(), 9), 9, ProduceResponse))
    assert one.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in one.record_errors] == [1, 3]


def test_a_long_list_of_bad_records_is_cut(peer: Peer) -> None:
    builder = BatchBuilder()
    for _ in range(1000):
        builder.append(None, b"v", 0)
    one = produced(peer.ask(produce("compacted", builder.build(), 9), 9, ProduceResponse))
    assert [error.batch_index for error in one.record_errors] == list(range(16))


def test_an_error_says_what_is_wrong(peer: Peer) -> None:
    bad = bytearray(batch([b"corrupt"]))
    bad[-1] ^= 1
    one = produced(peer.ask(produce("orders", bytes(bad), 9), 9, ProduceResponse))
    assert (one.error_code, one.error_message) == (ErrorCode.CORRUPT_MESSAGE, "the checksum is wrong")
    assert one.record_errors == []


def test_control_batches_are_refused(peer: Peer) -> None:
    one = produced(peer.ask(produce("orders", marker(True, 1, 0, 0, 0), 9, index=2), 9, ProduceResponse))
    assert one.error_code == ErrorCode.INVALID_RECORD


def test_log_append_time_is_told(peer: Peer) -> None:
    one = produced(peer.ask(produce("stamped", batch([b"x"]), 9), 9, ProduceResponse))
    assert one.log_append_time_ms > 1_700_000_000_000


def test_a_repeated_sequence_gets_its_old_offset(peer: Peer) -> None:
    sent = [batch([b"s"], producer_id=5, producer_epoch=0, base_sequence=n) for n in (0, 1, 0, 1, 2, 9)]
    answers = [produced(peer.ask(produce("sequence", one, 9), 9, ProduceResponse)) for one in sent]
    assert [one.base_offset for one in answers] == [0, 1, 0, 1, 2, -1]
    assert answers[-1].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_produce_behind_a_waiting_request_is_appended_at_once_and_answered_in_order() -> None:
    with Broker(lambda request: None) as served, served.connect() as peer:
        peer.send(api_versions(1))
        for n in range(5):
            peer.send(encode_request(produce("queue", batch([b"%d" % n]), 9), 9, 10 + n, "c"))
        (waiting,) = served.wait_held(1)
        with served.connect() as other:
            while LOGS.offsets("queue", 0).log_end < 5:
                assert produced(other.ask(produce("turns", batch([b"x"]), 9), 9, ProduceResponse)).error_code == 0
        assert peer.is_silent()
        served.plane.answer(waiting.token, waiting.frame[4:8])
        order = [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(6)]
        assert order == [1, 10, 11, 12, 13, 14]


def test_many_batches_in_flight_keep_their_order(peer: Peer) -> None:
    for n in range(300):
        peer.send(encode_request(produce("turns", batch([b"%d" % n] * 3), 9, index=1), 9, n, "c"))
    for n in range(300):
        frame = peer.receive()
        assert frame[:4] == struct.pack(">i", n)
        assert produced(ProduceResponse.decode(frame[5:], 9)).base_offset == 3 * n
    assert stored("turns", 1) == [b"%d" % n for n in range(300) for _ in range(3)]


def test_acks_0_then_the_end_loses_nothing(served: Broker) -> None:
    with served.connect() as peer:
        for n in range(2000):
            peer.send(encode_request(produce("unanswered", batch([b"%d" % n]), 9, acks=0), 9, n, "c"))
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.has_ended()
    assert LOGS.offsets("unanswered", 0).log_end == 2000


def test_a_large_batch(peer: Peer) -> None:
    values = [bytes([n]) * 10_000 for n in range(90)]
    for n in range(4):
        one = produced(peer.ask(produce("turns", batch(values), 9, index=2), 9, ProduceResponse))
        assert (one.error_code, one.base_offset) == (0, 90 * n)
    assert stored("turns", 2)[:90] == values


def test_a_request_cut_inside_appends_nothing(served: Broker) -> None:
    request = encode_request(produce("time", batch([b"a", b"b"]), 9), 9, 1, "c")
    start = len(encode_request(ProduceRequest(), 9, 1, "c")) - 8
    for cut in range(start, len(request)):
        with served.connect() as peer:
            peer.send(request[:cut])
            assert peer.has_ended()
    assert stored("time") == []


def test_old_clients_hear_of_a_full_disk_as_of_a_moved_leader(peer: Peer, tmp_path: Path) -> None:
    lead(tmp_path, "full")
    LOGS.set_space(str(tmp_path), 2)
    codes = [
        produced(peer.ask(produce("full", batch([b"a"]), version), version, ProduceResponse)).error_code
        for version in (0, 3, 4, 13)
    ]
    LOGS.set_space(str(tmp_path), 0)
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 + [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_what_was_appended_is_counted(served: Broker, peer: Peer) -> None:
    before = served.plane.counters()
    records = batch([b"counted"])
    peer.ask(produce("time", records, 9, index=1), 9, ProduceResponse)
    peer.ask(produce("nowhere", records, 9), 9, ProduceResponse)
    after = served.plane.counters()
    grown = {name: after[name] - before[name] for name in ("produce_batches", "produce_bytes", "produce_errors")}
    assert grown == {"produce_batches": 1, "produce_bytes": len(records), "produce_errors": 1}
