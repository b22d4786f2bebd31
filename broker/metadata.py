"""What a start does about the metadata store: open it, or say what is wrong with it and which ways there are on.

A store that was there once (its mark is in `meta.properties`) and is missing, empty or damaged is refused: adopting the
folders instead would give every topic other configs, and forget quotas and SCRAM credentials. The operator chooses:
`--restore-metadata` takes the newest backup, `--adopt-topics` begins anew with the topics that lie in the folders. Both set
aside what was there and delete nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from penstock import log
from penstock.broker import backups
from penstock.broker.logs.adoption import check_all_seen
from penstock.broker.logs.folder import STORE, FolderError, sync_folder
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.store.base import DamagedStoreError, StoreDiskError, paths
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.sound import CHANGES, LastChange
from penstock.failpoints import declare, failpoint

BESIDE = f"{STORE}.restoring"
COPIED = declare("metadata.copied", "a backup is copied, the damaged store is still in its place")
SET_ASIDE = declare("metadata.set_aside", "the damaged store is set aside, the backup isn't in its place yet")
RESTORED = declare("metadata.restored", "the backup is in its place and was not opened yet")

_log = log.get("broker.metadata")


class Way(Enum):
    """What a start shall do when the store is damaged or missing."""

    REFUSE = "refuse"
    RESTORE = "--restore-metadata"
    ADOPT = "--adopt-topics"


async def open_store(dirs: LogDirs, way: Way = Way.REFUSE) -> EmbeddedStore:
    """The broker's store; a new one at its first start. Raises FolderError, StoreError, OSError."""
    path, loop = dirs.first.path / STORE, asyncio.get_running_loop()
    await loop.run_in_executor(None, _refuse_two, path, [log_dir.path for log_dir in dirs])
    had_store = any(log_dir.folder is not None and log_dir.folder.has_store for log_dir in dirs)
    folders = [log_dir.path for log_dir in dirs.online]
    wrong = await _look(path, had_store=had_store or bool(backups.files(folders)), way=way)
    if isinstance(wrong, EmbeddedStore):
        return wrong
    if way is Way.REFUSE:
        raise FolderError(await loop.run_in_executor(None, _refusal, path, wrong, folders))
    if way is Way.ADOPT:
        check_all_seen(dirs)  # Before the store and its backups are set aside.
    _log.warning("%s: %s", way.value, wrong)
    await loop.run_in_executor(None, _restore if way is Way.RESTORE else _begin_anew, path, folders)
    return await EmbeddedStore.open(path, restored=way is Way.RESTORE)


async def _look(path: Path, *, had_store: bool, way: Way) -> EmbeddedStore | str:
    """The store, if it is sound, or if this is the first start; else what is wrong, as a sentence."""
    size_bytes = await asyncio.get_running_loop().run_in_executor(None, _size_bytes, path)
    if not size_bytes and had_store:
        return f"the metadata store `{path}` is {'missing' if size_bytes is None else 'empty'}, but this broker had one"
    if not size_bytes and way is Way.RESTORE:
        raise FolderError(f"there is no backup to restore: `{path.parent}` is the folder of a new broker")
    try:
        store = await EmbeddedStore.open(path)
    except DamagedStoreError as error:
        return f"the metadata store {error}"
    except StoreDiskError as error:
        return f"the metadata store can't be used: {error}"
    has_history = await store.exists(paths.TOPICS) is not None
    if had_store and not has_history:
        await store.close()
        return f"the metadata store `{path}` holds nothing, but this broker had one with topics"
    if has_history and way is not Way.REFUSE:
        await store.close()
        raise FolderError(f"the metadata store `{path}` is there and sound: start without `{way.value}`")
    return store


def _size_bytes(path: Path) -> int | None:
    """None: it isn't there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _refuse_two(path: Path, folders: Sequence[Path]) -> None:
    """A store in another log folder may be the real one, whatever there is in the first: the folders may have changed places.
    Raises FolderError."""
    others = [folder for folder in folders if folder != path.parent and (folder / STORE).is_file()]
    if not others:
        return
    there = f"holds a metadata store, `{STORE}`, and isn't the first log folder"
    way = f"if it is the right one, put `{others[0]}` first in `log.dirs`, or give it as `--data`"
    if _size_bytes(path):
        raise FolderError(
            f"`{others[0]}` {there}, `{path.parent}`, which holds one too: {way}; move the other one away"
        )
    raise FolderError(f"`{others[0]}` {there}, `{path.parent}`, which holds none: {way}; if not, move it away")


def _refusal(path: Path, wrong: str, folders: Sequence[Path]) -> str:
    anew = (
        "`--adopt-topics` begins anew with the topics in the log folders, without their configs: retention and compaction "
        "rest until you confirm these; quotas and SCRAM credentials are lost"
    )
    sound = backups.found(folders)
    if not sound:
        return f"{wrong}; there is no sound backup beside it. Put a copy of yours there, or start once with an option: {anew}"
    newest = sound[0]
    last = LastChange(path).read()
    lost = "how many changes it lacks is not known" if last is None else _lacks(last - newest.changes)
    age_s = max(0, round(time.time() - newest.written_s))
    return (
        f"{wrong}; there is the backup {newest} ({age_s} s old; {lost}). Start once with `--restore-metadata` to take it "
        f"(what is there now is set aside); or {anew}"
    )


def _lacks(changes: int) -> str:
    return "it lacks nothing" if changes <= 0 else f"it lacks the last {changes} changes"


def _restore(path: Path, folders: Sequence[Path]) -> None:
    """Put the newest sound backup in the store's place. A crash in between leaves a store that is still refused."""
    sound = backups.found(folders)
    if not sound:
        raise FolderError(f"there is no sound backup of `{path}` in {', '.join(f'`{folder}`' for folder in folders)}")
    beside = path.with_name(BESIDE)
    beside.write_bytes(sound[0].path.read_bytes())
    with beside.open("rb") as copied:
        os.fsync(copied.fileno())
    failpoint(COPIED)
    _set_aside(path, (path, path.with_name(f"{STORE}-wal"), path.with_name(f"{STORE}-shm")))
    failpoint(SET_ASIDE)
    beside.replace(path)
    sync_folder(path.parent)
    failpoint(RESTORED)
    _log.warning("the metadata store was restored from %s", sound[0])


def _begin_anew(path: Path, folders: Sequence[Path]) -> None:
    """Set aside all that there is of the old store, its backups too: those of the new one must not take their place."""
    beside = [path.with_name(f"{STORE}{suffix}") for suffix in ("", "-wal", "-shm", CHANGES)]
    _set_aside(path, [*beside, *backups.files(folders)])


def _set_aside(path: Path, present: Sequence[Path]) -> None:
    """Give these files names of their own, by which SQLite still finds what belongs together. Raises OSError."""
    name = f"{STORE}.aside-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for file in present:
        if file.exists():
            aside = file.with_name(name + file.name.removeprefix(STORE))
            file.replace(aside)
            _log.warning("%s is now %s", file, aside)
    sync_folder(path.parent)
