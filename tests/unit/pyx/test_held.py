"""Partitions that are held while their folders are swapped, as the network threads see them: nobody is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import FetchResponse, ProduceResponse
from support.dataplane import Broker, Peer, batch, fetch, fetched, produce, produced, topic_id, values
from support.harness import topic_name
from support.logs import LOGS
from support.patience import until


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    made = topic_name("held")
    lead(made, tmp_path)
    yield made
    if (made, 0) in LOGS.partitions():
        LOGS.delete(made, 0)


def lead(name: str, root: Path) -> None:
    LOGS.lead(name, topic_id(name), 0, 0, str(root), {}, clean=True)


def put(name: str, value: bytes, number: int, version: int = 9, **producer: int) -> bytes:
    return encode_request(produce(name, batch([value], **producer), version), version, number, "test")


def take(name: str, offset: int, number: int, **more: int) -> bytes:
    return encode_request(fetch(name, offset, 12, **more), 12, number, "test")


def put_answer(peer: Peer) -> tuple[int, int]:
    """Number and error code of the next answer."""
    number, message = decode_response(ProduceResponse, peer.receive(), 9)
    return number, produced(message).error_code


def took(peer: Peer) -> tuple[int, int, list[bytes | None]]:
    number, message = decode_response(FetchResponse, peer.receive(), 12)
    one = fetched(message)
    return number, one.error_code, values(one)


def hold_one(served: Broker, peer: Peer, frames: list[bytes]) -> None:
    """Send frames, of which the first is a produce that is held."""
    before = LOGS.produces_held
    peer.send_all(frames)
    until(lambda: LOGS.produces_held > before, "a held produce")


def test_produces_and_fetches_go_on_in_their_order_once_it_is_open(served: Broker, name: str, tmp_path: Path) -> None:
    with served.connect() as peer, served.connect() as other, served.connect() as third:
        peer.send(put(name, b"0", 0, producer_id=1, producer_epoch=0, base_sequence=0))
        assert put_answer(peer) == (0, 0)
        LOGS.hold(name, 0)
        frames = [put(name, b"%d" % i, i, producer_id=1, producer_epoch=0, base_sequence=i) for i in range(1, 6)]
        hold_one(served, peer, [*frames, take(name, 0, 6)])
        other.send(take(name, 0, 7))
        assert not LOGS.held_appends(name, 0)
        LOGS.stop(name, 0, announced=True)
        hold_one(served, third, [put(name, b"other", 8)])
        lead(name, tmp_path)
        LOGS.release(name, 0)
        assert [put_answer(peer) for _ in frames] == [(i, 0) for i in range(1, 6)]
        number, error, found = took(peer)
        assert (number, error) == (6, 0) and [one for one in found if one != b"other"] == [b"%d" % i for i in range(6)]
        assert took(other)[:2] == (7, 0)
        assert put_answer(third) == (8, 0)


def test_a_fetch_that_waits_finds_the_log_that_takes_its_place(served: Broker, name: str, tmp_path: Path) -> None:
    with served.connect() as waiting, served.connect() as peer:
        waits = served.plane.counters()["fetch_waits"]
        waiting.send(take(name, 0, 1, max_wait_ms=600_000))
        until(lambda: served.plane.counters()["fetch_waits"] > waits, "a fetch that waits")
        for _ in range(3):
            LOGS.hold(name, 0)
            LOGS.stop(name, 0, announced=True)
            lead(name, tmp_path)
            LOGS.release(name, 0)
        peer.send(put(name, b"now", 2))
        assert put_answer(peer) == (2, 0)
        assert took(waiting) == (1, 0, [b"now"])


def test_other_connections_and_partitions_are_served_meanwhile(served: Broker, name: str, tmp_path: Path) -> None:
    free = topic_name("free")
    lead(free, tmp_path)
    with served.connect() as peer, served.connect() as one, served.connect() as two:
        LOGS.hold(name, 0)
        hold_one(served, peer, [put(name, b"1", 1)])
        for other in (one, two):  # One to each network thread.
            other.send(put(free, b"2", 2))
            assert put_answer(other) == (2, 0)
        LOGS.release(name, 0)
        assert put_answer(peer) == (1, 0)
    LOGS.delete(free, 0)


def test_when_it_stays_closed_they_are_refused(served: Broker, name: str, tmp_path: Path) -> None:
    with served.connect() as peer, served.connect() as other:
        LOGS.hold(name, 0)
        hold_one(served, peer, [put(name, b"1", 1), put(name, b"2", 2)])
        LOGS.stop(name, 0, announced=True)
        other.send(take(name, 0, 3, max_wait_ms=600_000))
        LOGS.release(name, 0)
        assert [put_answer(peer) for _ in range(2)] == [(i, ErrorCode.NOT_LEADER_OR_FOLLOWER) for i in (1, 2)]
        assert took(other)[:2] == (3, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    lead(name, tmp_path)


def test_a_client_that_goes_meanwhile_leaves_nothing(served: Broker, name: str) -> None:
    open_before = served.plane.counters()["connections"]
    LOGS.hold(name, 0)
    with served.connect() as peer:
        hold_one(served, peer, [put(name, b"1", 1)])
        peer.socket.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER of 0: the connection is reset
    LOGS.release(name, 0)
    until(lambda: served.plane.counters()["connections"] <= open_before, "the end of the connection")
    assert not LOGS.held_appends(name, 0)


def test_held_produces_are_counted(served: Broker, name: str) -> None:
    before = served.plane.counters()
    with served.connect() as peer:
        LOGS.hold(name, 0)
        hold_one(served, peer, [put(name, b"1", 1)])
        peer.send(put(name, b"2", 2))  # It comes while the first one is held, and wakes the connection.
        LOGS.release(name, 0)
        assert [put_answer(peer) for _ in range(2)] == [(1, 0), (2, 0)]
    counted = served.plane.counters()
    assert counted["produces_held"] - before["produces_held"] == 1
    assert counted["produces_held_ms"] >= before["produces_held_ms"]
