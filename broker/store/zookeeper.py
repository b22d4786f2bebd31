"""The store of a cluster: a session with a ZooKeeper, by kazoo. Each rule below guards against what kazoo's source does.

- **kazoo's threads only hand over.** All that it has to say (answers, watches, states) goes through one queue, whose `put` is
  `loop.call_soon_threadsafe`. With kazoo's two queues and its listeners' direct calls a read could look newer than its watch,
  and the session's end come before answers that were there first. None of its waiting calls, retries or recipes is used.
- **A store lives for one session.** After an expiry kazoo goes on with a new one, in which it carries out what it is asked
  from then on: an ephemeral node made by yesterday's intention. So its sockets are opened by a handler of ours, which opens
  none once the session is over. All calls wait in lists of ours, and get SessionLostError: kazoo forgets those that come while
  it clears its own.
- **A lost connection means: unknown.** After the next connection and a `sync`, reads are asked again, and of each write the
  nodes tell what became of it (`outcome.py`): it is done, or is asked again, or its caller gets UnknownOutcomeError. A server
  takes no request of a session from an older connection once a newer one is there, so that is the end of it.
- **Nothing is read before a `sync` on its connection**: the server may be behind the one before it. An answer that came on
  another connection than its question was sent on is asked for again: kazoo may have changed it meanwhile.
- **Watches are dropped with the connection**, also while the session lives on. They fire with MISSED, after the `sync`.
- **No more than WINDOW requests are in kazoo's hands**: it is woken by a byte in a socket for each, and blocks the loop when
  that is full. The rest waits here, in its order.
- **A multi is never torn.** Servers drop a connection that sends more than 1 MiB, so what is above the bound is refused.
  Callers cut what may be cut with `pieces`; `delete` of a tree does so itself, the node itself last.
- While no server answers, calls wait; only a server can say that a session is over. So no lease depends on this.
- Parents and trees are looked up where the operation as it is was refused; what changes meanwhile is looked up again.

Paths are below a chroot of our own making, which is made if it is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry

from penstock import log
from penstock.broker import tasks
from penstock.broker.store.base import (
    ANY_VERSION,
    MULTI_BYTES,
    MULTI_OPERATIONS,
    BadVersionError,
    Check,
    Create,
    Delete,
    Event,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionLostError,
    Set,
    Stat,
    Store,
    StoreError,
    TooLargeError,
    UnknownOutcomeError,
    Watch,
    check_path,
    parent_of,
    parents_of,
    pieces,
    size_of,
)
from penstock.broker.store.outcome import Nodes, Outcome, Seen, looked_at, outcome, sequence_nodes

WINDOW = 128
"""Requests in kazoo's hands; 278 bytes of wake-ups fill its socket."""
TRIES = 10
"""How often a call is made whose connection breaks, or whose tree changes, each time, before its caller hears of it."""
READ_AT_ONCE = 500
EVENTS = {
    EventType.CREATED: Event.CREATED,
    EventType.CHANGED: Event.CHANGED,
    EventType.DELETED: Event.DELETED,
    EventType.CHILD: Event.CHILDREN,
}
UNANSWERED = (
    exceptions.ConnectionLoss,
    exceptions.SessionExpiredError,
    exceptions.ConnectionClosedError,
    exceptions.AuthFailedError,
)
"""What kazoo says of a call that got no answer; a change of state follows each."""
ONLOOKERS = exceptions.RolledBackError, exceptions.RuntimeInconsistency
"""What is said of the other operations of a multi that is refused."""

_log = log.get(__name__)


class _Hand:
    """kazoo's one queue: whatever is put into it is called on the loop, in the order of `put`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, work: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody is left to hear it.
            self._loop.call_soon_threadsafe(work)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, without those that would carry out what is in its queues."""

    running = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.callback_queue = self.completion_queue = _Hand(loop)
        self.over = False
        """Set by kazoo's thread with the session's end, before it could begin another one."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        if self.over:
            raise OSError("the session is over")
        options["timeout"] /= 3  # A server that is silent must not take the session's time from the others.
        return super().create_connection(*arguments, **options)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, which notes for how long the server keeps the session."""

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self.client.granted_ms = answer[0].time_out
        return answer


class _Client(KazooClient):  # type: ignore[misc]
    def __init__(self, hosts: str, timeout_s: float, handler: _Handler) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0)
        # kazoo logs each request and its bytes as DEBUG, credentials too, and each attempt to connect as WARNING.
        logger = logging.Logger("kazoo", logging.ERROR)
        logger.parent = _log.logger
        super().__init__(hosts, timeout_s, handler=handler, connection_retry=retry, read_only=False, logger=logger)
        self.granted_ms = 0
        self._connection = _Connection(self, self._conn_retry.copy(), logger=logger)


Send = Callable[[KazooClient, Any], Any]


@dataclass(eq=False)
class _Call:
    """A request, until somebody knows its answer. path: for sentences, as a caller knows it. send: gives it to kazoo, with what
    kazoo shall call for a watch. writes: the operations of a write, by absolute paths."""

    path: str
    send: Send
    answer: asyncio.Future[Any]
    writes: Sequence[Operation] = ()
    watch: Watch | None = None
    connection: int = 0
    before: int = 0
    tries: int = 0


@dataclass
class _Plan:
    """A multi whose parents and trees are looked up: each operation, and which of the caller's it is; None: an inserted one."""

    operations: list[Operation] = field(default_factory=list)
    origins: list[int | None] = field(default_factory=list)

    def add(self, operation: Operation, origin: int | None = None) -> None:
        """One more, in order."""
        self.operations.append(operation)
        self.origins.append(origin)


class _RefusedError(Exception):
    """A multi was refused because of one of its operations."""

    def __init__(self, at: int, error: StoreError) -> None:
        super().__init__(at, error)
        self.at = at
        self.error = error


class ZooKeeperStore(Store):
    """A `Store` in a ZooKeeper. Make it with `await ZooKeeperStore.open(servers)`, on the loop that will use it."""

    def __init__(self, servers: str, session_timeout_ms: int) -> None:
        hosts, _, chroot = servers.partition("/")
        self.servers = servers
        self._root = f"/{chroot.strip('/')}" if chroot.strip("/") else ""
        loop = asyncio.get_running_loop()
        self._handler = _Handler(loop)
        self._client = _Client(hosts, session_timeout_ms / 1000, self._handler)
        self._client.add_listener(self._state_in_thread)
        self.session = 0
        self.lost = asyncio.Event()
        self._closing = False
        self._stopping: asyncio.Future[None] | None = None
        self._connection = 0
        """Counts the connections of this session."""
        self._ready = asyncio.Event()
        """The connection is there, synced, and all that its predecessor left is settled."""
        self._settling: asyncio.Task[None] | None = None
        self._held: deque[_Call] = deque()
        self._sent: dict[_Call, None] = {}
        self._missed: list[tuple[str, Watch]] = []

    @classmethod
    async def open(cls, servers: str, *, session_timeout_ms: int = 6000, wait_s: float = 30.0) -> ZooKeeperStore:
        """A session with the servers `HOST:PORT,HOST:PORT/chroot`. Raises StoreError, also if none answers within wait_s."""
        store = cls(servers, session_timeout_ms)
        if store._root:
            check_path(store._root)
        store._client.start_async()
        try:
            await asyncio.wait_for(store._ready.wait(), wait_s)
            await store._make_root()
        except TimeoutError:
            await store.close()
            raise StoreError(f"ZooKeeper at `{servers}`", f"no server of these has answered in {wait_s:g} s") from None
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session_timeout_ms(self) -> int:
        """For how long the servers keep the session without hearing from it: they have bounds of their own."""
        return int(self._client.granted_ms)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """A node's bytes and stat; see `Store.get`."""
        data, stat = await self._get(path, watch)
        return data or b"", _stat(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """A node's stat or None; see `Store.exists`."""
        stat = await self._read(path, lambda client, fire: client.exists_async(self._absolute(path), fire), watch)
        return None if stat is None else _stat(stat)

    async def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        """Remove a node; see `Store.delete`. A tree that is too large for one multi goes in several, the node itself last."""
        for _ in range(TRIES):
            try:
                return await super().delete(path, version, recursive=recursive)
            except TooLargeError:
                await self._empty(path)
        raise StoreError(path, "others make nodes below it as quickly as they are deleted")

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of a node's children; see `Store.children`."""
        names = await self._read(path, lambda client, fire: client.get_children_async(self._absolute(path), fire), watch)
        return sorted(names)

    async def tree(self, path: str) -> dict[str, bytes]:
        """The bytes of every node below a node; see `Store.tree`."""
        nodes = await self._below(path)
        return {name: data for name, (data, _) in sorted(nodes.items()) if name}

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """All or nothing; see `Store.multi`. Raises TooLargeError for what must be cut (`pieces`), UnknownOutcomeError."""
        for one in operations:
            self._check(one.path, may_be_root=not isinstance(one, (Create, Delete)))
        if not operations:
            return []
        plan = _Plan(list(operations), list(range(len(operations))))
        for _ in range(TRIES):
            try:
                answers = await self._write(plan.operations)
            except _RefusedError as refused:
                origin = plan.origins[refused.at]
                if not _is_stale(None if origin is None else operations[origin], refused.error):
                    raise refused.error from None
                plan = await self._look_up(operations)
            else:
                mine = [(origin, answer) for origin, answer in zip(plan.origins, answers, strict=True) if origin is not None]
                return [answer for _, answer in sorted(mine, key=lambda one: one[0])]
        raise StoreError(operations[0].path, "others change the nodes around it as quickly as they are looked up")

    async def sync(self) -> None:
        """See `Store.sync`."""
        await self._read("/", lambda client, fire: client.sync_async("/"), None)

    async def changes(self) -> int:
        """The zxid of the newest change; see `Store.changes`."""
        await self.sync()
        return int(self._client.last_zxid)

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish with it, at once if a server is there to hear it."""
        self._closing = True
        self._end("it is closed")
        if self._stopping is not None:
            await self._stopping

    # What callers of calls wait for.

    async def _get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, ZnodeStat]:
        data, stat = await self._read(path, lambda client, fire: client.get_async(self._absolute(path), fire), watch)
        return data, stat

    async def _read(self, path: str, send: Send, watch: Watch | None) -> Any:
        self._check(path)
        return await self._ask(_Call(path, send, asyncio.get_running_loop().create_future(), watch=watch))

    async def _write(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """A multi as it is. Raises _RefusedError, and StoreErrors for what isn't about one of them."""
        nbytes = sum(map(size_of, operations))
        if len(operations) > MULTI_OPERATIONS or nbytes > MULTI_BYTES:
            raise TooLargeError(
                operations[0].path,
                f"{len(operations)} operations of {nbytes} bytes are more than ZooKeeper takes in one step "
                f"({MULTI_OPERATIONS} and {MULTI_BYTES}), and they must not be done in several",
            )
        writes = [replace(one, path=self._absolute(one.path)) for one in operations]
        answer = asyncio.get_running_loop().create_future()
        answers = await self._ask(_Call(operations[0].path, partial(_commit, writes), answer, writes))
        for at, (one, given) in enumerate(zip(operations, answers, strict=True)):
            if isinstance(given, Exception) and not isinstance(given, ONLOOKERS):
                raise _RefusedError(at, _explained(one, given))
        return [self._relative(given) if isinstance(given, str) else given for given in answers]

    async def _ask(self, call: _Call) -> Any:
        self._refuse_if_over()
        self._held.append(call)
        self._pump()
        return await call.answer

    def _refuse_if_over(self) -> None:
        if self.lost.is_set() or self._closing:
            raise SessionLostError(f"session {self.session:#x}", "it has expired" if self.lost.is_set() else "it is closed")

    def _pump(self) -> None:
        while self._ready.is_set() and self._held and len(self._sent) < WINDOW:
            call = self._held.popleft()
            if not call.answer.done():
                self._send(call)

    def _send(self, call: _Call) -> None:
        call.connection, call.before = self._connection, int(self._client.last_zxid)
        call.tries += 1
        self._sent[call] = None
        fire = None if call.watch is None else partial(self._fire, call, call.tries)
        call.send(self._client, fire).rawlink(partial(self._answered, call))

    # What kazoo's thread has to say. `_state_in_thread` runs there, all others on the loop.

    def _state_in_thread(self, state: str) -> None:
        if state == KazooState.LOST:
            self._handler.over = True
        session, _ = self._client.client_id or (0, b"")
        self._handler.callback_queue.put(partial(self._state_changed, state, session))

    def _state_changed(self, state: str, session: int) -> None:
        self._ready.clear()
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if state == KazooState.LOST:
            if not self._closing:
                _log.error("the session %#x with ZooKeeper at %s is over", self.session, self.servers)
            self._end("it has expired")
        elif self._closing:
            return
        elif state == KazooState.SUSPENDED:
            _log.warning("the connection to ZooKeeper at %s is lost, the session %#x may live on", self.servers, self.session)
        else:
            self.session = session
            self._connection += 1
            self._settling = tasks.start(self._settle(), "zookeeper")

    def _answered(self, call: _Call, result: Any) -> None:
        if call not in self._sent:
            return
        error = result.exception
        if isinstance(error, UNANSWERED):
            return  # It is settled on the next connection.
        if not call.writes and call.connection != self._connection:
            return  # Of a server that may be behind: asked for again.
        if call.answer.done():
            del self._sent[call]  # Its caller has given up.
        elif error is None:
            self._done(call, _answers(result.value) if call.writes else result.value)
        else:
            self._fail(call, _explained(Check(call.path), error))
        self._pump()

    def _done(self, call: _Call, answer: Any) -> None:
        del self._sent[call]
        if not call.answer.done():
            call.answer.set_result(answer)

    def _fail(self, call: _Call, error: StoreError) -> None:
        self._sent.pop(call, None)
        if not call.answer.done():
            call.answer.set_exception(error)

    def _fire(self, call: _Call, tried: int, event: WatchedEvent) -> None:
        """A watch of a read fires. One whose answer was not taken isn't the caller's."""
        if tried != call.tries or self.lost.is_set() or self._closing:
            return
        assert call.watch is not None
        if event.type == EventType.NONE:
            self._missed.append((call.path, call.watch))
        else:
            call.watch(call.path, EVENTS[event.type])

    # A connection is new, or the last one is gone.

    async def _settle(self) -> None:
        """See that nothing is behind, then what became of all that the connection before has left."""
        if self._connection > 1:
            _log.info("connected to ZooKeeper at %s again, in the session %#x", self.servers, self.session)
        try:
            await self._now(self._client.sync_async("/"))
            missed, self._missed = self._missed, []
            for path, watch in missed:
                watch(path, Event.MISSED)
            for call in [call for call in self._sent if call.connection != self._connection]:
                await self._settle_call(call)
        except UNANSWERED:
            return  # This connection is gone, too; the state that follows says so.
        except exceptions.KazooException as error:
            _log.error("ZooKeeper at %s can't be used: %s %s", self.servers, type(error).__name__, error)
            return self._end("ZooKeeper refuses it")
        self._ready.set()
        self._pump()

    async def _settle_call(self, call: _Call) -> None:
        if call.writes and not call.answer.done():
            became, answers = await self._find_out(call)
            if call not in self._sent:
                return  # Its answer was on the way all the same.
            if became is Outcome.DONE:
                return self._done(call, answers)
            if became is Outcome.UNKNOWN:
                return self._fail(call, UnknownOutcomeError(call.path, "the connection to ZooKeeper broke before it answered"))
        del self._sent[call]
        if call.answer.done():
            return
        if call.tries == TRIES:
            return self._fail(
                call, StoreError(call.path, f"the connection to ZooKeeper broke {TRIES} times before it answered")
            )
        self._send(call)

    async def _find_out(self, call: _Call) -> tuple[Outcome, list[str | int | None]]:
        try:
            nodes = await self._look(call.writes)
        except UNANSWERED:
            raise
        except exceptions.KazooException as error:
            _log.warning("a change of %s may be made or not: the node can't be read: %s", call.path, type(error).__name__)
            return Outcome.UNKNOWN, []
        return outcome(call.writes, nodes, call.before, self.session)

    async def _look(self, operations: Sequence[Operation]) -> Nodes:
        """The nodes that tell what became of these."""
        paths = set(looked_at(operations))
        for one in sequence_nodes(operations):
            parent = parent_of(one.path)
            with contextlib.suppress(exceptions.NoNodeError):
                names = await self._now(self._client.get_children_async(parent))
                paths |= {found for name in names if (found := f"{parent.rstrip('/')}/{name}").startswith(one.path)}
        nodes: dict[str, Seen | None] = {}
        for path in sorted(paths):
            try:
                data, stat = await self._now(self._client.get_async(path))
                nodes[path] = Seen(data or b"", _stat(stat), stat.pzxid)
            except exceptions.NoNodeError:
                nodes[path] = None
        return nodes

    async def _now(self, result: Any) -> Any:
        """The answer of a request that isn't one of a caller's. Raises what kazoo raises."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take(result: Any) -> None:
            if not answer.done():
                if result.exception is None:
                    answer.set_result(result.value)
                else:
                    answer.set_exception(result.exception)

        result.rawlink(take)
        return await answer

    def _end(self, why: str) -> None:
        """The session is over, by expiry or by `close`."""
        if not self._closing:
            self.lost.set()
        for call in [*self._sent, *self._held]:
            self._fail(call, SessionLostError(f"session {self.session:#x}", why))
        self._held.clear()
        if self._settling is not None:
            self._settling.cancel()
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().run_in_executor(None, self._stop)

    def _stop(self) -> None:
        """On a thread of the loop's: kazoo waits for its own."""
        self._client.stop()
        self._client.close()

    # Parents and trees.

    async def _make_root(self) -> None:
        root, self._root = self._root, ""
        if root and await self.exists(root) is None:
            with contextlib.suppress(NodeExistsError):
                await self.create(root, parents=True)
        self._root = root

    async def _look_up(self, operations: Sequence[Operation]) -> _Plan:
        """These operations, with those that make their parents and take their trees."""
        asked = [parent for one in operations if isinstance(one, Create) and one.parents for parent in parents_of(one.path)]
        stats = dict(zip(asked, await asyncio.gather(*(self.exists(path) for path in asked)), strict=True))
        there = {path: stat is not None for path, stat in stats.items()}
        plan = _Plan()
        for at, one in enumerate(operations):
            if isinstance(one, Create) and one.parents:
                for parent in parents_of(one.path):
                    if not there[parent]:
                        plan.add(Create(parent))
                        there[parent] = True
            if isinstance(one, Delete) and one.recursive:
                below = f"{one.path}/"
                try:
                    found = {
                        f"{below}{name}": stat.version for name, (_, stat) in (await self._below(one.path)).items() if name
                    }
                except NoNodeError:
                    found = {}
                for other in plan.operations:  # What those before this one make, change or take is otherwise by now.
                    if other.path.startswith(below) and not isinstance(other, Check):
                        found[other.path] = ANY_VERSION
                        if isinstance(other, Delete):
                            del found[other.path]
                for path in sorted(found, key=lambda path: (-path.count("/"), path)):
                    plan.add(Delete(path, found[path]))
                there |= {path: False for path in there if path.startswith(below)}
            plan.add(one, at)
            there[one.path] = not isinstance(one, Delete)
        return plan

    async def _below(self, path: str) -> dict[str, tuple[bytes, ZnodeStat]]:
        """A node ("") and all below it, by their relative paths. Raises NoNodeError. They are read level by level."""
        data, stat = await self._get(path)
        found = {"": (data or b"", stat)}
        level = [""] if stat.numChildren else []
        while level:
            names: list[str] = []
            for at in range(0, len(level), READ_AT_ONCE):
                lists = await asyncio.gather(*(self._children_of(path, one) for one in level[at : at + READ_AT_ONCE]))
                names += [name for one in lists for name in one]
            level = []
            for at in range(0, len(names), READ_AT_ONCE):
                some = names[at : at + READ_AT_ONCE]
                nodes = await asyncio.gather(*(self._node_of(path, name) for name in some))
                for name, node in zip(some, nodes, strict=True):
                    if node is not None:
                        found[name] = (node[0] or b"", node[1])
                        if node[1].numChildren:
                            level.append(name)
        return found

    async def _children_of(self, path: str, name: str) -> list[str]:
        try:
            return [f"{name}/{child}" if name else child for child in await self.children(_join(path, name))]
        except NoNodeError:
            return []  # Gone since its parent was read.

    async def _node_of(self, path: str, name: str) -> tuple[bytes | None, ZnodeStat] | None:
        try:
            return await self._get(_join(path, name))
        except NoNodeError:
            return None

    async def _empty(self, path: str) -> None:
        """Delete what is below a node, in as many multis as it takes; what others change or take meanwhile is left to them."""
        names = sorted((name for name in await self._below(path) if name), key=lambda name: (-name.count("/"), name))
        for piece in pieces([Delete(_join(path, name))] for name in names):
            with contextlib.suppress(NoNodeError, NotEmptyError):
                await self.multi(piece)

    # Paths.

    def _check(self, path: str, *, may_be_root: bool = True) -> None:
        if path != "/" or not may_be_root:
            check_path(path)
            if {".", ".."} & set(path.split("/")):
                raise StoreError(path, "has a part `.` or `..`, which ZooKeeper doesn't take as a name")

    def _absolute(self, path: str) -> str:
        return (self._root + path).rstrip("/") or "/"

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._root)


def _commit(operations: Sequence[Operation], client: KazooClient, fire: object) -> Any:
    request = client.transaction()
    for one in operations:
        match one:
            case Create(path, data, ephemeral, sequence):
                request.create(path, data, ephemeral=ephemeral, sequence=sequence)
            case Set(path, data, version):
                request.set_data(path, data, version)
            case Delete(path, version):
                request.delete(path, version)
            case Check(path, version):
                request.check(path, version)
    return request.commit_async()


def _answers(given: Sequence[Any]) -> list[Any]:
    """Those of a multi, as `outcome` gives them: paths, versions, None, or the exception of an operation."""
    return [one.version if isinstance(one, ZnodeStat) else None if one is True else one for one in given]


def _is_stale(operation: Operation | None, error: StoreError) -> bool:
    """Whether a refusal is about what was looked up (or not yet), and not about what the caller asked for."""
    match operation:
        case None:
            return True
        case Create(parents=True):
            return isinstance(error, NoNodeError)
        case Delete(recursive=True):
            return isinstance(error, NotEmptyError)
        case _:
            return False


def _explained(one: Operation, error: Exception) -> StoreError:
    """What a server (or kazoo) has said of an operation."""
    match error:
        case exceptions.NoNodeError():
            return NoNodeError(parent_of(one.path) if isinstance(one, Create) else one.path)
        case exceptions.NodeExistsError():
            return NodeExistsError(one.path)
        case exceptions.BadVersionError():
            return BadVersionError(one.path, "has another version than the expected one")
        case exceptions.NotEmptyError():
            return NotEmptyError(one.path)
        case exceptions.NoChildrenForEphemeralsError():
            return StoreError(parent_of(one.path), "is ephemeral and can't have children")
        case exceptions.NoAuthError():
            return StoreError(one.path, "ZooKeeper doesn't let this broker do that: its ACL names others")
        case _:
            return StoreError(one.path, f"ZooKeeper refuses it: {type(error).__name__} {error}".rstrip())


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}" if name else path


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.ephemeralOwner, stat.ctime, stat.mtime, stat.czxid, stat.mzxid)
