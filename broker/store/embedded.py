"""The store of a single node: a tree of nodes in one SQLite file.

    node(path, parent, data, version, session, sequence, created_ms, modified_ms)
    counter('changes')

Each change is one SQLite transaction (write-ahead log, synchronous FULL), so what was answered survives a
power cut, and `multi` is all or nothing. All SQLite work is done by one thread of its own, in order; so reads
see what was written before them, and the asyncio loop never waits for a disk.

There is one session: the process. Ephemeral nodes of earlier sessions are removed when the file is opened;
the data folder's lock makes sure that the process behind them is gone.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from penstock.broker.store.base import (
    ANY_VERSION,
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
    Watch,
)

T = TypeVar("T")
Changes = list[tuple[str, Event]]

TABLE = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL,
    version INTEGER NOT NULL, session INTEGER NOT NULL, sequence INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS node_parent ON node (parent);
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO counter VALUES ('changes', 0);
"""


class EmbeddedStore:
    """A `Store` in one file. Make it with `await EmbeddedStore.open(path)`, on the loop that will use it."""

    def __init__(self, database: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._database = database
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._session = 0
        # Watches are kept and fired by the SQLite thread, so none can miss a change that follows its read.
        self._node_watches: dict[str, list[Watch]] = {}
        self._child_watches: dict[str, list[Watch]] = {}

    @classmethod
    async def open(cls, path: Path) -> EmbeddedStore:
        """Open or create the file. Raises StoreError when it isn't one of ours or can't be read."""
        thread = ThreadPoolExecutor(1, "store")
        loop = asyncio.get_running_loop()
        try:
            database = await loop.run_in_executor(thread, _open_database, path)
        except sqlite3.Error as error:
            thread.shutdown()
            raise StoreError(str(path), str(error)) from None
        store = cls(database, thread)
        try:
            await store._run(str(path), store._begin_session)
        except StoreError:
            await loop.run_in_executor(thread, database.close)
            thread.shutdown()
            raise
        return store

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
    ) -> str:
        """Make a node; see `Store.create`."""
        made = (await self.multi([Create(path, data, ephemeral, sequence, parents)]))[0]
        assert isinstance(made, str)
        return made

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """A node's bytes and stat; see `Store.get`."""

        def work() -> tuple[bytes, Stat]:
            found = self._find(path)
            if found is None:
                raise NoNodeError(path)
            _keep(self._node_watches, path, watch)
            return found

        return await self._run(path, work)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """A node's stat or None; see `Store.exists`."""

        def work() -> Stat | None:
            found = self._find(path)
            _keep(self._node_watches, path, watch)
            return found[1] if found else None

        return await self._run(path, work)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace a node's bytes; see `Store.set`."""
        new_version = (await self.multi([Set(path, data, version)]))[0]
        assert isinstance(new_version, int)
        return new_version

    async def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        """Remove a node; see `Store.delete`."""
        await self.multi([Delete(path, version, recursive)])

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of a node's children; see `Store.children`."""

        def work() -> list[str]:
            if self._find(path) is None:
                raise NoNodeError(path)
            _keep(self._child_watches, path, watch)
            rows = self._database.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
            return [row[0].rpartition("/")[2] for row in rows]

        return await self._run(path, work)

    async def tree(self, path: str) -> dict[str, bytes]:
        """The bytes of every node below a node; see `Store.tree`."""
        below = path.rstrip("/") + "/"

        def work() -> dict[str, bytes]:
            if self._find(path) is None:
                raise NoNodeError(path)
            # All that begins so; "0" is the character after "/".
            rows = self._database.execute(
                "SELECT path, data FROM node WHERE path > ? AND path < ?", (below, below[:-1] + "0")
            )
            return {row[0][len(below) :]: bytes(row[1]) for row in rows}

        return await self._run(path, work)

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """All or nothing; see `Store.multi`."""
        where = operations[0].path if operations else "/"

        def work() -> list[str | int | None]:
            changes: Changes = []
            self._database.execute("BEGIN IMMEDIATE")
            try:
                results = [self._apply(operation, changes) for operation in operations]
                self._database.execute("UPDATE counter SET value = value + 1 WHERE name = 'changes'")
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
            self._fire(changes)
            return results

        return await self._run(where, work)

    async def changes(self) -> int:
        """How many changes there ever were; see `Store.changes`."""

        def work() -> int:
            row = self._database.execute("SELECT value FROM counter WHERE name = 'changes'").fetchone()
            return int(row[0])

        return await self._run("/", work)

    async def close(self) -> None:
        """End the session and close the file; nothing can be called afterwards, also when a StoreError is raised."""

        def work() -> None:
            try:
                self._database.execute("DELETE FROM node WHERE session = ?", (self._session,))
            finally:
                self._database.close()

        try:
            await self._run("/", work)
        finally:
            self._thread.shutdown()

    # Everything below runs on the SQLite thread.

    async def _run(self, path: str, work: Callable[[], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise StoreError(path, f"the metadata store failed: {error}") from error

    def _begin_session(self) -> None:
        self._database.execute("DELETE FROM node WHERE session != 0")
        # Sessions of one file never share a number, even when the clock was set back.
        row = self._database.execute("PRAGMA user_version").fetchone()
        self._session = row[0] + 1
        self._database.execute(f"PRAGMA user_version = {self._session}")

    def _find(self, path: str) -> tuple[bytes, Stat] | None:
        row = self._database.execute(
            "SELECT data, version, session, created_ms, modified_ms FROM node WHERE path = ?", (path,)
        ).fetchone()
        return (bytes(row[0]), Stat(*row[1:])) if row else None

    def _apply(self, operation: Operation, changes: Changes) -> str | int | None:
        match operation:
            case Create():
                return self._create(operation, changes)
            case Set(path, data, version):
                found = self._expect(path, version)
                self._database.execute(
                    "UPDATE node SET data = ?, version = version + 1, modified_ms = ? WHERE path = ?",
                    (data, _now_ms(), path),
                )
                changes.append((path, Event.CHANGED))
                return found.version + 1
            case Delete(path, version, recursive):
                self._expect(path, version)
                self._delete(path, recursive, changes)
                return None
            case Check(path, version):
                self._expect(path, version)
                return None

    def _expect(self, path: str, version: int) -> Stat:
        found = self._find(path)
        if found is None:
            raise NoNodeError(path)
        if version not in (ANY_VERSION, found[1].version):
            raise BadVersionError(path, f"has version {found[1].version}, not {version}")
        return found[1]

    def _create(self, operation: Create, changes: Changes) -> str:
        path, parent = operation.path, _parent(operation.path)
        found = self._find(parent)
        if found is None:
            if not operation.parents:
                raise NoNodeError(parent)
            self._create(Create(parent, parents=True), changes)
        elif found[1].ephemeral_session:
            raise StoreError(parent, "is ephemeral and can't have children")
        if operation.sequence:
            row = self._database.execute("SELECT sequence FROM node WHERE path = ?", (parent,)).fetchone()
            path = f"{path}{row[0]:010d}"
        now_ms = _now_ms()
        session = self._session if operation.ephemeral else 0
        try:
            self._database.execute(
                "INSERT INTO node VALUES (?, ?, ?, 0, ?, 0, ?, ?)",
                (path, parent, operation.data, session, now_ms, now_ms),
            )
        except sqlite3.IntegrityError:
            raise NodeExistsError(path) from None
        self._database.execute("UPDATE node SET sequence = sequence + 1 WHERE path = ?", (parent,))
        changes += [(path, Event.CREATED), (parent, Event.CHILDREN)]
        return path

    def _delete(self, path: str, recursive: bool, changes: Changes) -> None:
        children = self._database.execute("SELECT path FROM node WHERE parent = ?", (path,)).fetchall()
        if children and not recursive:
            raise NotEmptyError(path)
        for (child,) in children:
            self._delete(child, True, changes)
        self._database.execute("DELETE FROM node WHERE path = ?", (path,))
        changes += [(path, Event.DELETED), (_parent(path), Event.CHILDREN)]

    def _fire(self, changes: Changes) -> None:
        for path, event in changes:
            watches = self._child_watches if event is Event.CHILDREN else self._node_watches
            for watch in watches.pop(path, ()):
                self._loop.call_soon_threadsafe(watch, path, event)


def _open_database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.executescript(TABLE)
    now_ms = _now_ms()
    database.execute("INSERT OR IGNORE INTO node VALUES ('/', '', x'', 0, 0, 0, ?, ?)", (now_ms, now_ms))
    return database


def _keep(watches: dict[str, list[Watch]], path: str, watch: Watch | None) -> None:
    if watch is not None:
        watches.setdefault(path, []).append(watch)


def _parent(path: str) -> str:
    if not path.startswith("/") or path == "/" or path.endswith("/") or "//" in path:
        raise StoreError(path, "is not a path below `/`")
    return path.rpartition("/")[0] or "/"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
