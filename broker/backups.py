"""Backups of the metadata store, kept by the running broker: what a start offers when the store is damaged or missing.

Once no change has come for a while, the store's bytes are written beside it (`metadata.db.backup`; the one before
becomes `metadata.db.backup.1`) and, where there are several log folders, into the second one too. Each is written under
another name, flushed, read and checked before it takes its place. That is done in a thread a folder: neither the loop
nor the store waits for these disks, nor one of them for the other. A backup that can't be written is a warning, and is tried
again.

While the broker runs, an operator may remove the store's file, or put another one in its place. The broker then goes on with
the file that it has open, which no start will find: that is an ERROR, and each change goes into a backup at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock import log
from penstock.broker import tasks
from penstock.broker.logs.folder import STORE
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.broker.store.base import StoreError
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.sharedtree import REPLACED
from penstock.broker.store.sound import check, glance
from penstock.durable import sync_folder
from penstock.failpoints import declare, failpoint

NEWEST, OLDER, BESIDE = f"{STORE}.backup", f"{STORE}.backup.1", f"{STORE}.backup.tmp"
SETTLED_S = 1.0
"""How long nothing may change before a backup is taken."""
LONGEST_S = 10.0
"""How long one may be put off by further changes."""
CHECK_S = 2.0
"""The least often that the broker checks whether the store's file is still in its place."""
HANGS_S = 30.0
"""When a backup that isn't written yet is said to wait for its disk."""
PAUSE = 20
"""A backup that took long is followed by a pause of as many times that."""

WRITTEN = declare("backups.written", "a backup of the store is written and checked, it has no name yet")
MOVED = declare("backups.moved", "the backup before it has its new name, the new one has none yet")

_log = log.get(__name__)


@dataclass(frozen=True)
class Backup:
    """A backup that is sound. changes: those that the store had seen; store_id: whose it is, "" of one of before stores had
    ids; written_s: when, by the wall clock."""

    path: Path
    changes: int
    store_id: str
    written_s: float

    def __str__(self) -> str:
        written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.written_s))
        return f"`{self.path}` of {written}"


def found(folders: Iterable[Path]) -> list[Backup]:
    """The sound backups in these folders, the one with the most changes first. Reads the disk; damaged ones are logged."""
    sound = []
    for path in (folder / name for folder in folders for name in (NEWEST, OLDER)):
        try:
            contents = check(path)
            sound.append(Backup(path, contents.changes, contents.store_id, path.stat().st_mtime))
        except (StoreError, OSError) as error:
            if path.exists():
                _log.error("this backup can't be used: %s", error)
    return sorted(sound, key=lambda backup: (-backup.changes, -backup.written_s))


def ahead(folders: Iterable[Path], store_id: str, changes: int) -> Backup | None:
    """The sound backup of this store that has the most changes, if that is more than this number. Reads the disk: all of a
    file only where it says so."""
    saying = []
    for path in files(folders):
        with contextlib.suppress(StoreError):
            its_id, its_changes = glance(path)
            if its_id == store_id and its_changes > changes:
                saying.append(path.parent)
    return next((one for one in found(saying) if one.store_id == store_id and one.changes > changes), None)


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


def _has_backup(folder: Path) -> bool:
    try:
        return (folder / NEWEST).exists()
    except OSError:
        return True  # Not known: writing the next one shows what is wrong with the disk.


class Backups(tasks.Background):
    """Of one store, in these folders, from `start` to `stop`. On the loop. It takes the first backup once no change
    of the start has come for a while."""

    NAME = "backups"

    def __init__(self, store: EmbeddedStore, folders: Sequence[Path]) -> None:
        self._store = store
        self._folders = folders
        self._threads = FolderThreads("backups", 1)
        self._writing: dict[Path, asyncio.Future[None]] = {}  # under way
        self._behind: set[Path] = set()  # of these, those that lack a change that came since
        self._kept = dict.fromkeys(folders, -1)  # the changes that each newest backup has
        self._failing: set[Path] = set()
        self._displaced = ""  # what has become of the store's file, if it isn't in its place

    async def stop(self) -> None:
        """End, after a last backup of what none has yet."""
        if self._task is not None:
            await super().stop()
            await self._is_displaced()
            await self._take()
        await self._threads.stop()

    async def _run(self) -> None:
        changed = self._store.changed
        while True:
            try:
                await asyncio.wait_for(changed.wait(), CHECK_S)
            except TimeoutError:
                if not await self._is_displaced():
                    continue
            began = time.monotonic()
            while not await self._is_displaced() and changed.is_set() and time.monotonic() - began < LONGEST_S:
                changed.clear()
                await asyncio.sleep(SETTLED_S)
            changed.clear()
            began = time.monotonic()
            await self._take()
            over = time.monotonic() + (time.monotonic() - began) * PAUSE
            while (left_s := over - time.monotonic()) > 0:
                await asyncio.sleep(min(left_s, CHECK_S))
                if await self._is_displaced():
                    break

    async def _is_displaced(self) -> bool:
        """Whether the store's file isn't in its place. Says it once, and has a backup taken where there is none."""
        displaced = await self._threads.run(self._store.shared.path, self._store.shared.displaced)
        if displaced:
            await self._look_for_backups()
        if displaced == self._displaced:
            return bool(displaced)
        self._displaced = displaced
        if not displaced:
            _log.warning("the metadata store %s is in its place again", self._store.shared.path)
            return False
        self._kept = dict.fromkeys(self._folders, -1)
        _log.error(
            "the metadata store %s %s while the broker runs: from now on all changes are only in its backups (%s). Stop the "
            "broker%s, and start it once with `--restore-metadata`",
            self._store.shared.path, displaced, ", ".join(str(folder / NEWEST) for folder in self._folders),
            ", move away what lies there now" if displaced == REPLACED else "",
        )  # fmt: skip
        return True

    async def _look_for_backups(self) -> None:
        """Have one taken for a folder that has none any more, unless one is on its way."""
        for folder in self._folders:
            if folder not in self._writing:
                looking = asyncio.ensure_future(self._threads.run(folder, _has_backup, folder))
                await asyncio.wait([looking], timeout=CHECK_S)
                if looking.done() and not looking.result():
                    self._kept[folder] = -1

    async def _take(self) -> None:
        """Take a backup, unless nothing has changed, in each folder that isn't busy with one; wait for these until they seem to
        hang. What fails is tried again after the next change."""
        try:
            changes = await self._store.changes()
            wanted = [folder for folder, kept in self._kept.items() if kept != changes and folder not in self._writing]
            self._behind |= {folder for folder in self._writing if changes != self._kept[folder]}
            if not wanted:
                return
            image = await self._store.image()
        except StoreError as error:
            _log.warning("no backup of the metadata store can be taken: %s", error)
            return
        for folder in wanted:
            self._writing[folder] = asyncio.ensure_future(self._write_in_thread(folder, image, changes))
        # Not in the thread of another folder: this one may be about to hang.
        await asyncio.wait([self._writing[folder] for folder in wanted], return_when=asyncio.FIRST_COMPLETED)

    async def _write_in_thread(self, folder: Path, image: bytes, changes: int) -> None:
        said = asyncio.get_running_loop().call_later(
            HANGS_S, _log.warning, "the backup of the metadata store in %s isn't written after %d s; does its disk hang?",
            folder, HANGS_S,
        )  # fmt: skip
        try:
            if await self._threads.run(folder, self._write, folder, image):
                self._kept[folder] = changes
        finally:
            said.cancel()
            del self._writing[folder]
            if folder in self._behind:
                self._behind.remove(folder)
                self._store.changed.set()

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
