"""The store of a cluster, in a ZooKeeper (`zookeepersession.py`): its paths, multis, parents and trees.

- **A store lives for one session**, and every call raises SessionLostError once that is over.
- **A multi is never torn.** Servers drop a connection that sends more than 1 MiB, so what is above the bound is refused.
  Callers cut what may be cut with `pieces`; `delete` of a tree and `empty` do so themselves.
- Parents and trees are looked up where the operation as it is was refused; what changes meanwhile is looked up again.

Paths are below a chroot of our own making, which is made if it is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat
from kazoo.security import Permissions

from penstock import log
from penstock.broker.store.base import (
    ANY_VERSION,
    TRIES,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Sessions,
    Stat,
    Store,
    StoreError,
    Watch,
    check_path,
    check_size,
    parents_of,
    size_of,
)
from penstock.broker.store.zookeeperclient import ONLOOKERS, explained, stat_of
from penstock.broker.store.zookeepersession import Send, Session

READ_AT_ONCE = 500
SAY_AFTER_S = 0.8
"""After so long without an answer somebody who starts a broker hears why."""

_log = log.get(__name__)


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
        _, _, chroot = servers.partition("/")
        self.servers = servers
        self._root = f"/{chroot.strip('/')}" if chroot.strip("/") else ""
        self._session = Session(servers, session_timeout_ms)
        self.session = 0
        self.lost = self._session.lost

    @classmethod
    async def open(
        cls, servers: str, *, session_timeout_ms: int = 6000, wait_s: float = 30.0, makes_root: bool = True
    ) -> ZooKeeperStore:
        """A session with the servers `HOST:PORT,HOST:PORT/chroot`. makes_root: the chroot is made if it is missing. Raises
        StoreError, also if none answers within wait_s."""
        store = cls(servers, session_timeout_ms)
        if store._root:
            check_path(store._root)
        store._session.begin()
        saying = asyncio.get_running_loop().call_later(SAY_AFTER_S, store._say_silent, wait_s)
        try:
            await asyncio.wait_for(store._session.ready.wait(), wait_s)
            store.session = store._session.number
            if makes_root:
                await store._make_root()
        except TimeoutError:
            why = f": {store._session.failure}" if store._session.failure else ""
            await store.close()
            raise StoreError(f"ZooKeeper at `{servers}`", f"no server of these has answered in {wait_s:g} s{why}") from None
        except BaseException:
            await store.close()
            raise
        finally:
            saying.cancel()
        return store

    def _say_silent(self, wait_s: float) -> None:
        why = self._session.failure or "no answer"
        _log.warning("ZooKeeper at `%s` doesn't answer: %s; it is tried for %g s", self.servers, why, wait_s)

    @property
    def session_timeout_ms(self) -> int:
        """For how long the servers keep the session without hearing from it: they have bounds of their own."""
        return self._session.granted_ms

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """A node's bytes and stat; see `Store.get`."""
        data, stat = await self._get(path, watch)
        return data or b"", stat_of(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """A node's stat or None; see `Store.exists`."""
        stat = await self._read(path, lambda client, fire: client.exists_async(self._absolute(path), fire), watch)
        return None if stat is None else stat_of(stat)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of a node's children; see `Store.children`."""
        self._check(path)
        names = await self._session.read(
            path, lambda client, fire: client.get_children_async(self._absolute(path), fire), watch, is_of_children=True
        )
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
        return self._session.newest_zxid

    def give_up(self) -> None:
        """See `Store.give_up`."""
        self._session.give_up()

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish with it, at once if a server is there to hear it."""
        await self._session.close()

    async def _get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, ZnodeStat]:
        data, stat = await self._read(path, lambda client, fire: client.get_async(self._absolute(path), fire), watch)
        return data, stat

    async def _read(self, path: str, send: Send, watch: Watch | None) -> Any:
        self._check(path)
        return await self._session.read(path, send, watch)

    async def _write(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """A multi as it is. Raises _RefusedError, and StoreErrors for what isn't about one of them."""
        check_size(operations, len(operations), sum(map(size_of, operations)))
        writes = [replace(one, path=self._absolute(one.path)) for one in operations]
        answers = await self._session.write(operations[0].path, writes)
        for at, (one, given) in enumerate(zip(operations, answers, strict=True)):
            if isinstance(given, Exception) and not isinstance(given, ONLOOKERS):
                raise _RefusedError(at, explained(one, given))
        return [self._relative(given) if isinstance(given, str) else given for given in answers]

    # Parents and trees.

    async def _make_root(self) -> None:
        root, self._root = self._root, ""
        if root and await self.exists(root) is None:
            with contextlib.suppress(NodeExistsError):
                await self.create(root, parents=True)
        self._root = root

    async def root_fault(self) -> str:
        """Why the chroot isn't there and can't be made; "": it is there, or can be made. Raises StoreError."""
        root, self._root = self._root, ""
        try:
            for path in [root, *reversed(parents_of(root)), "/"] if root else []:
                if await self.exists(path) is None:
                    continue
                acls, _ = await self._read(path, partial(_ask_acls, path), None)
                if path == root or any(one.id.scheme == "world" and one.perms & Permissions.CREATE for one in acls):
                    return ""
                return f"ZooKeeper's chroot `{root}` isn't there, and the ACL of `{path}` forbids to make it"
            return ""
        finally:
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


class ZooKeeperSessions(Sessions):
    """The sessions of one broker with the servers `HOST:PORT,HOST:PORT/chroot`. wait_s: how long one may take to begin."""

    def __init__(self, servers: str, timeout_ms: int, wait_s: float) -> None:
        self.place = servers
        self._servers = servers
        self._timeout_ms = timeout_ms
        self._wait_s = wait_s

    async def begin(self) -> ZooKeeperStore:
        """See `Sessions.begin`. Raises StoreError, also if no server answers in time."""
        return await ZooKeeperStore.open(self._servers, session_timeout_ms=self._timeout_ms, wait_s=self._wait_s)


def _ask_acls(path: str, client: KazooClient, fire: object) -> Any:
    return client.get_acls_async(path)


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


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}" if name else path
