"""The HTTP server for figures and health, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from penstock import http
from penstock.config import ConfigError
from penstock.http import Answer, HttpServer, address
from support.onloop import on_loop


async def _hello(headers: Mapping[str, str]) -> Answer:
    return Answer(200, http.TEXT, f"hello {headers.get('x-name', 'nobody')}\n".encode())


async def _broken(headers: Mapping[str, str]) -> Answer:
    raise RuntimeError("a handler's fault")


@asynccontextmanager
async def serving(**more: http.Route) -> AsyncIterator[int]:
    server = HttpServer("127.0.0.1:0", {"/hello": _hello, "/broken": _broken, **more}, public=False)
    _, port = await server.start()
    try:
        yield port
    finally:
        await server.stop()


async def talk(port: int, sent: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    got = await reader.read()
    writer.close()
    return got


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def one_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return head, await reader.readexactly(length)


CASES = [
    (b"GET /hello HTTP/1.0\r\n\r\n", b"200", b"hello nobody\n"),
    (b"GET /hello?a=b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Name: you\r\n\r\n", b"200", b"hello you\n"),
    (b"HEAD /hello HTTP/1.0\r\n\r\n", b"200", b""),
    (b"GET /nothing HTTP/1.0\r\n\r\n", b"404", b"there are /broken, /hello\n"),
    (b"POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", b"405", b"only GET and HEAD are served\n"),
    (b"GET /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n", b"200", b"hello nobody\n"),
    (b"GET /broken HTTP/1.0\r\n\r\n", b"500", b"the answer failed: the log says why\n"),
    (b"GET /hello HTTP/1.1\r\n\r\n", b"400", None),  # no Host
    (b"\x00\x00\x00\x17\x00\x12\x00\x03\x00\x00\x00\x00" * 4, b"400", None),  # Kafka's protocol
    (b"GET /hello HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 10_000, b"431", None),
]


@pytest.mark.parametrize(("sent", "status", "body"), CASES, ids=[str(number) for number in range(len(CASES))])
@on_loop
async def test_each_request_gets_its_answer(sent: bytes, status: bytes, body: bytes | None) -> None:
    async with serving() as port:
        head, _, got = (await talk(port, sent)).partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert body is None or got == body


@on_loop
async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with serving() as port:
        reader, writer = await connect(port)
        for name in (b"a", b"b", b"c"):
            writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\nX-Name: %b\r\n\r\n" % name)
            assert (await one_answer(reader))[1] == b"hello %b\n" % name
        writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n" * 2)  # the second before the first's answer
        assert [(await one_answer(reader))[1] for _ in range(2)] == [b"hello nobody\n"] * 2
        writer.close()


@on_loop
async def test_silent_and_slow_peers_keep_nobody_out() -> None:
    async with serving() as port:
        silent = [await connect(port) for _ in range(http.CONNECTIONS_MAX * 2)]
        for _, writer in silent[::2]:
            writer.write(b"GET /h")
        for _ in range(3):
            assert b"hello nobody" in await talk(port, b"GET /hello HTTP/1.0\r\n\r\n")
        ended = [reader for reader, _ in silent if reader.at_eof()]
        assert len(ended) >= http.CONNECTIONS_MAX
        for _, writer in silent:
            writer.close()


@on_loop
async def test_connections_that_come_at_once_are_no_more_than_the_bound() -> None:
    async with serving() as port:
        every = await asyncio.gather(*(connect(port) for _ in range(100)))
        ended = asyncio.gather(*(reader.read() for reader, _ in every), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended), 1.0)
        left = [reader for reader, _ in every if not reader.at_eof() and reader.exception() is None]
        assert 0 < len(left) <= http.CONNECTIONS_MAX
        for _, writer in every:
            writer.close()
        await ended


@on_loop
async def test_connections_that_are_all_being_answered_are_not_ended_for_a_new_one() -> None:
    go_on, all_asked = asyncio.Event(), asyncio.Event()
    asked = itertools.count(1)

    async def slow(headers: Mapping[str, str]) -> Answer:
        if next(asked) == http.CONNECTIONS_MAX:
            all_asked.set()
        await go_on.wait()
        return Answer(200, http.TEXT, b"at last\n")

    async with serving(**{"/slow": slow}) as port:
        talks = [asyncio.create_task(talk(port, b"GET /slow HTTP/1.0\r\n\r\n")) for _ in range(http.CONNECTIONS_MAX)]
        await all_asked.wait()
        with pytest.raises(ConnectionResetError):
            assert await talk(port, b"GET /hello HTTP/1.0\r\n\r\n") == b""
            raise ConnectionResetError
        go_on.set()
        assert all(got.endswith(b"at last\n") for got in await asyncio.gather(*talks))


@on_loop
async def test_peers_that_do_not_take_their_answers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does any hold more than one answer, however many requests it has sent."""
    monkeypatch.setattr(http, "ANSWER_S", 3600.0)
    made, all_made = 0, asyncio.Event()

    async def large(headers: Mapping[str, str]) -> Answer:
        nonlocal made
        made += 1
        if made == http.CONNECTIONS_MAX:
            all_made.set()
        return Answer(200, http.TEXT, bytes(16 << 20))  # more than sockets hold

    async with serving(**{"/large": large}) as port:
        stopped = [await connect(port) for _ in range(http.CONNECTIONS_MAX)]
        for _, writer in stopped:
            writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        await all_made.wait()
        for _ in range(2):
            got = b""
            for _ in range(600):
                with contextlib.suppress(ConnectionError):
                    got = await talk(port, b"GET /hello HTTP/1.0\r\n\r\n")
                if got:
                    break
                await asyncio.sleep(0.05)
            assert b"hello nobody" in got
        assert made == http.CONNECTIONS_MAX
        for _, writer in stopped:
            writer.transport.abort()


@on_loop
async def test_half_open_peers_get_their_answers() -> None:
    """One that sends nothing more after its request, and one that is gone before its answer."""
    go_on = asyncio.Event()

    async def slow(headers: Mapping[str, str]) -> Answer:
        await go_on.wait()
        return Answer(200, http.TEXT, b"at last\n")

    async with serving(**{"/slow": slow}) as port:
        reader, writer = await connect(port)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.write_eof()
        _, gone = await connect(port)
        gone.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await gone.drain()
        await asyncio.sleep(0.1)
        gone.transport.abort()
        go_on.set()
        assert (await reader.read()).endswith(b"at last\n")
        writer.close()
        assert b"hello nobody" in await talk(port, b"GET /hello HTTP/1.0\r\n\r\n")


@on_loop
async def test_a_head_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_S", 0.05)
    async with serving() as port:
        assert await talk(port, b"GET /hello HTTP/1.1\r\n") == b""


@on_loop
async def test_a_stop_waits_for_no_peer() -> None:
    asked = asyncio.Event()

    async def never(headers: Mapping[str, str]) -> Answer:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(**{"/never": never}) as port:
        silent = await connect(port)
        waiting = asyncio.create_task(talk(port, b"GET /never HTTP/1.0\r\n\r\n"))
        await asked.wait()
    with pytest.raises(ConnectionResetError):
        assert await waiting == b""
        raise ConnectionResetError
    assert await silent[0].read() == b""
    silent[1].close()


@pytest.mark.parametrize(
    ("listen", "there"),
    [
        ("127.0.0.1:9404", ("127.0.0.1", 9404)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:1", ("localhost", 1)),
        (" 127.1.2.3:5 ", ("127.1.2.3", 5)),
    ],
)
def test_loopback_is_taken(listen: str, there: tuple[str, int]) -> None:
    assert address(listen, public=False, key="k") == there


@pytest.mark.parametrize("listen", ["0.0.0.0:9404", ":9404", "[::]:9404", "192.0.2.1:9404", "box.example:9404"])
def test_an_address_that_others_reach_is_meant_or_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"penstock\.http\.public=true"):
        address(listen, public=False, key="penstock.http.listen")
    assert address(listen, public=True, key="penstock.http.listen")[1] == 9404


@pytest.mark.parametrize(
    "listen", ["", "9404", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "::1:9404", "http://127.0.0.1:1", "a b:1:2"]
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        address(listen, public=True, key="k")


@on_loop
async def test_a_port_that_is_taken_is_an_error_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = HttpServer(f"127.0.0.1:{taken.getsockname()[1]}", {}, public=False)
        with pytest.raises(OSError, match="in use"):
            await server.start()
        await server.stop()
