"""Backups of the metadata store, kept by the running broker: what a start offers when the store is damaged or missing.

Once changes have settled, the store's bytes of that moment are written beside it (`metadata.db.backup`; the one before
becomes `metadata.db.backup.1`) and, where there are several log folders, into the second one too. Each is written under
another name, flushed, read and checked before it takes its place. That is done in a thread of its own: neither the loop
nor the store waits for these disks. A backup that can't be written is a warning, and is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from penstock import log
from penstock.broker import tasks
from penstock.broker.logs.folder import STORE, sync_folder
from penstock.broker.store.base import StoreError
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.sound import check
from penstock.failpoints import declare, failpoint

NEWEST, OLDER, BESIDE = f"{STORE}.backup", f"{STORE}.backup.1", f"{STORE}.backup.tmp"
SETTLED_S = 1.0
"""How long nothing may change before a backup is taken."""
LONGEST_S = 10.0
"""How long one may be put off by further changes."""
REST = 20
"""A backup that took long is followed by a pause of as many times that."""

WRITTEN = declare("backups.written", "a backup of the store is written and checked, it has no name yet")
MOVED = declare("backups.moved", "the backup before it has its new name, the new one has none yet")

_log = log.get("broker.backups")


@dataclass(frozen=True)
class Backup:
    """A backup that is sound. changes: those that the store had seen; written_s: when, by the wall clock."""

    path: Path
    changes: int
    written_s: float

    def __str__(self) -> str:
        written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.written_s))
        return f"`{self.path}` of {written}"


def found(folders: Iterable[Path]) -> list[Backup]:
    """The sound backups in these folders, the one with the most changes first. Reads the disk; damaged ones are logged."""
    sound = []
    for path in (folder / name for folder in folders for name in (NEWEST, OLDER)):
        try:
            sound.append(Backup(path, check(path), path.stat().st_mtime))
        except (StoreError, OSError) as error:
            if path.exists():
                _log.error("this backup can't be used: %s", error)
    return sorted(sound, key=lambda backup: (-backup.changes, -backup.written_s))


def files(folders: Iterable[Path]) -> list[Path]:
    """Every backup that there is, sound or not."""
    return [path for folder in folders for name in (NEWEST, OLDER) if (path := folder / name).exists()]


def write(folder: Path, image: bytes) -> None:
    """Make a store's bytes the newest backup in a folder. Raises OSError, and StoreError if it reads back otherwise."""
    beside = folder / BESIDE
    try:
        with beside.open("wb") as out:
            out.write(image)
            out.flush()
            os.fsync(out.fileno())
        check(beside)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    failpoint(WRITTEN)
    with contextlib.suppress(FileNotFoundError):
        (folder / NEWEST).replace(folder / OLDER)
    failpoint(MOVED)
    beside.replace(folder / NEWEST)
    sync_folder(folder)


class Backups:
    """Of one store, in these folders, from `start` to `stop`. On the loop."""

    def __init__(self, store: EmbeddedStore, folders: Sequence[Path]) -> None:
        self._store = store
        self._folders = folders
        self._thread = ThreadPoolExecutor(1, "backups")
        self._task: asyncio.Task[None] | None = None
        self._kept = -1  # the changes that the newest backup has
        self._failing: set[Path] = set()

    def start(self) -> None:
        """Begin; the first backup is taken when the changes of the start have settled."""
        self._task = tasks.start(self._run(), "backups")

    async def stop(self) -> None:
        """End, after a last backup of what none has yet."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._take()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _run(self) -> None:
        changed = self._store.changed
        while True:
            await changed.wait()
            began = time.monotonic()
            while changed.is_set() and time.monotonic() - began < LONGEST_S:
                changed.clear()
                await asyncio.sleep(SETTLED_S)
            began = time.monotonic()
            await self._take()
            await asyncio.sleep((time.monotonic() - began) * REST)

    async def _take(self) -> None:
        """Take a backup, unless nothing has changed. What fails is tried again after the next change."""
        try:
            changes = await self._store.changes()
            if changes == self._kept:
                return
            image = await self._store.image()
        except StoreError as error:
            _log.warning("no backup of the metadata store can be taken: %s", error)
            return
        loop = asyncio.get_running_loop()
        done = [await loop.run_in_executor(self._thread, self._write, folder, image) for folder in self._folders]
        if all(done):
            self._kept = changes

    def _write(self, folder: Path, image: bytes) -> bool:
        try:
            write(folder, image)
        except (OSError, StoreError) as error:
            if folder not in self._failing:
                _log.warning("the backup of the metadata store can't be written to %s: %s", folder, error)
            self._failing.add(folder)
            return False
        self._failing.discard(folder)
        return True
