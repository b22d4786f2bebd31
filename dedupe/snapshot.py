"""Snapshots of a store, taken while its worker runs: the database's files, linked, and what the ids belong to.

RocksDB never changes a file of ids once it is there, and its manifest, of which the beginning is a manifest too, says which
files make up the database. So a copy of the manifest with links to all files that are there afterwards is whole, unless a
file was merged or aged out in between: then opening it says so, and it is taken again. Each file says up to which output
offset it makes the store complete; the next start reads the rest from the output.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

from penstock.dedupe.folder import DATABASE, LAST_OUTPUT, OWNER, FolderError, StoreFolder, write_owner
from penstock.durable import sync_folder
from penstock.pyx.ids.store import IdStore, RocksError

TRIES = 5
PAUSE_S = 0.2
READING_BYTES = 1 << 30  # a store that is only read needs no bounds, but has them


def look(database: Path, tries: int = 1) -> IdStore:
    """A database as its files are now; with more tries also while a worker has it open. Raises RocksError."""
    while True:
        try:
            return IdStore(str(database), READING_BYTES, 1, read_only=True)
        except RocksError:
            tries -= 1
            if not tries:
                raise
        time.sleep(PAUSE_S)


def take(folder: StoreFolder, to: Path) -> int:
    """Take a snapshot into a folder that must not be there; the output offset that it is complete to.

    Raises FolderError, RocksError.
    """
    if not folder.database.exists():
        raise FolderError(f"`{folder.path}` has no database")
    if to.exists():
        raise FolderError(f"`{to}` is there already; each snapshot needs a folder of its own")
    partial = to.with_name(f"{to.name}.partial")
    tries = TRIES
    try:
        while True:
            shutil.rmtree(partial, ignore_errors=True)
            try:
                return _take(folder, partial, to)
            except (RocksError, FileNotFoundError):
                tries -= 1
                if not tries:
                    raise
            time.sleep(PAUSE_S)
    except OSError as error:
        raise FolderError(f"no snapshot of `{folder.path}` in `{to}`: {error.strerror}") from None


def _take(folder: StoreFolder, partial: Path, to: Path) -> int:
    ids = partial / DATABASE
    ids.mkdir(parents=True)
    shutil.copyfile(folder.path / OWNER, partial / OWNER)
    if (folder.path / LAST_OUTPUT).exists():
        shutil.copyfile(folder.path / LAST_OUTPUT, partial / LAST_OUTPUT)
    current = (folder.database / "CURRENT").read_text(encoding="utf-8")
    shutil.copyfile(folder.database / current.strip(), ids / current.strip())
    (ids / "CURRENT").write_text(current, encoding="utf-8")
    _link_files(folder.database, ids)
    store = look(ids)
    complete_to = store.kept_to
    store.close()
    _sync(partial)
    partial.rename(to)
    sync_folder(to.parent)
    return complete_to


def restore(folder: StoreFolder, snapshot: Path) -> int:
    """Put a snapshot in the place of a locked folder's database, which is set aside; the output offset that it is complete to.

    Raises FolderError, RocksError.
    """
    try:
        store = look(snapshot / DATABASE)
        complete_to = store.kept_to
        store.close()
        coming = folder.path / f"{DATABASE}.restored"
        shutil.rmtree(coming, ignore_errors=True)
        coming.mkdir(parents=True)
        for path in (snapshot / DATABASE).iterdir():
            if path.suffix != ".sst" and path.is_file():
                shutil.copyfile(path, coming / path.name)
        _link_files(snapshot / DATABASE, coming)
        _sync(coming)
        folder.set_aside()
        write_owner(folder.path, (snapshot / OWNER).read_text(encoding="utf-8"))
        if (snapshot / LAST_OUTPUT).exists():
            shutil.copyfile(snapshot / LAST_OUTPUT, folder.path / LAST_OUTPUT)
        coming.rename(folder.database)
        sync_folder(folder.path)
    except OSError as error:
        raise FolderError(f"`{snapshot}` can't be restored to `{folder.path}`: {error.strerror}") from None
    return complete_to


def _link_files(source: Path, target: Path) -> None:
    """Give a folder all files of ids; on another file system they are copied."""
    for path in source.glob("*.sst"):
        try:
            os.link(path, target / path.name)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
            shutil.copyfile(path, target / path.name)


def _sync(folder: Path) -> None:
    """Make a folder durable with all that is in it."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with (Path(parent) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))
