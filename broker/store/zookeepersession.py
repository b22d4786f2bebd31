"""A session with a ZooKeeper: what is asked in it, until somebody knows the answer.

- **Calls wait here**, and get SessionLostError once the session is over: kazoo forgets those that come while it clears its own.
- **A lost connection means: unknown.** After the next connection and a `sync`, reads are asked again, and of each write the
  nodes tell what became of it (`outcome.py`): it is done, or is asked again, or its caller gets UnknownOutcomeError. A server
  takes no request of a session from an older connection once a newer one is there, so that is the end of it.
- **Nothing is read before a `sync` on its connection**: the server may be behind the one before it. An answer that came on
  another connection than its question was sent on is asked for again: kazoo may have changed it meanwhile.
- **Watches are dropped with the connection**, also while the session lives on. They fire with MISSED, after the `sync`.
- **No more than WINDOW requests are in kazoo's hands**: it is woken by a byte in a socket for each, and blocks the loop when
  that is full. The rest waits here, in its order.
- While no server answers, calls wait; only a server can say that a session is over. So no lease depends on this.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KazooState, WatchedEvent

from penstock import log
from penstock.broker import tasks
from penstock.broker.store.base import (
    TRIES,
    Check,
    Event,
    Operation,
    SessionLostError,
    StoreError,
    UnknownOutcomeError,
    Watch,
    parent_of,
)
from penstock.broker.store.outcome import LostOutcome, Nodes, Seen, looked_at, outcome, sequence_nodes
from penstock.broker.store.zookeeperclient import EVENTS, UNANSWERED, Client, Handler, answers_of, commit, explained, stat_of

WINDOW = 128
"""Requests in kazoo's hands; 278 bytes of wake-ups fill its socket."""

_log = log.get(__name__)

Send = Callable[[KazooClient, Any], Any]


@dataclass(frozen=True)
class _Fire:
    """What kazoo shall call for the watches of a node, or of its children. All that are made for one node are equal, so kazoo
    keeps one of them."""

    session: Session
    path: str
    is_of_children: bool

    def __call__(self, event: WatchedEvent) -> None:
        """It has changed, or the connection is lost."""
        self.session.fire(self, event)


@dataclass(eq=False)
class _Call:
    """A request, until somebody knows its answer. path: for sentences, as a caller knows it. send: gives it to kazoo, with what
    kazoo shall call for a watch. writes: the operations of a write, by absolute paths. is_of_children: so is the watch."""

    path: str
    send: Send
    answer: asyncio.Future[Any]
    writes: Sequence[Operation] = ()
    watch: Watch | None = None
    is_of_children: bool = False
    connection: int = 0
    before: int = 0
    tries: int = 0


class Session:
    """From `begin` to `close`, on the loop. Paths are absolute: a chroot of `servers` is for its sentences only."""

    def __init__(self, servers: str, timeout_ms: int) -> None:
        self.servers = servers
        self._handler = Handler(asyncio.get_running_loop())
        self._client = Client(servers.partition("/")[0], timeout_ms / 1000, self._handler)
        self._client.add_listener(self._state_in_thread)
        self.number = 0
        self.lost = asyncio.Event()
        self.ready = asyncio.Event()
        """The connection is there, synced, and all that its predecessor left is settled."""
        self._closing = False
        self._stop_lock = threading.Lock()
        self._stopping: asyncio.Future[None] | None = None
        self._connection = 0
        """Counts the connections of this session."""
        self._settling: asyncio.Task[None] | None = None
        self._held: deque[_Call] = deque()
        self._sent: dict[_Call, None] = {}
        self._watches: dict[_Fire, dict[Watch, None]] = {}
        """The watches that are out, each once: a caller that looks again leaves no second one."""
        self._missed: list[tuple[str, Watch]] = []

    def begin(self) -> None:
        """Set out; `ready` says when a server has answered."""
        self._client.start_async()

    @property
    def failure(self) -> str:
        """Why no server has been reached yet; "": nobody knows."""
        return self._handler.failure

    @property
    def granted_ms(self) -> int:
        """For how long the servers keep the session without hearing from it."""
        return int(self._client.granted_ms)

    @property
    def newest_zxid(self) -> int:
        """Of the changes that the session has heard of."""
        return int(self._client.last_zxid)

    async def read(self, path: str, send: Send, watch: Watch | None = None, *, is_of_children: bool = False) -> Any:
        """The answer of what `send` asks kazoo for; `path` is for sentences and for the watch, which is of the node or of its
        children."""
        answer = asyncio.get_running_loop().create_future()
        return await self._ask(_Call(path, send, answer, watch=watch, is_of_children=is_of_children))

    async def write(self, path: str, operations: Sequence[Operation]) -> list[Any]:
        """Make a multi, as it is: an answer to each operation, as `answers_of` gives them."""
        answer = asyncio.get_running_loop().create_future()
        return list(await self._ask(_Call(path, partial(commit, operations), answer, operations)))

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish with it, at once if a server is there to hear it."""
        self._closing = True
        self._end("it is closed")
        if self._stopping is not None:
            await self._stopping

    def give_up(self) -> None:
        """End it from another thread, also while the loop stands still: kazoo then says LOST, as if it had expired."""
        with self._stop_lock:
            self._client.stop()

    async def _ask(self, call: _Call) -> Any:
        if self.lost.is_set() or self._closing:
            raise SessionLostError(f"session {self.number:#x}", "it has expired" if self.lost.is_set() else "it is closed")
        self._held.append(call)
        self._pump()
        return await call.answer

    def _pump(self) -> None:
        while self.ready.is_set() and self._held and len(self._sent) < WINDOW:
            call = self._held.popleft()
            if not call.answer.done():
                self._send(call)

    def _send(self, call: _Call) -> None:
        call.connection, call.before = self._connection, self.newest_zxid
        call.tries += 1
        self._sent[call] = None
        fire = None if call.watch is None else _Fire(self, call.path, call.is_of_children)
        call.send(self._client, fire).rawlink(partial(self._answered, call))

    # What kazoo's thread has to say. `_state_in_thread` runs there, all others on the loop.

    def _state_in_thread(self, state: str) -> None:
        if state == KazooState.LOST:
            self._handler.over = True
        session, _ = self._client.client_id or (0, b"")
        self._handler.callback_queue.put(partial(self._state_changed, state, session))

    def _state_changed(self, state: str, session: int) -> None:
        self.ready.clear()
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if state == KazooState.LOST:
            if not self._closing:
                _log.error("the session %#x with ZooKeeper at %s is over", self.number, self.servers)
            self._end("it has expired")
        elif self._closing:
            return
        elif state == KazooState.SUSPENDED:
            _log.warning("the connection to ZooKeeper at %s is lost, the session %#x may live on", self.servers, self.number)
        else:
            self.number = session
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
            self._done(call, answers_of(result.value) if call.writes else result.value)
        else:
            self._fail(call, explained(Check(call.path), error))
        self._pump()

    def _done(self, call: _Call, answer: Any) -> None:
        del self._sent[call]
        if not call.answer.done():
            call.answer.set_result(answer)
            if call.watch is not None:  # Only now: a watch whose answer wasn't taken isn't the caller's.
                self._watches.setdefault(_Fire(self, call.path, call.is_of_children), {})[call.watch] = None

    def _fail(self, call: _Call, error: StoreError) -> None:
        self._sent.pop(call, None)
        if not call.answer.done():
            call.answer.set_exception(error)

    def fire(self, fire: _Fire, event: WatchedEvent) -> None:
        """The watches of a node, or of its children, fire."""
        watches = self._watches.pop(fire, {})
        if self.lost.is_set() or self._closing:
            return
        if event.type == EventType.NONE:
            self._missed += [(fire.path, watch) for watch in watches]
            return
        for watch in watches:
            watch(fire.path, EVENTS[event.type])

    # A connection is new, or the last one is gone.

    async def _settle(self) -> None:
        """See that nothing is behind, then what became of all that the connection before has left."""
        if self._connection > 1:
            _log.info("connected to ZooKeeper at %s again, in the session %#x", self.servers, self.number)
        try:
            await self._now(self._client.sync_async("/"))
            missed, self._missed = self._missed, []
            for path, watch in missed:
                watch(path, Event.MISSED)
            lost = [call for call in self._sent if call.connection != self._connection]
            # All before any is sent again: one that is would change what the nodes tell about those behind it.
            found = [(call, await self._find_out(call)) for call in lost]
            for call, (became, answers) in found:
                self._settle_call(call, became, answers)
        except UNANSWERED:
            return  # This connection is gone, too; the state that follows says so.
        except exceptions.KazooException as error:
            _log.error("ZooKeeper at %s can't be used: %s %s", self.servers, type(error).__name__, error)
            return self._end("ZooKeeper refuses it")
        self.ready.set()
        self._pump()

    def _settle_call(self, call: _Call, became: LostOutcome, answers: list[str | int | None]) -> None:
        if call not in self._sent:
            return  # Its answer was on the way all the same.
        if became is LostOutcome.DONE:
            return self._done(call, answers)
        if became is LostOutcome.UNKNOWN:
            return self._fail(call, UnknownOutcomeError(call.path, "the connection to ZooKeeper broke before it answered"))
        del self._sent[call]
        if call.answer.done():
            return
        if call.tries == TRIES:
            return self._fail(
                call, StoreError(call.path, f"the connection to ZooKeeper broke {TRIES} times before it answered")
            )
        self._send(call)

    async def _find_out(self, call: _Call) -> tuple[LostOutcome, list[str | int | None]]:
        if not call.writes or call.answer.done():
            return LostOutcome.NOT_DONE, []  # A read is asked for again; whose caller has given up is forgotten.
        try:
            nodes = await self._look(call.writes)
        except UNANSWERED:
            raise
        except exceptions.KazooException as error:
            _log.warning("a change of %s may be made or not: the node can't be read: %s", call.path, type(error).__name__)
            return LostOutcome.UNKNOWN, []
        return outcome(call.writes, nodes, call.before, self.number)

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
                nodes[path] = Seen(data or b"", stat_of(stat), stat.pzxid)
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
            self._fail(call, SessionLostError(f"session {self.number:#x}", why))
        self._held.clear()
        if self._settling is not None:
            self._settling.cancel()
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().run_in_executor(None, self._stop)

    def _stop(self) -> None:
        """On a thread of the loop's: kazoo waits for its own."""
        with self._stop_lock:
            self._client.stop()
            self._client.close()
