"""Fetch in place: every version's layout, limits, long poll, isolation, epochs."""

from __future__ import annotations

import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.record.rawbatch import marker, split
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import FetchRequest, FetchResponse, ProduceResponse
from support.dataplane import (
    Broker,
    Peer,
    api_versions,
    batch,
    fetch,
    fetch_topic,
    fetched,
    lead,
    produce,
    produced,
    topic_id,
    transactional,
    values,
)
from support.harness import topic_name
from support.logs import LOGS
from support.patience import until

VERSIONS = range(4, 19)  # of today's batches; older ones: test_fetch_old.py
LONG_MS = 20_000


@pytest.fixture
def topic(folder: Path) -> str:
    """An empty topic of this test's own with two partitions."""
    name = topic_name("fetch")
    lead(folder, name, partitions=2)
    return name


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_reads(peer: Peer, version: int) -> None:
    for offset in (0, 6, 7, 20):
        answer = peer.ask(fetch("read", offset, version), version, FetchResponse)
        one = fetched(answer)
        assert (one.partition_index, one.error_code, one.high_watermark) == (0, 0, 20)
        assert one.last_stable_offset == 20
        assert one.log_start_offset == (0 if version >= 5 else -1)
        assert (one.aborted_transactions, one.preferred_read_replica) == (None, -1)
        assert (answer.error_code, answer.session_id, answer.throttle_time_ms) == (0, 0, 0)
        first = offset // 2
        assert values(one) == [b"%d" % n for n in range(first, 10) for _ in range(2)]
        topic = answer.responses[0]
        assert (topic.topic_id == topic_id("read")) if version >= 13 else (topic.topic == "read")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_versions_bytes_are_exactly_the_codecs(peer: Peer, version: int) -> None:
    request = fetch("read", 3, version, isolation_level=1)
    request.topics.append(fetch("large", 0, version).topics[0])
    request.topics.append(fetch("nowhere", 0, version).topics[0])
    request.topics.append(FetchRequest.FetchTopic(topic="read", topic_id=topic_id("read")))
    peer.send(encode_request(request, version, 1, None))
    frame = peer.receive()
    body = frame[5:] if version >= 12 else frame[4:]
    assert FetchResponse.decode(body, version).encode(version) == body


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_produced_is_fetched(peer: Peer, topic: str, version: int) -> None:
    sent = [b"a" * 10, b"b" * 30_000]
    for value in sent:
        assert produced(peer.ask(produce(topic, batch([value]), 12), 12, ProduceResponse)).error_code == 0
    assert values(fetched(peer.ask(fetch(topic, 0, version), version, FetchResponse))) == sent
    assert values(fetched(peer.ask(fetch(topic, 1, version), version, FetchResponse))) == sent[1:]


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 18])
def test_errors_by_partition_are_answered_at_once(peer: Peer, version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    nowhere = unknown if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    for name, index, offset, expected in [
        ("nowhere", 0, 0, nowhere),
        ("read", 9, 0, unknown),
        ("read", -1, 0, unknown),
        ("read", 0, 21, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("read", 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
    ]:
        request = fetch(name, offset, version, index=index, max_wait_ms=LONG_MS)
        one = fetched(peer.ask(request, version, FetchResponse))
        assert (one.partition_index, one.error_code, one.high_watermark) == (index, expected, -1)
        assert not one.records


def test_a_request_for_nothing_is_answered_at_once(peer: Peer) -> None:
    answer = peer.ask(FetchRequest(max_wait_ms=LONG_MS, min_bytes=1), 12, FetchResponse)
    assert (answer.responses, answer.error_code) == ([], 0)


# --- sessions, epochs -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [7, 12, 18])
@pytest.mark.parametrize(("session", "epoch"), [(0, 0), (0, -1), (5, 0), (5, -1)])
def test_a_full_request_has_a_session_if_it_wants_one(peer: Peer, version: int, session: int, epoch: int) -> None:
    request = fetch("read", 0, version, session_id=session, session_epoch=epoch)
    answer = peer.ask(request, version, FetchResponse)
    assert (answer.error_code, answer.session_id > 0) == (0, epoch == 0)
    assert values(fetched(answer))


@pytest.mark.parametrize("version", [7, 12, 18])
@pytest.mark.parametrize(("session", "epoch"), [(5, 1), (0, 1), (-1, 2**31 - 1)])
def test_an_incremental_request_is_told_to_start_again(peer: Peer, version: int, session: int, epoch: int) -> None:
    request = fetch("read", 20, version, max_wait_ms=LONG_MS, session_id=session, session_epoch=epoch)
    request.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic="large", topic_id=topic_id("large"), partitions=[0, 1])]
    answer = peer.ask(request, version, FetchResponse)
    assert (answer.error_code, answer.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    assert answer.responses == []


@pytest.mark.parametrize("version", [9, 12, 13, 18])
def test_leader_epochs_are_compared(peer: Peer, folder: Path, topic: str, version: int) -> None:
    LOGS.append(topic, 0, batch([b"x"]))
    lead(folder, topic, epoch=5)
    for epoch, expected in [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (-1, ErrorCode.NONE),
    ]:
        one = fetched(peer.ask(fetch(topic, 0, version, epoch=epoch), version, FetchResponse))
        assert one.error_code == expected


def test_a_log_that_parted_is_told_where(peer: Peer, folder: Path, topic: str) -> None:
    LOGS.append(topic, 0, batch([b"a", b"b"]))
    lead(folder, topic, epoch=4)
    LOGS.append(topic, 0, batch([b"c"]))
    for last_epoch, offset, expected in [(0, 2, None), (0, 3, (0, 2)), (2, 3, (0, 2)), (4, 3, None)]:
        request = fetch(topic, offset, 12)
        request.topics[0].partitions[0].last_fetched_epoch = last_epoch
        one = fetched(peer.ask(request, 12, FetchResponse))
        assert one.error_code == 0
        got = (one.diverging_epoch.epoch, one.diverging_epoch.end_offset)
        assert got == (expected or (-1, -1))
        if expected:
            assert not one.records


def test_a_replica_id_does_not_show_more(peer: Peer) -> None:
    one = fetched(peer.ask(fetch("read", 0, 11, replica_id=0), 11, FetchResponse))
    assert (one.high_watermark, len(values(one))) == (20, 20)
    request = fetch("read", 0, 15)
    request.replica_state = FetchRequest.ReplicaState(replica_id=3, replica_epoch=1)
    assert len(values(fetched(peer.ask(request, 15, FetchResponse)))) == 20


# --- limits ----------------------------------------------------------------------------------------------------------
def several(name: str, count: int, version: int, partition_max_bytes: int, **more: Any) -> FetchRequest:
    one = FetchRequest.FetchPartition
    asked = [one(partition=index, fetch_offset=0, partition_max_bytes=partition_max_bytes) for index in range(count)]
    return FetchRequest(topics=[fetch_topic(name, version, asked)], min_bytes=1, **more)


def counts(answer: FetchResponse) -> list[int]:
    return [len(values(one)) for topic in answer.responses for one in topic.partitions]


def test_the_first_batch_is_whole_whatever_the_limits(peer: Peer) -> None:
    for limits in [(0, 0), (1, 1), (1, 1 << 20), (1 << 20, 1)]:
        request = several("large", 3, 12, limits[0], max_bytes=limits[1])
        answer = peer.ask(request, 12, FetchResponse)
        assert counts(answer)[0] == 1 or limits == (1 << 20, 1)
        assert values(answer.responses[0].partitions[0])[0] == bytes([0]) * 100_000


def test_later_partitions_share_what_is_left_and_never_begin_cut(peer: Peer) -> None:
    answer = peer.ask(several("large", 3, 12, 250_000, max_bytes=320_000), 12, FetchResponse)
    assert counts(answer) == [2, 0, 0]
    answer = peer.ask(several("large", 3, 12, 250_000, max_bytes=720_000), 12, FetchResponse)
    assert counts(answer) == [2, 2, 2]
    sizes = [len(one.records or b"") for one in answer.responses[0].partitions]
    assert sum(sizes) <= 720_000


def test_the_brokers_own_limit(folder: Path, served: Broker) -> None:
    with Broker(fetch_max_bytes=150_000) as small, small.connect() as peer:
        answer = peer.ask(several("large", 3, 12, 1 << 20, max_bytes=1 << 30), 12, FetchResponse)
        assert counts(answer) == [1, 0, 0]


def test_an_empty_partition_before_does_not_take_the_first_batch(peer: Peer, topic: str) -> None:
    LOGS.append(topic, 1, batch([bytes(5000)]))
    answer = peer.ask(several(topic, 2, 12, 10, max_bytes=10), 12, FetchResponse)
    assert counts(answer) == [0, 1]


def test_records_are_the_bytes_of_the_log(peer: Peer) -> None:
    for offset in range(6):
        one = fetched(peer.ask(fetch("large", offset, 12, index=1), 12, FetchResponse))
        assert bytes(one.records or b"") == LOGS.read("large", 1, offset, 1 << 24)


def test_pipelined_large_answers_to_a_slow_reader(served: Broker) -> None:
    with served.connect(receive_buffer=8192) as peer:
        for n in range(30):
            peer.send(encode_request(fetch("large", n % 6, 12, index=2), 12, n, "c"))
            peer.send(api_versions(1000 + n))
        for n in range(30):
            frame = peer.receive()
            assert frame[:4] == struct.pack(">i", n)
            assert len(values(fetched(FetchResponse.decode(frame[5:], 12)))) == 6 - n % 6
            assert peer.receive()[:4] == struct.pack(">i", 1000 + n)


def test_a_reader_that_goes_away_in_the_middle(served: Broker) -> None:
    for _ in range(20):
        with served.connect(receive_buffer=4096) as peer:
            peer.send(encode_request(fetch("large", 0, 12), 12, 1, "c"))
            peer.socket.recv(1000)
    assert served.is_alive()


# --- isolation -------------------------------------------------------------------------------------------------------
def test_read_committed_ends_at_the_last_stable_offset_and_lists_what_was_aborted(peer: Peer, topic: str) -> None:
    def send(producer_id: int, sequence: int) -> None:
        record = b"%d" % producer_id
        LOGS.append(topic, 0, batch([record], **transactional(producer_id, sequence)))

    send(1, 0)  # offset 0
    send(2, 0)  # offset 1
    LOGS.append(topic, 0, marker(False, 1, 0, 0, 0))  # 2
    LOGS.append(topic, 0, marker(True, 2, 0, 0, 0))  # 3
    send(3, 0)  # 4, still open
    committed = fetched(peer.ask(fetch(topic, 0, 12, isolation_level=1), 12, FetchResponse))
    assert (committed.high_watermark, committed.last_stable_offset) == (5, 4)
    assert [raw.base_offset for raw in split(bytes(committed.records or b""))] == [0, 1, 2, 3]
    aborted = [(one.producer_id, one.first_offset) for one in committed.aborted_transactions or []]
    assert aborted == [(1, 0)]
    every = fetched(peer.ask(fetch(topic, 0, 12), 12, FetchResponse))
    assert [raw.base_offset for raw in split(bytes(every.records or b""))] == [0, 1, 2, 3, 4]
    assert every.aborted_transactions is None
    later = fetched(peer.ask(fetch(topic, 3, 12, isolation_level=1), 12, FetchResponse))
    assert later.aborted_transactions == []


def test_read_committed_is_woken_by_the_marker(served: Broker, topic: str) -> None:
    with served.connect() as reader:
        LOGS.append(topic, 0, batch([b"x"], **transactional(9, 0)))
        request = fetch(topic, 0, 12, max_wait_ms=LONG_MS, isolation_level=1)
        reader.send(encode_request(request, 12, 1, "c"))
        assert reader.is_silent()
        LOGS.append(topic, 0, marker(True, 9, 0, 0, 0))
        assert len(split(bytes(fetched(FetchResponse.decode(reader.receive()[5:], 12)).records or b""))) == 2


# --- waiting ---------------------------------------------------------------------------------------------------------
def test_a_fetch_waits_for_its_time_only(peer: Peer, topic: str) -> None:
    began = time.monotonic()
    one = fetched(peer.ask(fetch(topic, 0, 12, max_wait_ms=150), 12, FetchResponse))
    assert (one.error_code, one.records, one.high_watermark) == (0, b"", 0)
    assert time.monotonic() - began >= 0.14


@pytest.mark.parametrize("version", [4, 12, 18])
def test_a_waiting_fetch_is_woken_by_a_produce_of_any_thread(served: Broker, topic: str, version: int) -> None:
    readers = served.connect_each()
    writers = served.connect_each()
    try:
        for n, writer in enumerate(writers):
            for reader in readers:
                reader.send(encode_request(fetch(topic, n, version, max_wait_ms=LONG_MS), version, n, "c"))
            assert all(reader.is_silent(0.05) for reader in readers)
            writer.ask(produce(topic, batch([b"%d" % n]), 9), 9, ProduceResponse)
            for reader in readers:
                body = reader.receive()[5 if version >= 12 else 4 :]
                assert values(fetched(FetchResponse.decode(body, version))) == [b"%d" % n]
    finally:
        for peer in readers + writers:
            peer.socket.close()


def test_a_waiting_fetch_is_woken_by_the_control_plane(peer: Peer, topic: str) -> None:
    peer.send(encode_request(fetch(topic, 0, 12, max_wait_ms=LONG_MS), 12, 1, "c"))
    assert peer.is_silent()
    LOGS.append(topic, 0, batch([b"x"]))
    assert values(fetched(FetchResponse.decode(peer.receive()[5:], 12))) == [b"x"]


def test_a_waiting_fetch_learns_that_its_partition_was_stopped(served: Broker, peer: Peer, topic: str) -> None:
    waits = served.plane.counters()["fetch_waits"]
    peer.send(encode_request(fetch(topic, 0, 12, max_wait_ms=LONG_MS), 12, 1, "c"))
    until(lambda: served.plane.counters()["fetch_waits"] > waits, "a fetch that waits")
    LOGS.stop(topic, 0)
    one = fetched(FetchResponse.decode(peer.receive()[5:], 12))
    assert one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_min_bytes_are_gathered_over_partitions(served: Broker, topic: str) -> None:
    small = batch([bytes(300)])
    with served.connect() as reader:
        request = several(topic, 2, 12, 1 << 20, max_bytes=1 << 20, max_wait_ms=LONG_MS)
        request.min_bytes = 3 * len(small)
        reader.send(encode_request(request, 12, 1, "c"))
        for index in (0, 1):
            LOGS.append(topic, index, small)
            assert reader.is_silent(0.05)
        LOGS.append(topic, 0, small)
        assert counts(FetchResponse.decode(reader.receive()[5:], 12)) == [2, 1]


def test_min_bytes_that_never_come_end_with_the_time(peer: Peer) -> None:
    request = fetch("read", 0, 12, max_wait_ms=100, min_bytes=1 << 30)
    assert len(values(fetched(peer.ask(request, 12, FetchResponse)))) == 20


def test_requests_behind_a_waiting_fetch_keep_their_order(served: Broker, topic: str) -> None:
    with served.connect() as peer:
        peer.send(encode_request(fetch(topic, 0, 12, max_wait_ms=LONG_MS), 12, 1, "c"))
        peer.send(api_versions(2))
        peer.send(encode_request(fetch(topic, 0, 12, max_wait_ms=LONG_MS), 12, 3, "c"))
        assert peer.is_silent()
        # This append is the connection's own: it is done at once, and wakes the fetch before it.
        peer.send(encode_request(produce(topic, batch([b"own"]), 9), 9, 4, "c"))
        assert [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(4)] == [1, 2, 3, 4]


def test_what_waiting_fetches_hold_is_bounded(served: Broker, topic: str) -> None:
    """A request of 1.6 MB makes a job of eight times as much: behind such ones nothing is read until they are answered."""
    one = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    many = FetchRequest(max_wait_ms=10 * LONG_MS, min_bytes=1, topics=[fetch_topic(topic, 4, [one] * 100_000)])
    with served.connect() as peer:
        before = served.plane.counters()["requests_control"]
        for correlation_id in (1, 2):
            peer.send(encode_request(many, 4, correlation_id, "test"))
        peer.send(api_versions(3))
        assert peer.is_silent()
        assert served.plane.counters()["requests_control"] == before
        LOGS.append(topic, 0, batch([b"x"]))
        assert [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(3)] == [1, 2, 3]


def test_a_waiting_fetch_whose_client_went_is_forgotten(served: Broker, topic: str) -> None:
    before = served.plane.counters()["connections"]
    with served.connect() as peer:
        peer.send(encode_request(fetch(topic, 0, 12, max_wait_ms=2**31 - 1), 12, 1, "c"))
        assert peer.is_silent()
        peer.reset()
    end = time.monotonic() + 120
    while served.plane.counters()["connections"] > before:
        assert time.monotonic() < end
        time.sleep(0.005)
    LOGS.append(topic, 0, batch([b"x"]))
    assert served.is_alive()


def test_no_wake_up_is_lost(served: Broker, topic: str) -> None:
    """A producer and consumers on every thread pass one record at a time; a lost wake-up would take LONG_MS."""
    rounds = 150
    readers = served.connect_each() + served.connect_each()
    failures: list[str] = []

    def follow(peer: Peer) -> None:
        for n in range(rounds):
            request = fetch(topic, n, 12, max_wait_ms=LONG_MS)
            one = fetched(peer.ask(request, 12, FetchResponse))
            if not values(one):
                failures.append(f"nothing at {n}")
                return

    threads = [threading.Thread(target=follow, args=(peer,)) for peer in readers]
    for thread in threads:
        thread.start()
    with served.connect() as writer:
        for n in range(rounds):
            writer.ask(produce(topic, batch([b"%d" % n]), 9), 9, ProduceResponse)
    for thread in threads:
        thread.join()
    for peer in readers:
        peer.socket.close()
    assert failures == []


def test_many_waiters_are_served(served: Broker, topic: str) -> None:
    peers = [served.connect() for _ in range(300)]
    before = served.plane.counters()["requests_fetch"]
    for peer in peers:
        peer.send(encode_request(fetch(topic, 0, 12, max_wait_ms=LONG_MS), 12, 1, "c"))
    until(lambda: served.plane.counters()["requests_fetch"] == before + len(peers), "all of them to wait")
    LOGS.append(topic, 0, batch([b"for all"]))
    for peer in peers:
        assert values(fetched(FetchResponse.decode(peer.receive()[5:], 12))) == [b"for all"]
        peer.socket.close()


def test_stop_answers_waiting_fetches(folder: Path, topic: str) -> None:
    with Broker() as served, served.connect() as peer:
        peer.send(encode_request(fetch(topic, 0, 12, max_wait_ms=LONG_MS), 12, 1, "c"))
        until(lambda: served.plane.counters()["fetch_waits"] > 0, "a fetch that waits")
        served.plane.stop()
        assert fetched(FetchResponse.decode(peer.receive()[5:], 12)).error_code == 0
        assert peer.has_ended()
