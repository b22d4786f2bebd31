"""A worker's folder: held by one process at a time, and sure to belong to the output that its ids are of."""

from __future__ import annotations

import errno
import fcntl
import itertools
import re
from pathlib import Path
from typing import IO

from penstock.dedupe.ids import IdSource
from penstock.durable import replace_file, sync_folder
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import BatchMark
from penstock.pipeline.stages.failures import OperatorNeeded

LOCK = "lock"
OWNER = "belongs-to"
LAST_OUTPUT = "last-output"
DATABASE = "ids"
SET_ASIDE = "set-aside"

OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})  # another try may succeed


class FolderError(Exception):
    """A folder that can't be had: another process works in it, or the system refuses; the text says which and why."""


def owner(output: TopicPartition, output_id: str, source: IdSource, losses: int = 0) -> str:
    """What the ids of an output partition are, as their folder notes it. `losses`: how often an operator has let the partition
    go on after its output had lost records."""
    after = f" after loss {losses}" if losses else ""
    return f"`{output[0]}` {output_id} partition {output[1]}{after}, {source}\n"


def write_owner(folder: Path, owner: str) -> None:
    """Note durably what the ids in a folder belong to. Raises OSError."""
    replace_file(folder / OWNER, owner.encode())


def check_owner(folder: Path, owner: str, way_on: str) -> None:
    """Raises OperatorNeeded when the ids in a folder belong to something else, OSError when that can't be read."""
    found = (folder / OWNER).read_text(encoding="utf-8")
    if found != owner:
        raise OperatorNeeded(f"`{folder}` has the ids of {found.strip()}, not those of {owner.strip()}: {way_on}")


def _as_it_was(folder: Path) -> str:
    """How the id is set under which a folder's ids were found. Raises OSError."""
    noted = (folder / OWNER).read_text(encoding="utf-8").strip()
    field = noted.rpartition("json:")[2] if "json:" in noted else ""
    if "`" not in field and re.search("[.,]", field):
        return f"write `penstock.dedupe.id=json:`{field}``, as a name with a dot or a comma in it stands in backquotes now"
    return "set `penstock.dedupe.id` as it was"


class StoreFolder:
    """`<data>/<topic>-<partition>`: a lock, the name of the output that the ids are of, a batch of it, and the database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @classmethod
    def of(cls, data: Path, tp: TopicPartition) -> StoreFolder:
        """The folder of an input partition."""
        return cls(data / f"{tp[0]}-{tp[1]}")

    @property
    def database(self) -> Path:
        """Where RocksDB's files are."""
        return self.path / DATABASE

    def lock(self, way_on: str) -> None:
        """Keep other processes out until `unlock` or the end of this one. Raises FolderError, with the way on, where another
        process is in it or it can't be used, OSError where its disk is full, read-only or failing."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK).open("w")
        except OSError as error:
            if error.errno in OF_THE_DISK:
                raise
            raise FolderError(f"`{self.path}` can't be used: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise FolderError(f"`{self.path}` is in use by another process: {way_on}") from None
        self._lock = file

    @property
    def is_locked(self) -> bool:
        """Whether this process has locked it."""
        return self._lock is not None

    def claim(self, owner: str, to_rebuild: str) -> None:
        """Note what the ids belong to, or check it against what was noted before; `to_rebuild` says how an operator gets a new
        store. Raises OperatorNeeded, OSError."""
        if not (self.path / OWNER).exists():
            if self.database.exists():
                raise OperatorNeeded(f"`{self.path}` has a database, but no `{OWNER}` that says of what: {to_rebuild}")
            write_owner(self.path, owner)
        check_owner(self.path, owner, f"{_as_it_was(self.path)}, or {to_rebuild}")

    def note_output(self, mark: BatchMark) -> None:
        """Note durably a batch of the output whose ids the database has, or has next. Raises OSError."""
        replace_file(self.path / LAST_OUTPUT, (" ".join(map(str, mark)) + "\n").encode())

    def noted_output(self) -> BatchMark | None:
        """That batch; None where an earlier version had the folder, or nothing was written yet. Raises OSError, OperatorNeeded
        for a file that isn't one of ours."""
        try:
            words = (self.path / LAST_OUTPUT).read_text(encoding="utf-8").split()
            return BatchMark(*map(int, words))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise OperatorNeeded(
                f"`{self.path / LAST_OUTPUT}` is damaged: remove it, if nobody has put a copy of the output back"
            ) from None

    def is_held(self) -> bool:
        """Whether a process works in it. Raises FolderError when that can't be seen."""
        try:
            with (self.path / LOCK).open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise FolderError(f"`{self.path}` can't be used: {error.strerror}") from None
        return False

    def set_aside(self) -> Path | None:
        """Move the database away with what it belongs to, so that others take their places; where both are now, to be restored
        like a snapshot. The folder must be locked."""
        there = [path for path in (self.database, self.path / OWNER, self.path / LAST_OUTPUT) if path.exists()]
        if not there:
            return None
        folders = (self.path / f"{SET_ASIDE}.{number}" for number in itertools.count(1))
        aside = next(folder for folder in folders if not folder.exists())
        aside.mkdir()
        for path in there:
            path.rename(aside / path.name)
        sync_folder(aside)
        sync_folder(self.path)
        return aside

    def unlock(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
