"""From a request's bytes to its handler and back: one registry, one rim around every handler.

Requests come from the data plane's queue on the asyncio loop. Each is decoded at once and handled in a task
of its own; tasks start in the order in which the requests came, and the data plane keeps the order of the
answers, so a slow handler (a join that waits for its group) holds up only its own connection's later answers.

A large request costs up to a second of Python, in which the loop would serve nobody else. So its frame is decoded, and its
answer encoded, in a thread that takes one at a time and shares the interpreter with the loop, and handlers of long lists let
others have a turn (`turns.py`). Later requests of its connection begin after it. Huge ones are dealt with one after the other,
and Python's collector of garbage is off meanwhile. Connections begin their requests in turn, some in each pass over the loop.

What brokers say to each other is served on the listener for brokers alone, and unknown on any other. It may be as large, and
the next message of the controller must not wait for clients: a thread of its own decodes it, and it waits for no huge request.

What is malformed, unknown or of an unknown version closes its connection, as Kafka does; only ApiVersions has
an answer for a version that it does not know. A KafkaError that a handler lets pass, or a store that fails, is
answered for each thing that was asked for. A handler that raises anything else is logged once, with its cause, and
UNKNOWN_SERVER_ERROR is answered; where the version has no place for an error the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import pkgutil
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock import log
from penstock.broker import api, tasks
from penstock.broker.context import Call, Context
from penstock.broker.coordination import transactionalproduce
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.broker.refusal import has_error, refusal, shows_error
from penstock.broker.servicetime import ServiceTime
from penstock.broker.store.base import StoreError
from penstock.broker.turns import ClientGoneError, TurnOrder, Turns
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.net.border import ProduceAnswer, Question, Request
from penstock.pyx.wire.header import REQUESTS, RESPONSES, decode_request_header, decode_response, encode_response
from penstock.pyx.wire.message import Message, WireError
from penstock.pyx.wire.messages import ApiVersionsRequest, ApiVersionsResponse

API_VERSIONS = 18
UNSUPPORTED_VERSION = 35
NAMES_SOFTWARE_FROM = 3
"""ApiVersions names the client's software from this version on (KIP-511)."""
# Array elements that a request may have: a frame of 100 MiB may name 100 million, each of which is an object here. A client
# that has 50,000 partitions, each of a topic of its own, names 100,000.
ELEMENTS_MAX = 120_000
# Those of requests that name neither partitions, topics nor groups: the most is a group's members.
FEW_ELEMENTS_MAX = 10_000
NAME_FEW = frozenset(
    {
        "add_offsets_to_txn", "api_versions", "describe_client_quotas", "describe_cluster", "end_txn", "heartbeat",
        "init_producer_id", "join_group", "leave_group", "list_config_resources", "list_groups", "list_transactions",
        "sasl_authenticate", "sasl_handshake", "sync_group", "update_features",
    }
)  # fmt: skip
LARGE_BYTES = 1 << 15
"""From this length on a frame isn't decoded on the loop: some milliseconds are at stake."""
HUGE_BYTES = 1 << 18
"""From this length on requests are dealt with one after the other. Python's collector of garbage would walk again and again
through what one of them makes, and each walk stops the loop. So it is off meanwhile: a request has no cycles."""
ALONE_S = 5.0
"""How long others of this length, and the collector, wait for one that doesn't come to its end: it may wait for a disk."""
BEGUN_AT_ONCE = 8
"""Requests that begin in one pass over the loop."""

_log = log.get(__name__)

T = TypeVar("T")
Handle = Callable[[Context, Any, Call], Awaitable[Message]]


class CloseConnection(Exception):
    """Raised by a handler when Kafka would close the connection; the text says why, for the log."""

    reason = "closed_malformed"
    """The counter (`DataPlane.close_connection`)."""


class NotServed(CloseConnection):
    """The API, or its version, isn't served."""

    reason = "closed_unsupported"


@dataclass(frozen=True)
class Handler:
    """An API that is served, with the versions that are advertised for it."""

    key: int
    versions: tuple[int, int]
    handle: Handle
    name: str
    # Of an API between brokers: what its handler gets in place of the message. It runs where the message is decoded.
    read: Callable[[Context, Any], Any] | None = None

    @property
    def is_between_brokers(self) -> bool:
        """Whether brokers alone ask for it."""
        return self.read is not None

    def is_served(self, context: Context, listener: str) -> bool:
        """Whether it is known on a listener."""
        return self.read is None or (context.cluster is not None and listener == context.between_brokers)

    @property
    def elements_max(self) -> int:
        """Array elements that a request of it may have."""
        return FEW_ELEMENTS_MAX if self.name in NAME_FEW else ELEMENTS_MAX


HELD_BYTES_MAX = 64 << 20
"""Of produces that wait here for the end of a partition's move."""
FLUSH_THREADS = 4
"""Produce requests that wait for the disk of one log folder (flush.messages) at the same time."""
CONNECTION_SHIFT = 16
"""A token without its low bits, which count the requests, names a connection (pyx/net/mailbox.pxd)."""


class Decoded(NamedTuple):
    """A request that is to be handled."""

    handler: Handler
    message: Message
    asked: Any  # what the handler gets: the message, or what an API between brokers reads out of it
    call: Call


class Answers(Protocol):
    """Where answers go (`penstock.pyx.net.border.DataPlane`)."""

    def answer(self, token: int, frame: bytes, begun_ns: int = ..., local_ns: int = ...) -> None:
        """Send an answer in its turn; when its service began, and how much of it was work."""
        ...

    def name_software(self, token: int, name: str, version: str) -> None:
        """Say which software the client of a request has."""
        ...

    def close_connection(self, token: int, reason: str = ..., detail: str = ...) -> None:
        """Close the connection of a request, and count why."""
        ...

    def is_connected(self, token: int) -> bool:
        """Whether the client of a request is connected."""
        ...

    def is_sending(self, token: int) -> bool:
        """Whether it is connected and has not closed its sending half."""
        ...

    def unverified(self, request: Request) -> Question:
        """Where a produce begins a transaction."""
        ...

    def flushes(self, request: Request) -> frozenset[int]:
        """The log folders of a produce that waits for a disk; none if it doesn't."""
        ...

    def held(self, request: Request) -> bool:
        """Whether a partition of a produce is held until its move is over."""
        ...

    def serve_flushing(self, request: Request) -> bool:
        """Append a produce, wait for the disk and answer it; False if its coordinator has to be asked, or it is held."""
        ...

    def append_produce(self, request: Request, refused: dict[int, int], guard: int) -> ProduceAnswer | None:
        """Append a produce but for what is refused; the answer, None if its connection is being closed."""
        ...

    def flush_produce(self, request: Request) -> None:
        """Wait for the disk for what was appended (flush.messages)."""
        ...

    def answer_produce(self, request: Request, answer: ProduceAnswer, begun_ns: int = ..., local_ns: int = ...) -> None:
        """Send the answer; times as in `answer`."""
        ...


def registry(package: ModuleType = api) -> dict[int, Handler]:
    """Every handler file of `penstock.broker.api`, or of another folder, by api key. Raises ValueError for two of one key."""
    found: dict[int, Handler] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.ispkg:
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        handler = Handler(module.KEY, module.VERSIONS, module.handle, info.name, getattr(module, "read", None))
        if handler.key in found:
            raise ValueError(f"api key {handler.key} is in {found[handler.key].name} and {handler.name}")
        request = REQUESTS[handler.key]
        low, high = handler.versions
        if not request.MIN_VERSION <= low <= high <= request.MAX_VERSION:
            raise ValueError(f"{handler.name} claims versions {low}-{high} that the wire tables can't carry")
        found[handler.key] = handler
    return dict(sorted(found.items()))


HANDLERS: dict[int, Handler] = {}


def serve_brokers() -> None:
    """Load the handlers of what brokers ask each other, which one node has no use for."""
    from penstock.broker.api import brokers

    HANDLERS.update(registry(brokers))


def advertised(context: Context, listener: str) -> list[ApiVersionsResponse.ApiVersion]:
    """What ApiVersions answers: exactly what is served on a listener."""
    return [
        ApiVersionsResponse.ApiVersion(api_key=handler.key, min_version=handler.versions[0], max_version=handler.versions[1])
        for handler in HANDLERS.values()
        if handler.is_served(context, listener)
    ]


def _failure(request: Request, handler: Handler, message: Message) -> bytes | None:
    """UNKNOWN_SERVER_ERROR, for a request that its handler has failed on; None if its version has no place for that."""
    kind = RESPONSES[handler.key]
    if not has_error(kind):
        return None
    answer = refusal(message, ErrorCode.UNKNOWN_SERVER_ERROR)
    frame = encode_response(answer, request.api_version, request.correlation_id)
    _, shown = decode_response(kind, frame, request.api_version)
    return frame if shows_error(shown) else None


class Dispatch:
    """Takes requests, starts their handlers, sends the answers."""

    def __init__(self, context: Context, answers: Answers) -> None:
        self._context = context
        self._answers = answers
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived: dict[int, deque[Request]] = {}  # by connection, the one whose turn is next first
        self._turns = TurnOrder()
        self._produces: dict[int, asyncio.Task[None]] = {}  # the newest of each connection
        self._begun: dict[int, asyncio.Future[None]] = {}  # the newest of each connection that has a large one to be decoded
        self._flushing = FolderThreads("flush", FLUSH_THREADS)
        self._coding = ThreadPoolExecutor(1, "coding")
        self._coding_between = ThreadPoolExecutor(1, "coding-brokers")
        self._huge = asyncio.Semaphore(1)
        self._held_bytes = 0
        self.failed = 0
        if API_VERSIONS not in HANDLERS:
            HANDLERS.update(registry())

    def take(self, requests: list[Request]) -> None:
        """Start the handler of each request: those of a connection in order, connections in turn. Never raises."""
        waiting = bool(self._arrived)
        for request in requests:
            self._arrived.setdefault(request.token >> CONNECTION_SHIFT, deque()).append(request)
        if not waiting:
            self._begin_some()

    def _begin_some(self) -> None:
        for _ in range(BEGUN_AT_ONCE):
            if not self._arrived:
                return
            connection = next(iter(self._arrived))
            requests = self._arrived.pop(connection)
            self._begin(requests.popleft())
            if requests:
                self._arrived[connection] = requests
        if self._arrived:
            asyncio.get_running_loop().call_soon(self._begin_some)

    def _begin(self, request: Request) -> None:
        before = self._begun.get(request.token >> CONNECTION_SHIFT)
        if request.handed_over:
            self._take_produce(request, before)
        elif before is not None or len(request.frame) >= LARGE_BYTES:
            self._take_in_turn(request, before)
        else:
            service = ServiceTime()
            try:
                decoded = self._decode(request)
            except (WireError, CloseConnection) as error:
                self._refuse(request, error)
                return
            service.work(service.begun_ns)
            if decoded is None:
                self._answer_api_versions_range(request, service)
            else:
                self._start(self._handle(request, decoded, service))

    def _take_in_turn(self, request: Request, before: asyncio.Future[None] | None) -> None:
        """Handle a large request, or one that comes behind such a one on its connection, once that has begun."""
        connection = request.token >> CONNECTION_SHIFT
        begun = self._begun[connection] = asyncio.get_running_loop().create_future()

        def forget(_: asyncio.Future[None]) -> None:
            if self._begun.get(connection) is begun:
                del self._begun[connection]

        begun.add_done_callback(forget)
        self._start(self._in_turn(request, before, begun))

    async def _in_turn(self, request: Request, before: asyncio.Future[None] | None, begun: asyncio.Future[None]) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            async with self._alone(request):
                if not self._answers.is_connected(request.token):
                    return
                service = ServiceTime()
                decoded = await self._code(request, self._decode, request)
                service.work(service.begun_ns)
                begun.set_result(None)
                if decoded is None:
                    self._answer_api_versions_range(request, service)
                else:
                    await self._handle(request, decoded, service)
                del decoded  # Before the collector goes on.
        except (WireError, CloseConnection) as error:
            self._refuse(request, error)
        except asyncio.CancelledError:
            self._answers.close_connection(request.token)
            raise
        finally:
            if not begun.done():
                begun.set_result(None)

    @contextlib.asynccontextmanager
    async def _alone(self, request: Request) -> AsyncIterator[None]:
        """Keep other huge requests and the collector waiting. Not for one whose handler waits for other clients, as a join
        does, nor for another broker's."""
        handler = HANDLERS.get(request.api_key)
        if len(request.frame) < HUGE_BYTES or handler is None or handler.name in NAME_FEW or handler.is_between_brokers:
            yield
            return
        await self._huge.acquire()
        release = contextlib.ExitStack()
        release.callback(self._huge.release)
        if gc.isenabled():
            gc.disable()
            release.callback(gc.enable)
        timer = asyncio.get_running_loop().call_later(ALONE_S, release.close)
        try:
            yield
        finally:
            timer.cancel()
            release.close()  # Which does nothing the second time.

    async def _code(self, request: Request, work: Callable[..., T], *given: object) -> T:
        """Decode or encode; what belongs to a large request in the thread for such."""
        if len(request.frame) < LARGE_BYTES:
            return work(*given)
        handler = HANDLERS.get(request.api_key)
        between = handler is not None and handler.is_between_brokers
        thread = self._coding_between if between else self._coding
        return await asyncio.get_running_loop().run_in_executor(thread, work, *given)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _take_produce(self, request: Request, begun: asyncio.Future[None] | None) -> None:
        """Serve a produce after those of its connection that came before: its batches have their order. begun: done when all
        other requests that came before it have begun."""
        connection = request.token >> CONNECTION_SHIFT
        before = [one for one in (self._produces.get(connection), begun) if one is not None]
        task = self._start(self._produce(request, before))
        self._produces[connection] = task

        def forget(_: asyncio.Task[None]) -> None:
            if self._produces.get(connection) is task:
                del self._produces[connection]

        task.add_done_callback(forget)

    async def _produce(self, request: Request, before: Sequence[asyncio.Future[None]]) -> None:
        """A produce that waits for a disk, or whose transaction coordinator has to be asked. What came between the question
        and the append makes the log refuse the latter."""
        try:
            if before:
                await asyncio.wait(before)
            await self._release(request)
            folders = self._answers.flushes(request)
            served = False
            if folders:
                served = await self._flushing.run(folders, self._answers.serve_flushing, request)
            if served:
                return
            await self._release(request)
            service = ServiceTime()
            question = self._answers.unverified(request)
            refused = await service.run(transactionalproduce.refused(self._context.coordinators.verifier, request, question))
            appending_ns = monotonic_ns()
            answer = self._answers.append_produce(request, refused, question.guard)
            service.work(appending_ns)
            if folders:
                await self._flushing.run(folders, self._answers.flush_produce, request)
            if answer is not None:
                self._answers.answer_produce(request, answer, service.begun_ns, service.local_ns)
        except OSError as error:  # Nobody knows whether it is on the disk: the client asks again.
            _log.error("api=produce version=%d: it can't be flushed: %s", request.api_version, error)
            self._answers.close_connection(request.token)
        except Exception:  # noqa: BLE001 - the rim, as in _handle
            self.failed += 1
            _log.exception("api=produce version=%d failed for %s", request.api_version, request.peer)
            self._answers.close_connection(request.token)

    async def _release(self, request: Request) -> None:
        """Wait while a partition of a produce is held. What waits so is bounded: beyond it the produce is tried at once,
        and answered NOT_LEADER_OR_FOLLOWER."""
        settled = self._context.topics.logs.moving.settled
        if settled.is_set() or not self._answers.held(request) or self._held_bytes > HELD_BYTES_MAX:
            return
        self._held_bytes += len(request.frame)
        try:
            await settled.wait()
        finally:
            self._held_bytes -= len(request.frame)

    def _decode(self, request: Request) -> Decoded | None:
        """A request's message and who handles it; None: an ApiVersions of a version that is not known.

        Raises WireError, NotServed.
        """
        handler = HANDLERS.get(request.api_key)
        if handler is None or not handler.is_served(self._context, request.listener):
            raise NotServed("unknown api key")
        version = request.api_version
        low, high = handler.versions
        if not low <= version <= high:
            if request.api_key == API_VERSIONS:
                return None
            raise NotServed("unsupported version")
        header = decode_request_header(request.frame)
        # Bytes after the message are passed over, as Kafka does: librdkafka's Metadata has some.
        body = memoryview(request.frame)[header.body_start :]
        message = REQUESTS[request.api_key].decode(body, version, trailing=True, elements_max=handler.elements_max)
        asked = message if handler.read is None else handler.read(self._context, message)
        call = Call(version, header.client_id, request.peer, request.listener, self._turns_of(request))
        return Decoded(handler, message, asked, call)

    def _turns_of(self, request: Request) -> Turns:
        return Turns(self._turns, partial(self._answers.is_sending, request.token))

    def _answer_api_versions_range(self, request: Request, service: ServiceTime) -> None:
        # Version 0 is what every client can read; key 18's range lets it ask again (KIP-511).
        own = advertised(self._context, request.listener)
        key_18 = [entry for entry in own if entry.api_key == API_VERSIONS]
        response = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=key_18)
        frame = encode_response(response, 0, request.correlation_id)
        self._answers.answer(request.token, frame, service.begun_ns, monotonic_ns() - service.begun_ns)

    async def _handle(self, request: Request, decoded: Decoded, service: ServiceTime) -> None:
        handler, message, _, call = decoded
        service.begin()
        try:
            response = await service.run(self._respond(request, decoded))
            encoding_ns = monotonic_ns()
            frame = await self._code(request, encode_response, response, request.api_version, request.correlation_id)
            service.work(encoding_ns)
        except CloseConnection as error:
            self._refuse(request, error)
        except ClientGoneError:
            _log.info("api=%s: %s has gone; what is left of its request is not done", handler.name, call.peer)
            self._answers.close_connection(request.token)
        except asyncio.CancelledError:
            self._answers.close_connection(request.token)
            raise
        except Exception:  # noqa: BLE001 - the rim: a fault in one handler must not stop the loop
            self.failed += 1
            _log.exception("api=%s version=%d failed for %s", handler.name, call.api_version, call.peer)
            if (failure := await self._code(request, _failure, request, handler, message)) is None:
                self._answers.close_connection(request.token)
            else:
                self._answers.answer(request.token, failure, service.begun_ns, service.local_ns)
        else:
            self._name_software(request, message, response)
            self._answers.answer(request.token, frame, service.begun_ns, service.local_ns)

    def _name_software(self, request: Request, message: Message, response: Message) -> None:
        if request.api_version < NAMES_SOFTWARE_FROM or not isinstance(message, ApiVersionsRequest):
            return
        if isinstance(response, ApiVersionsResponse) and response.error_code == ErrorCode.NONE:
            self._answers.name_software(request.token, message.client_software_name, message.client_software_version)

    async def _respond(self, request: Request, decoded: Decoded) -> Message:
        """The handler's answer, or one that carries the error in each of its places."""
        handler, message, asked, call = decoded
        cluster = self._context.cluster
        if cluster is not None and not (cluster.is_pictured or handler.is_between_brokers or handler.key == API_VERSIONS):
            await cluster.pictured()
        try:
            return await handler.handle(self._context, asked, call)
        except KafkaError as error:
            if not has_error(RESPONSES[handler.key]):
                raise
            return await self._code(request, refusal, message, error.code)
        except StoreError as error:
            if not has_error(RESPONSES[handler.key]):
                raise
            _log.error("api=%s version=%d: %s", handler.name, call.api_version, error)
            return await self._code(request, refusal, message, ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def _refuse(self, request: Request, error: Exception) -> None:
        """Close the connection; what is counted and logged of it is in `upkeep/watch.py`."""
        reason = error.reason if isinstance(error, CloseConnection) else CloseConnection.reason
        named = REQUESTS[request.api_key].__name__.removesuffix("Request") if request.api_key in REQUESTS else "unknown"
        detail = f"{named} (api_key={request.api_key} version={request.api_version}): {error}"
        self._answers.close_connection(request.token, reason, detail)

    async def stop(self) -> None:
        """Cancel what still waits; its connections are closed."""
        self._arrived.clear()
        await tasks.end(*self._tasks)
        await self._context.patience.stop()
        await self._flushing.stop()
        self._coding.shutdown()
        self._coding_between.shutdown()
