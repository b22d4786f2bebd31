"""A worker's folder: held by one process at a time, and sure to belong to the output that its ids are of."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from penstock.pipeline.lanes import OperatorNeeded

LOCK = "lock"
OWNER = "belongs-to"
DATABASE = "ids"
REMEDY = "remove the folder, and it is rebuilt from the output topic"


class FolderError(Exception):
    """A folder that can't be had: another process works in it, or the system refuses; the text says which and why."""


class StoreFolder:
    """`<data>/<topic>-<partition>`: a lock, the name of the output that the ids are of, and the database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def database(self) -> Path:
        """Where RocksDB's files are."""
        return self.path / DATABASE

    def lock(self) -> None:
        """Keep other processes out until `unlock` or the end of this one. Raises FolderError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK).open("w")
        except OSError as error:
            raise FolderError(f"`{self.path}` can't be used: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise FolderError(f"`{self.path}` is in use by another worker; each needs a folder of its own") from None
        self._lock = file

    def claim(self, owner: str) -> None:
        """Note what the ids belong to, or check it against what was noted before. Raises OperatorNeeded, OSError."""
        path = self.path / OWNER
        if not path.exists():
            if self.database.exists():
                raise OperatorNeeded(f"`{self.path}` has a database, but no `{OWNER}` that says of what; {REMEDY}")
            self._write(path, owner)
        found = path.read_text(encoding="utf-8")
        if found != owner:
            texts = found.strip(), owner.strip()
            raise OperatorNeeded("`{}` has the ids of {}, not those of {}; {}".format(self.path, *texts, REMEDY))

    def _write(self, path: Path, text: str) -> None:
        temporary = path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def unlock(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
