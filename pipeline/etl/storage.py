"""Where a table lies, and the one door to the files there that Python reads and writes itself: the table's log, plans, ready
markers.

Spark and Delta read and write the rows; rejects are the largest of the files that pass this door. Three kinds of place are
known, since a plan has to be there once and whole, and each kind has something else to rest that on:

    a folder     a temporary file, and a link that refuses a name that is there          localstorage.py
    hdfs://      a temporary file, and a rename that refuses a name that is there        hadoopstorage.py
    s3a://       one put that the store refuses if the key is there (If-None-Match: *)   hadoopstorage.py

Any other scheme is refused: nobody has looked what it gives. Delta commits by the same means: its HDFSLogStore renames, and on
S3, where Delta's own log store knows of one machine only, s3logstore.py puts.

No lock lies beside a table that isn't in a folder: a machine that dies would leave it. Of two machines that load one night one
writes the plan, and one commits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

SIDE_FOLDER = "_penstock"
"""Our own folder inside the table's; Delta leaves names with a leading underscore alone."""


class Storage(ABC):
    """The files of one table, by their names relative to it (`_penstock/plans/run-00000001.json`).

    Reading raises FileNotFoundError for what isn't there, and all methods EtlError when the place can't be asked.
    """

    uri: str
    """The table as Spark and Delta are given it."""
    workspace: Path
    """A folder of this machine for what only this machine needs: the lock, what Spark has to say."""

    def __str__(self) -> str:
        return self.uri

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of a file."""

    def read_commit(self, name: str) -> bytes:
        """The bytes of a file that is never written again."""
        return self.read(name)

    @abstractmethod
    def file(self, name: str) -> BinaryIO:
        """A file to read here and there."""

    @abstractmethod
    def written(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A new file, of a name that nobody else uses, to write from its beginning to its end. It is whole after the block, and
        gone after one that raises."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none when it isn't there."""

    @abstractmethod
    def create(self, name: str, data: bytes, before: Callable[[], None]) -> None:
        """Write a file that must not be there yet: another process, on another machine perhaps, may try the same.

        `before` is called when all is written and nothing is to be seen. Raises FileExistsError.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, before: Callable[[], None]) -> None:
        """Write a file that is there whole, or as it was before; `before` as with `create`.

        Another process that writes the same file may `sweep` the temporary one meanwhile: then it is as that one has it.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""

    def sweep(self, name: str) -> None:
        """Remove temporary files that processes which were killed, or stand still, have left beside a file."""
        folder, _, last = name.rpartition("/")
        for left in self.names(folder):
            if left.startswith(f".{last}.") and left.endswith("tmp"):
                self.remove(f"{folder}/{left}")
