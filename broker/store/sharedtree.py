"""The tree of a single node, or of brokers in one process: nodes in one SQLite file, changed by one thread.

    node(path, parent, data, version, session, sequence, created_ms, modified_ms, crc, created_zxid, modified_zxid)
    counter('changes', 'digest')
    about('format', 'id')

Each change is one SQLite transaction (write-ahead log, synchronous FULL), so what was answered survives a
power cut, and `multi` is all or nothing. All SQLite work is done by one thread of its own, in order; so reads
see what was written before them, and no asyncio loop ever waits for a disk.

SQLite doesn't check what it reads: `sound.py` says what does. A file of an earlier format gets what it lacks.

The store's id tells it from every other one: it is made with the store, and goes with it into backups. The file may be
removed or replaced while it is open; `displaced` says so.

Sessions share the tree, each on a loop of its own. The thread keeps their watches and fires them, so none can miss a change
that follows its read, and each loop hears of a change before it hears what a later read found. A session's end isn't numbered
as a change: no node is left that could show its zxid. Ephemeral nodes of earlier runs are removed when the file is opened; the
data folder's lock makes sure that the process behind them is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
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
    SessionLostError,
    Set,
    Stat,
    StoreError,
    Watch,
    check_path,
    check_size,
    parent_of,
    paths,
    size_of,
)
from penstock.broker.store.sound import FORMAT, ZXIDS, LastChange, check, checksum, fact_checksum, failures
from penstock.broker.uuids import new_uuid, uuid_text

T = TypeVar("T")
WAL_VERSION, PLAIN_VERSION = b"\2\2", b"\1\1"
"""Bytes 18 and 19 of a file: whether it has a write-ahead log beside it."""
REMOVED, REPLACED = "was removed", "was replaced by another file"

_log = log.get(__name__)


class Changes:
    """What one call of `multi` did: its zxid, events for watches, and by how much the sum of the checksums moved; for whom."""

    def __init__(self, zxid: int, session: int) -> None:
        self.zxid = zxid
        self.session = session
        self.events: list[tuple[str, Event]] = []
        self.digest = 0
        self.operations = 0
        """As many as a ZooKeeper needs for it: one for each parent that is made, and each node of a tree that goes."""
        self.nbytes = 0

    def weigh(self, operation: Operation) -> None:
        """Count an operation."""
        self.operations += 1
        self.nbytes += size_of(operation)


@dataclass(frozen=True)
class Node:
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


class Session:
    """What the tree knows of one of those that share it. Made on the loop that will hear of it."""

    def __init__(self, timeout_ms: int = 0, *, is_bounded: bool = False) -> None:
        self.timeout_ms = timeout_ms
        """For how long it lives on while its loop doesn't run; 0: for ever."""
        self.is_bounded = is_bounded
        """Whether its multis have ZooKeeper's bounds."""
        self.heard_s = time.monotonic()
        """When its loop was heard of last."""
        self.is_silent = False
        """Whether nothing is heard of it any more, though its loop may run."""
        self.is_cut = False
        """Whether nothing comes through to its loop, and so nothing back. Changed by the tree's thread alone."""
        self._held: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.number = 0
        """The owner of its ephemeral nodes; no two sessions of a file share one."""
        self.changed = asyncio.Event()
        """Set after each change of the tree, for the backups; the task that waits for it clears it."""
        self.lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def tell(self, hear: Callable[..., object], *arguments: object) -> None:
        """Have this called on the loop, from any thread; later, while it is cut off."""
        if self.is_cut:
            self._held.append((hear, arguments))
            return
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody is left to hear it.
            self._loop.call_soon_threadsafe(hear, *arguments)

    def heal(self) -> None:
        """Let through what was held back."""
        self.is_cut = False
        held, self._held = self._held, []
        for hear, arguments in held:
            self.tell(hear, *arguments)

    def beat(self) -> None:
        """On its loop: it runs."""
        if not self.is_silent:
            self.heard_s = time.monotonic()


class SharedTree:
    """The tree in one file. Make it with `await SharedTree.open(path)`; the methods from `find` on are for `run`'s thread."""

    def __init__(self, path: Path, opened: _Opened, thread: ThreadPoolExecutor) -> None:
        self.path = path
        self.id = opened.id
        """Of this tree, whatever becomes of its file; Kafka's text of an id."""
        self._database = opened.database
        self._file = opened.file
        self._last_change = LastChange(path)
        self._last_change_fails = False
        self._thread = thread
        self._sessions: dict[int, Session] = {}
        # Each once: who looks again leaves no second watch.
        self._node_watches: dict[str, dict[tuple[Session, Watch], None]] = {}
        self._child_watches: dict[str, dict[tuple[Session, Watch], None]] = {}

    @classmethod
    async def open(cls, path: Path, *, restored: bool = False, checked: bool = False, new_id: str = "") -> SharedTree:
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
        tree = cls(path, opened, thread)
        try:
            await tree.run(str(path), lambda: tree._begin(restored))
        except StoreError:
            await loop.run_in_executor(thread, opened.database.close)
            thread.shutdown()
            raise
        return tree

    async def run(self, path: str, work: Callable[[], T]) -> T:
        """Do this on the tree's thread, about this node. Raises StoreErrors for what SQLite raises."""

        def explained() -> T:
            with failures(self.path, path):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, explained)

    def hand_over(self, work: Callable[[], object]) -> None:
        """Do this on the tree's thread. From any thread; nobody hears how it ends."""
        self._thread.submit(work)

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
        """Close the file; nothing can be called afterwards. Sessions that are left end with it."""

        def work() -> None:
            self._last_change.close()
            self._database.close()

        try:
            await self.run("/", work)
        finally:
            self._thread.shutdown()

    def begin(self, session: Session) -> None:
        """Begin a session: it gets its number."""
        # Sessions of one file never share a number, even when the clock was set back.
        row = self._database.execute("PRAGMA user_version").fetchone()
        self._database.execute(f"PRAGMA user_version = {row[0] + 1}")
        session.number = row[0] + 1
        self._sessions[session.number] = session

    def end(self, session: Session) -> None:
        """End a session: its ephemeral nodes vanish, its watches too."""
        if session.number not in self._sessions:
            return
        gone = self._database.execute("SELECT path, parent FROM node WHERE session = ?", (session.number,)).fetchall()
        self._remove_ephemeral("session = ?", session.number)
        del self._sessions[session.number]
        for watches in (self._node_watches, self._child_watches):
            for path in [path for path, kept in watches.items() if any(whose is session for whose, _ in kept)]:
                watches[path] = {one: None for one in watches[path] if one[0] is not session}
        self._fire([event for path, parent in gone for event in ((path, Event.DELETED), (parent, Event.CHILDREN))])

    def expire(self, session: Session) -> None:
        """End a session as a server does: its owner learns it by `lost` and by its next call."""
        self.end(session)
        session.tell(session.lost.set)

    def expire_silent(self, since_s: float) -> None:
        """End the sessions of which nothing was heard for longer than they may be silent, and ask the others whether they are
        there. since_s: nobody was asked before that time of the monotonic clock."""
        now_s = time.monotonic()
        for session in [one for one in self._sessions.values() if one.timeout_ms]:
            if (now_s - max(session.heard_s, since_s)) * 1000 > session.timeout_ms:
                self.expire(session)
            else:
                session.tell(session.beat)

    def check_alive(self, session: Session) -> None:
        """Raises SessionLostError if the session has ended."""
        if session.number not in self._sessions:
            raise SessionLostError(f"session {session.number}", "it has expired")

    def find(self, path: str) -> Node | None:
        """A node; None: it isn't there. Raises CorruptStoreError."""
        row = self._database.execute(
            "SELECT parent, data, version, session, sequence, created_ms, modified_ms, created_zxid, modified_zxid, crc "
            "FROM node WHERE path = ?",
            (path,),
        ).fetchone()
        if row is None:
            return None
        found = Node(*row)
        if checksum(path, found.parent, found.data, *row[2:4], *row[5:9]) != found.crc:
            raise CorruptStoreError(str(self.path), f"it is damaged: the checksum of the node `{path}` is wrong")
        return found

    def expect(self, path: str, version: int = ANY_VERSION) -> Node:
        """A node that has to be there, in that version. Raises NoNodeError, BadVersionError, CorruptStoreError."""
        found = self.find(path)
        if found is None:
            raise NoNodeError(path)
        if version not in (ANY_VERSION, found.version):
            raise BadVersionError(path, f"has version {found.version}, not {version}")
        return found

    def children(self, path: str) -> list[str]:
        """The names of a node's children, sorted. Raises NoNodeError."""
        self.expect(path)
        rows = self._database.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
        return [row[0].rpartition("/")[2] for row in rows]

    def below(self, path: str) -> dict[str, bytes]:
        """The bytes of every node below a node, by path relative to it. Raises NoNodeError."""
        self.expect(path)
        below = path.rstrip("/") + "/"
        # All that begins so; "0" is the character after "/".
        rows = self._database.execute("SELECT path, data FROM node WHERE path > ? AND path < ?", (below, below[:-1] + "0"))
        return {row[0][len(below) :]: bytes(row[1]) for row in rows}

    def watch(self, session: Session, path: str, watch: Watch | None, *, children: bool = False) -> None:
        """Keep a watch, if there is one, until it fires."""
        if watch is not None:
            watches = self._child_watches if children else self._node_watches
            watches.setdefault(path, {})[session, watch] = None

    def multi(self, session: Session, operations: Sequence[Operation]) -> list[str | int | None]:
        """All or nothing, in order; see `Store.multi`. A cluster's session may do no more in it than ZooKeeper's."""
        with self._transaction():
            changes = Changes(self.number() + 1, session.number)
            results = [self._apply(operation, changes) for operation in operations]
            if session.is_bounded:
                check_size(operations, changes.operations, changes.nbytes)
            self._count(1, changes.digest)
        self._note(changes.zxid)
        self._fire(changes.events)
        return results

    def number(self) -> int:
        """The zxid of the newest change."""
        row = self._database.execute("SELECT value FROM counter WHERE name = 'changes'").fetchone()
        return int(row[0])

    def image(self) -> bytes:
        """The whole tree as the bytes of a file of its own, as it is at one moment; for a backup."""
        image = bytearray(self._database.serialize())
        if image[18:20] == WAL_VERSION:
            image[18:20] = PLAIN_VERSION  # What the write-ahead log had is in it.
        return bytes(image)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _begin(self, restored: bool) -> None:
        self._remove_ephemeral("session != ?", 0)
        if restored:
            self._catch_up()

    def _catch_up(self) -> None:
        """Take down how many changes a restored file has lost, and count on from the last that was made."""
        have, made = self.number(), self._last_change.read()
        if made == have:
            return
        lost = b"unknown" if made is None else str(max(made - have, 0)).encode()
        changes = Changes(max(have, made or 0) + 1, 0)
        with self._transaction():
            self._apply(Create(paths.RESTORED, lost, parents=True), changes)
            self._count(changes.zxid - have, changes.digest)
        self._note(changes.zxid)

    def _remove_ephemeral(self, which: str, session: int) -> None:
        with self._transaction():
            gone = self._database.execute(
                f"SELECT ifnull(sum(crc + sequence), 0) FROM node WHERE {which}", (session,)
            ).fetchone()
            self._database.execute(f"DELETE FROM node WHERE {which}", (session,))
            self._count(0, -gone[0])

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
        for session in self._sessions.values():
            session.tell(session.changed.set)

    def _apply(self, operation: Operation, changes: Changes) -> str | int | None:
        if not isinstance(operation, (Create, Delete)):
            changes.weigh(operation)
        match operation:
            case Create():
                return self._create(operation, changes)
            case Set(path, data, version):
                found, now_ms, zxid = self.expect(path, version), _now_ms(), changes.zxid
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
                check_path(path)
                self._delete(path, self.expect(path, version), recursive, changes)
                return None
            case Check(path, version):
                self.expect(path, version)
                return None

    def _create(self, operation: Create, changes: Changes) -> str:
        path, parent = operation.path, parent_of(operation.path)
        check_path(path)
        changes.weigh(operation)
        found = self.find(parent)
        if found is None:
            if not operation.parents:
                raise NoNodeError(parent)
            self._create(Create(parent, parents=True), changes)
        elif found.session:
            raise StoreError(parent, "is ephemeral and can't have children")
        if operation.sequence:
            path = f"{path}{0 if found is None else found.sequence:010d}"
        now_ms, zxid = _now_ms(), changes.zxid
        session = changes.session if operation.ephemeral else 0
        crc = checksum(path, parent, operation.data, 0, session, now_ms, now_ms, zxid, zxid)
        try:
            self._database.execute(INSERT, (path, parent, operation.data, session, now_ms, now_ms, crc, zxid, zxid))
        except sqlite3.IntegrityError:
            raise NodeExistsError(path) from None
        self._database.execute("UPDATE node SET sequence = sequence + 1 WHERE path = ?", (parent,))
        changes.digest += crc + 1
        changes.events += [(path, Event.CREATED), (parent, Event.CHILDREN)]
        return path

    def _delete(self, path: str, found: Node, recursive: bool, changes: Changes) -> None:
        changes.weigh(Delete(path))
        children = self._database.execute("SELECT path FROM node WHERE parent = ?", (path,)).fetchall()
        if children and not recursive:
            raise NotEmptyError(path)
        for (child,) in children:
            self._delete(child, self.expect(child, ANY_VERSION), True, changes)
        self._database.execute("DELETE FROM node WHERE path = ?", (path,))
        changes.digest -= found.crc + found.sequence
        changes.events += [(path, Event.DELETED), (parent_of(path), Event.CHILDREN)]

    def _fire(self, events: Sequence[tuple[str, Event]]) -> None:
        for path, event in events:
            watches = [] if event is Event.CHILDREN else list(self._node_watches.pop(path, ()))
            if event in (Event.CHILDREN, Event.DELETED):
                watches += self._child_watches.pop(path, ())
            for session, watch in watches:
                session.tell(watch, path, event)


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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
