"""Peers that shut their sending half down and then read: every answer that they are owed comes, then the end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.pyx.net.border import Request
from penstock.pyx.record.rawbatch import split
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import FetchResponse, ProduceResponse
from support.dataplane import (
    Broker,
    Peer,
    api_versions,
    batch,
    echo,
    fetch,
    fetched,
    lead,
    produce,
    produced,
    transactional,
    values,
)
from support.harness import topic_name
from support.logs import LOGS
from support.pagecache import drop_cache
from support.patience import until

FOR_EVER_MS = 2**31 - 1
PRODUCE = 0


@pytest.fixture
def topic(folder: Path) -> str:
    """An empty topic of this test's own."""
    name = topic_name("half")
    lead(folder, name)
    return name


def asked(request: Message, version: int, number: int) -> bytes:
    return encode_request(request, version, number, "test")


def number_of(frame: bytes) -> int:
    """The correlation id of an answer."""
    return int(struct.unpack(">i", frame[:4])[0])


def numbers(peer: Peer, count: int) -> list[int]:
    """Of the next answers."""
    return [number_of(peer.receive()) for _ in range(count)]


def hold(request: Request) -> None:
    """A control plane that answers later."""


@pytest.mark.parametrize("count", [1, 2, 12, 63, 64, 65, 500])
def test_pipelined_produces(served: Broker, topic: str, count: int) -> None:
    with served.connect() as peer:
        peer.send_all([asked(produce(topic, batch([b"%d" % n]), 9), 9, n) for n in range(count)])
        peer.end_sending()
        offsets = []
        for n in range(count):
            number, answer = decode_response(ProduceResponse, peer.receive(), 9)
            assert number == n
            offsets.append(produced(answer).base_offset)
        assert offsets == list(range(count))
        assert peer.has_ended()


def test_a_long_poll_whose_records_come_later(served: Broker, topic: str) -> None:
    with served.connect() as peer:
        peer.send(asked(fetch(topic, 0, 12, max_wait_ms=FOR_EVER_MS), 12, 1))
        peer.end_sending()
        assert peer.is_silent()
        LOGS.append(topic, 0, batch([b"late"]))
        _, answer = decode_response(FetchResponse, peer.receive(), 12)
        assert values(fetched(answer)) == [b"late"]
        assert peer.has_ended()


def test_a_long_poll_whose_time_passes(served: Broker, topic: str) -> None:
    with served.connect() as peer:
        peer.send(asked(fetch(topic, 0, 12, max_wait_ms=50), 12, 1))
        peer.end_sending()
        _, answer = decode_response(FetchResponse, peer.receive(), 12)
        assert values(fetched(answer)) == []
        assert peer.has_ended()


@pytest.mark.parametrize("count", [1, 20, 64, 300])
def test_answers_of_the_control_plane(count: int) -> None:
    """More than a connection may have unanswered, too: the rest is read once there is room."""
    with Broker(hold) as served, served.connect() as peer:
        peer.send_all([api_versions(n) for n in range(count)])
        peer.end_sending()
        for n in range(count):
            request = served.wait_held(n + 1)[n]
            served.plane.answer(request.token, echo(request))
        assert numbers(peer, count) == list(range(count))
        assert peer.has_ended()


def test_requests_of_all_kinds_are_answered_in_order(topic: str) -> None:
    with Broker(hold) as served, served.connect() as peer:
        peer.send_all(
            [
                asked(fetch(topic, 0, 12, max_wait_ms=FOR_EVER_MS), 12, 1),
                api_versions(2),
                asked(produce(topic, batch([b"x"]), 9, acks=0), 9, 3),
                asked(fetch(topic, 2, 12, max_wait_ms=FOR_EVER_MS), 12, 4),
                api_versions(5),
                asked(produce(topic, batch([b"y"]), 9), 9, 6),
                asked(produce(topic, batch([b"z"]), 9), 9, 7),
            ]
        )
        peer.end_sending()
        for request in reversed(served.wait_held(2)):
            served.plane.answer(request.token, echo(request))
        assert numbers(peer, 6) == [1, 2, 4, 5, 6, 7]
        assert peer.has_ended()
    assert LOGS.offsets(topic, 0).log_end == 3


def test_a_produce_that_waits_for_its_coordinator(topic: str) -> None:
    records = batch([b"begins"], **transactional(4001, 0))
    with Broker(hold) as served, served.connect() as peer:
        peer.send(asked(produce(topic, records, 12, transactional_id="t"), 12, 1))
        peer.send(asked(produce(topic, batch([b"follows"]), 12), 12, 2))
        peer.end_sending()
        for request in served.wait_held(2):
            assert request.handed_over
            answer = served.plane.append_produce(request, {}, served.plane.unverified(request).guard)
            assert answer is not None
            served.plane.answer_produce(request, answer)
        assert numbers(peer, 2) == [1, 2]
        assert peer.has_ended()
    assert LOGS.offsets(topic, 0).log_end == 2


def test_a_diverted_produce(topic: str) -> None:
    with Broker(hold) as served, served.connect() as peer:
        served.plane.divert(PRODUCE, True)
        peer.send(asked(produce(topic, batch([b"x"]), 9), 9, 1))
        peer.end_sending()
        (request,) = served.wait_held(1)
        served.plane.resume(request)
        assert numbers(peer, 1) == [1]
        assert peer.has_ended()
    assert LOGS.offsets(topic, 0).log_end == 1


@pytest.mark.parametrize("version", [3, 12])
def test_a_fetch_of_cold_pages(folder: Path, topic: str, version: int) -> None:
    for n in range(20):
        LOGS.append(topic, 0, batch([bytes([n]) * 100_000]))
    LOGS.flush(topic, 0)
    with Broker(threads=1) as served, served.connect() as peer:
        drop_cache(folder / f"{topic}-0" / "00000000000000000000.log")
        peer.send_all([asked(fetch(topic, 0, version, partition_max_bytes=1 << 24), version, n) for n in (1, 2)])
        peer.end_sending()
        for n in (1, 2):
            number, answer = decode_response(FetchResponse, peer.receive(), version)
            assert number == n
            assert len(split(bytes(fetched(answer).records or b""))) == 20 or version < 4
        assert peer.has_ended()


def test_answers_larger_than_what_the_peer_takes_at_once() -> None:
    with (
        Broker(lambda request: request.frame[4:8] + bytes(400_000)) as served,
        served.connect(receive_buffer=4096) as peer,
    ):
        peer.send_all([api_versions(n) for n in range(150)])
        peer.end_sending()
        assert numbers(peer, 150) == list(range(150))
        assert peer.has_ended()


def test_requests_that_wait_for_room_in_the_control_queue() -> None:
    served = Broker(queued_bytes_max=1 << 20)
    served.plane.start()
    try:
        peers = [served.connect() for _ in range(20)]
        for peer in peers:
            peer.send_all([api_versions(n) + bytes(60_000) for n in range(3)])
            peer.end_sending()
        until(lambda: served.plane.counters()["stalls"] > 0, "somebody who has to wait")
        answered = 0

        def answer_all() -> bool:
            nonlocal answered
            for request in served.plane.take_requests():
                served.plane.answer(request.token, request.frame[4:8])
                answered += 1
            return answered == 60

        until(answer_all, "every request to come")
        for peer in peers:
            assert numbers(peer, 3) == [0, 1, 2]
            assert peer.has_ended()
            peer.socket.close()
        until(lambda: served.plane.counters()["connections"] == 0, "all to be closed")
        assert served.plane.counters()["input_bytes"] == 0
    finally:
        served.plane.stop()


def test_a_frame_that_came_in_part_is_dropped(topic: str) -> None:
    """It keeps no answer from its peer, and no peer from its end."""
    frame = asked(produce(topic, batch([b"x"]), 9), 9, 2)
    # It is late only if this test gets no processor for so long between its sending and the end of that.
    with Broker(hold, frame_ms=1_500) as served, served.connect() as peer:
        peer.send(api_versions(1))
        peer.socket.sendall(struct.pack(">i", len(frame)) + frame[:-1])
        peer.end_sending()
        (request,) = served.wait_held(1)
        assert peer.is_silent(2)
        served.plane.answer(request.token, echo(request))
        assert numbers(peer, 1) == [1]
        assert peer.has_ended()
        assert served.plane.counters()["closed_slow_request"] == 0
    assert LOGS.offsets(topic, 0).log_end == 0


def test_a_malformed_frame_comes_after_the_answers_before_it() -> None:
    with Broker(hold) as served, served.connect() as peer:
        peer.send(api_versions(1))
        peer.socket.sendall(struct.pack(">i", -1))
        peer.end_sending()
        (request,) = served.wait_held(1)
        served.plane.answer(request.token, echo(request))
        assert numbers(peer, 1) == [1]
        assert peer.has_ended()


def test_what_waits_is_answered_when_the_broker_stops(topic: str) -> None:
    with Broker(hold) as served:
        waiting, asking = served.connect(), served.connect()
        waiting.send(asked(fetch(topic, 0, 12, max_wait_ms=FOR_EVER_MS), 12, 1))
        asking.send(api_versions(2))
        for peer in (waiting, asking):
            peer.end_sending()
        (request,) = served.wait_held(1)
        until(lambda: served.plane.counters()["fetch_waits"] > 0, "a fetch that waits")
        assert waiting.is_silent()
        served.plane.answer(request.token, echo(request))
        served.plane.stop()
        for peer, number in ((waiting, 1), (asking, 2)):
            assert numbers(peer, 1) == [number]
            assert peer.has_ended()
            peer.socket.close()


def test_a_peer_that_has_gone_is_noticed_though_it_had_ended_its_half_before(topic: str) -> None:
    with Broker(hold) as served:
        for request in (asked(fetch(topic, 0, 12, max_wait_ms=FOR_EVER_MS), 12, 1), api_versions(2)):
            peer = served.connect()
            peer.send(request)
            peer.end_sending()
            until(lambda: served.plane.counters()["connections"] == 1, "the connection to be taken")
            assert peer.is_silent()
            peer.reset()
            until(lambda: served.plane.counters()["connections"] == 0, "the end of the one that has gone")


def test_a_peer_that_has_gone_is_noticed_by_the_first_answer(topic: str) -> None:
    """It closed its socket, which looks as if it had shut half of it down; what it had asked for besides is dropped."""
    with Broker() as served:
        with served.connect() as peer:
            peer.send(asked(fetch(topic, 0, 12, max_wait_ms=FOR_EVER_MS), 12, 1))
            peer.send(asked(fetch(topic, 1, 12, max_wait_ms=FOR_EVER_MS), 12, 2))
            assert peer.is_silent()
        LOGS.append(topic, 0, batch([b"x"]))
        until(lambda: served.plane.counters()["connections"] == 0, "the end of the one that has gone")


def test_a_long_poll_is_kept_no_longer_than_an_idle_connection(topic: str) -> None:
    """Nothing else would show that the peer is gone. One that hasn't ended its half waits on."""
    with Broker(hold, max_idle_ms=1_500) as served, served.connect() as whole:
        whole.send(api_versions(1))
        for request in (asked(fetch(topic, 0, 12, max_wait_ms=FOR_EVER_MS), 12, 1), api_versions(2)):
            with served.connect() as peer:
                peer.send(request)
                peer.end_sending()
                assert peer.has_ended()
        assert served.plane.counters()["closed_idle"] == 2
        first = served.wait_held(1)[0]
        served.plane.answer(first.token, echo(first))
        assert numbers(whole, 1) == [1]


def test_a_peer_that_takes_no_answer_is_a_slow_reader() -> None:
    broker = Broker(lambda request: bytes(8 << 20), take_ms=200)
    with broker as served, served.connect(receive_buffer=4096) as peer:
        peer.send_all([api_versions(n) for n in range(4)])
        peer.end_sending()
        until(lambda: served.plane.counters()["closed_slow_reader"] == 1, "it to be closed")
        until(lambda: served.plane.counters()["connections"] == 0, "its place to be free")


def test_places_are_used_again(topic: str) -> None:
    with Broker(threads=1) as served:
        for n in range(300):
            with served.connect() as peer:
                peer.send_all([asked(produce(topic, batch([b"x"]), 9), 9, n), api_versions(n)])
                peer.end_sending()
                assert numbers(peer, 2) == [n, n]
                assert peer.has_ended()

        def all_closed() -> bool:
            counted = served.plane.counters()
            return (counted["connections"], counted["connections_closed"]) == (0, 300)

        until(all_closed, "the last one's end to be counted", lambda: str(served.plane.counters()))
    assert LOGS.offsets(topic, 0).log_end == 300
