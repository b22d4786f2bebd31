"""The store of a single node: a tree of nodes in one SQLite file.

    node(path, parent, data, version, session, sequence, created_ms, modified_ms, crc, created_zxid, modified_zxid)
    counter('changes', 'digest')
    about('format', 'id')

Each change is one SQLite transaction (write-ahead log, synchronous FULL), so what was answered survives a
power cut, and `multi` is all or nothing. All SQLite work is done by one thread of its own, in order; so reads
see what was written before them, and the asyncio loop never waits for a disk.

SQLite doesn't check what it reads: `sound.py` says what does. A file of an earlier format gets what it lacks.

The store's id tells it from every other one: it is made with the store, and goes with it into backups. The file may be
removed or replaced while it is open; `displaced` says so.

There is one session: the process. Ephemeral nodes of earlier sessions are removed when the file is opened;
the data folder's lock makes sure that the process behind them is gone.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from penstock import log
from penstock.broker.store.base import (
    ANY_VERSION,
    BadVersionError,
    Check,
    CorruptStoreError,
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
    paths,
)
from penstock.broker.store.sound import FORMAT, ZXIDS, LastChange, check, checksum, fact_checksum, failures
from penstock.broker.uuids import new_uuid, uuid_text

T = TypeVar("T")
WAL_VERSION, PLAIN_VERSION = b"\2\2", b"\1\1"
"""Bytes 18 and 19 of a file: whether it has a write-ahead log beside it."""
REMOVED, REPLACED = "was removed", "was replaced by another file"

_log = log.get(__name__)


class Changes:
    """What one call of `multi` did: its zxid, events for watches, and by how much the sum of the checksums moved."""

    def __init__(self, zxid: int) -> None:
        self.zxid = zxid
        self.events: list[tuple[str, Event]] = []
        self.digest = 0


@dataclass(frozen=True)
class _Row:
    """A node as it stands in the table."""

    parent: str
    data: bytes
    version: int
    session: int
    sequence: int
    created_ms: int
    modified_ms: int
    created_zxid: int
    modified_zxid: int
    crc: int

    @property
    def stat(self) -> Stat:
        return Stat(self.version, self.session, self.created_ms, self.modified_ms, self.created_zxid, self.modified_zxid)


@dataclass(frozen=True)
class _Opened:
    """A database, the id of its store, and its file's device and inode."""

    database: sqlite3.Connection
    id: str
    file: tuple[int, int]


TABLES = (
    """
    CREATE TABLE IF NOT EXISTS node (
        path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL,
        version INTEGER NOT NULL, session INTEGER NOT NULL, sequence INTEGER NOT NULL,
        created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, crc INTEGER NOT NULL DEFAULT 0,
        created_zxid INTEGER NOT NULL DEFAULT 0, modified_zxid INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID
    """,
    "CREATE INDEX IF NOT EXISTS node_parent ON node (parent)",
    "CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT OR IGNORE INTO counter VALUES ('changes', 0)",
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID",
)
INSERT = (
    "INSERT INTO node (path, parent, data, version, session, sequence, created_ms, modified_ms, crc, created_zxid, "
    "modified_zxid) VALUES (?, ?, ?, 0, ?, 0, ?, ?, ?, ?, ?)"
)


class EmbeddedStore:
    """A `Store` in one file. Make it with `await EmbeddedStore.open(path)`, on the loop that will use it."""

    def __init__(self, path: Path, opened: _Opened, thread: ThreadPoolExecutor) -> None:
        self.path = path
        self._database = opened.database
        self._file = opened.file
        self.id = opened.id
        """Of this store, whatever becomes of its file; Kafka's text of an id."""
        self._last_change = LastChange(path)
        self._last_change_fails = False
        self.changed = asyncio.Event()
        """Set after each change, for the backups; the task that waits for it clears it."""
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._session = 0
        # Watches are kept and fired by the SQLite thread, so none can miss a change that follows its read.
        self._node_watches: dict[str, list[Watch]] = {}
        self._child_watches: dict[str, list[Watch]] = {}

    @classmethod
    async def open(cls, path: Path, *, restored: bool = False, checked: bool = False, new_id: str = "") -> EmbeddedStore:
        """Open or create the file, which is checked before anything is written to it.

        restored: it is a backup that was put there, and may have seen fewer changes than were made. checked: the caller has
        done that. new_id: of a store that has none yet; "" = a random one.
        Raises CorruptStoreError, NewerStoreError, StoreDiskError, and StoreError when something else is in the way.
        """
        thread = ThreadPoolExecutor(1, "store")
        loop = asyncio.get_running_loop()
        try:
            opened = await loop.run_in_executor(thread, _open_database, path, restored, checked, new_id)
        except BaseException:
            thread.shutdown()
            raise
        store = cls(path, opened, thread)
        try:
            await store._run(str(path), lambda: store._begin_session(restored))
        except StoreError:
            await loop.run_in_executor(thread, opened.database.close)
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
            found = self._expect(path, ANY_VERSION)
            _keep(self._node_watches, path, watch)
            return found.data, found.stat

        return await self._run(path, work)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """A node's stat or None; see `Store.exists`."""

        def work() -> Stat | None:
            found = self._find(path)
            _keep(self._node_watches, path, watch)
            return found.stat if found else None

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
            rows = self._database.execute("SELECT path, data FROM node WHERE path > ? AND path < ?", (below, below[:-1] + "0"))
            return {row[0][len(below) :]: bytes(row[1]) for row in rows}

        return await self._run(path, work)

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """All or nothing; see `Store.multi`."""
        where = operations[0].path if operations else "/"

        def work() -> list[str | int | None]:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                changes = Changes(self._number() + 1)
                results = [self._apply(operation, changes) for operation in operations]
                self._count(1, changes.digest)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
            self._note(changes.zxid)
            self._fire(changes)
            return results

        return await self._run(where, work)

    async def changes(self) -> int:
        """How many changes there ever were; see `Store.changes`."""

        return await self._run("/", self._number)

    async def image(self) -> bytes:
        """The whole store as the bytes of a file of its own, as it is at one moment; for a backup."""

        def work() -> bytes:
            image = bytearray(self._database.serialize())
            if image[18:20] == WAL_VERSION:
                image[18:20] = PLAIN_VERSION  # What the write-ahead log had is in it.
            return bytes(image)

        return await self._run("/", work)

    def displaced(self) -> str:
        """What has become of the open file at its path: "" = it lies there. Reads the disk, from any thread."""
        try:
            file = self.path.stat()
        except FileNotFoundError:
            return REMOVED
        except OSError:
            return ""  # That is the disk's trouble.
        return "" if _place(file) == self._file else REPLACED

    async def close(self) -> None:
        """End the session and close the file; nothing can be called afterwards, also when a StoreError is raised."""

        def work() -> None:
            try:
                self._end_sessions("session = ?", self._session)
            finally:
                self._last_change.close()
                self._database.close()

        try:
            await self._run("/", work)
        finally:
            self._thread.shutdown()

    # Everything below runs on the SQLite thread.

    async def _run(self, path: str, work: Callable[[], T]) -> T:
        def explained() -> T:
            with failures(self.path, path):
                return work()

        return await self._loop.run_in_executor(self._thread, explained)

    def _begin_session(self, restored: bool) -> None:
        self._end_sessions("session != ?", 0)
        # Sessions of one file never share a number, even when the clock was set back.
        row = self._database.execute("PRAGMA user_version").fetchone()
        self._session = row[0] + 1
        self._database.execute(f"PRAGMA user_version = {self._session}")
        if restored:
            self._catch_up()

    def _catch_up(self) -> None:
        """Take down how many changes a restored file has lost, and count on from the last that was made."""
        have, made = self._number(), self._last_change.read()
        if made == have:
            return
        lost = b"unknown" if made is None else str(max(made - have, 0)).encode()
        changes = Changes(max(have, made or 0) + 1)
        self._database.execute("BEGIN IMMEDIATE")
        self._apply(Create(paths.RESTORED, lost, parents=True), changes)
        self._count(changes.zxid - have, changes.digest)
        self._database.execute("COMMIT")
        self._note(changes.zxid)

    def _end_sessions(self, which: str, session: int) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        gone = self._database.execute(f"SELECT ifnull(sum(crc + sequence), 0) FROM node WHERE {which}", (session,)).fetchone()
        self._database.execute(f"DELETE FROM node WHERE {which}", (session,))
        self._count(0, -gone[0])
        self._database.execute("COMMIT")

    def _number(self) -> int:
        row = self._database.execute("SELECT value FROM counter WHERE name = 'changes'").fetchone()
        return int(row[0])

    def _count(self, changes: int, digest: int) -> None:
        self._database.execute(
            "UPDATE counter SET value = value + CASE name WHEN 'changes' THEN ? ELSE ? END", (changes, digest)
        )

    def _note(self, number: int) -> None:
        """Say beside the file which change was the last. Without that a start can't tell that the file has lost some."""
        try:
            self._last_change.write(number)
            self._last_change_fails = False
        except OSError as error:
            if not self._last_change_fails:
                _log.warning("the number of the last change can't be written beside %s: %s", self.path, error)
            self._last_change_fails = True
        self._loop.call_soon_threadsafe(self.changed.set)

    def _find(self, path: str) -> _Row | None:
        row = self._database.execute(
            "SELECT parent, data, version, session, sequence, created_ms, modified_ms, created_zxid, modified_zxid, crc "
            "FROM node WHERE path = ?",
            (path,),
        ).fetchone()
        if row is None:
            return None
        found = _Row(*row)
        if checksum(path, found.parent, found.data, *row[2:4], *row[5:9]) != found.crc:
            raise CorruptStoreError(str(self.path), f"it is damaged: the checksum of the node `{path}` is wrong")
        return found

    def _apply(self, operation: Operation, changes: Changes) -> str | int | None:
        match operation:
            case Create():
                return self._create(operation, changes)
            case Set(path, data, version):
                found, now_ms, zxid = self._expect(path, version), _now_ms(), changes.zxid
                times = found.created_ms, now_ms, found.created_zxid, zxid
                crc = checksum(path, found.parent, data, found.version + 1, found.session, *times)
                self._database.execute(
                    "UPDATE node SET data = ?, version = version + 1, modified_ms = ?, modified_zxid = ?, crc = ? "
                    "WHERE path = ?",
                    (data, now_ms, zxid, crc, path),
                )
                changes.digest += crc - found.crc
                changes.events.append((path, Event.CHANGED))
                return found.version + 1
            case Delete(path, version, recursive):
                self._delete(path, self._expect(path, version), recursive, changes)
                return None
            case Check(path, version):
                self._expect(path, version)
                return None

    def _expect(self, path: str, version: int) -> _Row:
        found = self._find(path)
        if found is None:
            raise NoNodeError(path)
        if version not in (ANY_VERSION, found.version):
            raise BadVersionError(path, f"has version {found.version}, not {version}")
        return found

    def _create(self, operation: Create, changes: Changes) -> str:
        path, parent = operation.path, _parent(operation.path)
        found = self._find(parent)
        if found is None:
            if not operation.parents:
                raise NoNodeError(parent)
            self._create(Create(parent, parents=True), changes)
        elif found.session:
            raise StoreError(parent, "is ephemeral and can't have children")
        if operation.sequence:
            path = f"{path}{0 if found is None else found.sequence:010d}"
        now_ms, zxid = _now_ms(), changes.zxid
        session = self._session if operation.ephemeral else 0
        crc = checksum(path, parent, operation.data, 0, session, now_ms, now_ms, zxid, zxid)
        try:
            self._database.execute(INSERT, (path, parent, operation.data, session, now_ms, now_ms, crc, zxid, zxid))
        except sqlite3.IntegrityError:
            raise NodeExistsError(path) from None
        self._database.execute("UPDATE node SET sequence = sequence + 1 WHERE path = ?", (parent,))
        changes.digest += crc + 1
        changes.events += [(path, Event.CREATED), (parent, Event.CHILDREN)]
        return path

    def _delete(self, path: str, found: _Row, recursive: bool, changes: Changes) -> None:
        children = self._database.execute("SELECT path FROM node WHERE parent = ?", (path,)).fetchall()
        if children and not recursive:
            raise NotEmptyError(path)
        for (child,) in children:
            self._delete(child, self._expect(child, ANY_VERSION), True, changes)
        self._database.execute("DELETE FROM node WHERE path = ?", (path,))
        changes.digest -= found.crc + found.sequence
        changes.events += [(path, Event.DELETED), (_parent(path), Event.CHILDREN)]

    def _fire(self, changes: Changes) -> None:
        for path, event in changes.events:
            watches = self._child_watches if event is Event.CHILDREN else self._node_watches
            for watch in watches.pop(path, ()):
                self._loop.call_soon_threadsafe(watch, path, event)


def _open_database(path: Path, restored: bool, checked: bool, new_id: str) -> _Opened:
    """In the store's thread. Raises StoreErrors."""
    if not checked and path.exists() and path.stat().st_size:
        check(path, changes=0 if restored else LastChange(path).read() or 0)
    with failures(path):
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            _make_tables(database, new_id)
            store_id = database.execute("SELECT value FROM about WHERE name = 'id'").fetchone()[0]
            return _Opened(database, store_id, _place(path.stat()))
        except BaseException:
            database.close()
            raise


def _place(file: os.stat_result) -> tuple[int, int]:
    """What tells a file from every other one while it is open."""
    return file.st_dev, file.st_ino


def _make_tables(database: sqlite3.Connection, new_id: str) -> None:
    """Give a new file its tables, the root node and its id, and a file of an earlier format what it lacks: all at once."""
    database.execute("BEGIN IMMEDIATE")
    for statement in TABLES:
        database.execute(statement)
    there = {row[1] for row in database.execute("PRAGMA table_info(node)")}
    lacking = [column for column in ("crc", *ZXIDS) if column not in there]
    for column in lacking:
        database.execute(f"ALTER TABLE node ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
    if lacking or database.execute("SELECT 1 FROM counter WHERE name = 'digest'").fetchone() is None:
        if database.execute("SELECT 1 FROM node WHERE path = '/'").fetchone() is None:
            database.execute(INSERT, ("/", "", b"", 0, now_ms := _now_ms(), now_ms, 0, 0, 0))
        database.create_function("checksum", -1, checksum, deterministic=True)
        summed = "path, parent, data, version, session, created_ms, modified_ms, created_zxid, modified_zxid"
        database.execute(f"UPDATE node SET crc = checksum({summed})")
        database.execute("INSERT OR REPLACE INTO counter SELECT 'digest', sum(crc + sequence) FROM node")
    for insert, name, value in (
        ("INSERT OR REPLACE", "format", str(FORMAT)),
        ("INSERT OR IGNORE", "id", new_id or uuid_text(new_uuid())),
    ):
        database.execute(f"{insert} INTO about VALUES (?, ?, ?)", (name, value, fact_checksum(name, value)))
    database.execute("COMMIT")


def _keep(watches: dict[str, list[Watch]], path: str, watch: Watch | None) -> None:
    if watch is not None:
        watches.setdefault(path, []).append(watch)


def _parent(path: str) -> str:
    if not path.startswith("/") or path == "/" or path.endswith("/") or "//" in path:
        raise StoreError(path, "is not a path below `/`")
    return path.rpartition("/")[0] or "/"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
