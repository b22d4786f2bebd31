"""A small HTTP server for figures and health: GET and HEAD on an asyncio loop, by h11.

It is for Prometheus, systemd's and load balancers' probes and people with curl, so it takes little: heads of 8 KiB, no bodies,
16 connections, of each one answer at a time. One that sends slowly or nothing, or doesn't take its answer, gives its place to a
new one, so that nobody keeps a scrape out.
h11 is imported when a server is made: a process without one pays nothing for it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import log, tasks
from penstock.config import ConfigError

if TYPE_CHECKING:
    import h11

CONNECTIONS_MAX = 16
HEAD_BYTES_MAX = 8 << 10
READ_BYTES = 4 << 10
HEAD_S = 5.0  # for a request's head, from its first byte
IDLE_S = 180.0  # between requests of one connection: longer than anybody's interval of scrapes
ANSWER_S = 10.0  # for a peer to take an answer
TAKE_S = 1.0  # the same while a new one finds no place

_log = log.get(__name__)


@dataclass(frozen=True)
class Answer:
    """What a route says: a status, a content type, bytes."""

    status: int
    content_type: str
    body: bytes


Route = Callable[[Mapping[str, str]], Awaitable[Answer]]
"""Takes the request's headers (names in lower case), makes its answer. What it raises is logged and becomes a 500."""

TEXT = "text/plain; charset=utf-8"


class HttpServer:
    """Serves some routes, by path, at one address, from `start` to `stop`."""

    def __init__(self, listen: str, routes: Mapping[str, Route], *, public: bool, key: str = "penstock.http.listen") -> None:
        """`listen` is HOST:PORT, port 0 for any; `key` is its property's name. Raises ConfigError as `address` does."""
        self._host, self._port = address(listen, public=public, key=key)
        self._routes = dict(routes)
        self._server: asyncio.Server | None = None
        self._peers: dict[asyncio.Task[None], _Peer] = {}

    async def start(self) -> tuple[str, int]:
        """Listen; the bound address. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=READ_BYTES)
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        """Close the listener and every connection, at once."""
        if self._server is None:
            return
        self._server.close()
        await tasks.end(*self._peers)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._peers) >= CONNECTIONS_MAX and not self._make_room():
            writer.transport.abort()
            return
        peer = self._peers[task] = _Peer(reader, writer, self._routes)
        try:
            await peer.serve()
            writer.close()
        except (OSError, TimeoutError):
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            self._peers.pop(task, None)

    def _make_room(self) -> bool:
        """End the connection that has waited for a request longest, or else for its peer to take an answer. False: all answers
        are being made, or were sent just now."""
        waiting = [(peer.waits_since_s, id(task), task) for task, peer in self._peers.items() if not peer.answering]
        if not waiting:
            until_s = asyncio.get_running_loop().time() - TAKE_S
            sending = ((peer.sends_since_s, id(task), task) for task, peer in self._peers.items())
            waiting = [one for one in sending if one[0] <= until_s]
        if not waiting:
            return False
        longest = min(waiting)[2]
        longest.cancel()
        del self._peers[longest]  # before the loop gets to it: the next one that comes is to end another
        return True


class _Peer:
    """One connection: its requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, routes: Mapping[str, Route]) -> None:
        import h11

        self._reader, self._writer, self._routes = reader, writer, routes
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.answering = False
        self.waits_since_s = asyncio.get_running_loop().time()
        self.sends_since_s = math.inf  # when the answer was made that the peer hasn't taken

    async def serve(self) -> None:
        """Answer until the peer or the protocol ends it. Raises OSError, TimeoutError."""
        import h11

        while True:
            self.answering, self.waits_since_s = False, asyncio.get_running_loop().time()
            try:
                request = await self._request()
                if request is None:
                    return
                # A body is not read: its connection ends behind the answer.
                whole = isinstance(self._http.next_event(), h11.EndOfMessage)
            except h11.RemoteProtocolError as error:
                self.answering = True
                if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self._send(Answer(error.error_status_hint, TEXT, f"{error}\n".encode()), close=True)
                return
            self.answering = True
            answer = await self._answer(request)
            await self._send(answer, with_body=request.method != b"HEAD", close=not whole)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _request(self) -> h11.Request | None:
        """The next request's head; None if the peer went away. Raises RemoteProtocolError, OSError, TimeoutError."""
        import h11

        limit_s = IDLE_S
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            if self._http.trailing_data[0]:
                limit_s = HEAD_S
            async with asyncio.timeout(limit_s):
                got = await self._reader.read(READ_BYTES)
            self._http.receive_data(got)

    async def _answer(self, request: h11.Request) -> Answer:
        path = request.target.split(b"?")[0].decode("ascii", "replace")
        if request.method not in (b"GET", b"HEAD"):
            return Answer(405, TEXT, b"only GET and HEAD are served\n")
        route = self._routes.get(path)
        if route is None:
            return Answer(404, TEXT, f"there are {', '.join(sorted(self._routes))}\n".encode())
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        try:
            return await route(headers)
        except Exception:  # noqa: BLE001 - a fault of one figure ends no server
            _log.exception("the answer to GET %s failed", path)
            return Answer(500, TEXT, b"the answer failed: the log says why\n")

    async def _send(self, answer: Answer, *, with_body: bool = True, close: bool) -> None:
        """Raises OSError, TimeoutError."""
        import h11

        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *([("Connection", "close")] if close else []),
        ]
        self._write(self._http.send(h11.Response(status_code=answer.status, headers=headers)))
        if with_body:
            self._write(self._http.send(h11.Data(data=answer.body)))
        self._write(self._http.send(h11.EndOfMessage()))
        self._writer.transport.set_write_buffer_limits(0)
        self.sends_since_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(ANSWER_S):
            await self._writer.drain()
        self.sends_since_s = math.inf

    def _write(self, data: bytes | None) -> None:
        if data:
            self._writer.write(data)


_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:]*)):(?P<port>[0-9]{1,5})")


def address(listen: str, *, public: bool, key: str) -> tuple[str, int]:
    """Host and port of a text `HOST:PORT`.

    Raises ConfigError for another text, and for a host beyond loopback unless `public` says that it is meant: whoever reaches
    it sees the names of topics, groups and clients.
    """
    match = _ADDRESS.fullmatch(listen.strip())
    if match is None or int(match["port"]) > 65_535:
        raise ConfigError(f"`{key}={listen}` is not HOST:PORT, such as 127.0.0.1:9404")
    host = match["v6"] or match["host"] or "0.0.0.0"
    if not public and not _is_loopback(host):
        raise ConfigError(
            f"`{key}={listen}` is reached from other machines, and asks nobody who they are: set `penstock.http.public=true` if"
            " that is meant, or listen at 127.0.0.1"
        )
    return host, int(match["port"])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
