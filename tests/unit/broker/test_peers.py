"""Connections between brokers: real sockets, and another end that answers, hangs, closes or lies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from penstock.broker.replication.peers import ANSWER_BYTES_MAX, ANSWER_S, Peers
from penstock.errors import ErrorCode
from penstock.pyx.wire.header import decode_request, encode_response
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from support.onloop import SetLoop, on_loop, on_set_loop

KEY, VERSION = ControlledShutdownRequest.API_KEY, ControlledShutdownRequest.MAX_VERSION
SERVED = {KEY: (0, 9), 18: (0, 5)}
BODY = ControlledShutdownRequest(broker_id=2, broker_epoch=77).encode(VERSION)
HELLO = ApiVersionsRequest(client_software_name="penstock", client_software_version="1", cluster_id="cluster", node_id=2)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def answer(number: int, error: int = 0) -> bytes:
    """The answer to a request, with its size in front."""
    return framed(encode_response(ControlledShutdownResponse(error_code=error), VERSION, number))


@dataclass
class Stranger:
    """Another end. After the handshake a connection is `behave`'s, which gets a number and the stream for each request."""

    behave: Callable[[int, asyncio.StreamWriter], Awaitable[None]]
    greeting: Callable[[int], bytes] = lambda number: framed(
        encode_response(
            ApiVersionsResponse(
                api_keys=[
                    ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in SERVED.items()
                ]
            ),
            5,
            number,
        )
    )
    requests: list[Message] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header, request = decode_request(await reader.readexactly(size))
                self.requests.append(request)
                self.arrived.set()
                if isinstance(request, ApiVersionsRequest):
                    writer.write(self.greeting(header.correlation_id))
                else:
                    await self.behave(header.correlation_id, writer)
        writer.close()

    async def until(self, requests: int) -> None:
        """Wait until so many have come."""
        while len(self.requests) < requests:
            self.arrived.clear()
            await self.arrived.wait()


async def well(number: int, writer: asyncio.StreamWriter) -> None:
    """Answer; the error is the request's number."""
    writer.write(answer(number, number))


async def not_at_all(number: int, writer: asyncio.StreamWriter) -> None:
    """Take the request, and say nothing."""


@contextlib.asynccontextmanager
async def world(stranger: Stranger) -> AsyncIterator[Peers]:
    """Broker 1's peers, one of which, 2, is this one."""
    server = await asyncio.start_server(stranger.serve, "127.0.0.1", 0)
    stranger.port = server.sockets[0].getsockname()[1]
    peers = Peers(1, "cluster")
    peers.set_brokers({2: ("127.0.0.1", stranger.port)})
    try:
        yield peers
    finally:
        await peers.stop()
        server.close()


def number_of(body: bytes) -> int:
    return ControlledShutdownResponse.decode(body, VERSION).error_code


@on_loop
async def test_many_requests_share_one_connection() -> None:
    stranger = Stranger(well)
    async with world(stranger) as peers:
        bodies = await asyncio.gather(*(peers.send(2, KEY, VERSION, BODY) for _ in range(50)))
        assert [number_of(body) for body in bodies] == list(range(1, 51))
        assert stranger.connections == 1
        hello = stranger.requests[0]
        assert isinstance(hello, ApiVersionsRequest)
        assert (hello.cluster_id, hello.node_id, hello.client_software_name) == ("cluster", 2, "penstock")
        assert stranger.requests[1:] == [ControlledShutdownRequest(broker_id=2, broker_epoch=77)] * 50


@on_set_loop
async def test_a_request_without_an_answer_closes_its_connection_after_five_seconds(loop: SetLoop) -> None:
    stranger = Stranger(not_at_all)
    async with world(stranger) as peers:
        asked = [asyncio.ensure_future(peers.send(2, KEY, VERSION, BODY)) for _ in range(2)]
        await stranger.until(3)
        loop.now_s += ANSWER_S - 0.001
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(one.done() for one in asked)
        loop.now_s += 0.002
        for one in asked:
            with pytest.raises(ConnectionError, match=r"did not answer ControlledShutdown within 5 s"):
                await one
        stranger.behave = well
        assert number_of(await peers.send(2, KEY, VERSION, BODY)) == 1
        assert stranger.connections == 2


@on_set_loop
async def test_a_late_answer_is_never_taken_for_another_requests(loop: SetLoop) -> None:
    late: list[tuple[int, asyncio.StreamWriter]] = []

    async def keep(number: int, writer: asyncio.StreamWriter) -> None:
        late.append((number, writer))

    stranger = Stranger(keep)
    async with world(stranger) as peers:
        first = asyncio.ensure_future(peers.send(2, KEY, VERSION, BODY))
        await stranger.until(2)
        first.cancel()
        second = asyncio.ensure_future(peers.send(2, KEY, VERSION, BODY))
        await stranger.until(3)
        for number, writer in late:
            writer.write(answer(number, number))
        assert number_of(await second) == 2
        assert stranger.connections == 1


@pytest.mark.parametrize("greeting", [True, False])
@on_set_loop
async def test_a_broker_that_cannot_be_reached_is_given_up_after_five_seconds(loop: SetLoop, greeting: bool) -> None:
    """It takes connections and never answers the handshake, or answers half of it."""
    stranger = Stranger(well, lambda number: b"\0\0" if greeting else b"")
    async with world(stranger) as peers:
        waiting = [asyncio.ensure_future(one) for one in (peers.send(2, KEY, VERSION, BODY), peers.dial(2))]
        await stranger.until(2)
        loop.now_s += ANSWER_S + 0.001
        for one in waiting:
            with pytest.raises(ConnectionError, match="did not answer within 5 s"):
                await one


def closing(*pieces: bytes) -> Callable[[int, asyncio.StreamWriter], Awaitable[None]]:
    async def behave(number: int, writer: asyncio.StreamWriter) -> None:
        writer.writelines(pieces)
        await writer.drain()
        writer.close()

    return behave


def saying(made: Callable[[int], bytes]) -> Callable[[int, asyncio.StreamWriter], Awaitable[None]]:
    async def behave(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(made(number))

    return behave


LIES = {
    "no answer": (closing(), "closed the connection$"),
    "half a size": (closing(b"\0\0"), "closed the connection within an answer"),
    "half an answer": (closing(struct.pack(">i", 100), b"half"), "closed the connection within an answer"),
    "a size below 0": (saying(lambda number: struct.pack(">i", -1)), "an answer of -1 bytes"),
    "a size without room for a header": (saying(lambda number: struct.pack(">i", 3) + b"abc"), "an answer of 3 bytes"),
    "2 GiB": (saying(lambda number: struct.pack(">i", 2**31 - 1)), "an answer of 2147483647 bytes"),
    "a byte too many": (saying(lambda number: struct.pack(">i", ANSWER_BYTES_MAX + 1)), "an answer of 16777217 bytes"),
    "another's answer": (saying(lambda number: answer(number + 1)), "nothing that was asked"),
    "one answer twice": (saying(lambda number: answer(number) * 2), "nothing that was asked"),
    "a header that is cut": (saying(lambda number: framed(struct.pack(">i", number))), "response header cut"),
}


@pytest.mark.parametrize("lie", LIES)
@on_loop
async def test_what_is_no_answer_closes_the_connection(lie: str) -> None:
    behave, words = LIES[lie]
    stranger = Stranger(behave)
    async with world(stranger) as peers:
        # Of one answer twice the first is one.
        with pytest.raises(ConnectionError, match=words):
            await asyncio.gather(*(peers.send(2, KEY, VERSION, BODY) for _ in range(3)))
        stranger.behave = well
        assert number_of(await peers.send(2, KEY, VERSION, BODY)) == 1
        assert stranger.connections == 2


@on_loop
async def test_an_answer_that_cannot_be_read_closes_the_connection() -> None:
    stranger = Stranger(saying(lambda number: framed(struct.pack(">i", number) + b"\0nonsense")))
    async with world(stranger) as peers:
        for large in (False, True):
            with pytest.raises(ConnectionError, match="no answer to ControlledShutdown"):
                await peers.ask(2, KEY, ControlledShutdownRequest, lambda message: message, large=large)
        assert stranger.connections == 2
        stranger.behave = well
        message = await peers.ask(2, KEY, ControlledShutdownRequest, lambda message: message, large=True)
        assert message == ControlledShutdownResponse(error_code=1)


def greeted(message: ApiVersionsResponse, version: int) -> Callable[[int], bytes]:
    return lambda number: framed(encode_response(message, version, number))


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (greeted(ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED), 5), "another broker, or of another cluster"),
        (greeted(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0), "runs an older version"),
        (greeted(ApiVersionsResponse(error_code=-1), 5), "with error -1"),
        (lambda number: framed(struct.pack(">i", number + 1) + ApiVersionsResponse().encode(5)), "which wasn't sent"),
        (lambda number: framed(b"\0\0\0\0" + b"\xff" * 20), "at `127.0.0.1:"),
        (lambda number: struct.pack(">i", 2**31 - 1), "an answer of 2147483647 bytes"),
    ],
)
@on_loop
async def test_a_handshake_that_fails_says_why(greeting: Callable[[int], bytes], words: str) -> None:
    stranger = Stranger(well, greeting)
    async with world(stranger) as peers:
        for asking in (peers.send(2, KEY, VERSION, BODY), peers.dial(2)):
            with pytest.raises(ConnectionError, match=f"^broker 2 at `127.0.0.1:{stranger.port}`: .*") as refused:
                await asking
            assert words in str(refused.value)


@on_loop
async def test_a_version_that_the_other_broker_does_not_serve_is_not_sent() -> None:
    stranger = Stranger(well)
    async with world(stranger) as peers:
        for key, version in ((KEY, 10), (4, 7)):
            with pytest.raises(ConnectionError, match=f"doesn't serve .* version {version}"):
                await peers.send(2, key, version, BODY)
        with pytest.raises(ConnectionError, match="doesn't serve LeaderAndIsr in a version of ours"):
            await peers.ask(2, 4, ControlledShutdownRequest, lambda message: message)
        assert len(stranger.requests) == 1


@on_loop
async def test_nobody_listens_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        peers = Peers(1, "cluster")
        peers.set_brokers({2: free.getsockname(), 3: ("no.such.host.invalid", 1)})
        for broker, words in ((2, "Connection refused"), (3, "can't be reached"), (4, "broker 4 is not known")):
            with pytest.raises(ConnectionError, match=words):
                await peers.send(broker, KEY, VERSION, BODY)
            with pytest.raises(ConnectionError, match=words):
                await peers.dial(broker)
        await peers.stop()


@on_loop
async def test_another_address_closes_the_connection_and_the_same_keeps_it() -> None:
    old, new = Stranger(not_at_all), Stranger(well)
    async with world(old) as peers, world(new):
        asked = asyncio.ensure_future(peers.send(2, KEY, VERSION, BODY))
        await old.until(2)
        peers.set_brokers({2: ("127.0.0.1", old.port), 3: ("127.0.0.1", new.port)})
        await asyncio.sleep(0)
        assert not asked.done()
        peers.set_brokers({2: ("127.0.0.1", new.port)})
        with pytest.raises(ConnectionError, match="another address, or is gone"):
            await asked
        assert number_of(await peers.send(2, KEY, VERSION, BODY)) == 1
        peers.set_brokers({})
        with pytest.raises(ConnectionError, match="not known"):
            await peers.send(2, KEY, VERSION, BODY)


@on_loop
async def test_a_connection_to_an_address_that_has_changed_meanwhile_is_not_used() -> None:
    stranger = Stranger(well)
    async with world(stranger) as peers:
        greet = stranger.greeting

        def move(number: int) -> bytes:
            peers.set_brokers({2: ("127.0.0.1", 1)})
            return greet(number)

        stranger.greeting = move
        with pytest.raises(ConnectionError, match="another address now"):
            await peers.send(2, KEY, VERSION, BODY)
        assert all(isinstance(one, ApiVersionsRequest) for one in stranger.requests)


@on_loop
async def test_a_dialled_socket_is_the_callers() -> None:
    stranger = Stranger(well)
    async with world(stranger) as peers:
        sock = await peers.dial(2)
        await peers.stop()  # Which leaves it open.
        with sock:
            assert sock.getblocking() is False
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            loop = asyncio.get_running_loop()
            head = struct.pack(">hhih", KEY, VERSION, 9, -1) + b"\0"
            await loop.sock_sendall(sock, framed(head + BODY))
            data = b""
            while len(data) < len(answer(9)):
                data += await loop.sock_recv(sock, 100)
            assert data == answer(9, 9)


@on_loop
async def test_a_stop_ends_whatever_waits() -> None:
    stranger = Stranger(not_at_all)
    async with world(stranger) as peers:
        asked = asyncio.ensure_future(peers.send(2, KEY, VERSION, BODY))
        await stranger.until(2)
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        addresses = {2: ("127.0.0.1", stranger.port), 3: ("127.0.0.1", silent.sockets[0].getsockname()[1])}
        peers.set_brokers(addresses)
        opening = asyncio.ensure_future(peers.send(3, KEY, VERSION, BODY))
        await asyncio.sleep(0.01)
        await peers.stop()
        for one in (asked, opening):
            with pytest.raises(ConnectionError, match="this broker stops"):
                await one
        with pytest.raises(ConnectionError, match="not known"):
            await peers.send(2, KEY, VERSION, BODY)
        silent.close()


@on_loop
async def test_a_stop_while_a_large_message_is_made_is_a_lost_connection() -> None:
    stranger = Stranger(well)
    async with world(stranger) as peers:
        making, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def write() -> Message:
            loop.call_soon_threadsafe(making.set)
            assert go.wait(100)
            return ControlledShutdownRequest()

        first = asyncio.ensure_future(peers.ask(2, KEY, write, lambda message: message, large=True))
        await making.wait()
        second = asyncio.ensure_future(peers.ask(2, KEY, write, lambda message: message, large=True))
        stopped = asyncio.ensure_future(peers.stop())
        await asyncio.sleep(0)
        go.set()
        await stopped
        for one in (first, second):
            with pytest.raises(ConnectionError, match="this broker stops"):
                await one
