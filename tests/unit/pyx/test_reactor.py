"""Connections, frames, order, bounds: the network threads as a client and the control plane see them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.pyx.net.border import DataPlane, Request
from support.dataplane import CLOSE, TIMEOUT_S, Broker, Peer, api_versions, echo
from support.logs import LOGS
from support.patience import until

IS_ALIVE = 99  # the correlation id of `Broker.is_alive`
# So many questions of others that the only network thread answers one after the other: between two of them each connection has
# had a turn, so that one that would still be read has been.
TURNS = 30


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker(max_request_bytes=1 << 20) as made:
        yield made


def head(api_key: int, version: int, client_id: bytes = b"x") -> bytes:
    return struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


FETCH_4 = struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0)
MALFORMED = {
    "size 0": struct.pack(">i", 0),
    "size -1": struct.pack(">i", -1),
    "size INT_MIN": struct.pack(">i", -(2**31)),
    "size INT_MAX": struct.pack(">i", 2**31 - 1),
    "size above the limit by one": struct.pack(">i", (1 << 20) + 1),
    "header cut short": framed(b"\0\x03\0"),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "produce 3 cut": framed(head(0, 3) + b"\xff\xff\0\x01"),
    "produce 3 client id too long": framed(struct.pack(">hhih", 0, 3, 1, 32767) + b"x" * 8),
    "produce 3 client id -2": framed(struct.pack(">hhih", 0, 3, 1, -2) + bytes(16)),
    "produce 3 topics 2^31-1": framed(head(0, 3) + struct.pack(">hhii", -1, 1, 0, 2**31 - 1)),
    "produce 3 topics -1": framed(head(0, 3) + struct.pack(">hhii", -1, 1, 0, -1)),
    "produce 3 records longer than the frame": framed(
        head(0, 3) + struct.pack(">hhiih1siii", -1, 1, 0, 1, 1, b"t", 1, 0, 1000)
    ),
    "produce 3 records -2": framed(head(0, 3) + struct.pack(">hhiih1siii", -1, 1, 0, 1, 1, b"t", 1, 0, -2)),
    "produce 9 tags without end": framed(head(0, 9) + b"\xff" * 12),
    "produce 9 a million tags": framed(head(0, 9) + b"\xc0\x84\x3d" + bytes(32)),
    "fetch 4 partitions 2^31-1": framed(head(1, 4) + FETCH_4 + struct.pack(">ih1si", 1, 1, b"t", 2**31 - 1)),
    "fetch 4 topics -5": framed(head(1, 4) + FETCH_4 + struct.pack(">i", -5)),
    "fetch 4 cut": framed(head(1, 4) + FETCH_4[:9]),
    "fetch 12 varint of six bytes": framed(head(1, 12) + b"\0" + bytes(33) + b"\xff" * 6),
    "fetch 18 empty": framed(head(1, 18)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_frame_closes_its_connection_only(served: Broker, name: str) -> None:
    with served.connect() as other, served.connect() as peer:
        peer.socket.sendall(MALFORMED[name])
        assert peer.has_ended()
        other.send(api_versions(5))
        assert other.receive()[:4] == struct.pack(">i", 5)


def test_what_came_before_a_malformed_frame_is_answered(served: Broker) -> None:
    with served.connect() as peer:
        peer.socket.sendall(framed(api_versions(1)) + framed(api_versions(2)) + struct.pack(">i", -1))
        assert [peer.receive()[:4] for _ in range(2)] == [struct.pack(">i", n) for n in (1, 2)]
        assert peer.has_ended()


def test_random_bytes_end_or_wait_and_never_stop_the_threads(served: Broker) -> None:
    dice = random.Random(4711)
    for _ in range(200):
        with served.connect() as peer:
            peer.socket.sendall(dice.randbytes(dice.randrange(1, 3000)))
    assert served.is_alive()


def test_a_request_that_comes_byte_by_byte(served: Broker) -> None:
    with served.connect() as peer:
        for byte in framed(api_versions(3)):
            peer.socket.sendall(bytes([byte]))
        assert peer.receive() == echo(Request(0, 18, 0, 3, api_versions(3), "", ""))


def test_requests_cut_at_every_place(served: Broker) -> None:
    two = framed(api_versions(1)) + framed(api_versions(2))
    for cut in range(1, len(two)):
        with served.connect() as peer:
            peer.socket.sendall(two[:cut])
            time.sleep(0.001)
            peer.socket.sendall(two[cut:])
            assert [peer.receive()[:4] for _ in range(2)] == [struct.pack(">i", n) for n in (1, 2)]


def test_the_control_plane_sees_the_whole_request() -> None:
    seen: list[Request] = []

    def control(request: Request) -> bytes:
        seen.append(request)
        return echo(request)

    with Broker(control) as served, served.connect() as peer:
        frame = struct.pack(">hhih", 3, 12, -5, 2) + b"me\0body"
        peer.send(frame)
        peer.receive()
        host, port = peer.socket.getsockname()
    (request,) = seen
    assert request[1:] == (3, 12, -5, frame, f"{host}:{port}", "PLAINTEXT", False)
    assert 0 <= request.token < 2**64


@pytest.mark.parametrize(("api_key", "version"), [(0, 14), (1, 19), (18, 99), (9999, 0), (-1, -1)])
def test_what_is_not_served_in_place_goes_to_the_control_plane(served: Broker, api_key: int, version: int) -> None:
    with served.connect() as peer:
        peer.send(head(api_key, version))
        assert peer.receive() == struct.pack(">i", 7) + b"\0\x01x"


def test_pipelined_requests_are_answered_in_order(served: Broker) -> None:
    with served.connect() as peer:
        peer.socket.sendall(b"".join(framed(api_versions(n)) for n in range(2000)))
        assert [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(2000)] == list(range(2000))


def test_answers_given_in_another_order_leave_in_order() -> None:
    with Broker(lambda request: None) as served, served.connect() as peer:
        for n in range(20):
            peer.send(api_versions(n))
        requests = served.wait_held(20)
        for request in random.Random(1).sample(requests[1:], 19):
            served.plane.answer(request.token, echo(request))
        assert peer.is_silent()
        served.plane.answer(requests[0].token, echo(requests[0]))
        assert [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(20)] == list(range(20))


def test_a_connection_holds_a_bounded_number_of_unanswered_requests() -> None:
    def control(request: Request) -> bytes | None:
        return echo(request) if request.correlation_id == IS_ALIVE else None

    with Broker(control, threads=1) as served, served.connect() as peer:
        numbers = list(range(1000, 1500))
        peer.socket.sendall(b"".join(framed(api_versions(n)) for n in numbers))
        served.wait_held(60)
        for _ in range(TURNS):
            assert served.is_alive()
        assert len(served.held) < 64
        answered = 0
        while answered < 500:
            for request in served.wait_held(answered + 1)[answered:]:
                served.plane.answer(request.token, echo(request))
                answered += 1
        assert [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(500)] == numbers


def test_unanswered_requests_hold_a_bounded_number_of_bytes() -> None:
    with Broker(lambda request: None) as served, served.connect() as peer:
        peer.socket.sendall(framed(api_versions(1) + bytes(17 << 20)) + framed(api_versions(2)))
        (large,) = served.wait_held(1)
        assert peer.is_silent()
        assert len(served.held) == 1
        served.plane.answer(large.token, struct.pack(">i", 1))
        _, small = served.wait_held(2)
        served.plane.answer(small.token, struct.pack(">i", 2))
        assert [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(2)] == [1, 2]


def test_a_late_answer_is_dropped() -> None:
    with Broker(lambda request: None, threads=1) as served:
        with served.connect() as peer:
            peer.send(api_versions(1))
            (late,) = served.wait_held(1)
            peer.reset()
        until(lambda: served.plane.counters()["connections"] == 0, "the connection to be closed")
        with served.connect() as peer:  # takes the place of the one before
            peer.send(api_versions(2))
            second = served.wait_held(2)[1]
            served.plane.answer(late.token, b"for another connection")
            served.plane.answer(second.token, b"right")
            served.plane.answer(second.token, b"twice")
            assert peer.receive() == b"right"
            assert peer.is_silent()
        served.plane.answer(2**64 - 1, b"nobody")
        until(lambda: served.plane.counters()["answers_late"] == 2, "late answers to be counted")


def test_close_connection_comes_after_the_answers_before_it() -> None:
    def control(request: Request) -> object:
        return CLOSE if request.correlation_id == 3 else None

    with Broker(control) as served, served.connect() as peer:
        for n in (1, 2, 3, 4):
            peer.send(api_versions(n))
        first, second = served.wait_held(2)[:2]
        assert peer.is_silent()
        served.plane.answer(second.token, b"second")
        served.plane.answer(first.token, b"first")
        assert peer.receive() == b"first"
        assert peer.receive() == b"second"
        assert peer.has_ended()


def test_a_big_frame_comes_whole() -> None:
    with Broker() as served, served.connect() as peer:
        frame = api_versions(1) + random.Random(2).randbytes(9_000_000)
        for _ in range(3):
            peer.send(frame)
            peer.send(api_versions(2))
            assert peer.receive() == struct.pack(">i", 1) + frame[8:]
            assert peer.receive()[:4] == struct.pack(">i", 2)


def test_a_size_from_the_wire_allocates_nothing() -> None:
    with Broker() as served:
        peers = [served.connect() for _ in range(50)]
        for peer in peers:
            peer.socket.sendall(struct.pack(">i", 20 << 20) + b"x" * 200_000)
        until(lambda: served.plane.counters()["bytes_in"] == 50 * 200_004, "the bytes")
        assert served.plane.counters()["input_bytes"] <= 50 * 400_000
        assert served.is_alive()
        for peer in peers:
            peer.socket.close()
        until(lambda: served.plane.counters()["input_bytes"] == 0, "memory to be given back")


def test_frames_in_part_are_bounded_for_the_broker_and_yet_become_whole() -> None:
    with Broker(queued_bytes_max=1 << 20) as served:
        peers = [served.connect() for _ in range(12)]
        frame = framed(api_versions(1) + bytes(1 << 20))
        for peer in peers:
            peer.socket.sendall(frame[:700_000])
        until(lambda: served.plane.counters()["stalls"] > 0, "somebody who has to wait")
        assert served.plane.counters()["input_bytes"] < 6 << 20
        for peer in peers:
            peer.socket.setblocking(True)
            peer.socket.settimeout(TIMEOUT_S)
            peer.socket.sendall(frame[700_000:])
        for peer in peers:
            assert len(peer.receive()) == (1 << 20) + len(api_versions()) - 4
            peer.socket.close()


def test_the_control_queue_is_bounded() -> None:
    served = Broker(queued_bytes_max=1 << 20)
    served.plane.start()
    try:
        peers = [served.connect() for _ in range(20)]
        for peer in peers:
            for n in range(3):
                peer.send(api_versions(n) + bytes(60_000))
        until(lambda: served.plane.counters()["stalls"] > 0, "somebody who has to wait")
        assert served.plane.counters()["queued_bytes"] <= 1 << 20
        answered = 0
        while answered < 60:
            for request in served.plane.take_requests():
                served.plane.answer(request.token, request.frame[4:8])
                answered += 1
        for peer in peers:
            assert [peer.receive() for _ in range(3)] == [struct.pack(">i", n) for n in range(3)]
            peer.socket.close()
    finally:
        served.plane.stop()


def test_a_slow_reader_is_not_read_from() -> None:
    def control(request: Request) -> bytes:
        return request.frame[4:8] + bytes(0 if request.correlation_id == IS_ALIVE else 400_000)

    with Broker(control, threads=1) as served, served.connect(receive_buffer=4096) as peer:
        peer.socket.sendall(b"".join(framed(api_versions(n)) for n in range(1000, 1300)))
        until(lambda: served.plane.counters()["requests"] > 0, "the first request")
        for _ in range(TURNS):
            assert served.is_alive()
        assert served.plane.counters()["requests"] - TURNS < 200
        for n in range(1000, 1300):
            assert peer.receive()[:4] == struct.pack(">i", n)


def test_idle_connections_are_closed_and_waiting_ones_are_not() -> None:
    with Broker(lambda request: None, max_idle_ms=1_500) as served:  # so long each of them has to send something
        idle, partial, waiting = (served.connect() for _ in range(3))
        partial.socket.sendall(b"\0\0")
        waiting.send(api_versions(1))
        (request,) = served.wait_held(1)
        assert idle.has_ended()
        assert partial.has_ended()
        assert served.plane.counters()["closed_idle"] == 2
        served.plane.answer(request.token, b"still here")
        assert waiting.receive() == b"still here"
        for peer in (idle, partial, waiting):
            peer.socket.close()


def test_500_idle_connections_are_no_burden() -> None:
    with Broker() as served:
        peers = [served.connect() for _ in range(500)]
        assert served.is_alive()
        for n, peer in enumerate(peers):
            peer.send(api_versions(n))
        for n, peer in enumerate(peers):
            assert peer.receive()[:4] == struct.pack(">i", n)
            peer.socket.close()
        until(lambda: served.plane.counters()["connections"] == 0, "all to be gone")
        assert served.plane.counters()["connections_accepted"] == 501


def test_connections_go_round_the_threads() -> None:
    with Broker(lambda request: None) as served:
        peers = [served.connect() for _ in range(4)]
        for peer in peers:
            peer.send(api_versions(1))
        threads = {request.token >> 58 for request in served.wait_held(4)}
        assert len(threads) == 2
        for peer in peers:
            peer.socket.close()


def test_stop_lets_what_is_served_finish() -> None:
    with Broker(lambda request: None) as served:
        peer = served.connect()
        peer.send(api_versions(1))
        (request,) = served.wait_held(1)
        served.plane.answer(request.token, b"last words")
        served.plane.stop()
        assert peer.receive() == b"last words"
        assert peer.has_ended()
        served.plane.stop()
        served.plane.answer(request.token, b"too late")
        assert served.plane.take_requests() == []
        with pytest.raises(ConnectionRefusedError):
            Peer(served.port)
        peer.socket.close()


def time_slice_ns(thread: int) -> int:
    """What the scheduler gives a thread at once; kernels before 6.12 say 0."""
    attributes = ctypes.create_string_buffer(48)
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    assert libc.syscall(number, thread, attributes, len(attributes), 0) == 0, os.strerror(ctypes.get_errno())
    return int(struct.unpack_from("=IIQiIQ", attributes)[5])


def test_network_threads_may_go_before_others_when_they_wake() -> None:
    def threads() -> set[int]:
        return {int(task.name) for task in Path("/proc/self/task").iterdir()}

    before, usual = threads(), time_slice_ns(0)
    with Broker(threads=3):
        short = [1_000_000] * 3 if usual else []
        until(
            lambda: [ns for ns in map(time_slice_ns, threads() - before) if ns != usual] == short,
            "the network threads have a slice of their own",
        )


def test_nothing_is_served_before_start() -> None:
    plane = DataPlane(
        network_threads=1,
        node_id=0,
        max_request_bytes=100,
        max_idle_ms=1000,
        queued_bytes_max=-1,
        fetch_max_bytes=100,
        logs=LOGS,
    )
    port = plane.listen("127.0.0.1", 0, "A")
    with pytest.raises(ConnectionRefusedError):
        Peer(port)
    plane.stop()
    with pytest.raises(RuntimeError):
        plane.start()


SHORT_OF_DESCRIPTORS = """
import os, resource, sys
from penstock.pyx.net.border import DataPlane
from support.dataplane import Broker
from support.logs import LOGS

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
filled = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(filled) + 1, hard))
refused = 0
while True:
    try:
        made = DataPlane(network_threads=2, node_id=1, max_request_bytes=1 << 20, max_idle_ms=1000,
                         queued_bytes_max=1 << 20, fetch_max_bytes=1 << 20, logs=LOGS)
        break
    except OSError:
        refused += 1
        os.close(filled.pop())
made.stop()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
with Broker() as served:
    assert served.is_alive() and served.is_alive()
print(refused)
"""


def test_network_threads_that_had_no_descriptors_are_made_later() -> None:
    """Queue, wake-up and epoll need one each: with too few the process is told so, and may try again."""
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_DESCRIPTORS],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plane = DataPlane(
            network_threads=1,
            node_id=0,
            max_request_bytes=100,
            max_idle_ms=1000,
            queued_bytes_max=0,
            fetch_max_bytes=100,
            logs=LOGS,
        )
        with pytest.raises(OSError, match="in use"):
            plane.listen("127.0.0.1", taken.getsockname()[1], "A")
        plane.stop()


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"threads": 65}, {"max_request_bytes": 0}, {"max_idle_ms": 0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|not 1 to"):
        Broker(**wrong)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as tried:
        tried.bind(("::1", 0))
        return True
    return False


def test_ipv6_and_several_listeners() -> None:
    seen: list[tuple[str, str]] = []

    def control(request: Request) -> bytes:
        seen.append((request.peer, request.listener))
        return echo(request)

    second, shown = ("::1", "[::1]") if has_ipv6() else ("127.0.0.2", "127.0.0.1")
    served = Broker(control)
    port = served.plane.listen(second, 0, "SECOND")
    with served, socket.create_connection((second, port)) as six, served.connect() as four:
        six.sendall(framed(api_versions(1)))
        assert six.recv(100)
        four.send(api_versions(2))
        four.receive()
        assert seen == [
            (f"{shown}:{six.getsockname()[1]}", "SECOND"),
            (f"127.0.0.1:{four.socket.getsockname()[1]}", "PLAINTEXT"),
        ]
