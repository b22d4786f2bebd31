"""kazoo as the store uses it: its threads only hand over, and what a server says is said in the store's words.

- **kazoo's threads only hand over.** All that it has to say (answers, watches, states) goes through one queue, whose `put` is
  `loop.call_soon_threadsafe`. With kazoo's two queues and its listeners' direct calls a read could look newer than its watch,
  and the session's end come before answers that were there first. None of its waiting calls, retries or recipes is used.
- **A client has one session.** After an expiry kazoo goes on with a new one, in which it carries out what it is asked from then
  on: an ephemeral node made by yesterday's intention. So its sockets are opened by a handler of ours, which opens none once the
  session is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, ZnodeStat
from kazoo.retry import KazooRetry

from penstock import log
from penstock.broker.store.base import (
    BadVersionError,
    Check,
    Create,
    Delete,
    Event,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Stat,
    StoreError,
    parent_of,
)
from penstock.errors import os_error_text

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


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, without those that would carry out what is in its queues."""

    running = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.callback_queue = self.completion_queue = _Hand(loop)
        self.over = False
        """Set by kazoo's thread with the session's end, before it could begin another one."""
        self.failure = ""
        """Why the last attempt to reach a server failed, since one was reached."""

    def start(self) -> None:
        """Not called back by threads."""

    def stop(self) -> None:
        """Nor ended."""

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """A socket for this session."""
        if self.over:
            raise OSError("the session is over")
        options["timeout"] /= 3  # A server that is silent must not take the session's time from the others.
        try:
            made = super().create_connection(*arguments, **options)
        except Exception as error:
            self.failure = os_error_text(error) if isinstance(error, OSError) else str(error)
            raise
        self.failure = "it takes connections, and answers nothing"
        return made


def _note(handler: Handler, record: logging.LogRecord) -> bool:
    """Whether a record of kazoo's is one for the log. Names that don't resolve stand in its warnings alone."""
    if record.levelno < logging.ERROR and str(record.msg).startswith("Cannot resolve"):
        handler.failure = record.getMessage()
    return record.levelno >= logging.ERROR


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, which notes for how long the server keeps the session."""

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self.client.granted_ms = answer[0].time_out
        return answer


class Client(KazooClient):  # type: ignore[misc]
    """kazoo's client. Its `connection_retry` never gives up, so only a server ends the session."""

    def __init__(self, hosts: str, timeout_s: float, handler: Handler) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0)
        # kazoo logs each request and its bytes as DEBUG, credentials too, and each attempt to connect as WARNING.
        logger = logging.Logger("kazoo", logging.WARNING)
        logger.parent = _log.logger
        logger.addFilter(partial(_note, handler))
        super().__init__(hosts, timeout_s, handler=handler, connection_retry=retry, read_only=False, logger=logger)
        self.granted_ms = 0
        self._connection = _Connection(self, self._conn_retry.copy(), logger=logger)


def commit(operations: Sequence[Operation], client: KazooClient, fire: object) -> Any:
    """Ask for a multi."""
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


def answers_of(given: Sequence[Any]) -> list[Any]:
    """Those of a multi, as `outcome` gives them: paths, versions, None, or the exception of an operation."""
    return [one.version if isinstance(one, ZnodeStat) else None if one is True else one for one in given]


def explained(one: Operation, error: Exception) -> StoreError:
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


def stat_of(stat: ZnodeStat) -> Stat:
    """What the store says of a node."""
    return Stat(stat.version, stat.ephemeralOwner, stat.ctime, stat.mtime, stat.czxid, stat.mzxid)
