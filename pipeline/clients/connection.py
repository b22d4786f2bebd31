"""One connection to a broker: frames out by gather, frames in as buffers of their own, answers in order.

The socket is driven by the loop's reader and writer callbacks instead of a transport: `sendmsg` then takes a
request's pieces as they are (a transport of Python 3.11 would join them), and a large answer is received
straight into the buffer that batches are later sliced from.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock import __version__
from penstock.errors import ErrorCode, KafkaError, os_error_text, raise_for
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from penstock.tcp import connect

Piece = bytes | bytearray | memoryview
SCRATCH_BYTES = 64 << 10  # answers that come whole into it are copied out; larger ones get their own buffer
PIECES_MAX = 512  # at most IOV_MAX (1024) go into one sendmsg
READS_PER_TURN = 8  # then the loop's other connections get their turn
SOFTWARE_NAME = "penstock"
_numbers = itertools.count(1)


def _room(size: int) -> memoryview:
    """A buffer for an answer. Untouched pages of a large one cost nothing: a wrong size takes no memory before bytes come."""
    if size <= SCRATCH_BYTES:
        return memoryview(bytearray(size))
    import numpy as np  # here, since many commands never get a large answer: numpy takes them a quarter of their start

    return np.empty(size, np.uint8).data


class ConnectionLost(KafkaError):
    """The connection ended before the answer came: whether the request was carried out is not known."""

    def __init__(self, what: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, what)

    def __reduce__(self) -> Any:
        return type(self), (self.what,)


class CannotConnect(ConnectionLost):
    """There never was a connection: nothing was asked."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.args = (what,)


class RequestTimedOut(KafkaError):
    """The answer did not come in time; its connection was closed, so it can't come later."""

    def __init__(self, what: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, what)

    def __reduce__(self) -> Any:
        return type(self), (self.what,)


@dataclass(slots=True)
class _Pending:
    correlation_id: int
    deadline: float
    answer: asyncio.Future[memoryview]


class Connection:
    """Keep the rules: use it from its loop's thread only; a closed connection stays closed, make a new one.

    Requests may be pipelined without limit by `request`; the caller bounds them. Any error of the socket or of
    the framing closes the connection and fails everything that waits on it with a retriable KafkaError.
    """

    def __init__(self, sock: socket.socket, name: str, client_id: str, response_bytes_max: int) -> None:
        self.name = name
        self.number = next(_numbers)  # no other connection of the process has it
        self.client_id = client_id
        self.closed = False
        self.versions: dict[int, tuple[int, int]] = {}  # API key -> lowest and highest version of the broker
        self.features: dict[str, int] = {}  # level of each feature of the cluster that is in force (KIP-584)
        self.features_epoch = -1  # grows with each change of theirs
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._response_bytes_max = response_bytes_max
        self._correlation_id = 0
        self._pending: deque[_Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: deque[memoryview] = deque()
        self._socket_full = False  # the loop calls again once the socket takes more
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._filled = 0
        self._frame: memoryview | None = None  # a large answer under way, filled up to _filled
        self.last_used = self._loop.time()
        self._loop.add_reader(sock.fileno(), self._readable)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = SOFTWARE_NAME,
        timeout_ms: int = 10_000,
        response_bytes_max: int = 256 << 20,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
    ) -> Connection:
        """Connect and shake hands (ApiVersions). Raises KafkaError (NETWORK_EXCEPTION, retriable) or
        WireError.
        """
        name = f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                sock = await connect(host, port, _buffers(send_buffer_bytes, receive_buffer_bytes))
                connection = cls(sock, name, client_id, response_bytes_max)
                try:
                    await connection._shake_hands(timeout_ms)
                except BaseException:
                    connection.close("the handshake failed")
                    raise
                return connection
        except (OSError, TimeoutError) as error:
            why = os_error_text(error) or "no answer in time"
            raise CannotConnect(f"cannot connect to `{name}`: {why}") from error

    async def _shake_hands(self, timeout_ms: int) -> None:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=__version__)
        answer = ApiVersionsResponse()
        for version in (3, 0):  # a broker that does not know version 3 says so in the format of version 0
            frame = await self.request(partial(self._hello, request, version), timeout_ms)
            refused = int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION
            _, answer = decode_response(ApiVersionsResponse, frame, 0 if refused else version)
            if not refused:
                break
        raise_for(answer.error_code, f"ApiVersions at `{self.name}`")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        self.features_epoch = answer.finalized_features_epoch

    def _hello(self, request: ApiVersionsRequest, version: int, correlation_id: int) -> list[Piece]:
        return [encode_request(request, version, correlation_id, self.client_id)]

    def version(self, api_key: int, lowest: int, highest: int) -> int:
        """The highest version that both sides speak. Raises KafkaError UNSUPPORTED_VERSION."""
        low, high = self.versions.get(api_key, (0, -1))
        version = min(high, highest)
        if version < max(low, lowest):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"API {api_key} at `{self.name}`: it speaks {low} to {high}, we {lowest} to {highest}",
            )
        return version

    @property
    def in_flight(self) -> int:
        """How many answers are awaited."""
        return len(self._pending)

    def request(
        self, encode: Callable[[int], Sequence[Piece]], timeout_ms: float, answered: bool = True
    ) -> asyncio.Future[memoryview]:
        """Write a request; the future gives the answer's frame (without size, header included) as its own
        buffer.

        `encode` gets the correlation id and returns the frame's pieces, without size prefix; they must not
        change until the answer is there. With answered=False (acks=0) the future gives an empty buffer at
        once. The future raises ConnectionLost or RequestTimedOut.
        """
        future: asyncio.Future[memoryview] = self._loop.create_future()
        if self.closed:
            future.set_exception(ConnectionLost(f"`{self.name}` is closed"))
            return future
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        pieces = [memoryview(piece) for piece in encode(self._correlation_id)]
        size = sum(piece.nbytes for piece in pieces)
        now = self.last_used = self._loop.time()
        if answered:
            deadline = now + timeout_ms / 1000
            self._pending.append(_Pending(self._correlation_id, deadline, future))
            if self._timer is None or deadline < self._timer.when():
                self._watch(deadline)
        else:
            future.set_result(memoryview(b""))
        waiting = bool(self._unsent)
        self._unsent.append(memoryview(size.to_bytes(4, "big")))
        self._unsent.extend(piece.cast("B") for piece in pieces if piece.nbytes)
        if not answered:
            self._write()  # who has its answer may close the connection next
        elif not waiting:
            # What else is asked for in this pass of the loop goes along: a call of the kernel costs more than a request.
            self._loop.call_soon(self._write)
        return future

    def _write(self) -> None:
        """Send what the socket takes; called again by the loop while something is left."""
        unsent = self._unsent
        if self.closed or not unsent:
            return
        try:
            while unsent:
                head = [unsent[i] for i in range(min(len(unsent), PIECES_MAX))]
                sent = self._sock.sendmsg(head)
                while sent:
                    if sent >= unsent[0].nbytes:
                        sent -= unsent.popleft().nbytes
                    else:
                        unsent[0] = unsent[0][sent:]
                        sent = 0
        except (BlockingIOError, InterruptedError):
            if not self._socket_full:
                self._loop.add_writer(self._sock.fileno(), self._write)
                self._socket_full = True
            return
        except OSError as error:
            # Not closed here: request() may be on the stack and its caller has not seen the future yet.
            self._loop.call_soon(self.close, f"sending failed: {os_error_text(error)}")
            return
        if self._socket_full:
            self._loop.remove_writer(self._sock.fileno())
            self._socket_full = False

    def _readable(self) -> None:
        for _ in range(READS_PER_TURN):
            target = self._scratch if self._frame is None else self._frame
            room = target[self._filled :]
            try:
                count = self._sock.recv_into(room)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"receiving failed: {os_error_text(error)}")
                return
            if count == 0:
                self.close("the broker closed it")
                return
            self._filled += count
            try:
                self._cut()
            except WireError as error:
                self.close(str(error))
                return
            if self.closed or count < room.nbytes:
                return

    def _cut(self) -> None:
        """Hand out the whole frames that have come; a begun one moves to a buffer of its size."""
        if self._frame is not None:
            if self._filled == self._frame.nbytes:
                frame, self._frame, self._filled = self._frame, None, 0
                self._deliver(frame)
            return
        start, end = 0, self._filled
        while end - start >= 4:
            size = int.from_bytes(self._scratch[start : start + 4], "big", signed=True)
            if not 4 <= size <= self._response_bytes_max:
                head = bytes(self._scratch[start : start + 4])
                begins = f" that begins with `{head.decode()}`" if head.isalnum() else ""
                raise WireError(
                    f"an answer of {size} bytes{begins} (at most {self._response_bytes_max} are taken): does something else "
                    "than Kafka's protocol answer on that port?"
                )
            start += 4
            frame = _room(size)
            have = min(size, end - start)
            frame[:have] = self._scratch[start : start + have]
            start += have
            if have < size:
                self._frame, self._filled = frame, have
                return
            self._deliver(frame)
            if self.closed:
                return
        self._scratch[: end - start] = self._scratch[start:end]
        self._filled = end - start

    def _deliver(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            raise WireError(f"an answer nobody waits for (correlation id {correlation_id})")
        self.last_used = self._loop.time()
        answer = self._pending.popleft().answer
        if not answer.done():  # a caller that was cancelled no longer wants it
            answer.set_result(frame.toreadonly())

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        if not self._pending:
            return
        now = self._loop.time()
        late = [pending for pending in self._pending if pending.deadline <= now]
        if not late:
            self._watch(min(pending.deadline for pending in self._pending))
            return
        for pending in late:
            if not pending.answer.done():
                pending.answer.set_exception(RequestTimedOut(f"`{self.name}` gave no answer in time"))
        self.close("a request timed out")

    def close(self, why: str = "closed by us") -> None:
        """Close; everything that waits fails with ConnectionLost. Closing twice is nothing."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        if self._timer is not None:
            self._timer.cancel()
        self._unsent.clear()
        self._frame = None
        pending, self._pending = self._pending, deque()
        for each in pending:
            if not each.answer.done():
                each.answer.set_exception(ConnectionLost(f"connection to `{self.name}`: {why}"))


def _buffers(send_bytes: int, receive_bytes: int) -> Callable[[socket.socket], None]:
    """Gives a socket buffers of these sizes; -1: those of the system."""

    def prepare(sock: socket.socket) -> None:
        if send_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        if receive_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)

    return prepare
