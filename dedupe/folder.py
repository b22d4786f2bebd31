"""A worker's folder: held by one process at a time, and sure to belong to the output that its ids are of."""

from __future__ import annotations

import fcntl
import itertools
from pathlib import Path
from typing import IO

from penstock.dedupe.ids import IdSource
from penstock.durable import replace_file
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.failures import OperatorNeeded

LOCK = "lock"
OWNER = "belongs-to"
DATABASE = "ids"
REMEDY = "remove the folder, and it is rebuilt from the output topic"


class FolderError(Exception):
    """A folder that can't be had: another process works in it, or the system refuses; the text says which and why."""


def owner(output: TopicPartition, output_id: str, source: IdSource) -> str:
    """What the ids of an output partition are, as their folder notes it."""
    return f"`{output[0]}` {output_id} partition {output[1]}, {source}\n"


def write_owner(folder: Path, owner: str) -> None:
    """Note durably what the ids in a folder belong to. Raises OSError."""
    replace_file(folder / OWNER, owner.encode())


def check_owner(folder: Path, owner: str) -> None:
    """Raises OperatorNeeded when the ids in a folder belong to something else, OSError when that can't be read."""
    found = (folder / OWNER).read_text(encoding="utf-8")
    if found != owner:
        texts = found.strip(), owner.strip()
        raise OperatorNeeded("`{}` has the ids of {}, not those of {}; {}".format(folder, *texts, REMEDY))


class StoreFolder:
    """`<data>/<topic>-<partition>`: a lock, the name of the output that the ids are of, and the database."""

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
        if not (self.path / OWNER).exists():
            if self.database.exists():
                raise OperatorNeeded(f"`{self.path}` has a database, but no `{OWNER}` that says of what; {REMEDY}")
            write_owner(self.path, owner)
        check_owner(self.path, owner)

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
        """Move the database away, so that another takes its place; where it is now. The folder must be locked."""
        if not self.database.exists():
            return None
        numbers = (number for number in itertools.count(1) if not self.path.joinpath(f"{DATABASE}.{number}").exists())
        aside = self.path / f"{DATABASE}.{next(numbers)}"
        self.database.rename(aside)
        return aside

    def unlock(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
