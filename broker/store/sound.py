"""Whether a store's file is what was written to it, which SQLite doesn't check.

- Each node has a CRC-32 over its path, bytes, version and the rest of its row; the counter `digest` is the sum of all of
  them, so that a row that is lost, doubled or of an earlier time shows too.
- The table `about` has the format's number and the store's id, each with a CRC-32. It is the same in every format, and is
  read before anything else: what a newer Penstock has written isn't called damaged.
- `PRAGMA integrity_check` checks the pages between them and the index.
- `metadata.db.changes`, beside the file, has the number of the last change that was made. It is written after each change
  and never flushed: after `kill -9` it is exact, after a power cut it may be behind, never ahead. A store that is behind it
  has lost what was answered (a write-ahead log that was cut or removed, an old copy that was put back by hand). So has one
  that is behind a backup of its own.

Checks read only: a damaged file stays as it was found, with its write-ahead log, and no file is left beside it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.broker.store.base import CorruptStoreError, NewerStoreError, StoreDiskError, StoreError, paths

CHANGES = ".changes"
FORMAT = 3
"""Of the files that this Penstock writes. 0: no checksums; 1: no table `about`; 2: nodes without zxids."""
ZXIDS = ("created_zxid", "modified_zxid")
_COLUMNS = ("path", "parent", "data", "version", "session", "sequence", "crc", "created_ms", "modified_ms")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Contents:
    """What a sound file says of itself. changes: how many it has seen; store_id: "" of one of before format 2."""

    changes: int
    store_id: str
    has_topics: bool


def checksum(
    path: str, parent: str, data: bytes, version: int, session: int, created_ms: int, modified_ms: int, *zxids: int
) -> int:
    """The CRC-32 of a node. Its sequence isn't in it: the digest has that. zxids: both; none in a file of before format 3."""
    head = f"{path}\0{parent}\0{version}\0{session}\0{created_ms}\0{modified_ms}\0"
    if zxids:
        head += f"{zxids[0]}\0{zxids[1]}\0"
    return zlib.crc32(data, zlib.crc32(head.encode("utf-8", "surrogatepass")))


def fact_checksum(name: str, value: str) -> int:
    """The CRC-32 of a row of the table `about`."""
    return zlib.crc32(f"{name}\0{value}".encode("utf-8", "surrogatepass"))


def check(path: Path, *, changes: int = 0) -> Contents:
    """Read a store's file, all of it. It is opened as it lies there, and not written.

    changes: how many it must have seen at least. Raises CorruptStoreError, NewerStoreError, StoreDiskError.
    """
    with failures(path), _read_only(path) as database:
        facts = _facts(path, database)
        for (said,) in database.execute("PRAGMA integrity_check(1)"):
            if said != "ok":
                raise CorruptStoreError(str(path), f"it is damaged: {' '.join(said.split())}")
        if database.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            _enough(path, 0, changes)
            return Contents(0, "", has_topics=False)  # It was made a moment before a crash.
        columns = {row[1] for row in database.execute("PRAGMA table_info(node)")}
        if "crc" in columns:
            _check_rows(path, database, [column for column in ZXIDS if column in columns])
        seen = database.execute("SELECT value FROM counter WHERE name = 'changes'").fetchone()
        has_topics = database.execute("SELECT 1 FROM node WHERE path = ?", (paths.TOPICS,)).fetchone() is not None
    if seen is None or not isinstance(seen[0], int):
        raise CorruptStoreError(str(path), "it is damaged: its counter of changes is gone")
    _enough(path, int(seen[0]), changes)
    return Contents(int(seen[0]), facts.get("id", ""), has_topics)


def glance(path: Path) -> tuple[str, int]:
    """The id of a store, and how many changes it says it has seen: enough to know whether `check` is worth its time. ("", 0) of
    one that says none. Raises CorruptStoreError, NewerStoreError, StoreDiskError."""
    with failures(path), _read_only(path) as database:
        facts = _facts(path, database)
        seen = database.execute("SELECT value FROM counter WHERE name = 'changes'").fetchone() if facts else None
    return (facts["id"], seen[0]) if seen is not None and isinstance(seen[0], int) else ("", 0)


def node(path: Path, name: str) -> bytes | None:
    """The bytes of one node of a store; None: it isn't there. Raises CorruptStoreError, NewerStoreError, StoreDiskError."""
    with failures(path, name), _read_only(path) as database:
        _facts(path, database)
        found = database.execute("SELECT data FROM node WHERE path = ?", (name,)).fetchone()
    return None if found is None else bytes(found[0])


def below(path: Path, name: str) -> dict[str, bytes]:
    """The bytes of all nodes below one, by their paths. Raises CorruptStoreError, NewerStoreError, StoreDiskError."""
    with failures(path, name), _read_only(path) as database:
        _facts(path, database)
        found = database.execute("SELECT path, data FROM node WHERE substr(path, 1, ?) = ?", (len(name) + 1, f"{name}/"))
        return {each: bytes(data) for each, data in found}


def _facts(path: Path, database: sqlite3.Connection) -> dict[str, str]:
    """The table `about`; empty: there is none, in a file of an earlier format."""
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone() is None:
        return {}
    facts: dict[str, str] = {}
    for name, value, crc in database.execute("SELECT name, value, crc FROM about"):
        if not isinstance(name, str) or not isinstance(value, str) or fact_checksum(name, value) != crc:
            raise CorruptStoreError(str(path), f"it is damaged: the checksum of its `{name!s:.300}` is wrong")
        facts[name] = value
    number = facts.get("format", "")
    if not number.isdigit() or "id" not in facts:
        raise CorruptStoreError(str(path), "it is damaged: its format's number or its id is gone")
    if int(number) > FORMAT:
        raise NewerStoreError(
            f"the metadata store `{path}`",
            f"a newer Penstock has written it in format {number}, and this one knows formats up to {FORMAT}: start the newer "
            "one; or, to go back, move this file away, put a backup of before beside it if there is none, and start once with "
            "`--restore-metadata`",
        )
    return facts


def _enough(path: Path, seen: int, changes: int) -> None:
    if seen < changes:
        raise CorruptStoreError(
            str(path), f"it has lost its last {changes - seen} changes: it ends with {seen}, {changes} were made"
        )


def _check_rows(path: Path, database: sqlite3.Connection, more: Sequence[str]) -> None:
    rows = database.execute(f"SELECT {', '.join([*_COLUMNS, *more])} FROM node")
    digest = 0
    for node, parent, data, version, session, sequence, crc, *times in rows:
        try:
            right = checksum(node, parent, data, version, session, *times) == crc
            digest += crc + sequence
        except (TypeError, AttributeError, ValueError):
            right = False  # A column is of another type.
        if not right:
            raise CorruptStoreError(str(path), f"it is damaged: the checksum of the node `{node!s:.300}` is wrong")
    kept = database.execute("SELECT value FROM counter WHERE name = 'digest'").fetchone()
    if kept is None or kept[0] != digest:
        raise CorruptStoreError(str(path), "it is damaged: nodes are missing, or not the last that were written")


@contextlib.contextmanager
def failures(path: Path, where: str | None = None) -> Iterator[None]:
    """Turn what SQLite raises about this file into a StoreError that says whether the disk or the file is to blame.

    where: the node that the caller was about; None = the file.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(path, where or str(path), error) from error
    except (UnicodeError, OverflowError) as error:
        raise CorruptStoreError(str(path), f"it is damaged: {error}") from error


def _explained(path: Path, where: str, error: sqlite3.Error) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or "SQLITE_ERROR"
    refused = _disk_refuses(path)
    if refused is not None:
        return StoreDiskError(where, _gives_nothing(path, refused))
    if name.startswith(("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_READONLY")):
        return StoreDiskError(where, f"the disk of `{path}` refuses it: {error} ({name})")
    if name.startswith("SQLITE_BUSY"):
        return StoreError(where, f"another program has locked the metadata store `{path}`")
    return CorruptStoreError(str(path), f"it is damaged: {error}")


def _gives_nothing(path: Path, error: OSError) -> str:
    what = os.strerror(error.errno or errno.EIO)
    return f"the disk gives no bytes of `{path}` ({what}); the file may well be sound: see to the disk first"


def _disk_refuses(path: Path) -> OSError | None:
    """SQLite calls a page that its disk can't read `malformed`, too: whether the disk gives the bytes shows by reading."""
    for file in (path, path.with_name(path.name + "-wal")):
        try:
            with file.open("rb", buffering=0) as opened:
                while opened.read(_CHUNK_BYTES):
                    pass
        except FileNotFoundError:
            continue
        except OSError as error:
            return error
    return None


@contextlib.contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, opened so that nothing is written and no name appears beside it."""
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")]
    # No other process has the file open (the folder is locked), so where it is all there is it can be read as immutable. SQLite
    # would otherwise leave an empty write-ahead log and its index (`-shm`) behind.
    immutable = "" if any(file.exists() and file.stat().st_size for file in beside) else "&immutable=1"
    index = path.with_name(f"{path.name}-shm")
    had_index = index.exists()
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{immutable}", uri=True, isolation_level=None)
        ) as database:
            yield database
    finally:
        if not had_index:
            index.unlink(missing_ok=True)


class LastChange:
    """`metadata.db.changes`: the number of the last change, and its CRC-32, in one line that is written over."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(store.name + CHANGES)
        self._fd = -1

    def read(self) -> int | None:
        """The number; None: the file isn't there, or says nothing. Raises StoreDiskError."""
        try:
            line = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreDiskError(str(self._path), _gives_nothing(self._path, error)) from error
        number, _, crc = line.decode("ascii", "replace").strip().partition(" ")
        right = number.isdigit() and crc == f"{zlib.crc32(number.encode()):08x}"
        return int(number) if right else None

    def write(self, number: int) -> None:
        """Write it, for the page cache to keep. Raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        text = f"{number:020d}"
        os.pwrite(self._fd, f"{text} {zlib.crc32(text.encode()):08x}\n".encode(), 0)

    def close(self) -> None:
        """Let the file go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
