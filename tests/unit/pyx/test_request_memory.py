"""Memory for requests that have come in part: bounded for the broker, and never held by who brings nothing."""

from __future__ import annotations

import struct
import time

from support.dataplane import Broker, Peer, api_versions
from support.patience import until

MIB = 1 << 20


def framed(size: int) -> bytes:
    """A request of so many bytes with its size in front, which is echoed."""
    frame = api_versions(1) + bytes(size - len(api_versions(1)))
    return struct.pack(">i", size) + frame


def hoard(broker: Broker, count: int, sent: int = 500_000, announced: int = 600_000) -> list[Peer]:
    """Connections that hold memory and bring no more, and one at least waits for memory."""
    peers = [broker.connect() for _ in range(count)]
    for peer in peers:
        peer.socket.setblocking(False)
        peer.socket.send(framed(announced)[:sent])
    until(lambda: broker.plane.counters()["stalls"] > 0, "somebody to wait for memory")
    return peers


def close(*peers: Peer) -> None:
    for peer in peers:
        peer.socket.close()


def test_what_came_is_kept_while_memory_is_short() -> None:
    broker = Broker(queued_bytes_max=MIB)
    port = broker.plane.listen("127.0.0.1", 0, "WIDE", receive_buffer_bytes=4 * MIB)
    with broker:
        hoarders = hoard(broker, 12)
        broker.plane.limit_connections(most=1)
        waiting = [Peer(port) for _ in range(12)]  # Not accepted yet: all that they send is there at the first look.
        for peer in waiting:
            peer.socket.sendall(framed(400_000))
        broker.plane.limit_connections()
        close(*hoarders)
        for peer in waiting:
            assert len(peer.receive()) == 400_000 - 4
        close(*waiting)


def test_who_holds_memory_and_brings_nothing_is_closed_and_the_others_go_on() -> None:
    with Broker(queued_bytes_max=MIB, memory_patience_ms=300) as broker:
        hoarders = hoard(broker, 40)
        with broker.connect() as other:
            other.socket.sendall(framed(700_000))
            assert len(other.receive()) == 700_000 - 4
        closed = broker.plane.counters()["closed_memory_short"]
        assert closed > 0
        told = broker.plane.closures()
        assert {one.reason for one in told} == {"closed_memory_short"}
        assert all(one.peer.startswith("127.0.0.1:") and one.held_bytes > 128 * 1024 for one in told)
        close(*hoarders)
        until(lambda: broker.plane.counters()["input_bytes"] == 0, "all memory to be given back")
        until(lambda: broker.plane.counters()["connections"] == 0, "all to be gone")


def test_a_byte_now_and_then_does_not_hold_memory() -> None:
    with Broker(queued_bytes_max=MIB, memory_patience_ms=300) as broker:
        hoarders = hoard(broker, 12)
        left = set(hoarders)
        end = time.monotonic() + 120
        while broker.plane.counters()["closed_memory_short"] == 0:
            assert time.monotonic() < end
            for peer in list(left):
                try:
                    peer.socket.send(b"x")
                except BlockingIOError:
                    pass
                except OSError:
                    left.discard(peer)
            time.sleep(0.05)
        close(*hoarders)
        until(lambda: broker.plane.counters()["input_bytes"] == 0, "all memory to be given back")


def test_a_slow_client_that_keeps_bringing_is_served_though_memory_is_short() -> None:
    """It has to bring a sixtieth of what it holds each second; a test process that gets no processor for two is no hoarder."""
    frame, at = framed(600_000), 250_000
    with Broker(queued_bytes_max=MIB, memory_patience_ms=2_000) as broker, broker.connect() as slow:
        slow.socket.sendall(frame[:at])
        until(lambda: broker.plane.counters()["bytes_in"] == at, "its first bytes")
        hoarders = hoard(broker, 12)
        while broker.plane.counters()["closed_memory_short"] == 0:
            assert at < 600_000, "no hoarder was closed"
            slow.socket.sendall(frame[at : at + 1_000])
            at += 1_000
            time.sleep(0.02)
        slow.socket.sendall(frame[at:])
        assert len(slow.receive()) == 600_000 - 4
        close(*hoarders)


def test_memory_that_nobody_waits_for_may_be_held() -> None:
    made = Broker(threads=1, queued_bytes_max=64 * MIB, memory_patience_ms=50, frame_ms=200)
    with made as broker, broker.connect() as still, broker.connect() as slow:
        frame = framed(600_000)
        still.socket.sendall(frame[:400_000])
        until(lambda: broker.plane.counters()["bytes_in"] == 400_000, "its first bytes")
        # A small frame that doesn't come whole is closed later than one that holds memory would be; a large one has seconds.
        slow.socket.sendall(frame[:3])
        assert slow.has_ended()
        still.socket.sendall(frame[400_000:])
        assert len(still.receive()) == 600_000 - 4
        assert broker.plane.counters()["closed_memory_short"] == 0
