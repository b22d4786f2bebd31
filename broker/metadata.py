"""What a start does about the metadata store: open it, or say what is wrong with it and which ways there are on.

A store that was there once (its mark is in `meta.properties`) and is missing, empty or damaged is refused: adopting the
folders instead would give every topic other configs, and forget quotas and SCRAM credentials. The operator chooses:
`--restore-metadata` takes the newest backup, `--adopt-topics` makes a new one with the topics that lie in the folders. Both set
aside what was there and delete nothing. Adopted topics, and all topics after an older backup was taken, have
`penstock.configs.confirmed=false`: retention and compaction delete nothing of them until an operator confirms their configs.

A sound backup of the same store that has seen more changes counts as `metadata.db.changes` does: the store is refused.

`meta.properties` names the store that the broker had by its id. A file or a backup of another one (of before the folders were
adopted, or of another broker) knows other topics under the same names: it is never opened or taken by itself.

A start that is refused has only read.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from penstock import log
from penstock.broker import backups
from penstock.broker.backups import Backup
from penstock.broker.logs.adoption import check_adoptable
from penstock.broker.logs.folder import META, STORE, STORE_ID, FolderError
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.store.base import CorruptStoreError, StoreDiskError
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.sound import CHANGES, LastChange, check
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.durable import sync_folder
from penstock.failpoints import declare, failpoint
from penstock.hints import quoted

BESIDE = f"{STORE}.restoring"
COPIED = declare("metadata.copied", "a backup is copied, the damaged store is still in its place")
SET_ASIDE = declare("metadata.set_aside", "the damaged store is set aside, the backup isn't in its place yet")
RESTORED = declare("metadata.restored", "the backup is in its place and was not opened yet")
BEGUN = declare("metadata.begun", "the folders name the new store, the old one is set aside, the new one isn't made yet")

_log = log.get(__name__)


class Way(Enum):
    """What a start shall do when the store is damaged or missing."""

    REFUSE = "refuse"
    RESTORE = "--restore-metadata"
    ADOPT = "--adopt-topics"


@dataclass(frozen=True)
class _Past:
    """What the log folders say of the store that there was. named: its id, with the files that name it; there is more than
    one where the first folder says none and the others disagree."""

    folders: list[Path]
    had_store: bool
    named: dict[str, list[Path]]

    @classmethod
    def of(cls, dirs: LogDirs) -> _Past:
        opened = [log_dir.folder for log_dir in dirs.online if log_dir.folder is not None]
        names: dict[str, list[Path]] = {}
        for folder in opened:
            if folder.store_id:
                names.setdefault(folder.store_id, []).append(folder.path / META)
        # The store lies in the first folder. One of the others may have been away while a new store began.
        first = dirs.first.store_id
        folders = [log_dir.path for log_dir in dirs.online]
        had_store = any(folder.has_store for folder in opened)
        return cls(folders, had_store or bool(backups.files(folders)), {first: names[first]} if first else names)

    def split(self) -> tuple[list[Backup], list[Backup]]:
        """The sound backups of that store, the newest first, and those of others. Reads the disk."""
        sound = backups.found(self.folders)
        ids = set(self.named) or {backup.store_id for backup in sound}
        ours = [backup for backup in sound if {backup.store_id} == ids]
        return ours, [backup for backup in sound if backup not in ours]

    def others(self, others: Sequence[Backup]) -> str:
        """Why these backups aren't taken, as the end of a sentence."""
        if not others:
            return ""
        listed = ", ".join(f"{backup} ({backup.store_id or 'no id'})" for backup in others)
        if len(self.named) != 1:
            said = "the log folders don't say which store this broker had"
            return f"; {said}, and there are backups of several: {listed}. Move away those that aren't this broker's"
        ((named, files),) = self.named.items()
        where = ", ".join(f"`{file}`" for file in files)
        return (
            f"; not taken, since they are of another store than {named}: {listed}. If one of these is the right one, take the "
            f"line `{STORE_ID}={named}` out of {where} first"
        )


async def open_store(dirs: LogDirs, way: Way, most: int) -> EmbeddedStore:
    """The broker's store; a new one at its first start. most: partitions that a topic may have.
    Raises FolderError, StoreError, OSError."""
    path, loop = dirs.first.path / STORE, asyncio.get_running_loop()
    await loop.run_in_executor(None, _refuse_two, path, [log_dir.path for log_dir in dirs])
    past = await loop.run_in_executor(None, _Past.of, dirs)
    wrong = await loop.run_in_executor(None, _look, path, past, dirs.first.store_id, way)
    if not wrong:
        try:
            return await EmbeddedStore.open(path, checked=True)
        except (CorruptStoreError, StoreDiskError) as error:
            wrong = _cannot_be_used(error)
    if way is Way.REFUSE:
        raise FolderError(await loop.run_in_executor(None, _refusal, path, wrong, past))
    new_id = ""
    if way is Way.RESTORE:
        await loop.run_in_executor(None, _restore, path, wrong, past)
    else:
        await loop.run_in_executor(None, check_adoptable, dirs, most)  # Before the store and its backups are set aside.
        new_id = uuid_text(new_uuid())
        await loop.run_in_executor(None, _begin_again, path, wrong, past, dirs, new_id)
    return await EmbeddedStore.open(path, restored=way is Way.RESTORE, new_id=new_id)


def check_alone(dirs: LogDirs) -> None:
    """Raises FolderError if this broker is a member of a cluster: as a single node it would give epochs and offsets that the
    cluster gives, too."""
    for log_dir in dirs.online:
        if log_dir.folder is not None and log_dir.folder.member_of:
            raise FolderError(not_alone(log_dir.path, log_dir.folder.member_of))


def not_alone(path: Path, place: str) -> str:
    """Why a member's folder can't be used without its cluster: one sentence for the user, and what to do."""
    return (
        f"`{path}` belongs to a member of a cluster, whose metadata is at `{place}`, and `zookeeper.connect` isn't given: "
        f"start it with `--zookeeper {quoted(place)}`"
    )


def set_store_aside(dirs: LogDirs) -> None:
    """Give the store, which its broker needs no more, another name, and its backups, too. In a thread. Raises OSError."""
    path = dirs.first.path / STORE
    files = [path.with_name(f"{STORE}{suffix}") for suffix in ("-wal", "-shm", CHANGES)]
    _set_aside(path, [*backups.files([log_dir.path for log_dir in dirs.online]), *files, path])  # It comes last: see `grow`.


def _look(path: Path, past: _Past, named: str, way: Way) -> str:
    """What is wrong with the store, as a sentence; "" = it is sound, or this is the first start. Raises FolderError."""
    size_bytes = _size_bytes(path)
    if not size_bytes:
        if past.had_store:
            state = "missing" if size_bytes is None else "empty"
            return f"the metadata store `{path}` is {state}, but this broker had one"
        if way is Way.RESTORE:
            raise FolderError(f"there is no backup to restore: `{path.parent}` is the folder of a new broker")
        return ""
    try:
        found = check(path, changes=LastChange(path).read() or 0)
    except (CorruptStoreError, StoreDiskError) as error:
        return _cannot_be_used(error)
    if past.had_store and not found.has_topics:
        return f"the metadata store `{path}` holds nothing, but this broker had one with topics"
    if named and found.store_id != named:
        return (
            f"the metadata store `{path}` ({found.store_id or 'without an id'}) isn't the one that this broker had ({named}); "
            f"if it is the right one, take the line `{STORE_ID}={named}` out of `{path.with_name(META)}`"
        )
    ahead = backups.ahead(past.folders, found.store_id, found.changes) if found.store_id else None
    if ahead is not None:
        return (
            f"the metadata store `{path}` has lost its last {ahead.changes - found.changes} changes or more: it ends with "
            f"{found.changes}, and its backup `{ahead.path}` has {ahead.changes} (if the store is the right one, move that "
            "backup away)"
        )
    if found.has_topics and way is not Way.REFUSE:
        raise FolderError(f"the metadata store `{path}` is there and sound: start without `{way.value}`")
    return ""


def _cannot_be_used(error: CorruptStoreError | StoreDiskError) -> str:
    said = "" if isinstance(error, CorruptStoreError) else "can't be used: "
    return f"the metadata store {said}{error}"


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
        raise FolderError(f"`{others[0]}` {there}, `{path.parent}`, which holds one too: {way}; move the other one away")
    raise FolderError(f"`{others[0]}` {there}, `{path.parent}`, which holds none: {way}; if not, move it away")


def _refusal(path: Path, wrong: str, past: _Past) -> str:
    adopt = (
        "`--adopt-topics` makes a new one with the topics in the log folders, without their configs: retention and compaction "
        "are paused until you confirm these; quotas and SCRAM credentials are lost"
    )
    ours, others = past.split()
    if not ours:
        of_it = " of it" if others else ""
        return (
            f"{wrong}; there is no sound backup{of_it} beside it. Put a copy of yours there, or start once with an option: "
            f"{adopt}{past.others(others)}"
        )
    newest = ours[0]
    last = LastChange(path).read()
    lost = "how many changes it lacks is not known" if last is None else _lacks(last - newest.changes)
    age_s = max(0, round(time.time() - newest.written_s))
    return (
        f"{wrong}; there is the backup {newest} ({age_s} s old; {lost}). Start once with `--restore-metadata` to take it "
        f"(what is there now is set aside); or {adopt}{past.others(others)}"
    )


def _lacks(changes: int) -> str:
    return "it lacks nothing" if changes <= 0 else f"it lacks the last {changes} changes"


def _restore(path: Path, wrong: str, past: _Past) -> None:
    """Put the store's newest sound backup in its place. A crash in between leaves a store that is still refused."""
    ours, others = past.split()
    said = past.others(others)
    if not ours:
        where = ", ".join(f"`{folder}`" for folder in past.folders)
        raise FolderError(f"there is no sound backup of `{path}` in {where}{said}")
    _log.warning("%s: %s", Way.RESTORE.value, wrong)
    beside = path.with_name(BESIDE)
    beside.write_bytes(ours[0].path.read_bytes())
    with beside.open("rb") as copied:
        os.fsync(copied.fileno())
    failpoint(COPIED)
    _set_aside(path, (path, path.with_name(f"{STORE}-wal"), path.with_name(f"{STORE}-shm")))
    failpoint(SET_ASIDE)
    beside.replace(path)
    sync_folder(path.parent)
    failpoint(RESTORED)
    _log.warning("the metadata store was restored from %s%s", ours[0], said)


def _begin_again(path: Path, wrong: str, past: _Past, dirs: LogDirs, new_id: str) -> None:
    """Set aside all that there is of the old store, its backups too: those of the new one must not take their place. The
    folders name the new one from then on; a crash before it is there leaves one that is missing."""
    _log.warning("%s: %s", Way.ADOPT.value, wrong)
    beside = [path.with_name(f"{STORE}{suffix}") for suffix in ("", "-wal", "-shm", CHANGES)]
    _set_aside(path, [*beside, *backups.files(past.folders)])
    name_store(dirs, new_id)
    if dirs.first.store_id != new_id:
        raise FolderError(f"`{path.with_name(META)}` can't be written: see to its disk, and start again in the same way")
    failpoint(BEGUN)


def name_store(dirs: LogDirs, store_id: str) -> None:
    """Say in every folder that there is a store, and which one."""
    for log_dir in dirs.online:
        assert log_dir.folder is not None
        try:
            log_dir.folder.mark_store(store_id)
        except OSError as error:
            _log.warning("log_dir=%s: its `meta.properties` can't get the metadata store's id: %s", log_dir.path, error)


def _set_aside(path: Path, present: Sequence[Path]) -> None:
    """Give these files names of their own, by which SQLite still finds what belongs together. Raises OSError."""
    name = f"{STORE}.aside-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for file in present:
        if file.exists():
            aside = file.with_name(name + file.name.removeprefix(STORE))
            file.replace(aside)
            _log.warning("%s is now %s", file, aside)
    sync_folder(path.parent)
