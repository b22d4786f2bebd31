"""Connections to brokers that misbehave: every request ends, by an answer or an error; memory stays bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import ANY_NODE, Client
from penstock.pipeline.clients.connection import SCRATCH_BYTES, Connection, ConnectionLost, RequestTimedOut
from penstock.pyx.wire.header import decode_request_header, encode_response
from penstock.pyx.wire.messages import ApiVersionsResponse, MetadataRequest

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
RESPONSE_BYTES_MAX = 1 << 20


def sized(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the handshake as a broker that only knows metadata up to version 9."""
    number = await request(reader)
    api_version = ApiVersionsResponse.ApiVersion
    apis = [api_version(api_key=18, min_version=0, max_version=3), api_version(api_key=3, min_version=0, max_version=9)]
    writer.write(sized(encode_response(ApiVersionsResponse(api_keys=apis), 3, number)))


async def request(reader: asyncio.StreamReader) -> int:
    """The correlation id of the next request."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return decode_request_header(await reader.readexactly(size)).correlation_id


def talk(script: Script, use: Callable[[int], Awaitable[None]], greeted: bool = True) -> None:
    """Run `use(port)` against a server that greets and then follows the script."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if greeted:
                await greet(reader, writer)
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with asyncio.timeout(30):
            await use(server.sockets[0].getsockname()[1])
        server.close()
        await server.wait_closed()

    asyncio.run(run())


async def opened(port: int) -> Connection:
    return await Connection.open("127.0.0.1", port, timeout_ms=5000, response_bytes_max=RESPONSE_BYTES_MAX)


def ask(
    connection: Connection, body: bytes = b"", timeout_ms: float = 5000, answered: bool = True
) -> asyncio.Future[memoryview]:
    def encode(number: int) -> list[bytes]:
        return [b"\x00\x03\x00\x09" + number.to_bytes(4, "big") + b"\xff\xff\x00", body]

    return connection.request(encode, timeout_ms, answered)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(4, 3 * SCRATCH_BYTES), min_size=1, max_size=6), st.data())
def test_answers_come_whole_however_they_are_cut(sizes: list[int], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(1, 2 * SCRATCH_BYTES), min_size=1, max_size=20))

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        numbers = [await request(reader) for _ in sizes]
        frames = [n.to_bytes(4, "big") + bytes([i]) * (size - 4) for i, (n, size) in enumerate(zip(numbers, sizes))]  # noqa: B905
        stream = b"".join(map(sized, frames))
        at = 0
        for i in range(len(stream)):
            piece = stream[at : at + cuts[i % len(cuts)]]
            if not piece:
                break
            at += len(piece)
            writer.write(piece)
            await writer.drain()
        await reader.read()

    async def use(port: int) -> None:
        connection = await opened(port)
        answers = await asyncio.gather(*[ask(connection) for _ in sizes])
        for i, (answer, size) in enumerate(zip(answers, sizes, strict=True)):
            assert answer.nbytes == size and bytes(answer[4:]) == bytes([i]) * (size - 4)
        connection.close()

    talk(script, use)


@pytest.mark.parametrize("size", [-1, 0, 3, RESPONSE_BYTES_MAX + 1, 2**31 - 1])
def test_an_impossible_size_closes_the_connection(size: int) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(size.to_bytes(4, "big", signed=True) + b"xxxx")
        await reader.read()

    async def use(port: int) -> None:
        connection = await opened(port)
        with pytest.raises(ConnectionLost, match="an answer of"):
            await ask(connection)
        assert connection.closed

    talk(script, use)


def test_a_foreign_correlation_id_closes_the_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = await request(reader)
        writer.write(sized((number + 1).to_bytes(4, "big")))
        await reader.read()

    async def use(port: int) -> None:
        connection = await opened(port)
        waiting = [ask(connection), ask(connection)]
        for answer in waiting:
            with pytest.raises(ConnectionLost):
                await answer

    talk(script, use)


def test_silence_ends_in_a_timeout_for_all_that_wait() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use(port: int) -> None:
        connection = await opened(port)
        slow, quick = ask(connection, timeout_ms=10_000), ask(connection, timeout_ms=50)
        with pytest.raises(RequestTimedOut):
            await quick
        with pytest.raises(ConnectionLost):
            await slow
        with pytest.raises(ConnectionLost):
            await ask(connection)

    talk(script, use)


def test_an_answer_cut_in_the_middle_is_a_lost_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = await request(reader)
        writer.write((100).to_bytes(4, "big") + number.to_bytes(4, "big") + b"half")

    async def use(port: int) -> None:
        connection = await opened(port)
        with pytest.raises(ConnectionLost, match="the broker closed it"):
            await ask(connection)

    talk(script, use)


def test_a_large_request_goes_out_whole_while_the_broker_reads_slowly() -> None:
    body = bytes(range(256)) * 40_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        frame = b""
        while len(frame) < size:
            frame += await reader.read(1 << 20)
            await asyncio.sleep(0.001)
        assert frame[11:] == body
        writer.write(sized(frame[4:8] + b"ok"))
        await reader.read()

    async def use(port: int) -> None:
        connection = await opened(port)
        assert bytes((await ask(connection, body))[4:]) == b"ok"
        connection.close()

    talk(script, use)


def test_what_nobody_answers_is_out_before_its_connection_closes() -> None:
    """Requests of one pass of the loop go together; one without an answer takes what waits along, in its order."""
    came: list[int] = []
    told = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.extend([await request(reader) for _ in range(3)])
        told.set()

    async def use(port: int) -> None:
        connection = await opened(port)
        first = ask(connection)
        assert bytes(await ask(connection, answered=False)) == b""
        ask(connection, answered=False)
        connection.close()
        with pytest.raises(ConnectionLost):
            await first
        await told.wait()
        assert came == sorted(came)

    talk(script, use)


def test_an_abandoned_request_does_not_confuse_the_next() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for text in (b"first", b"second"):
            writer.write(sized((await request(reader)).to_bytes(4, "big") + text))
        await reader.read()

    async def use(port: int) -> None:
        connection = await opened(port)
        ask(connection).cancel()
        assert bytes((await ask(connection))[4:]) == b"second"
        connection.close()

    talk(script, use)


def test_an_old_broker_answers_the_handshake_in_version_0() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unsupported = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        writer.write(sized(encode_response(unsupported, 0, await request(reader))))
        apis = [ApiVersionsResponse.ApiVersion(api_key=3, min_version=0, max_version=5)]
        writer.write(sized(encode_response(ApiVersionsResponse(api_keys=apis), 0, await request(reader))))
        await reader.read()

    async def use(port: int) -> None:
        connection = await opened(port)
        assert connection.version(3, 0, 12) == 5
        with pytest.raises(KafkaError) as caught:
            connection.version(3, 6, 12)
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        connection.close()

    talk(script, use, greeted=False)


@pytest.mark.parametrize("noise", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x08" + bytes(8)])
def test_something_that_is_no_broker_is_refused(noise: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(noise)

    async def use(port: int) -> None:
        client = Client(f"127.0.0.1:{port}", **{"default.api.timeout.ms": 100, "retry.backoff.ms": 10})
        with pytest.raises(KafkaError) as caught:
            await client.start()
        assert caught.value.retriable
        await client.close()

    talk(script, use, greeted=False)


def test_a_malformed_answer_is_an_error_and_not_a_crash() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = await request(reader)
        writer.write(sized(number.to_bytes(4, "big") + b"\x00" + b"\x7f" * 20))
        await reader.read()

    async def use(port: int) -> None:
        async with asyncio.timeout(10):
            client = Client(f"127.0.0.1:{port}")
            with pytest.raises(ConnectionLost, match="malformed"):
                await client.send(ANY_NODE, MetadataRequest(topics=[]))
            await client.close()

    talk(script, use)


def test_nobody_there() -> None:
    async def run() -> None:
        client = Client("127.0.0.1:1", **{"default.api.timeout.ms": 100, "retry.backoff.ms": 10})
        with pytest.raises(ConnectionLost):
            await client.start()
        await client.close()

    asyncio.run(run())
