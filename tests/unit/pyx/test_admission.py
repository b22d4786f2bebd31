"""Which connections come in, and which have to go: limits by number, address and rate; slow senders and slow readers."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from pathlib import Path

import pytest

from penstock.pyx.wire.header import encode_request
from support.dataplane import TIMEOUT_S, Broker, Peer, api_versions, batch, fetch, forget_all, lead
from support.logs import LOGS
from support.patience import until


def answered(peer: Peer) -> bool:
    """Whether the broker has accepted a connection: it answers."""
    peer.send(api_versions(5))
    return peer.receive()[:4] == struct.pack(">i", 5)


def is_waiting(peer: Peer) -> bool:
    """Whether nobody has accepted a connection: what it sends stays in the kernel."""
    peer.send(api_versions(6))
    return peer.is_silent(0.3)


def test_beyond_the_brokers_number_connections_wait() -> None:
    broker = Broker()
    broker.plane.limit_connections(most=2)
    with broker, broker.connect() as first, broker.connect() as second:
        assert answered(first)
        assert answered(second)
        with broker.connect() as third:
            assert is_waiting(third)
            first.socket.close()
            assert third.receive()[:4] == struct.pack(">i", 6)
        assert broker.plane.counters()["accepts_delayed"] > 0


def test_beyond_a_listeners_number_only_its_connections_wait() -> None:
    broker = Broker()
    small = broker.plane.listen("127.0.0.1", 0, "SMALL", max_connections=1)
    with broker, Peer(small) as first:
        assert answered(first)
        with Peer(small) as second, broker.connect() as other:
            assert is_waiting(second)
            assert answered(other)


def test_one_listener_may_be_kept_open() -> None:
    broker = Broker()
    kept = broker.plane.listen("127.0.0.1", 0, "KEPT", kept_open=True)
    broker.plane.limit_connections(most=1)
    with broker, broker.connect() as first, Peer(kept) as second:
        assert answered(first)
        assert answered(second)
        with broker.connect() as third:
            assert is_waiting(third)


def test_an_address_that_has_too_many_is_refused() -> None:
    broker = Broker()
    broker.plane.limit_connections(most_of_address=2)
    with broker, broker.connect() as first, broker.connect() as second:
        assert answered(first)
        assert answered(second)
        with broker.connect() as third:
            assert third.has_ended()
        assert broker.plane.counters()["closed_address_limit"] == 1
        first.socket.close()
        until(lambda: broker.plane.counters()["connections"] == 1, "the first to be gone")
        with broker.connect() as fourth:
            assert answered(fourth)


def test_limits_may_change_at_any_time() -> None:
    broker = Broker()
    with broker, broker.connect() as first, broker.connect() as second:
        assert answered(first)
        assert answered(second)
        broker.plane.limit_connections(most=1, most_of_address=2)  # Who is in stays.
        assert answered(first)
        with broker.connect() as third:
            assert is_waiting(third)
            broker.plane.limit_connections(most=3, most_of_address=2)
            assert third.has_ended()  # Two of its address were there before addresses had a limit.
        broker.plane.limit_connections(of_addresses={"127.0.0.1": 3})
        with broker.connect() as fourth, broker.connect() as fifth:
            assert answered(fourth)
            assert fifth.has_ended()
            broker.plane.limit_connections()
            with broker.connect() as sixth:
                assert answered(sixth)


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_an_address_may_have_a_limit_of_its_own(host: str, address: str) -> None:
    broker = Broker()
    port = broker.plane.listen(host, 0, "OTHER")
    broker.plane.limit_connections(of_addresses={address: 0, "10.9.8.7": 1})
    with broker:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as refused:
            refused.settimeout(TIMEOUT_S)
            refused.connect((address, port))
            with contextlib.suppress(ConnectionResetError):
                assert refused.recv(1) == b""
        assert broker.plane.counters()["closed_address_limit"] == 1


@pytest.mark.parametrize("own", [False, True])
def test_connections_that_come_too_fast_wait(own: bool) -> None:
    broker = Broker()
    port = broker.plane.listen("127.0.0.1", 0, "FEW", rate=5 if own else 0)
    if not own:
        broker.plane.limit_connections(rate=5)
    peers: list[Peer] = []
    with broker:
        peers = [Peer(port) for _ in range(8)]
        assert all(answered(peer) for peer in peers)
        assert broker.plane.counters()["accepts_delayed"] > 0
        for peer in peers:
            peer.socket.close()


# --- who is too slow ------------------------------------------------------------------------------------------------
def test_a_request_that_never_comes_whole_ends_its_connection() -> None:
    with Broker(frame_ms=100) as broker, broker.connect() as slow, broker.connect() as idle:
        slow.socket.sendall(struct.pack(">i", 30) + b"\0\x12\0")
        assert slow.has_ended()
        assert broker.plane.counters()["closed_slow_request"] == 1
        assert answered(idle)


def test_a_byte_now_and_then_does_not_help() -> None:
    with Broker(frame_ms=150) as broker, broker.connect() as slow:
        ended = False
        slow.socket.settimeout(0.03)
        slow.socket.sendall(struct.pack(">i", 10_000))
        end = time.monotonic() + TIMEOUT_S
        while not ended and time.monotonic() < end:
            try:
                slow.socket.sendall(b"x")
                ended = slow.socket.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended
        assert broker.plane.counters()["closed_slow_request"] == 1


def test_a_large_request_has_longer() -> None:
    with Broker(frame_ms=50, threads=1) as broker, broker.connect() as peer, broker.connect() as slow:
        frame = api_versions(1) + bytes(8 << 20)
        peer.socket.sendall(struct.pack(">i", len(frame)) + frame[:1000])
        until(lambda: broker.plane.counters()["bytes_in"] == 1004, "its first bytes")
        slow.socket.sendall(b"\0")
        assert slow.has_ended()  # A small one that came later is closed.
        peer.socket.sendall(frame[1000:])
        assert peer.receive()[:4] == struct.pack(">i", 1)


def test_requests_that_the_broker_does_not_read_are_not_slow() -> None:
    """A connection whose answers are owed is not read: a frame that stands there in part is no fault of its peer."""
    with Broker(control=lambda _: None, frame_ms=50, threads=1) as broker, broker.connect() as peer, broker.connect() as slow:
        for _ in range(70):
            peer.send(api_versions(1))
        peer.socket.sendall(struct.pack(">i", 20) + b"\0")
        broker.wait_held(63)
        slow.socket.sendall(b"\0")
        assert slow.has_ended()  # It came later, and its peer is at fault.
        assert broker.plane.counters()["closed_slow_request"] == 1
        assert peer.is_silent()


def test_answers_that_nobody_takes_end_the_connection(tmp_path: Path) -> None:
    lead(tmp_path, "untaken", max_message_bytes=1 << 24)
    for _ in range(16):
        LOGS.append("untaken", 0, batch([b"v" * 900_000]))
    try:
        with Broker(take_ms=200) as broker, broker.connect(receive_buffer=4096) as peer:
            for n in range(3):
                peer.send(encode_request(fetch("untaken", 0, 12, partition_max_bytes=16 << 20), 12, n, "c"))
            until(lambda: broker.plane.counters()["closed_slow_reader"] == 1, "the slow reader to be closed")
            assert broker.is_alive()
    finally:
        forget_all()
