"""Connections to other brokers: one for each, over which requests and answers go, and sockets for the fetchers.

A connection is made when it is first needed. Its handshake (ApiVersions) names the cluster and the broker that is meant: so
another broker that has got the address since is never taken for it (KIP-1242). Requests are pipelined; answers come in their
order. A request that isn't answered within ANSWER_S closes its connection, and so does an answer that can't be one: all that
waits on it fails with ConnectionError. Whether such a request was carried out is not known. The next request connects again.

A large message costs some 40 ms of Python: `ask` makes and reads such ones in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from penstock import __version__, log
from penstock.errors import ErrorCode, os_error_text
from penstock.pyx.wire.header import (
    REQUESTS,
    RESPONSES,
    decode_response,
    decode_response_header,
    encode_request,
    encode_request_header,
)
from penstock.pyx.wire.message import Message, WireError
from penstock.pyx.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from penstock.tcp import connect

ANSWER_S = 5.0
"""How long a broker may take to answer, or to be reached."""
ANSWER_BYTES_MAX = 16 << 20
"""Of one answer: that to 2,500 roles has 100 KB."""
LARGE_BYTES = 1 << 15
"""From this length on an answer isn't read on the loop."""
HANDSHAKE_VERSION = 5
"""The first version of ApiVersions that names the broker which is meant."""
SOFTWARE_NAME = "penstock"

Address = tuple[str, int]
Versions = Mapping[int, tuple[int, int]]
Prepare = Callable[[int, socket.socket], None]
T = TypeVar("T")

_log = log.get(__name__)


class Peers:
    """The other brokers of a cluster, for one of them. On the loop; `stop` it once."""

    def __init__(self, node_id: int, cluster_id: str, prepare: Prepare | None = None) -> None:
        """prepare: given each socket before it is connected, with the broker that is meant."""
        self._prepare = prepare or (lambda broker, sock: None)
        self._client_id = f"broker-{node_id}"
        self._cluster_id = cluster_id
        self._addresses: dict[int, Address] = {}
        self._connections: dict[int, _Connection] = {}
        self._opening: dict[int, asyncio.Task[_Connection]] = {}
        self._coding = ThreadPoolExecutor(1, "peers")
        self._stopped = False
        self._changed = asyncio.Event()

    def set_brokers(self, addresses: Mapping[int, Address]) -> None:
        """Say which brokers there are, and where each listens for brokers. A connection to one that is gone, or has another
        address, is closed.
        """
        for broker, connection in tuple(self._connections.items()):
            if addresses.get(broker) != self._addresses.get(broker):
                del self._connections[broker]
                connection.close("it has another address, or is gone")
        self._addresses = dict(addresses)
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_known(self, broker: int) -> None:
        """Wait until a broker is one of those that there are."""
        while broker not in self._addresses:
            await self._changed.wait()

    async def send(self, broker: int, api_key: int, version: int, body: bytes) -> bytes:
        """Send a request without its header; the answer without its header.

        Raises ConnectionError: the broker can't be reached, doesn't serve this version, or didn't answer in time, or the
        connection is lost.
        """
        connection = await self._connected(broker)
        low, high = connection.versions.get(api_key, (0, -1))
        if not low <= version <= high:
            raise ConnectionError(f"{connection.name} doesn't serve {_named(api_key)} version {version}")
        return await connection.send(api_key, version, body)

    async def ask(
        self, broker: int, api_key: int, write: Callable[[], Message], read: Callable[[Any], T], *, large: bool = False
    ) -> T:
        """Send the message that `write` makes, in the newest version that both brokers know; what `read` makes of the answer.

        large: the message is a long one. write and read may run in a thread. Raises ConnectionError as `send` does, also when
        the answer can't be read.
        """
        connection = await self._connected(broker)
        low, high = connection.versions.get(api_key, (0, -1))
        version = min(high, REQUESTS[api_key].MAX_VERSION)
        if version < max(low, REQUESTS[api_key].MIN_VERSION):
            raise ConnectionError(f"{connection.name} doesn't serve {_named(api_key)} in a version of ours")
        body = await self._code(large, lambda: write().encode(version))
        answer = await connection.send(api_key, version, body)
        try:
            return await self._code(
                large or len(answer) >= LARGE_BYTES, lambda: read(RESPONSES[api_key].decode(answer, version))
            )
        except WireError as error:
            connection.close(f"its answer to {_named(api_key)} is none: {error}")
            raise ConnectionError(f"{connection.name} gave no answer to {_named(api_key)}: {error}") from None

    async def dial(self, broker: int) -> socket.socket:
        """A new connection, its handshake done, that belongs to the caller: non-blocking, watched by nobody.

        Raises ConnectionError.
        """
        return (await self._dial(broker))[0]

    def abandon(self) -> None:
        """Close all connections, and make no more; what waits on them fails. `stop` is still to come."""
        self._stopped = True
        for task in self._opening.values():
            task.cancel()
        for connection in self._connections.values():
            connection.close("this broker stops")

    async def stop(self) -> None:
        """Close all connections; what waits on them fails."""
        self.abandon()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(connection.ended() for connection in self._connections.values()))
        await asyncio.get_running_loop().run_in_executor(None, self._coding.shutdown)

    async def _code(self, large: bool, work: Callable[[], T]) -> T:
        if not large:
            return work()
        if self._stopped:
            raise ConnectionError("this broker stops")
        return await asyncio.get_running_loop().run_in_executor(self._coding, work)

    async def _connected(self, broker: int) -> _Connection:
        connection = self._connections.get(broker)
        if connection is not None and not connection.closed:
            return connection
        task = self._opening.get(broker)
        if task is None:
            task = self._opening[broker] = asyncio.get_running_loop().create_task(self._open(broker))
            task.add_done_callback(lambda task: self._opened(broker, task))
        # One who waits may be cancelled; the others go on.
        await asyncio.wait([task])
        if task.cancelled():
            raise ConnectionError(f"broker {broker} is not connected: this broker stops")
        return task.result()

    def _opened(self, broker: int, task: asyncio.Task[_Connection]) -> None:
        del self._opening[broker]
        if not task.cancelled():
            task.exception()  # It is nobody's fault if all who waited for it have gone.

    async def _open(self, broker: int) -> _Connection:
        address = self._addresses.get(broker)
        sock, versions = await self._dial(broker)
        if self._addresses.get(broker) != address:
            sock.close()
            raise ConnectionError(f"broker {broker} has another address now")
        try:
            reader, writer = await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise
        name = _name(broker, address)
        connection = self._connections[broker] = _Connection(reader, writer, name, versions, self._client_id)
        _log.info("connected to %s", name)
        return connection

    async def _dial(self, broker: int) -> tuple[socket.socket, Versions]:
        address = self._addresses.get(broker)
        if address is None or self._stopped:
            raise ConnectionError(f"broker {broker} is not known")
        name = _name(broker, address)
        sock = None
        try:
            async with asyncio.timeout(ANSWER_S):
                sock = await connect(*address, partial(self._prepare, broker))
                return sock, await self._shake_hands(sock, broker)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, TimeoutError):
                raise ConnectionError(f"{name} did not answer within {ANSWER_S:g} s") from None
            if isinstance(error, WireError):
                raise ConnectionError(f"{name}: {error}") from None
            if isinstance(error, OSError):
                raise ConnectionError(f"{name} can't be reached: {os_error_text(error)}") from None
            raise

    async def _shake_hands(self, sock: socket.socket, broker: int) -> Versions:
        """Which versions of which APIs the broker serves on this listener. Raises WireError, OSError."""
        loop = asyncio.get_running_loop()
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=__version__, cluster_id=self._cluster_id, node_id=broker
        )
        frame = encode_request(request, HANDSHAKE_VERSION, 0, self._client_id)
        await loop.sock_sendall(sock, struct.pack(">i", len(frame)) + frame)
        size = _size(await _receive(sock, 4))
        frame = await _receive(sock, size)
        if frame[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
            raise WireError("it runs an older version, which can't be in one cluster with this broker's")
        correlation_id, answer = decode_response(ApiVersionsResponse, frame, HANDSHAKE_VERSION)
        if correlation_id != 0:
            raise WireError(f"it answers request {correlation_id}, which wasn't sent")
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            raise WireError("it is another broker, or of another cluster")
        if answer.error_code != ErrorCode.NONE:
            raise WireError(f"it answers ApiVersions with error {answer.error_code}")
        return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


class _Connection:
    """One control connection. A closed one stays closed."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, versions: Versions, client_id: str
    ) -> None:
        self.name = name
        self.versions = versions
        self._client_id = client_id
        self._reader = reader
        self._writer = writer
        self._why: str | None = None
        self._last_id = 0
        self._pending: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._why is not None

    async def send(self, api_key: int, version: int, body: bytes) -> bytes:
        if self._why is not None:
            raise ConnectionError(f"{self.name}: {self._why}")
        self._last_id += 1
        head = encode_request_header(api_key, version, self._last_id, self._client_id)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending.append((self._last_id, answer))
        self._writer.writelines([struct.pack(">i", len(head) + len(body)), head, body])
        try:
            async with asyncio.timeout(ANSWER_S):
                frame = await answer
            return frame[decode_response_header(RESPONSES[api_key], frame, version).body_start :]
        except TimeoutError:
            self.close(f"it did not answer {_named(api_key)} within {ANSWER_S:g} s")
        except WireError as error:
            self.close(f"its answer to {_named(api_key)} is none: {error}")
        raise ConnectionError(f"{self.name}: {self._why}")

    def close(self, why: str) -> None:
        """Close it, for a reason that those hear who wait for answers."""
        if self._why is not None:
            return
        self._why = why
        _log.info("the connection to %s is closed: %s", self.name, why)
        self._writer.transport.abort()
        self._reading.cancel()
        for _, answer in self._pending:
            if not answer.done():
                answer.set_exception(ConnectionError(f"{self.name}: {why}"))
        self._pending.clear()

    async def ended(self) -> None:
        """Wait until a closed one has let go of its socket."""
        await asyncio.wait([self._reading])
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        try:
            while True:
                size = _size(await self._reader.readexactly(4))
                frame = await self._reader.readexactly(size)
                if not self._pending or frame[:4] != self._pending[0][0].to_bytes(4, "big"):
                    raise WireError("an answer to nothing that was asked")
                _, answer = self._pending.popleft()
                if not answer.done():  # Who asked may have gone.
                    answer.set_result(frame)
        except asyncio.IncompleteReadError as error:
            self.close("it closed the connection" + (" within an answer" if error.partial else ""))
        except WireError as error:
            self.close(f"it sent what is no answer: {error}")
        except OSError as error:
            self.close(f"the connection is lost: {os_error_text(error)}")


async def _receive(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        piece = await loop.sock_recv(sock, size - len(data))
        if not piece:
            raise ConnectionResetError("the broker closed the connection")
        data += piece
    return data


def _size(data: bytes) -> int:
    """The size that stands in front of an answer. Raises WireError."""
    size = int.from_bytes(data, "big", signed=True)
    if not 4 <= size <= ANSWER_BYTES_MAX:
        raise WireError(f"an answer of {size} bytes")
    return size


def _name(broker: int, address: Address | None) -> str:
    return f"broker {broker}" if address is None else f"broker {broker} at `{address[0]}:{address[1]}`"


def _named(api_key: int) -> str:
    return REQUESTS[api_key].__name__.removesuffix("Request") if api_key in REQUESTS else f"API {api_key}"
