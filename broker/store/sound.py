"""Whether a store's file is what was written to it, which SQLite doesn't check.

- Each node has a CRC-32 over its path, bytes, version and the rest of its row; the counter `digest` is the sum of all of
  them, so that a row that is lost, doubled or of an earlier time shows too.
- `PRAGMA integrity_check` looks at the pages between them and at the index.
- `metadata.db.changes`, beside the file, has the number of the last change that was made. It is written after each change
  and never flushed: after `kill -9` it is exact, after a power cut it may be behind, never ahead. A store that is behind it
  has lost what was answered (a write-ahead log that was cut or removed, an old copy that was put back by hand).

Checks read only: a damaged file stays as it was found, with its write-ahead log.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

from penstock.broker.store.base import DamagedStoreError, StoreDiskError, StoreError

CHANGES = ".changes"
COLUMNS = ("path", "parent", "data", "version", "session", "sequence", "created_ms", "modified_ms")
_ROWS = f"SELECT {', '.join(COLUMNS)}, crc FROM node"
_CHUNK_BYTES = 1 << 20


def checksum(path: str, parent: str, data: bytes, version: int, session: int, created_ms: int, modified_ms: int) -> int:
    """The CRC-32 of a node. Its sequence isn't in it: the digest has that."""
    head = f"{path}\0{parent}\0{version}\0{session}\0{created_ms}\0{modified_ms}\0"
    return zlib.crc32(data, zlib.crc32(head.encode("utf-8", "surrogatepass")))


def check(path: Path, *, changes: int = 0) -> int:
    """Read a store's file, all of it; how many changes it has seen. It is opened as it lies there, and not written.

    changes: how many it must have seen at least. Raises DamagedStoreError, StoreDiskError.
    """
    with failures(path), contextlib.closing(_open_read_only(path)) as database:
        for (said,) in database.execute("PRAGMA integrity_check(1)"):
            if said != "ok":
                raise DamagedStoreError(str(path), f"it is damaged: {' '.join(said.split())}")
        if database.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            return _enough(path, 0, changes)  # It was made a moment before a crash.
        has_checksums = any(row[1] == "crc" for row in database.execute("PRAGMA table_info(node)"))
        if has_checksums:
            _check_rows(path, database)
        seen = database.execute("SELECT value FROM counter WHERE name = 'changes'").fetchone()
    if seen is None or not isinstance(seen[0], int):
        raise DamagedStoreError(str(path), "it is damaged: its counter of changes is gone")
    return _enough(path, int(seen[0]), changes)


def _enough(path: Path, seen: int, changes: int) -> int:
    if seen < changes:
        raise DamagedStoreError(
            str(path), f"it has lost its last {changes - seen} changes: it ends with {seen}, {changes} were made"
        )
    return seen


def _check_rows(path: Path, database: sqlite3.Connection) -> None:
    digest = 0
    for node, parent, data, version, session, sequence, created_ms, modified_ms, crc in database.execute(_ROWS):
        try:
            right = checksum(node, parent, data, version, session, created_ms, modified_ms) == crc
            digest += crc + sequence
        except (TypeError, AttributeError, ValueError):
            right = False  # A column is of another type.
        if not right:
            raise DamagedStoreError(str(path), f"it is damaged: the checksum of the node `{node!s:.300}` is wrong")
    kept = database.execute("SELECT value FROM counter WHERE name = 'digest'").fetchone()
    if kept is None or kept[0] != digest:
        raise DamagedStoreError(str(path), "it is damaged: nodes are missing, or not the last that were written")


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
        raise DamagedStoreError(str(path), f"it is damaged: {error}") from error


def _explained(path: Path, where: str, error: sqlite3.Error) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or "SQLITE_ERROR"
    refused = _disk_refuses(path)
    if refused is not None:
        return StoreDiskError(where, _gives_nothing(path, refused))
    if name.startswith(("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_READONLY")):
        return StoreDiskError(where, f"the disk of `{path}` refuses it: {error} ({name})")
    if name.startswith("SQLITE_BUSY"):
        return StoreError(where, f"another program has locked the metadata store `{path}`")
    return DamagedStoreError(str(path), f"it is damaged: {error}")


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


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


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
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        text = f"{number:020d}"
        os.pwrite(self._fd, f"{text} {zlib.crc32(text.encode()):08x}\n".encode(), 0)

    def close(self) -> None:
        """Let the file go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
